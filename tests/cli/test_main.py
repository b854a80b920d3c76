"""The command line: exit codes, one-line errors, the JSON report."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from jsonschema import Draft202012Validator
from referencing import Registry, Resource

from nvidia_variant_provider import __version__
from nvidia_variant_provider.cli import VERBS, main

SCHEMAS = Path(__file__).parents[2] / "schemas"
CUDA = "NV_VARIANT_PROVIDER_FORCE_CUDA_DRIVER_VERSION"
SM = "NV_VARIANT_PROVIDER_FORCE_SM_ARCH"


class Outcome(NamedTuple):
    code: int
    out: str
    err: str


Run = Callable[..., Outcome]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*arguments: object) -> Outcome:
        code = main(list(map(str, arguments)))
        return Outcome(code, *capsys.readouterr())

    return call


@pytest.fixture
def torch(fixtures: Path) -> Path:
    return fixtures / "variants-json" / "torch-2.8.0-variants.json"


@pytest.fixture(scope="session")
def report_schema() -> Draft202012Validator:
    schemas = [json.loads(path.read_text()) for path in SCHEMAS.glob("*.schema.json")]
    for schema in schemas:
        Draft202012Validator.check_schema(schema)
    registry: Registry[Any] = Registry().with_resources(
        (schema["$id"], Resource.from_contents(schema)) for schema in schemas
    )
    (report,) = (schema for schema in schemas if schema["title"] == "Report")
    return Draft202012Validator(report, registry=registry)


FORCED = ("--cuda-driver", "12.9", "--sm-arch", "7.5")


def test_the_tutorial(run: Run, torch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CUDA, "12.9")
    monkeypatch.setenv(SM, "7.5")
    assert run("resolve", torch) == (
        0,
        "####################### torch==2.8.0; variant_hash=cu129 "
        "#######################\n"
        "Variant-property: nvidia :: cuda_version_lower_bound :: 12.9\n"
        "Variant-property: nvidia :: sm_arch :: 100_real\n"
        "Variant-property: nvidia :: sm_arch :: 120_real\n"
        "Variant-property: nvidia :: sm_arch :: 120_virtual\n"
        "Variant-property: nvidia :: sm_arch :: 75_real\n"
        "Variant-property: nvidia :: sm_arch :: 80_real\n"
        "Variant-property: nvidia :: sm_arch :: 86_real\n"
        "Variant-property: nvidia :: sm_arch :: 90_real\n" + "#" * 80 + "\n",
        "",
    )


@pytest.mark.parametrize(
    ("driver", "label"),
    [("12.5", "00000000"), ("12.6", "cu126"), ("12.8", "cu128"), ("13.0", "cu129")],
)
@pytest.mark.parametrize("sm", ["7.5", "9.0"])
def test_the_values_that_the_tutorial_proposes(
    driver: str, sm: str, label: str, run: Run, torch: Path
) -> None:
    found = run("resolve", torch, "--cuda-driver", driver, "--sm-arch", sm)
    assert found.code == 0
    assert f" torch==2.8.0; variant_hash={label} ".center(80, "#") in found.out


@pytest.mark.parametrize(
    ("sm", "label"), [("4.0", "00000000"), ("5.0", "cu126"), ("12.0", "cu129")]
)
def test_capabilities_that_the_tutorial_proposes(
    sm: str, label: str, run: Run, torch: Path
) -> None:
    found = run("resolve", torch, "--cuda-driver", "12.9", "--sm-arch", sm, "--json")
    assert json.loads(found.out)["data"]["selected"] == label


class TestResolve:
    def test_explain(self, run: Run, torch: Path) -> None:
        found = run(
            "resolve", torch, "--cuda-driver", "12.8", "--sm-arch", "12.0", "--explain"
        )
        assert found.out.splitlines()[-3:] == [
            "Fits, best first: cu128, 00000000",
            "cu126 does not fit: it has no kernels for compute capability 12.0, only "
            "50_real, 60_real, 70_real, 75_real, 80_real, 86_real, 90_real",
            "cu129 does not fit: it needs a driver for CUDA 12.9 or newer, this one "
            "is for 12.8; its machine code would run under CUDA's minor-version "
            "compatibility (NV_VARIANT_PROVIDER_MINOR_VERSION_COMPATIBILITY=1)",
        ]

    def test_nothing_compatible_is_exit_1_with_reasons(
        self, run: Run, torch: Path, tmp_path: Path
    ) -> None:
        document = json.loads(torch.read_text())
        del document["variants"]["00000000"]
        path = tmp_path / "torch-2.8.0-variants.json"
        path.write_text(json.dumps(document))
        found = run("resolve", path)
        assert found.code == 1
        assert found.out.startswith("No label fits this machine.\ncu126 does not fit: ")
        report = json.loads(run("resolve", path, "--json").out)
        assert (report["status"], report["data"]["selected"]) == ("findings", None)

    def test_standard_input(
        self, run: Run, torch: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        stdin = io.TextIOWrapper(io.BytesIO(torch.read_bytes()))
        monkeypatch.setattr(sys, "stdin", stdin)
        found = run("resolve", "-", *FORCED)
        assert found.out.splitlines()[0] == " variant_hash=cu129 ".center(80, "#")

    def test_folder(self, run: Run, torch: Path, tmp_path: Path) -> None:
        (tmp_path / torch.name).write_bytes(torch.read_bytes())
        (tmp_path / "torch-2.8.0-py3-none-any-cu129.whl").touch()
        assert (
            "torch==2.8.0; variant_hash=cu129" in run("resolve", tmp_path, *FORCED).out
        )

    def test_folder_without_metadata(self, run: Run, tmp_path: Path) -> None:
        found = run("resolve", tmp_path)
        assert found.code == 3
        assert "the folder has no file *-variants.json" in found.err

    def test_folder_with_several(self, run: Run, tmp_path: Path) -> None:
        for version in ("2.8.0", "2.9.1"):
            (tmp_path / f"torch-{version}-variants.json").touch()
        found = run("resolve", tmp_path)
        assert found.code == 2
        assert "'torch-2.8.0-variants.json', 'torch-2.9.1-variants.json'" in found.err

    def test_names_have_dashes_again(
        self, run: Run, torch: Path, tmp_path: Path
    ) -> None:
        path = tmp_path / "my_torch-1.0-variants.json"
        path.write_bytes(torch.read_bytes())
        assert "# my-torch==1.0; " in run("resolve", path, *FORCED).out

    def test_minor_version_compatibility(self, run: Run, torch: Path) -> None:
        arguments = ("resolve", torch, "--cuda-driver", "12.2", "--sm-arch", "8.0")
        assert "variant_hash=00000000" in run(*arguments).out
        found = run(*arguments, "--minor-version-compatibility")
        assert "variant_hash=cu126" in found.out
        lines = run("properties", *arguments[2:], "--minor-version-compatibility").out
        assert "nvidia :: cuda_version_lower_bound :: 12.20" in lines

    def test_every_gpu(self, run: Run, torch: Path, tmp_path: Path) -> None:
        path = tmp_path / "machine.json"
        gpus = [
            {"index": 0, "compute_capability": "12.0"},
            {"index": 1, "compute_capability": "7.0"},
        ]
        path.write_text(json.dumps({"cuda_driver_version": "12.9", "gpus": gpus}))
        arguments = ("resolve", torch, "--environment", path)
        found = run(*arguments)
        assert "variant_hash=cu129" in found.out
        assert "may have no kernels for 7.0" in found.err
        found = run(*arguments, "--every-gpu")
        assert "variant_hash=00000000" in found.out
        assert found.err == (
            "warning: no GPU build fits this machine; --explain says why\n"
        )

    def test_a_shared_reason_is_said_once(self, run: Run, torch: Path) -> None:
        lines = run("resolve", torch, "--explain").out.splitlines()
        assert len(lines) == len(set(lines))
        assert lines[-1].startswith("Next step: ")

    def test_notes_go_to_stderr(self, run: Run, torch: Path) -> None:
        found = run("resolve", torch, "--cuda-driver", "16.0", "--sm-arch", "9.0")
        assert found.code == 0
        assert found.err == (
            "warning: CUDA 16.0 of the driver cannot be named by variant properties: "
            "it counts as 15.20\n"
        )


class TestMachineOptions:
    def test_flags_go_before_variables(
        self, run: Run, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv(CUDA, "13.0")
        monkeypatch.setenv(SM, "9.0")
        data = json.loads(run("detect", "--json", "--cuda-driver", "12.4").out)["data"]
        assert data["cuda_driver_version"] == "12.4"
        assert data["gpus"][0]["compute_capability"] == "9.0"

    def test_snapshot(
        self, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = tmp_path / "machine.json"
        path.write_text(run("detect", "--json", *FORCED).out)
        monkeypatch.setenv(CUDA, "13.0")
        data = json.loads(run("detect", "--json", "--environment", path).out)["data"]
        assert (data["cuda_driver_version"], data["source"]) == ("12.9", "snapshot")
        found = run("detect", "--json", "--environment", path, "--sm-arch", "9.0")
        data = json.loads(found.out)["data"]
        assert data["gpus"][0]["compute_capability"] == "9.0"
        assert data["source"] == "snapshot+forced"

    def test_broken_snapshot(self, run: Run, tmp_path: Path) -> None:
        path = tmp_path / "machine.json"
        path.write_text('{"gpus": []}')
        found = run("properties", "--environment", path)
        assert (found.code, found.out) == (3, "")
        assert found.err.startswith(f"error: {path}: top level: cuda_driver_version is")

    @pytest.mark.parametrize("verb", ["detect", "properties"])
    def test_a_bad_flag_is_named(self, verb: str, run: Run) -> None:
        found = run(verb, "--sm-arch", "90")
        assert found.code == 4
        assert found.err == (
            "error: --sm-arch: '90' is not a compute capability; give MAJOR.MINOR "
            "such as 9.0\n"
        )

    def test_an_empty_flag_is_not_overlooked(self, run: Run) -> None:
        found = run("detect", "--cuda-driver", "")
        assert (found.code, found.err) == (
            4,
            "error: --cuda-driver: is empty; give a value\n",
        )

    def test_a_bad_variable_is_named(
        self, run: Run, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv(CUDA, "abc")
        found = run("detect", "--sm-arch", "9.0")
        assert found.code == 4
        assert found.err.startswith(f"error: {CUDA}: 'abc' is not a CUDA version")


class TestDetect:
    def test_nothing_there(self, run: Run) -> None:
        found = run("detect")
        assert found.code == 0
        assert "no-device: no NVIDIA device or driver was found" in found.out
        assert "Next step: " in found.out

    def test_gpus(self, run: Run) -> None:
        assert run("detect", *FORCED).out.splitlines() == [
            "CUDA version of the driver: 12.9",
            "Kernel driver:              unknown",
            "Source:                     forced",
            "GPU  Name     Compute capability  Problem",
            "0    unknown  7.5",
        ]

    def test_a_snapshot_cannot_send_escapes_to_the_terminal(
        self, run: Run, tmp_path: Path
    ) -> None:
        path = tmp_path / "machine.json"
        gpus = [{"index": 0, "name": "\x1b[31mred\n", "compute_capability": "9.0"}]
        path.write_text(json.dumps({"cuda_driver_version": "12.9", "gpus": gpus}))
        assert r"\x1b[31mred\n" in run("detect", "--environment", path).out


class TestProperties:
    def test_answer(self, run: Run) -> None:
        found = run("properties", *FORCED)
        lines = found.out.splitlines()
        assert lines[0] == "nvidia :: cuda_version_lower_bound :: 12.9"
        assert lines[-1] == "nvidia :: sm_arch :: 70_virtual"
        assert (found.code, found.err) == (0, "")

    def test_all(self, run: Run) -> None:
        lines = run("properties", "--all").out.splitlines()
        assert len(lines) == 110 + 110 + 160

    def test_an_empty_answer_says_why(self, run: Run) -> None:
        found = run("properties")
        assert (found.code, found.out) == (0, "")
        assert found.err.startswith("warning: no-device: ")


class TestErrors:
    @pytest.mark.parametrize(
        "arguments",
        [
            (),
            ("unknown",),
            ("detect", "--unknown"),
            ("resolve",),
            ("resolve", "a", "b"),
            ("detect", "--sm"),
            ("--json",),
        ],
    )
    def test_usage(self, arguments: tuple[str, ...], run: Run) -> None:
        found = run(*arguments)
        assert found.code == 2
        if "--json" not in arguments:
            assert found.out == ""
            assert found.err.startswith("error: ")
            assert found.err.count("\n") == 1

    @pytest.mark.parametrize(
        ("text", "place"),
        [
            (b"\xff", ""),
            (b"[" * 100_000, ""),
            (b'{"variants": {}, "variants": {}}', "variants: "),
            (b'{"$schema": NaN}', "$schema: "),
            (b'{"$schema": "https://x/v7.0.0.json"}', "$schema: "),
            (b"[]", "top level: "),
        ],
    )
    def test_bad_metadata_is_exit_3_and_one_line(
        self, text: bytes, place: str, run: Run, tmp_path: Path
    ) -> None:
        path = tmp_path / "x-1-variants.json"
        path.write_bytes(text)
        found = run("resolve", path, *FORCED)
        assert (found.code, found.out) == (3, "")
        assert found.err.startswith(f"error: {path}: {place}")
        assert found.err.count("\n") == 1

    def test_a_broken_variants_toml_is_exit_3(self, run: Run, torch: Path) -> None:
        Path("variants.toml").write_text("[")
        found = run("resolve", torch, *FORCED)
        assert found.code == 3
        assert "variants.toml: not TOML" in found.err

    def test_help_and_version(self, capsys: pytest.CaptureFixture[str]) -> None:
        for arguments in (["--help"], ["resolve", "--help"], ["--version"]):
            with pytest.raises(SystemExit) as caught:
                main(arguments)
            assert caught.value.code == 0
        out = capsys.readouterr().out
        assert all(verb in out for verb in VERBS)
        assert f"nvidia-variant-provider {__version__}" in out


class TestReport:
    @pytest.mark.parametrize(
        "arguments",
        [
            ("detect",),
            ("detect", *FORCED),
            ("detect", "--sm-arch", "x"),
            ("properties",),
            ("properties", *FORCED),
            ("properties", "--all"),
            ("resolve", "TORCH"),
            ("resolve", "TORCH", *FORCED),
            ("resolve", "TORCH", "--cuda-driver", "12.8", "--sm-arch", "12.0"),
            ("resolve", "missing"),
            ("resolve",),
            ("unknown",),
            (),
        ],
    )
    def test_every_report_fits_the_schema(
        self,
        arguments: tuple[str, ...],
        run: Run,
        torch: Path,
        report_schema: Draft202012Validator,
    ) -> None:
        words = [str(torch) if word == "TORCH" else word for word in arguments]
        found = run(*words, "--json")
        report = json.loads(found.out)
        report_schema.validate(report)
        assert report["command"] == next((w for w in words if w in VERBS), None)
        expected = {0: "ok", 1: "findings"}.get(found.code, "error")
        assert report["status"] == expected
        if report["errors"]:
            assert report["errors"][0]["exit_code"] == found.code

    def test_the_option_may_stand_before_the_verb(self, run: Run) -> None:
        assert run("--json", "detect") == run("detect", "--json")

    def test_a_driver_that_cannot_be_asked_is_an_error_with_data(
        self,
        run: Run,
        tmp_path: Path,
        torch: Path,
        report_schema: Draft202012Validator,
    ) -> None:
        path = tmp_path / "machine.json"
        path.write_text(
            '{"cuda_driver_version": null, "reason": "driver-mismatch", "gpus": []}'
        )
        for words in (["detect"], ["properties"], ["resolve", torch]):
            found = run(*words, "--environment", path, "--json")
            report = json.loads(found.out)
            report_schema.validate(report)
            assert (found.code, report["status"]) == (4, "error")
            assert report["data"] is not None
            (error,) = report["errors"]
            assert error["message"].startswith("driver-mismatch: ")
            assert "reboot" in error["hint"]

    def test_keys_are_frozen(self, run: Run, torch: Path) -> None:
        # Scripts read these names: a change needs another schema_version.
        report = json.loads(run("resolve", torch, *FORCED, "--json").out)
        assert list(report) == ["schema_version", "command", "status", "data", "errors"]
        assert list(report["data"]) == [
            "selected",
            "compatible",
            "rejected",
            "environment",
        ]
        assert list(report["data"]["environment"]) == [
            "cuda_driver_version",
            "kernel_driver_version",
            "source",
            "reason",
            "gpus",
        ]
        assert list(report["data"]["environment"]["gpus"][0]) == [
            "index",
            "name",
            "compute_capability",
            "reason",
        ]

    def test_the_schema_refuses_other_data(
        self, run: Run, report_schema: Draft202012Validator
    ) -> None:
        report = json.loads(run("detect", "--json").out)
        report["data"]["extra"] = 1
        assert not report_schema.is_valid(report)


def test_module_is_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "nvidia_variant_provider", "--version"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"nvidia-variant-provider {__version__}\n"


def test_unusable_streams(torch: Path) -> None:
    command = f'"{sys.executable}" -m nvidia_variant_provider resolve'
    for words, message in {
        f"{command} - <&-": "error: stdin: cannot be read: closed; name a file\n",
        f'{command} "{torch}" >/dev/full': "error: stdout: cannot be written: No space",
    }.items():
        done = subprocess.run(
            words, shell=True, capture_output=True, text=True, check=False
        )
        assert done.stderr.startswith(message)
        assert (done.returncode, done.stdout) == (3, "")


def test_a_reader_that_stops_early_is_no_error() -> None:
    code = (
        "import sys; from nvidia_variant_provider.cli import main;"
        "sys.exit(main(['properties', '--all']))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 0
