"""The command line: exit codes, one-line errors, the JSON report."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator
from support.command import FORCED, Run

from nvidia_variant_provider import __version__
from nvp.cli import COMMANDS, main


class TestErrors:
    @pytest.mark.parametrize(
        "arguments",
        [
            ("unknown",),
            ("help", "unknown"),
            ("help", "--json"),
            ("--unknown", "detect"),
            ("detect", "--unknown"),
            ("resolve",),
            ("resolve", "a", "b"),
            ("detect", "--sm"),
            ("--json",),
        ],
    )
    def test_wrong_usage_is_exit_2_and_one_line(
        self, arguments: tuple[str, ...], run: Run
    ) -> None:
        outcome = run(*arguments)
        assert outcome.code == 2
        if "--json" not in arguments:
            assert outcome.out == ""
            assert outcome.err.startswith("error: ")
            assert outcome.err.count("\n") == 1

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
        outcome = run("resolve", path, *FORCED)
        assert (outcome.code, outcome.out) == (3, "")
        assert outcome.err.startswith(f"error: {path}: {place}")
        assert outcome.err.count("\n") == 1

    def test_a_broken_variants_toml_is_exit_3(self, run: Run, torch: Path) -> None:
        Path("variants.toml").write_text("[")
        outcome = run("resolve", torch, *FORCED)
        assert outcome.code == 3
        assert "variants.toml: not TOML" in outcome.err

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (
                ["reslove"],
                "there is no command 'reslove'; did you mean resolve? see nvp --help",
            ),
            (
                ["help", "validat"],
                "there is no command 'validat'; did you mean validate? see nvp --help",
            ),
            (
                ["hlep"],
                "there is no command 'hlep'; did you mean help? see nvp --help",
            ),
            (
                ["\x1b[1m"],
                "there is no command '\\x1b[1m'; see nvp --help",
            ),
            (
                ["resolve", "--explian", "x"],
                "there is no option --explian; did you mean --explain? see "
                "nvp resolve --help",
            ),
            (
                ["-V", "detect"],
                "there is no option -V; see nvp --help",
            ),
            (
                ["resolve", "FILE", "extra"],
                "there is one word too many: 'extra'; see nvp resolve --help",
            ),
            (
                ["resolve"],
                "FILE is missing; see nvp resolve --help",
            ),
        ],
    )
    def test_an_error_says_what_was_meant_and_which_help_to_read(
        self, arguments: list[str], message: str, run: Run
    ) -> None:
        assert run(*arguments) == (2, "", f"error: {message}\n")

    def test_help_and_version(self, capsys: pytest.CaptureFixture[str]) -> None:
        for arguments in (["--help"], ["resolve", "--help"], ["--version"]):
            with pytest.raises(SystemExit) as caught:
                main(arguments)
            assert caught.value.code == 0
        out = capsys.readouterr().out
        assert all(command in out for command in COMMANDS)
        assert f"nvp {__version__}" in out


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
        outcome = run(*words, "--json")
        report = json.loads(outcome.out)
        report_schema.validate(report)
        assert report["command"] == next((w for w in words if w in COMMANDS), None)
        expected = {0: "ok", 1: "findings"}.get(outcome.code, "error")
        assert report["status"] == expected
        if report["errors"]:
            assert report["errors"][0]["exit_code"] == outcome.code

    def test_what_follows_two_dashes_is_not_an_option(self, run: Run) -> None:
        outcome = run("resolve", *FORCED, "--", "--json")
        assert (outcome.code, outcome.out) == (3, "")
        assert outcome.err.startswith("error: --json: ")

    @pytest.mark.parametrize("words", [["--format=json"], ["--format", "json"]])
    def test_a_failure_is_reported_in_the_requested_format(
        self, words: list[str], run: Run
    ) -> None:
        outcome = run("matrix", "missing.json", *words)
        assert (outcome.code, outcome.err) == (3, "")
        assert json.loads(outcome.out)["errors"][0]["path"] == "missing.json"

    def test_the_option_may_stand_before_the_command(self, run: Run) -> None:
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
            outcome = run(*words, "--environment", path, "--json")
            report = json.loads(outcome.out)
            report_schema.validate(report)
            assert (outcome.code, report["status"]) == (4, "error")
            assert report["data"] is not None
            (error,) = report["errors"]
            assert error["message"].startswith("driver-mismatch: ")
            assert "reboot" in error["hint"]

    def test_keys_are_frozen(self, run: Run, torch: Path) -> None:
        # Scripts read these names. To change one, raise schema_version.
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
        [sys.executable, "-m", "nvp", "--version"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"nvp {__version__}\n"


def test_streams_that_cannot_be_used(torch: Path) -> None:
    command = f'"{sys.executable}" -m nvp resolve'
    for words, message in {
        f"{command} - <&-": "error: stdin: cannot be read: closed; name a file\n",
        f'{command} "{torch}" >/dev/full': "error: stdout: cannot be written: No space",
    }.items():
        done = subprocess.run(
            words, shell=True, capture_output=True, text=True, check=False
        )
        assert done.stderr.startswith(message)
        assert (done.returncode, done.stdout) == (3, "")


@pytest.mark.parametrize(
    ("redirection", "code", "word"),
    [(">&-", 3, "stdout"), ("2>&-", 0, "cu129"), ("<&-", 0, "cu129")],
)
@pytest.mark.skipif(sys.platform == "win32", reason="needs a POSIX shell")
def test_closed_streams(redirection: str, code: int, word: str, torch: Path) -> None:
    words = [sys.executable, "-m", "nvp", "resolve", *FORCED]
    command = f"{shlex.join([*words, str(torch)])} {redirection}"
    outcome = subprocess.run(
        ["sh", "-c", command], check=False, capture_output=True, text=True
    )
    assert outcome.returncode == code
    assert word in outcome.stdout + outcome.stderr
    assert code == 0 or "it is closed; send the output to" in outcome.stderr
    assert "Traceback" not in outcome.stderr


@pytest.mark.skipif(
    sys.platform == "win32", reason="Windows does not remove a directory that is in use"
)
def test_the_working_folder_may_be_gone(
    run: Run, torch: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert run("resolve", *FORCED, torch).code == 0


def test_no_place_for_temporary_files_is_no_error_of_stdout(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = [str(tmp_path / "missing")]
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: places)
    monkeypatch.setattr(tempfile, "tempdir", None)
    done = run("pip", "install", "--no-index", "kern")
    assert done.code == 3
    message = "error: cannot go on: No usable temporary directory found in"
    assert done.err.startswith(message)


def test_a_reader_that_stops_early_is_no_error() -> None:
    code = (
        "import sys; from nvp.cli import main;sys.exit(main(['properties', '--all']))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 0
