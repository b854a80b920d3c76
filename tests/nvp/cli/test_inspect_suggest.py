"""``inspect --suggest``: one JSON document for each wheel, and the next step."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

from jsonschema import Draft202012Validator
from support.command import Run
from support.containers import BINARIES, library
from support.wheels import stub_wheel

COMMAND = "inspect"
PLAIN = (BINARIES / "plain.so").read_bytes()


def gpu_wheel(folder: Path, **libraries: bytes) -> Path:
    members = {f"demo/{name}.so": data for name, data in libraries.items()}
    tag = "cp311-cp311-linux_x86_64"
    return stub_wheel(folder, "demo", "1.0", tag=tag, members=members)


def test_nothing_is_suggested_for_half_a_wheel(
    run: Run, tmp_path: Path, report_schema: Draft202012Validator
) -> None:
    """People run the command as printed, so it must be complete."""
    path = gpu_wheel(tmp_path, plain=PLAIN, cut=library("90_real", "80_real")[:-9])
    outcome = run(path, "--suggest")
    assert (outcome.code, outcome.out, outcome.err.count("\n")) == (3, "", 1)
    assert "cannot suggest anything: demo/cut.so: 0x40: " in outcome.err
    text = run(path)
    assert text.code == 0
    assert "Some of it could not be read. By the rest" in text.out
    assert "\nIt could declare:" not in text.out
    whole = run(path, "--json")
    report_schema.validate(json.loads(whole.out))
    assert whole.data["files"][0]["claim"]["complete"] is False
    # Defects of vendored libraries do not count.
    path = gpu_wheel(tmp_path / "other", plain=PLAIN)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("demo.libs/libcut.so", PLAIN[:-3000])
    assert run(path, "--suggest").code == 0
    (file,) = run(path, "--json").data["files"]
    assert file["claim"]["complete"] is True


def test_nothing_is_suggested_without_gpu_code(run: Run, tmp_path: Path) -> None:
    path = gpu_wheel(tmp_path, host=library())
    outcome = run(path, "--suggest", "--json")
    assert outcome.data["files"][0]["suggestion"] is None
    text = run(path, "--suggest")
    assert (text.code, text.out) == (0, "")
    assert (
        text.err
        == f"{path}: it has no GPU code of its own that properties could name\n"
    )


def test_stdout_has_json_alone(
    run: Run, tmp_path: Path, report_schema: Draft202012Validator
) -> None:
    paths = [
        gpu_wheel(tmp_path / "a", plain=PLAIN),
        gpu_wheel(tmp_path / "b", host=library()),
        gpu_wheel(tmp_path / "c", old=library("80_real")),
    ]
    text = run("--suggest", *paths)
    decoder, documents, rest = json.JSONDecoder(), [], text.out
    while rest := rest.strip():
        document, end = decoder.raw_decode(rest)
        documents.append(document)
        rest = rest[end:]
    whole = run("--suggest", "--json", *paths)
    report_schema.validate(json.loads(whole.out))
    assert whole.err == ""
    suggestions = [item["suggestion"] for item in whole.data["files"]]
    assert documents == [s["variant_json"] for s in suggestions if s]
    for suggestion in filter(None, suggestions):
        assert f"  {suggestion['command']}\n" in text.err
        assert f"  {suggestion['install']}\n" in text.err
        assert suggestion["pyproject"].splitlines()[0] in text.err


def test_relaxed(run: Run, tmp_path: Path) -> None:
    path = gpu_wheel(tmp_path, plain=PLAIN)
    outcome = run("--suggest", "--relaxed", path)
    (features,) = json.loads(outcome.out)["variants"].values()
    assert features == {
        "nvidia": {
            "cuda_version_lower_bound": ["13.0"],
            # The PTX is from CUDA 13.5, and drivers for 13.0 refuse it.
            "sm_arch": ["75_real", "80_real", "90_real"],
        }
    }
    assert "--variant-label cu135 " in outcome.err
    only_ptx = BINARIES / "ptx-only.so"
    refused = run("--suggest", "--relaxed", only_ptx)
    assert (refused.code, refused.out) == (0, "")
    assert f"{only_ptx}: there is no looser bound: some GPUs rely on" in refused.err
    alone = run("--relaxed", path)
    assert (alone.code, alone.out) == (2, "")
    assert "give --suggest too" in alone.err
