"""Receipts: their contents, reading them, and invalid ones."""

from __future__ import annotations

import copy
import json
import os
import sys
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from support.paths import FIXTURES
from support.stacks import Installed, machine, make_stack

from nvidia_variant_provider.errors import InputError, UsageError
from nvp.doctor.model import Stack
from nvp.doctor.receipts.document import check_target, to_text
from nvp.doctor.receipts.making import (
    Reasons,
    make_receipt,
    parse_reasons,
    read_receipt,
    receipt_of,
    record_hash,
)
from nvp.doctor.workloads import run_workloads

NOON = datetime(2026, 11, 22, 12, tzinfo=timezone.utc)
TORCH = Installed(
    name="torch",
    version="2.15.0+cu130",
    files={"torch/__init__.py": b"version = 2"},
    requires=["nvidia-cublas"],
)
CUBLAS = Installed(name="nvidia-cublas", version="13.4.1.3", files={"a.txt": b"a"})
NUMPY = Installed(name="numpy", version="2.4.0", files={"numpy.py": b""})


@pytest.fixture
def stack(tmp_path: Path) -> Stack:
    return make_stack(
        tmp_path / "env",
        TORCH,
        CUBLAS,
        NUMPY,
        environment=machine("13.0", "9.0"),
        environ={
            "PATH": os.environ["PATH"],
            "TRITON_PTXAS_PATH": "/usr/local/cuda/bin/ptxas",
            "HF_TOKEN": "hf_secret",
            "MY_SETTING": "1",
        },
    )


def texts(stack: Stack, **arguments: Any) -> dict[str, Any]:
    return dict(make_receipt(stack, now=NOON, **arguments))


def test_a_receipt_holds_the_stack(
    stack: Stack, receipt_schema: Draft202012Validator
) -> None:
    reasons = parse_reasons(
        ["torch=the last for CUDA 13", "=x=5 fails", "for training"], stack
    )
    receipt = texts(stack, reasons=reasons, toolchain={"nvcc": "13.0"})
    receipt_schema.validate(receipt)
    assert receipt["made_at"] == "2026-11-22T12:00:00Z"
    assert receipt["reasons"] == ["x=5 fails", "for training"]
    assert receipt["environment"]["cuda_driver_version"] == "13.0"
    torch = {item["name"]: item for item in receipt["distributions"]}["torch"]
    assert (torch["version"], torch["label"]) == ("2.15.0+cu130", "cu130")
    assert torch["reason"] == "the last for CUDA 13"
    assert [item["name"] for item in receipt["distributions"]] == [
        "nvidia-cublas",
        "torch",
    ]
    assert receipt["toolchain"] == {"nvcc": "13.0"}
    assert receipt["abi"] is None, "this torch has no libraries"


