"""The command ``upgrade`` on files and on directories with wheels."""

from __future__ import annotations

import io
import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from support.command import Outcome, Run
from support.documents import PROVIDER, TORCH, document, nvidia, of_one
from support.variantlib_peer import run_command
from support.wheels import stub_wheel

COMMAND = "upgrade"

HOST = "https://variants-schema.wheelnext.dev"


@pytest.fixture
def tutorial(fixtures: Path) -> Path:
    return fixtures / "variants-json" / "torch-2.8.0-variants.json"


@pytest.fixture
def current(fixtures: Path) -> Path:
    return fixtures / "variants-json" / "torch-2.9.1-variants.json"


class TestFile:
    def test_document_goes_to_stdout_and_remarks_to_stderr(
        self, run: Run, tutorial: Path
    ) -> None:
        outcome = run(tutorial)
        assert outcome.code == 1
        assert json.loads(outcome.out)["$schema"] == f"{HOST}/v0.2.0.json"
        assert outcome.out.endswith("}\n")
        enable_if, null, wheels = outcome.err.splitlines()
        assert enable_if.startswith(f"warning: {tutorial}: providers.nvidia.enable-if")
        assert "variants.00000000: the null variant is now spelled null" in null
        assert "build the wheels again" in wheels

    def test_exit_code_is_0_when_nothing_is_lost(self, run: Run, current: Path) -> None:
        outcome = run(current, "--to", "0.2.0")
        assert (outcome.code, outcome.err) == (0, "")
        assert json.loads(outcome.out) == json.loads(current.read_bytes())

    @pytest.mark.parametrize("kind", ["a string", "a number", "a list", "null"])
    def test_a_document_that_is_no_object_is_not_taken_for_a_path(
        self, run: Run, current: Path, tmp_path: Path, kind: str
    ) -> None:
        value = {"a string": str(current), "a number": 0, "a list": []}.get(kind)
        path = tmp_path / "demo-1.0-variants.json"
        path.write_text(json.dumps(value))
        outcome = run(path)
        assert (outcome.code, outcome.out) == (3, "")
        message = f"top level: expected an object, found {kind}; correct the type"
        assert outcome.err == f"error: {path}: {message}\n"

    def test_output_file_may_be_the_input_file(
        self, run: Run, tutorial: Path, tmp_path: Path
    ) -> None:
        text = run(tutorial).out
        out = tmp_path / "torch-2.8.0-variants.json"
        outcome = run(tutorial, "-o", out)
        assert (outcome.code, outcome.out) == (
            1,
            f"{out}: from version 0.0.1 to 0.2.0\nNext: nvp validate {out}\n",
        )
        assert out.read_text() == text
        # The second run replaces the file with the same content.
        assert run(out, "-o", out).code == 0
        assert out.read_text() == text
        assert os.listdir(tmp_path) == [out.name]

    @pytest.mark.skipif(sys.platform == "win32", reason="permissions of POSIX")
    def test_permissions_and_links_stay(
        self, run: Run, tutorial: Path, tmp_path: Path
    ) -> None:
        target, link = tmp_path / "target", tmp_path / "link"
        target.write_text("old")
        target.chmod(0o640)
        link.symlink_to(target)
        run(tutorial, "-o", link)
        assert link.is_symlink()
        assert stat.S_IMODE(target.stat().st_mode) == 0o640
        assert json.loads(target.read_bytes())["variants"]["null"] == {}

    def test_json_report_has_the_remarks(self, run: Run, tutorial: Path) -> None:
        data = run(tutorial, "--json").data
        assert data["document"] == json.loads(run(tutorial).out)
        (file,) = data["files"]
        assert {key: file[key] for key in ("path", "from", "to", "changed")} == {
            "path": str(tutorial),
            "from": "0.0.1",
            "to": "0.2.0",
            "changed": True,
        }
        assert [len(file[k]) for k in ("losses", "notes", "problems")] == [2, 1, 0]
        keys = {"place", "message", "hint", "reorders"}
        assert all(remark.keys() == keys for remark in file["losses"])

    def test_stdin(
        self, run: Run, tutorial: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        stdin = io.TextIOWrapper(io.BytesIO(tutorial.read_bytes()))
        monkeypatch.setattr(sys, "stdin", stdin)
        assert json.loads(run("-").out)["variants"]["null"] == {}

    def test_nothing_is_written_when_there_is_a_problem(
        self, run: Run, tmp_path: Path
    ) -> None:
        source = document({"v3": {"x86_64": {"level": ["v3"]}}}, namespaces=["x86_64"])
        path, out = tmp_path / "a-1-variants.json", tmp_path / "out"
        path.write_text(json.dumps(source | {"providers": {}}))
        outcome = run(path, "-o", out)
        assert (outcome.code, outcome.out, out.exists()) == (1, "", False)
        first, last = outcome.err.splitlines()
        assert "providers.x86_64: the namespace has no provider" in first
        assert last.endswith("nothing was written")
        assert run(path, "--json").data["files"][0]["to"] is None

    @pytest.mark.parametrize(
        ("arguments", "code"),
        [
            (["missing-1-variants.json"], 3),
            (["missing-1-variants.json", "--to", "0.1.1"], 2),
            (["."], 2),
            ([".", "--index", "-o", "x"], 2),
            (["missing", "--index"], 3),
            ([".", "--index"], 3),
        ],
    )
    def test_errors_are_one_line(
        self, arguments: list[str], code: int, run: Run
    ) -> None:
        outcome = run(*arguments)
        assert (outcome.code, outcome.out) == (code, "")
        assert outcome.err.startswith("error: ")
        assert len(outcome.err.splitlines()) == 1

    def test_output_that_cannot_be_written_is_an_error(
        self, run: Run, tutorial: Path, tmp_path: Path
    ) -> None:
        for out in (tmp_path / "missing" / "x", tmp_path):
            outcome = run(tutorial, "-o", out)
            assert outcome.code == 3
            assert outcome.err.startswith(f"error: {out}: cannot be written: ")
        assert not list(tmp_path.iterdir())


def wheels(folder: Path, release: Mapping[str, Any], **options: Any) -> list[Path]:
    """Write a wheel of version 2.9 for each label of ``release``."""
    return [
        stub_wheel(
            folder,
            "torch",
            "2.9",
            label,
            variant_json={**release, "variants": {label: properties}},
            **options,
        )
        for label, properties in release["variants"].items()
    ]


def rebuilt(folder: Path) -> Any:
    return json.loads((folder / "torch-2.9-variants.json").read_bytes())


class TestIndex:
    def test_missing_file_is_made_from_the_wheels(
        self, run: Run, tmp_path: Path
    ) -> None:
        wheels(tmp_path, TORCH)
        stub_wheel(tmp_path, "torch", "2.9")
        outcome = run("--index", tmp_path)
        path = tmp_path / "torch-2.9-variants.json"
        line = f"{path}: made from the wheels, in version 0.2.0\n"
        following = f"Next: nvp validate {tmp_path}\n"
        assert outcome == Outcome(0, f"{line}{following}", "")
        data = path.read_bytes()
        assert json.loads(data) == TORCH
        again = f"{path}: already in version 0.2.0\n{following}"
        assert run(tmp_path, "--index").out == again
        # variantlib makes the same file from these wheels.
        path.unlink()
        run_command("generate-index-json", "-d", str(tmp_path))
        assert path.read_bytes() + b"\n" == data

    def test_platforms_of_the_wheels_do_not_change_the_file(
        self, run: Run, tmp_path: Path
    ) -> None:
        wheels(tmp_path, TORCH, tag="cp312-cp312-linux_x86_64")
        run("--index", tmp_path)
        data = (tmp_path / "torch-2.9-variants.json").read_bytes()
        wheels(tmp_path, TORCH, tag="cp310-cp310-win_amd64")
        assert run("--index", tmp_path).code == 0
        assert (tmp_path / "torch-2.9-variants.json").read_bytes() == data

    def test_files_without_wheels_are_upgraded(
        self, run: Run, tutorial: Path, tmp_path: Path
    ) -> None:
        (tmp_path / tutorial.name).write_bytes(tutorial.read_bytes())
        (tmp_path / "torch-2.8.0-py3-none-any.whl").write_bytes(b"not looked at")
        outcome = run("--index", tmp_path, "--json")
        assert (outcome.code, len(outcome.data["files"])) == (1, 1)
        assert outcome.data["document"] is None
        text = (tmp_path / tutorial.name).read_text()
        assert text == run(tutorial).out
        assert run("--index", tmp_path).code == 0

    def test_metadata_of_old_wheels_is_upgraded(
        self, run: Run, tutorial: Path, tmp_path: Path
    ) -> None:
        wheels(tmp_path, json.loads(tutorial.read_bytes()))
        outcome = run("--index", tmp_path, "--json")
        assert outcome.code == 1
        (file,) = outcome.data["files"]
        assert [loss["place"] for loss in file["losses"]] == [
            "providers.nvidia.enable-if",
            "variants.00000000",
        ]
        assert [note["place"] for note in file["notes"]] == ["variant.json"]
        assert rebuilt(tmp_path) == json.loads(run(tutorial).out)

    def test_priorities_are_judged_by_all_labels(
        self, run: Run, fixtures: Path, tmp_path: Path
    ) -> None:
        path = next((fixtures / "variants-json/priorities/feature").glob("*s.json"))
        wheels(tmp_path, json.loads(path.read_bytes()))
        (file,) = run("--index", tmp_path, "--json").data["files"]
        (loss,) = file["losses"]
        assert loss["reorders"]

    def test_wheels_of_two_schema_versions_are_merged(
        self, run: Run, fixtures: Path, tmp_path: Path
    ) -> None:
        folders = [
            fixtures / "variants-json" / f"schema-{x}" for x in ("0.0.3", "0.2.0")
        ]
        old, new = (
            json.loads((x / "torch-2.8.0-variants.json").read_bytes()) for x in folders
        )
        labels = new["variants"]
        wheels(tmp_path, old | {"variants": {"cu126": labels["cu126"]}})
        wheels(tmp_path, new | {"variants": {"cu128": labels["cu128"], "null": {}}})
        run("--index", tmp_path)
        assert rebuilt(tmp_path)["variants"].keys() == {"cu126", "cu128", "null"}

    def test_longer_list_of_namespaces_counts(self, run: Run, tmp_path: Path) -> None:
        x86 = {"static-properties": {"level": ["v3"]}}
        wheels(tmp_path, TORCH)
        both = document(
            {"v3": {"x86_64": {"level": ["v3"]}}},
            providers={"nvidia": PROVIDER, "x86_64": x86},
        )
        wheels(tmp_path, both)
        assert run("--index", tmp_path).code == 0
        written = rebuilt(tmp_path)
        assert written["default-priorities"]["namespace"] == ["nvidia", "x86_64"]
        assert written["providers"].keys() == {"nvidia", "x86_64"}

    def test_old_file_is_overruled_by_the_wheels(
        self, run: Run, tmp_path: Path
    ) -> None:
        wheels(tmp_path, TORCH)
        variants = {
            **TORCH["variants"],
            "cu999": nvidia("12.0"),
            "cu126": nvidia("12.0"),
        }
        path = tmp_path / "torch-2.9-variants.json"
        path.write_text(json.dumps({**TORCH, "variants": variants}))
        outcome = run("--index", tmp_path, "--json")
        (file,) = outcome.data["files"]
        assert [(loss["place"], loss["message"]) for loss in file["losses"]] == [
            ("variants.cu126", "the wheels say otherwise"),
            ("variants.cu999", "no wheel here has it"),
        ]
        assert (outcome.code, rebuilt(tmp_path)) == (1, TORCH)

    def test_unreadable_old_file_is_replaced_from_the_wheels(
        self, run: Run, tmp_path: Path
    ) -> None:
        path = tmp_path / "torch-2.9-variants.json"
        path.write_text("{")
        assert run("--index", tmp_path).code == 1
        assert path.read_text() == "{"
        wheels(tmp_path, TORCH)
        outcome = run("--index", tmp_path)
        assert (outcome.code, rebuilt(tmp_path)) == (1, TORCH)
        assert "not JSON" in outcome.err


class TestInconsistent:
    @pytest.mark.parametrize(
        ("changes", "place"),
        [
            ({"variants": {"cu126": nvidia("12.6")}}, "variants.cu126"),
            (
                {"providers": {"nvidia": {"requires": ["x"]}}},
                "providers.nvidia",
            ),
            (
                {
                    "default-priorities": {"namespace": ["x86_64", "nvidia"]},
                    "providers": {"nvidia": PROVIDER, "x86_64": {"requires": ["x"]}},
                },
                "default-priorities.namespace",
            ),
            (
                {
                    "$schema": f"{HOST}/v0.0.3.json",
                    "providers": {"nvidia": {**PROVIDER, "requires": ["x"]}},
                },
                "providers.nvidia",
            ),
        ],
    )
    def test_contradiction_names_both_wheels(
        self, changes: dict[str, Any], place: str, run: Run, tmp_path: Path
    ) -> None:
        one, two = (
            stub_wheel(tmp_path, "torch", "2.9", "cu126", variant_json=item, tag=tag)
            for item, tag in (
                (of_one("cu126"), "py3-none-any"),
                (of_one("cu126", **changes), "py3-none-win_amd64"),
            )
        )
        outcome = run("--index", tmp_path, "--json")
        assert (outcome.code, sorted(os.listdir(tmp_path))) == (1, [one.name, two.name])
        (file,) = outcome.data["files"]
        (problem,) = file["problems"]
        assert problem["place"] == place
        assert one.name in problem["message"]
        assert two.name in problem["message"]

    def test_priorities_of_one_wheel_only_are_a_problem(
        self, run: Run, tmp_path: Path
    ) -> None:
        old = of_one("cu126", **{"$schema": f"{HOST}/v0.0.3.json"})
        stub_wheel(tmp_path, "torch", "2.9", "cu126", variant_json=old)
        old = of_one("cu128", **{"$schema": f"{HOST}/v0.0.3.json"})
        old["default-priorities"] = {"namespace": ["nvidia"], "feature": {"nvidia": []}}
        stub_wheel(tmp_path, "torch", "2.9", "cu128", variant_json=old)
        outcome = run("--index", tmp_path)
        assert outcome.code == 1
        assert "default-priorities.feature.nvidia: torch-2.9-" in outcome.err

    def test_problem_of_one_release_does_not_stop_others(
        self, run: Run, tmp_path: Path
    ) -> None:
        wheels(tmp_path, TORCH)
        (tmp_path / "other-1-py3-none-any-cu126.whl").write_bytes(b"")
        assert run("--index", tmp_path).code == 1
        assert rebuilt(tmp_path) == TORCH
        assert not (tmp_path / "other-1-variants.json").exists()

    def test_two_metadata_files_for_one_release_are_a_problem(
        self, run: Run, tmp_path: Path
    ) -> None:
        for name in ("torch-2.9-variants.json", "Torch-2.9-variants.json"):
            (tmp_path / name).write_text(json.dumps(TORCH))
        if len(os.listdir(tmp_path)) == 1:
            pytest.skip("this file system does not tell them apart")
        outcome = run("--index", tmp_path)
        assert outcome.code == 1
        assert "are for the same release" in outcome.err

    @pytest.mark.parametrize(
        "name", ["x.whl", "a-b-c-variants.json", "a-x-variants.json"]
    )
    def test_file_name_of_another_form_is_a_problem(
        self, name: str, run: Run, tmp_path: Path
    ) -> None:
        (tmp_path / name).write_text(json.dumps(TORCH))
        outcome = run("--index", tmp_path)
        assert outcome.code == 1
        assert f"{name}: not " in outcome.err


STOPPED = """
import os, signal, sys
from nvp import files
from nvp.__main__ import run
fsync, name = os.fsync, sys.argv.pop()
def stop(descriptor):
    os.kill(os.getpid(), signal.Signals[name])
    fsync(descriptor)
files.os.fsync = stop
sys.exit(run())
"""


@pytest.mark.skipif(os.name == "nt", reason="a process cannot send these signals there")
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
@pytest.mark.parametrize("pages", [True, False])
def test_a_signal_leaves_no_unfinished_file(
    name: str, pages: bool, tmp_path: Path, tutorial: Path
) -> None:
    stub_wheel(tmp_path, "demo", "1.0")
    words = ["--index", "--pages", tmp_path]
    if not pages:
        words = [tutorial, "--output", tmp_path / "new.json"]
    done = subprocess.run(
        [sys.executable, "-c", STOPPED, COMMAND, *map(str, words), name],
        check=False,
        timeout=60,
    )
    assert done.returncode == 128 + signal.Signals[name]
    assert not [*tmp_path.rglob("*.part")]
