"""A defect of an inventory is reported in one line, with the expected form."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvidia_variant_provider.errors import InputError
from nvp import api
from nvp.inventories import clusters, reading

pytest.importorskip("yaml", reason="it reads YAML")

LABEL = "nvidia.com/"


def node(name: str, **labels: str) -> dict[str, Any]:
    full = {LABEL + key.replace("__", "."): value for key, value in labels.items()}
    return {"kind": "Node", "metadata": {"name": name, "labels": full}}


def gpu_node(name: str, **labels: str) -> dict[str, Any]:
    capability = {"gpu__compute__major": "9", "gpu__compute__minor": "0"}
    return node(name, **{**capability, **labels})


def items(*listed: object) -> str:
    return json.dumps({"apiVersion": "v1", "items": listed})


XML = "<!DOCTYPE nvidia_smi_log {}>\n<nvidia_smi_log></nvidia_smi_log>"
LARGE = "a" * 8 * 1024 * 1024
CASES: dict[str, tuple[str | bytes, str]] = {
    "nothing": ("", "this is not an inventory"),
    "text": ("hello\n", "this is not an inventory"),
    "binary": (b"\x7fELF\xff\xfe", "this is not an inventory"),
    "an object": ('{"variants": {}}', "this is not an inventory"),
    "a list": ("[1, 2]", "this is not an inventory"),
    "pods": (items({"kind": "Pod"}), "this is not an inventory"),
    "an empty list": (items(), "no machine with an NVIDIA GPU"),
    "no GPU node": (items(node("a")), "no machine with an NVIDIA GPU"),
    "one node without GPU": (json.dumps(node("a")), "no machine with an NVIDIA GPU"),
    "cut JSON": (items(gpu_node("a"))[:-2], "not valid JSON"),
    "deep JSON": ("[" * 100_000, "not valid JSON: it is nested too deeply"),
    "not a version": (
        items(gpu_node("a", gpu__compute__major="nine")),
        "'nine' is not a number",
    ),
    "a long line": (
        f'DCGM_FI_DEV_CUDA_COMPUTE_CAPABILITY{{gpu="{"a" * 20_000}"}} 589824\n',
        "a line has 20,0",
    ),
    "two of a name": (items(gpu_node("a"), gpu_node("a")), "have the name 'a'"),
    "a long name": (items(gpu_node("a" * 601)), "the name of a machine has 601 char"),
    "another report": (
        '{"schema_version": 1, "command": "resolve"}',
        "not the report of detect",
    ),
    "HTML": ("<html></html>", "this is <html>, not <nvidia_smi_log>"),
    "cut XML": ("<nvidia_smi_log><gpu>", "not well-formed XML"),
    "deep XML": ("<nvidia_smi_log>" + "<a>" * 100, "nested too deeply"),
    "another document type": (
        XML.format('SYSTEM "file:///etc/passwd"'),
        "a document type of its own",
    ),
    "an entity": (XML.format('[<!ENTITY a "b">]'), "a document type of its own"),
    "bad version in XML": (
        "<nvidia_smi_log><cuda_version>new</cuda_version></nvidia_smi_log>",
        "'new' is not a CUDA version",
    ),
    "bad capability in CSV": (
        "name, compute_cap\nL4, 8\n",
        "'8' is not a compute capability",
    ),
    "metrics of something else": (
        "# HELP DCGM_FI_DEV_SM_CLOCK x\nDCGM_FI_DEV_SM_CLOCK 3\n",
        "neither DCGM_FI_CUDA_DRIVER_VERSION",
    ),
    "a metric that is no number": (
        'DCGM_FI_CUDA_DRIVER_VERSION{gpu="0"} NaN\n',
        "'NaN' is not a whole number",
    ),
    "bad YAML": ("apiVersion: v1\nitems: [\n", "not valid YAML"),
    "a YAML tag": (
        "apiVersion: !!python/object/apply:os.system [id]\n",
        "this is not an inventory",
    ),
    "an alias that stands for billions": (
        "apiVersion: v1\na0: &a0 [x, x]\n"
        + "".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n" for i in range(1, 40)),
        "not YAML of Kubernetes: it has an alias",
    ),
    "merged mappings that stand for billions": (
        "apiVersion: v1\nm0: &m0 {a: b}\n"
        + "".join(
            f"m{i}: &m{i} {{<<: [*m{i - 1}, *m{i - 1}]}}\n" for i in range(1, 40)
        ),
        "not YAML of Kubernetes: it has an alias",
    ),
    "YAML of empty mappings": (
        f"apiVersion: v1\nitems: [{'{},' * 300_000}]\n",
        "it has too many or too deep values",
    ),
    "deep YAML": (
        # libyaml would take 45 seconds for 150 kB.
        "apiVersion: v1\nx: " + "[" * 10_000 + "]" * 10_000,
        "it has too many or too deep values",
    ),
    "deep YAML mappings": (
        "apiVersion: v1\nx: " + "{a: " * 10_000,
        "it has too many or too deep values",
    ),
    "many texts in YAML": (
        "apiVersion: v1\nitems:\n" + "- \n" * 700_000,
        "it has too many or too deep values",
    ),
    "YAML with directives": ("# apiVersion:\n%TAG !a! b\n---\n", "it has a directive"),
    "JSON of empty objects": (f"[{'{},' * 600_000}{{}}]", "has too many values"),
    "a large machine in JSON": (
        f'{{"gpus": "{LARGE}"}}',
        "about one machine, and",
    ),
    "a large machine in XML": (f"<a>{LARGE}</a>", "about one machine, and larger than"),
    "a large machine in CSV": (f"compute_cap\n{LARGE}", "about one machine, and"),
    "a key that is a list": (
        "apiVersion: v1\n[a]: b\n",
        "it has a key that is no text",
    ),
    "an unknown encoding": (
        '<?xml version="1.0" encoding="nope"?><nvidia_smi_log></nvidia_smi_log>',
        "cannot be read as XML: unknown encoding",
    ),
    "an entity that nothing declares": (
        XML.format('SYSTEM "nvsmi_device_v12.dtd"').replace("></", ">&x;</"),
        "it has an entity",
    ),
    "not UTF-16": (b"\xff\xfe{\x00\x00\xd8", "not UTF-16, although"),
    "CSV in another encoding": (
        b"name, compute_cap\nT\xe9sla, 8.9\n" + b" " * 2**20,
        "this is not an inventory",
    ),
    "another YAML": ("apiVersion: v1\nkind: Pod\n", "this is not an inventory"),
    "pixi": ('{"virtual_packages": ["__cuda=new=0"]}', "'new' is not a CUDA version"),
}


@pytest.mark.parametrize("name", CASES)
def test_the_error_says_what_was_expected(name: str, tmp_path: Path) -> None:
    content, expected = CASES[name]
    path = tmp_path / "inventory"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError) as caught:
        api.read_machines(path)
    assert expected in caught.value.message
    assert caught.value.path == str(path)
    assert caught.value.hint
    assert "\n" not in str(caught.value)


def test_a_file_without_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "_LONGEST", 1000)
    path = tmp_path / "nodes.json"
    path.write_text(items(*(gpu_node(str(number)) for number in range(100))))
    with pytest.raises(InputError, match="larger than"):
        api.read_machines(path)


@pytest.mark.parametrize("path", ["missing", "no\0path", "/dev"])
def test_a_file_that_cannot_be_read(path: str) -> None:
    with pytest.raises(InputError, match="cannot be read") as caught:
        api.read_machines(path)
    # Users who copy an example do not have the file yet.
    assert ("nvp detect --json, or" in str(caught.value)) == (path == "missing")


def test_closed_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(InputError) as caught:
        api.read_machines("-")
    assert str(caught.value) == ("standard input: cannot be read: closed; name a file")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda children: (
        st.lists(children, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    *(
                        "kind",
                        "metadata",
                        "labels",
                        "name",
                        "spec",
                        "devices",
                        "attributes",
                    ),
                    *("nodeName", "driver", "pool", "basic", "version", "generation"),
                    *("Machine", "GPUs_Capability", "GPUs_GPU_1", "GPUs_DriverVersion"),
                    *("nvidia.com/gpu.compute.major", "nvidia.com/gpu.count", "status"),
                ]
            ),
            children,
            max_size=4,
        )
    ),
    max_leaves=20,
)


@given(st.lists(JSON, max_size=4))
def test_no_element_of_a_list_makes_a_reader_fail(listed: list[Any]) -> None:
    objects = [item for item in listed if isinstance(item, dict)]
    for read in (clusters.read_objects, clusters.read_slots):
        try:
            machines = list(read(iter(objects)))
        except InputError:
            continue
        assert all(machine.name for machine in machines)


def test_a_label_that_is_a_number_in_yaml_is_read_as_a_text(tmp_path: Path) -> None:
    path = tmp_path / "node.yaml"
    path.write_text(
        "apiVersion: v1\nkind: Node\nmetadata:\n  name: a\n  labels:\n"
        "    7: x\n    null: y\n    nvidia.com/cuda.runtime-version.major: 12\n"
        "    nvidia.com/cuda.runtime-version.minor: 10\n"
    )
    (machine,) = api.read_machines(path)
    assert str(machine.environment.cuda_driver_version) == "12.10"


def test_a_document_of_one_large_node(tmp_path: Path) -> None:
    # etcd stores objects of 1.5 MiB, which are longer with the indents of kubectl.
    path = tmp_path / "node.json"
    path.write_text(json.dumps(gpu_node("a", other="x" * 3_000_000)))
    assert [machine.name for machine in api.read_machines(path)] == ["a"]