def test_only_named_variables_are_recorded(stack: Stack) -> None:
    receipt = texts(stack, reasons=parse_reasons(["MY_SETTING=it is faster"], stack))
    assert receipt["overrides"] == [
        {"name": "MY_SETTING", "value": "1", "reason": "it is faster"},
        {
            "name": "TRITON_PTXAS_PATH",
            "value": "/usr/local/cuda/bin/ptxas",
            "reason": None,
        },
    ]
    assert "secret" not in json.dumps(receipt)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("trch=newer", "'trch' is neither a distribution"),
        ("MISSING=x", "'MISSING' is neither a distribution"),
        ("HF_TOKEN=needed", "may be a secret"),
        ("torch=", "gives no reason"),
        ("", "gives no reason"),
        ("=", "gives no reason"),
    ],
)
def test_a_reason_that_is_refused(stack: Stack, text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_reasons([text], stack)


def test_names_are_normalized(stack: Stack) -> None:
    reasons = parse_reasons(["Nvidia_cuBLAS=why"], stack)
    assert reasons == Reasons(of={"nvidia-cublas": "why"})


def test_a_distribution_with_a_reason_is_recorded(stack: Stack) -> None:
    receipt = texts(stack, reasons=parse_reasons(["numpy=1.x breaks"], stack))
    assert "numpy" in [item["name"] for item in receipt["distributions"]]


def test_the_label_of_a_variant(tmp_path: Path) -> None:
    document = json.loads(
        (FIXTURES / "variants-json" / "torch-2.9.1-variants.json").read_text()
    )
    document["variants"] = {"cu126": document["variants"]["cu126"]}
    stack = make_stack(tmp_path, replace(TORCH, version="2.9.1", variant=document))
    (item,) = texts(stack)["distributions"]
    assert item["label"] == "cu126"


def test_two_installations_of_one_wheel_have_one_hash(tmp_path: Path) -> None:
    def hash_in(folder: str, *rows: str, data: bytes = b"1") -> str | None:
        installed = Installed(name="demo", files={"demo.py": data})
        stack = make_stack(tmp_path / folder, installed)
        record = Path(stack.distributions["demo"].folder, "RECORD")
        record.write_text("".join([record.read_text(), *(f"{row}\n" for row in rows)]))
        stack = make_stack(tmp_path / folder)
        return record_hash(stack.distributions["demo"])

    plain = hash_in("a")
    assert plain is not None
    assert plain == hash_in(
        "b",
        "demo-1.0.dist-info/INSTALLER,sha256=abc,4",
        "demo-1.0.dist-info/direct_url.json,sha256=def,40",
        "../../../bin/demo,sha256=ghi,200",
        "__pycache__/demo.cpython-311.pyc,,",
    )
    assert plain != hash_in("c", "more.py,sha256=xyz,1")
    assert plain != hash_in("d", data=b"2")


def test_a_distribution_without_record_has_no_hash(tmp_path: Path) -> None:
    stack = make_stack(tmp_path, replace(TORCH, recorded=False))
    (item,) = texts(stack)["distributions"]
    assert item["record"] is None


def test_reasons_are_kept_while_the_version_is_the_same(
    stack: Stack, tmp_path: Path
) -> None:
    given = ["torch=pinned", "TRITON_PTXAS_PATH=knows 12.1", "for training"]
    earlier = texts(stack, reasons=parse_reasons(given, stack))
    again = texts(stack, earlier=earlier)
    assert again["reasons"] == ["for training"]
    assert [item["reason"] for item in again["distributions"]] == [None, "pinned"]
    assert again["overrides"][0]["reason"] == "knows 12.1"
    newer = make_stack(tmp_path / "newer", replace(TORCH, version="2.16.0+cu130"))
    (item,) = texts(newer, earlier=earlier)["distributions"]
    assert item["reason"] is None


def test_reasons_of_a_stranger_are_cut(stack: Stack) -> None:
    """A reason of 8 MiB took 1.3 GB as Markdown."""
    long = "\x7f" * 100_000
    earlier = texts(stack)
    for item in (*earlier["distributions"], *earlier["overrides"]):
        item["reason"] = long
    again = texts(stack, earlier={**earlier, "reasons": [long] * 1_000})
    assert max(len(x["reason"]) for x in again["distributions"]) <= 2_000
    assert max(len(x["reason"]) for x in again["overrides"]) <= 2_000
    assert sum(map(len, again["reasons"])) <= 200_000


def test_a_receipt_has_no_password_of_a_variable(stack: Stack) -> None:
    urls = {
        "MY_SETTING": "https://user:hunter2@host/simple",
        "XLA_FLAGS": "--a=1 --xla_dump_to=http://user:hunter2@host/x?token=hunter2",
    }
    stack = replace(stack, environ={**stack.environ, **urls})
    reasons = parse_reasons(["MY_SETTING=x", "XLA_FLAGS=y"], stack)
    receipt = texts(stack, reasons=reasons)
    assert "hunter2" not in json.dumps(receipt)
    # The reason is kept, because the variable is as it was.
    again = texts(stack, earlier=receipt)["overrides"]
    assert [x["reason"] for x in again if x["name"] == "XLA_FLAGS"] == ["y"]


def test_receipts_round_trip(
    stack: Stack, tmp_path: Path, receipt_schema: Draft202012Validator
) -> None:
    workloads = run_workloads({"no-such-program": 1.0}, stack)
    receipt = texts(stack, workloads=workloads)
    path = tmp_path / "r.json"
    path.write_text(to_text(receipt, str(path)), encoding="utf-8")
    assert read_receipt(str(path)) == receipt
    receipt_schema.validate(receipt)
    assert "last_lines" not in receipt["workloads"][0]


def test_a_command_that_is_no_utf_8(stack: Stack, tmp_path: Path) -> None:
    command = "no-such-program caf\udce9 é \n"
    receipt = texts(stack, workloads=run_workloads({command: 1.0}, stack))
    for name in ("r.json", "r.md"):
        (tmp_path / name).write_text(to_text(receipt, name), encoding="utf-8")
    again = read_receipt(str(tmp_path / "r.json"))
    assert again["workloads"][0]["command"] == command
    assert "no-such-program caf\\\\udce9 é \\\\n |" in (tmp_path / "r.md").read_text()


def test_the_report_of_doctor_is_read_as_well(stack: Stack) -> None:
    receipt = texts(stack)
    assert receipt_of({"command": "doctor", "data": {"receipt": receipt}}) == receipt


def test_markdown_for_people(stack: Stack) -> None:
    reasons = parse_reasons(["torch=a | b <script>", "TRITON_PTXAS_PATH=new"], stack)
    text = to_text(texts(stack, reasons=reasons), "r.MD")
    assert "| torch | 2.15.0+cu130 | cu130 |" in text
    assert "a \\| b &lt;script&gt; |" in text
    assert "| TRITON\\_PTXAS\\_PATH | /usr/local/cuda/bin/ptxas | new |" in text


@pytest.mark.parametrize("start", ["", "  ", ":"])
def test_no_line_is_a_command_of_a_ci_service(start: str, stack: Stack) -> None:
    receipt = {**texts(stack), "reasons": [f"{start}::error::x"]}
    lines = [line.strip() for line in to_text(receipt, "r.md").splitlines()]
    assert not [line for line in lines if line.startswith("::")]
    assert [line for line in lines if line.endswith(r"error\::x")]


def test_a_text_notifies_nobody(stack: Stack) -> None:
    receipt = {**texts(stack), "reasons": ["as @octocat and _@org/team_ said"]}
    text = to_text(receipt, "r.md")
    assert r"as @<!-- -->octocat and \_@<!-- -->org/team\_ said" in text


class TestRefused:
    @pytest.fixture
    def receipt(self, stack: Stack) -> dict[str, Any]:
        return texts(stack, workloads=run_workloads({"no-such-program": 1.0}, stack))

    def refusal(self, tmp_path: Path, text: str | bytes) -> InputError:
        path = tmp_path / "receipt.json"
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        with pytest.raises(InputError) as error:
            read_receipt(str(path))
        assert error.value.exit_code == 3
        assert "\n" not in str(error.value)
        assert str(path) in str(error.value)
        return error.value

    def test_a_later_version(self, tmp_path: Path, receipt: dict[str, Any]) -> None:
        error = self.refusal(tmp_path, json.dumps({**receipt, "receipt_version": 2}))
        assert error.message == "version 2 of receipts is not known"
        assert error.hint == "upgrade nvp"

    @pytest.mark.parametrize(
        "text",
        [b"", b"{", b"[]", b"{}", b"null", b"# Receipt of a GPU stack", b"\xff\xfe{"],
    )
    def test_another_kind_of_file(self, tmp_path: Path, text: bytes) -> None:
        self.refusal(tmp_path, text)

    def test_a_report_without_a_receipt(self, tmp_path: Path) -> None:
        report = {"command": "doctor", "data": {"receipt": None}}
        assert self.refusal(tmp_path, json.dumps(report)).message == "not a receipt"

    def test_a_missing_file(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="cannot be read"):
            read_receipt(str(tmp_path / "none.json"))

    @pytest.mark.parametrize(
        ("keys", "value", "place"),
        [
            (("environment",), None, "environment"),
            (("environment", "gpus"), 5, "environment.gpus"),
            (("distributions", 0, "version"), 1, "distributions[0].version"),
            (("workloads", 0, "totals", "fallbacks"), "x", "workloads[0].totals."),
            (("workloads", 0, "seconds"), None, "workloads[0].seconds"),
            (("workloads", 0, "deadline"), 0, "workloads[0].deadline"),
            (("workloads", 0, "deadline"), 1e300, "workloads[0].deadline"),
            (("receipt_version",), True, "receipt_version"),
            (("python",), [], "python"),
        ],
    )
    def test_a_value_of_another_kind(
        self,
        tmp_path: Path,
        receipt: dict[str, Any],
        keys: tuple[str | int, ...],
        value: object,
        place: str,
    ) -> None:
        damaged = copy.deepcopy(receipt)
        target: Any = damaged
        for key in keys[:-1]:
            target = target[key]
        target[keys[-1]] = value
        assert place in str(self.refusal(tmp_path, json.dumps(damaged)))

    def test_each_key_is_needed(self, tmp_path: Path, receipt: dict[str, Any]) -> None:
        for key in receipt:
            rest = {name: value for name, value in receipt.items() if name != key}
            self.refusal(tmp_path, json.dumps(rest))


TEXT = st.text("ab|\n", max_size=3)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3)
    ),
    max_leaves=8,
)


