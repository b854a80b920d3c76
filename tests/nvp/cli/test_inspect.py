"""The command ``inspect``: its arguments and its output; it leaves no files."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator
from support.command import Outcome, Run
from support.containers import BINARIES, binaries, container, entry, library
from support.range_server import Answer, serve_answers
from support.wheels import stub_wheel

from nvidia_variant_provider.errors import redacted
from nvp.cli import main
from nvp.cli.render import progress_bar
from nvp.gpu_code import compression, files

PLAIN = (BINARIES / "plain.so").read_bytes()
TAG = "cp311-cp311-linux_x86_64"


@pytest.fixture
def inspect(run: Run) -> Run:
    def call(*arguments: object) -> Outcome:
        return run("inspect", *arguments)

    return call


def wheel(folder: Path, **libraries: bytes) -> Path:
    members = {f"demo/{name}.so": data for name, data in libraries.items()}
    members["demo.libs/libother-1a2b.so"] = library("70_real")
    return stub_wheel(folder, "demo", "1.0", tag=TAG, members=members)


@pytest.mark.parametrize("path", binaries(), ids=lambda path: path.name)
def test_reports_are_valid(
    path: Path, inspect: Run, report_schema: Draft202012Validator
) -> None:
    for options in ([], ["--suggest"]):
        outcome = inspect(path, "--json", *options)
        assert outcome.code == 0
        report_schema.validate(json.loads(outcome.out))
    expected = json.loads(path.with_name(f"{path.name}.expected.json").read_text())
    (file,) = outcome.data["files"]
    (item,) = file["libraries"]
    assert item["targets"] == expected["targets"]
    assert item["path"] == path.name


def test_wheel(
    inspect: Run, tmp_path: Path, report_schema: Draft202012Validator
) -> None:
    path = wheel(tmp_path, plain=PLAIN, other=library("90a_real"), host=library())
    text = inspect(path)
    assert (text.code, text.err) == (0, "")
    first, *lines = text.out.splitlines()
    assert first.startswith(f"{path}: ")
    assert first.endswith("3 of 4 libraries have GPU code")
    body = "\n".join(lines)
    before, copied = body.split("Copied into it from elsewhere")
    assert "demo/plain.so" in before
    assert "demo/host.so" not in body
    assert "demo.libs/libother-1a2b.so" in copied
    assert "demo/other.so has no code that runs on 75_real, 80_real" in body
    outcome = inspect(path, "--json")
    report_schema.validate(json.loads(outcome.out))
    (file,) = outcome.data["files"]
    assert [item["path"] for item in file["libraries"]] == [
        "demo.libs/libother-1a2b.so",
        "demo/host.so",
        "demo/other.so",
        "demo/plain.so",
    ]
    (hopper,) = [gpu for gpu in file["gpus"] if gpu["sm"] == "9.0"]
    assert hopper == {"sm": "9.0", "how": "native", "driver": "13.0", "lacking": []}
    assert file["claim"]["exact"] == ["90_real"]


def test_several_paths_and_one_that_cannot_be_read(
    inspect: Run, tmp_path: Path, report_schema: Draft202012Validator
) -> None:
    broken = tmp_path / "broken-1.0-py3-none-any.whl"
    broken.write_bytes(b"nothing")
    paths = [BINARIES / "plain.so", broken, BINARIES / "new-80.cubin"]
    outcome = inspect(*paths, "--json")
    assert outcome.code == 3
    report = json.loads(outcome.out)
    report_schema.validate(report)
    assert [file["path"] for file in report["data"]["files"]] == [
        str(paths[0]),
        str(paths[2]),
    ]
    (error,) = report["errors"]
    assert error["path"] == str(broken)
    text = inspect(*paths)
    assert (text.code, text.err.count("\n")) == (3, 1)
    assert str(broken) in text.err
    assert "new-80.cubin" in text.out


@pytest.mark.parametrize(
    "arguments",
    [
        ["no-such-project"],
        ["no/such/file.so"],
        ["broken.whl"],
        ["broken.whl", "no-such-project"],
        ["--jobs", "0", "broken.whl"],
        ["--jobs", "many", "broken.whl"],
        ["bad\0name"],
        [],
    ],
)
def test_errors_are_one_line(
    arguments: list[str], inspect: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.whl").write_bytes(b"PK\3\4nothing")
    outcome = inspect(*arguments)
    assert outcome.code == (2 if not arguments or "--jobs" in arguments else 3)
    assert outcome.out == ""
    errors = max(1, len([a for a in arguments if not a.startswith("-")]))
    assert outcome.err.count("\n") <= errors
    assert outcome.err.startswith("error: ")


def test_defects_inside_are_warnings(inspect: Run, tmp_path: Path) -> None:
    """`validate` is the command that fails for them, with NV512."""
    path = wheel(tmp_path, plain=PLAIN[:-3000], cut=library("80_real")[:-9])
    outcome = inspect(path)
    assert outcome.code == 0
    assert "warning: " in outcome.err
    assert "demo/cut.so: 0x40: " in outcome.err


@pytest.mark.parametrize("zstd", [True, False])
def test_the_missing_extra_is_named_where_it_would_help(
    inspect: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, zstd: bool
) -> None:
    damaged = container(entry(payload=b"\xff" * 64, flags=0x8011, size=900))
    (tmp_path / "a.fatbin").write_bytes(damaged)
    monkeypatch.setattr(compression, "has_zstd", lambda: zstd)
    outcome = inspect(tmp_path / "a.fatbin")
    assert "1 piece of machine code may be empty" in outcome.err
    assert ("pip install" in outcome.err) is not zstd


def test_many_defects_are_counted(
    inspect: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = {f"lib{index}": PLAIN[:-3000] for index in range(9)}
    path = wheel(tmp_path, plain=PLAIN, **broken)
    before = inspect(path).err.count("\n")
    monkeypatch.setattr(files, "MAX_DEFECTS", 3)
    outcome = inspect(path)
    assert outcome.err.count("\n") == 5
    assert f"{before - 4} more defects" in outcome.err


def test_numbers_are_whole_on_a_narrow_terminal(
    inspect: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "40")
    outcome = inspect(BINARIES / "plain.so")
    assert "\N{HORIZONTAL ELLIPSIS}" not in outcome.out


@pytest.mark.parametrize("name", ["plain.so", "arch-specific.so", "concatenated.so"])
def test_lines_fit_into_60_columns(
    name: str, inspect: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.chdir(BINARIES)
    monkeypatch.setenv("TERM", "dumb")  # no escape sequences
    lines = inspect(name).out.splitlines()
    assert [line for line in lines if len(line.rstrip()) > 60] == []


def test_the_log_has_files_sizes_and_seconds(run: Run, tmp_path: Path) -> None:
    path = wheel(tmp_path, plain=PLAIN)
    brief = run("-v", "inspect", path).err
    assert f"{path}: a wheel of {path.stat().st_size} bytes" in brief
    assert "seconds" in brief
    assert "demo/plain.so" not in brief
    assert f"demo/plain.so: {len(PLAIN)} bytes in " in run("-vv", "inspect", path).err


def test_control_characters_of_file_names_are_not_printed(
    inspect: Run, tmp_path: Path
) -> None:
    name = "a\x1b[31m\nb.so" if os.name != "nt" else "a b.so"
    (tmp_path / name).write_bytes(PLAIN)
    outcome = inspect(tmp_path)
    assert outcome.code == 0
    assert "\x1b" not in outcome.out


@pytest.mark.parametrize(
    "name",
    [
        "::set-output name=a::b.so",
        "a##[add-mask]b.so",
        "::error file=a::b.so",
        "a##vso[task.prependpath]b.so",
    ],
)
def test_names_of_libraries_are_no_commands_of_a_ci_service(
    name: str, inspect: Run, tmp_path: Path
) -> None:
    path = stub_wheel(tmp_path, "demo", "1.0", tag=TAG, members={name: PLAIN})
    outcome = inspect(path)
    assert outcome.code == 0
    assert name.strip("#:") in outcome.out.replace(r"\u0023#", "##")
    for line in (outcome.out + outcome.err).splitlines():
        assert not line.lstrip().startswith("::")
        assert not re.search(r"##\w*\[", line)
    report = inspect(path, "--json")
    assert not re.search(r"##\w*\[", report.out)
    assert report.data["files"][0]["libraries"][0]["path"] == name


def test_each_wheel_of_a_folder_is_judged_on_its_own(
    inspect: Run, tmp_path: Path
) -> None:
    for version, target in (("1.0", "80_real"), ("2.0", "90_real")):
        members = {"demo/lib.so": library(target)}
        stub_wheel(tmp_path, "demo", version, tag=TAG, members=members)
    files = inspect(tmp_path, "--json").data["files"]
    assert [file["claim"]["sm_arch"] for file in files] == [["80_real"], ["90_real"]]
    assert inspect(tmp_path, BINARIES / "nothing").code == 3


def test_installed_distribution(
    inspect: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = stub_wheel(
        tmp_path,
        "demo",
        "1.0",
        tag=TAG,
        requires=["nvidia-cuda-runtime-cu12==12.8.90"],
        members={"demo/lib.so": library("80_real")},
    )
    site = tmp_path / "site"
    with zipfile.ZipFile(path) as archive:
        archive.extractall(site)
    monkeypatch.syspath_prepend(site)
    outcome = inspect("demo", "--json")
    (file,) = outcome.data["files"]
    assert (file["path"], file["kind"]) == ("demo", "distribution")
    assert file["claim"]["strict"]["version"] == "12.8"
    # A file of this name has priority over the distribution.
    monkeypatch.chdir(tmp_path)
    (tmp_path / "demo").write_bytes(PLAIN)
    assert inspect("demo", "--json").data["files"][0]["kind"] == "file"


@pytest.mark.skipif(find_spec("httpx") is None, reason="needs the extra index")
class TestUrl:
    def serve(self, path: Path) -> dict[str, Answer]:
        return {f"/{path.name}": Answer(body=path.read_bytes())}

    def test_only_members_that_may_have_code_are_read(
        self, inspect: Run, tmp_path: Path
    ) -> None:
        """A library is read completely, but a file with a name of a text file is not
        read."""
        text = os.urandom(8_000_000)
        path = stub_wheel(
            tmp_path,
            "demo",
            "1.0",
            tag=TAG,
            members={"demo/vocabulary.json": text, "demo/lib.so": PLAIN},
        )
        with serve_answers(self.serve(path)) as server:
            outcome = inspect(f"{server.url}/{path.name}", "--json")
            asked = [line.rpartition("=")[2] for line in server.requests]
        assert (
            outcome.data["files"][0]["claim"]
            == (inspect(path, "--json").data["files"][0]["claim"])
        )
        spans = [span.partition("-") for span in asked]
        served = sum(
            int(end) - int(start) + 1 if start else int(end) for start, _, end in spans
        )
        assert served < 2_000_000 < path.stat().st_size

    def test_a_large_library_takes_few_requests(
        self, inspect: Run, tmp_path: Path
    ) -> None:
        path = wheel(tmp_path, big=PLAIN + os.urandom(20_000_000))
        with serve_answers(self.serve(path)) as server:
            assert inspect(f"{server.url}/{path.name}").code == 0
            assert len(server.requests) < 20

    def test_credentials_are_used_and_not_shown(
        self, inspect: Run, tmp_path: Path
    ) -> None:
        path = wheel(tmp_path, plain=PLAIN)
        with serve_answers(self.serve(path), credentials="me:secret") as server:
            bare = f"{server.url}/{path.name}"
            url = bare.replace("://", "://me:secret@")
            outcome = inspect(url, "--json"), inspect(url), inspect(f"{url}x")
            assert inspect(bare).code == 3
        assert [item.code for item in outcome] == [0, 0, 3]
        assert "secret" not in "".join(item.out + item.err for item in outcome)

    def test_the_signature_of_a_url_is_not_shown(
        self, inspect: Run, tmp_path: Path
    ) -> None:
        path = wheel(tmp_path, plain=PLAIN)
        with serve_answers(
            {f"/{path.name}?Signature=secret&raw": Answer(body=path.read_bytes())}
        ) as server:
            url = f"{server.url}/{path.name}?Signature=secret&raw"
            outcome = (
                inspect(url),
                inspect(url, "--suggest"),
                inspect(f"{url}2&x=secret"),
            )
        assert [item.code for item in outcome] == [0, 0, 3]
        assert "secret" not in "".join(item.out + item.err for item in outcome)
        assert "?Signature=****&****: " in outcome[0].out
        # The command has the name that the file would have after a download.
        command = f"make-variant --no-isolation -f {path.name} -o . "
        assert command in outcome[1].err

    @pytest.mark.parametrize(
        ("url", "shown"),
        [
            ("https://a/b?x=1&y=&z", "https://a/b?x=****&y=&****"),
            ("https://a/b?x=1=2;y=3#sha256=4", "https://a/b?x=****;y=****#sha256=4"),
            ("https://me:pw@a/b?x", "https://****@a/b?****"),
            ("https://a/b#c?d=e", "https://a/b#c?d=e"),
            ("demo?x=1", "demo?x=1"),
        ],
    )
    def test_redacted_urls(self, url: str, shown: str) -> None:
        assert redacted(url) == shown

    @pytest.mark.parametrize(
        "answer",
        [
            Answer(status=404),
            Answer(body=b"x" * 1000),
            Answer(body=PLAIN * 20, ranges=False),
            Answer(body=PLAIN * 20, fault="cut"),
            Answer(body=PLAIN * 20, fault="lie"),
        ],
    )
    def test_servers_that_misbehave(self, answer: Answer, inspect: Run) -> None:
        with serve_answers({"/demo-1.0-py3-none-any.whl": answer}) as server:
            outcome = inspect(f"{server.url}/demo-1.0-py3-none-any.whl")
        assert (outcome.code, outcome.out, outcome.err.count("\n")) == (3, "", 1)


def test_progress_is_shown_only_on_a_terminal(
    inspect: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("rich", reason="it draws the bar")
    path = wheel(tmp_path, plain=PLAIN)
    assert inspect(path).err == ""
    with progress_bar("x") as progress:
        assert progress is None
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with progress_bar("[bold]\x1b") as progress:
        assert progress is not None
        progress(1, 2)
    assert main(["inspect", str(path)]) == 0


@pytest.mark.skipif(sys.platform == "win32", reason="sends SIGINT")
@pytest.mark.parametrize("jobs", [1, 4])
def test_interrupt(jobs: int, tmp_path: Path) -> None:
    """An interrupt ends with 130, and leaves neither output nor files."""
    folder = tmp_path / "many"
    folder.mkdir()
    # Reading the whole file takes seconds: the reader skips the holes of sparse files.
    (folder / "0.so").write_bytes(bytes(64 << 20))
    for index in range(1, 1000):
        os.link(folder / "0.so", folder / f"{index}.so")
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "nvp", "-v"),
            *("inspect", folder, "--jobs", str(jobs)),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(temporary)},
        cwd=tmp_path,
        encoding="utf-8",
    )
    assert process.stderr is not None
    # The log says when the imports are done and the files are about to be read.
    logged = next(line for line in process.stderr if "a directory of" in line)
    assert "1000 of its 1000 files are read" in logged
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out) == (130, "")
    assert "Traceback" not in err
    assert list(temporary.iterdir()) == []
    assert {path.name for path in tmp_path.iterdir()} == {"many", "tmp"}