@given(
    st.dictionaries(
        st.sampled_from(
            ["environment", "python", "distributions", "workloads", "live", "abi"]
        ),
        JSON,
    )
)
def test_any_document_is_read_or_refused(changes: dict[str, Any]) -> None:
    receipt = {
        "receipt_version": 1,
        "made_by": "x",
        "made_at": "x",
        "reasons": [],
        "environment": {"cuda_driver_version": None, "gpus": []},
        "python": {"version": None, "prefix": ""},
        "distributions": [],
        "overrides": [],
        "triton": None,
        "abi": None,
        "toolchain": {},
        "live": None,
        "findings": [],
        "workloads": [],
    }
    assert receipt_of(receipt) == receipt
    try:
        text = to_text(receipt_of({**receipt, **changes}), "a.md")
    except InputError:
        return
    assert text.startswith("# Receipt")


class TestTarget:
    @pytest.mark.parametrize("name", ["receipt", "receipt.txt", ".", ""])
    def test_a_name_without_a_form(self, name: str) -> None:
        with pytest.raises(UsageError, match="has no known ending"):
            check_target(name)

    def test_a_folder_that_is_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="no such directory"):
            check_target(str(tmp_path / "none" / "r.json"))

    def test_a_folder_of_that_name(self, tmp_path: Path) -> None:
        (tmp_path / "r.json").mkdir()
        with pytest.raises(InputError, match="not a file"):
            check_target(str(tmp_path / "r.json"))

    def test_a_name_with_a_nul_byte(self) -> None:
        with pytest.raises(InputError, match="not a file"):
            check_target("a\0b.json")

    @pytest.mark.skipif(sys.platform == "win32", reason="needs devices and links")
    def test_a_link_to_a_device(self, tmp_path: Path) -> None:
        (tmp_path / "r.json").symlink_to("/dev/full")
        with pytest.raises(InputError, match="not a file"):
            check_target(str(tmp_path / "r.json"))


def test_a_receipt_of_a_gigabyte(tmp_path: Path) -> None:
    with (tmp_path / "r.json").open("wb") as file:
        file.truncate(1 << 30)
    with pytest.raises(InputError, match="larger than 8 MiB") as caught:
        read_receipt(str(tmp_path / "r.json"))
    assert "receipt" in str(caught.value.hint)
