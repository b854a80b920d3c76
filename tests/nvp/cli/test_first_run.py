"""The screen without a command, and the next step at the end of a report."""

from __future__ import annotations

import json
import re
import sysconfig
from importlib.metadata import metadata
from pathlib import Path

import pytest
from support.command import CUDA, SM, Run
from support.containers import write_wheel
from support.paths import FIXTURES, ROOT

from nvidia_variant_provider.machine.environment import (
    ComputeCapability,
    CudaVersion,
    Environment,
    Gpu,
)
from nvp.builds.vendors import newest_in_table
from nvp.files import page_url

INDEX = FIXTURES / "index"
NODES = FIXTURES / "inventories" / "kubernetes-nodes.json"
AMPERE = ("--cuda-driver", "12.8", "--sm-arch", "8.0")


class TestStart:
    @pytest.mark.parametrize("cuda", [None, "12.8", "128", ""])
    @pytest.mark.parametrize("capability", [None, "3.5", "x"])
    @pytest.mark.parametrize("columns", ["40", "80"])
    def test_the_screen_is_short_and_never_fails(
        self,
        cuda: str | None,
        capability: str | None,
        columns: str,
        run: Run,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setenv("COLUMNS", columns)
        for name, value in ((CUDA, cuda), (SM, capability)):
            if value is not None:
                monkeypatch.setenv(name, value)
        outcome = run()
        lines = outcome.out.splitlines()
        assert (outcome.code, outcome.err) == (0, "")
        assert len(lines) <= 15
        assert max(map(len, lines)) <= 80
        assert len([line for line in lines if line.startswith("  nvp ")]) == 3

    def test_a_machine_with_a_gpu(
        self, run: Run, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv(CUDA, "12.8")
        monkeypatch.setenv(SM, "8.0")
        machine = Environment(
            cuda_driver_version=CudaVersion(12, 8),
            gpus=(Gpu(index=0, compute_capability=ComputeCapability(8, 0)),),
        )
        platform = sysconfig.get_platform().replace("-", "_")
        newest = newest_in_table("torch", machine, platform)
        out = run().out
        assert "Driver: supports CUDA 12.8 (forced)\n" in out
        assert "compute capability 8.0\n" in out
        if newest is not None:  # The table has no wheels for macOS.
            known = "of the releases that nvp knows"
            assert f"torch:  {newest} is the newest that runs here, {known}\n" in out
            assert "\n  nvp pip install torch " in out

    def test_a_machine_without_a_driver(self, run: Run) -> None:
        out = run("-v").out
        assert "Driver: none (no NVIDIA device or driver was found)\n" in out
        assert "\n  nvp releases torch --cuda-driver 12.8 --sm-arch 9.0 " in out

    def test_a_wrong_override_stands_on_the_screen(
        self, run: Run, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv(CUDA, "128")
        assert f"Driver: {CUDA}: '128' is not a CUDA" in run().out


class TestNextStep:
    """Each text report ends with a line that JSON reports do not have."""

    def following(self, run: Run, *words: object) -> str:
        outcome = run(*words)
        assert outcome.out.splitlines()[-1].startswith("Next: ")
        assert (outcome.out + outcome.err).count("Next: ") == 1
        report = run(*words, "--json")
        assert "Next: " not in report.out + report.err
        json.loads(report.out)
        return outcome.out.splitlines()[-1].removeprefix("Next: ")

    def test_releases(self, run: Run) -> None:
        words = ("releases", "gpu-demo", "-i", INDEX)
        assert self.following(run, *words) == f"nvp pip install gpu-demo -i {INDEX}"
        download = f"nvp pip download gpu-demo -i {INDEX} {' '.join(AMPERE)}"
        assert self.following(run, *words, *AMPERE, "--all") == download
        other = [*words, *AMPERE, "--label", "cu999"]
        line = self.following(run, *other)
        assert line == f"nvp {' '.join(map(str, other))} --vendor-indexes"

    def test_check(self, run: Run, tmp_path: Path) -> None:
        path = tmp_path / "requirements.txt"
        path.write_text("torch==2.8.0\n")
        target = ("--platform", "linux_x86_64", "--python-version", "3.12", "--offline")
        words = ("check", path, *target, "--cuda-driver", "11.4", "--sm-arch", "8.0")
        line = self.following(run, *words)
        given = " ".join(map(str, words))
        assert line == f"to find releases that run: nvp {given} --suggest"
        here = self.following(run, "check", path, *target)
        machine = "--cuda-driver 12.8 --sm-arch 9.0"
        asked = " ".join(map(str, ["check", path, *target]))
        assert here == f"name a machine with a GPU: nvp {asked} {machine}"
        diff = ("check", path, path, *target, "--diff", "--no-gpu")
        assert self.following(run, *diff).startswith("nothing to do; ")
        old = ("--cuda-driver", "8.0", "--sm-arch", "3.5")
        none = self.following(run, "check", path, *target, *old, "--suggest")
        assert none == (
            "to see why no release runs: nvp releases torch "
            f"--platform linux_x86_64 {' '.join(old)}"
        )
        path.write_text("torch>=2.8\nsix\n")
        pin = "pin a release that runs: nvp"
        for more in ([], ["--suggest", "--strict"], ["--inspect"]):
            line = self.following(run, "check", path, *target, *AMPERE, *more)
            shown = f"torch --platform linux_x86_64 {' '.join(AMPERE)}"
            assert line == f"{pin} releases {shown}"
        line = self.following(run, "check", path, *target, "--fleet", NODES)
        assert line == f"{pin} fleet {NODES} --project torch"
        path.write_text("torch==2.8.0\n")
        fine = self.following(run, "check", path, *target, *AMPERE)
        assert fine.startswith("nothing to do; ")
        assert "Next: " not in run(*words, "--format", "github").out

    def test_doctor(self, run: Run, tmp_path: Path) -> None:
        site = tmp_path / "lib" / "python3.12" / "site-packages"
        site.mkdir(parents=True)
        words = ("doctor", "--python", tmp_path)
        line = self.following(run, *words)
        assert line.startswith("to compare with another machine: nvp doctor --python")
        assert self.following(run, *words, *AMPERE).startswith("nothing to do; ")

    def test_pip(self, run: Run) -> None:
        index = ("-i", INDEX, "--no-deps", "gpu-demo")
        line = self.following(run, "pip", "install", "--dry-run", *index)
        assert line == f"nvp pip install -i {INDEX} --no-deps gpu-demo"
        failing = run("pip", "install", "-i", INDEX, "gpu-demo==9")
        assert failing.out.splitlines()[-1] == "Next: nvp releases gpu-demo"
        assert "Next: " not in run("pip", "install", "-q", "--dry-run", *index).out
        assert "Next: " not in run("pip", "list").out

    def test_pip_without_a_gpu_package(self, run: Run, tmp_path: Path) -> None:
        folder = "plain_demo-1.0.dist-info"
        metadata = b"Metadata-Version: 2.1\nName: plain-demo\nVersion: 1.0\n"
        members = {
            f"{folder}/METADATA": metadata,
            f"{folder}/WHEEL": b"Wheel-Version: 1.0\nTag: py3-none-any\n",
            f"{folder}/RECORD": b"",
        }
        wheel = write_wheel(tmp_path / "plain_demo-1.0-py3-none-any.whl", members)
        words = ("pip", "install", "--dry-run", "--no-index", wheel)
        assert "Next: " not in run(*words).out
        missing = run("pip", "install", "--dry-run", "-i", INDEX, "no-such-project")
        assert missing.code == 1
        assert "Next: " not in missing.out


class TestOptions:
    @pytest.mark.parametrize(
        ("words", "message"),
        [
            ("resolve a --label b", "--label is an option of pip, serve, releases;"),
            ("resolve a --cuda 12", "no option --cuda; did you mean --cuda-driver?"),
            ("--sm-arch 9.0", "--sm-arch is an option of pip, "),
            ("matrix", "FILE is missing; see nvp matrix --help"),
            ("resolve a --sm-arch", "--sm-arch needs a value; see"),
            ("resolve a --explain=3", "--explain takes no value, but has '3'; see"),
            (
                "fleet a --release b --project c",
                "--project and --release contradict each other; see",
            ),
        ],
    )
    def test_what_was_meant(self, words: str, message: str, run: Run) -> None:
        outcome = run(*words.split())
        assert (outcome.code, outcome.out) == (2, "")
        assert message in outcome.err
        assert outcome.err.count("\n") == 1

    @pytest.mark.parametrize("word", ["--labl", "--cuda-drivr=12.8"])
    def test_an_option_that_pip_refuses_may_be_one_of_this_command(
        self, word: str, run: Run
    ) -> None:
        outcome = run("pip", "install", word, "demo")
        name = word.partition("=")[0]
        assert outcome.code == 2
        assert f"warning: {name} is no option of pip; did you mean nvp's" in outcome.err

    def test_no_option_of_pip_counts_as_mistyped(self, run: Run) -> None:
        from pip._internal.commands import commands_dict, create_command

        parsers = [create_command(name).parser for name in commands_dict]
        options = {option for p in parsers for option in p._long_opt}
        assert "--index-url" in options
        words = [option for option in sorted(options) if option != "--help"]
        outcome = run("pip", "install", "--no-such-option", *words)
        assert outcome.code == 2
        assert "did you mean nvp's" not in outcome.err


def test_addresses_of_pages_are_those_of_the_metadata(run: Run) -> None:
    urls = metadata("nvp").get_all("Project-URL") or []
    assert f"Documentation, {page_url('')}" in urls
    error = run("fleet", ROOT / "LICENSE").err
    assert f"a form in {page_url('how-to/fleet/#inventories')}\n" in error


def test_messages_name_pages_that_the_site_has() -> None:
    sources = [*ROOT.glob("packages/nvp/src/**/*.py")]
    text = "".join(path.read_text() for path in sources)
    pages = re.findall(r'"([\w/-]+)/#([\w-]+)"', text)
    assert pages
    for page, anchor in pages:
        content = (ROOT / "docs" / f"{page}.md").read_text()
        titles = re.findall(r"^#+ (.+?)(?: \{ #(\S+) \})?$", content, re.MULTILINE)
        anchors = {own or re.sub(r"\W+", "-", title.lower()) for title, own in titles}
        assert anchor in anchors, f"{page}.md has no heading #{anchor}"


def test_no_message_names_a_file_that_a_wheel_does_not_have() -> None:
    sources = [*ROOT.glob("packages/nvp/src/**/*.py")]
    sources += ROOT.glob("nvidia_variant_provider/**/*.py")
    for path in sources:
        for line in re.findall(r'"[^"\n]*\bdocs/[^"\n]*\.md[^"\n]*"', path.read_text()):
            raise AssertionError(f"{path.name}: {line}")


def test_a_file_of_another_kind_is_not_inspected(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "README.md"
    for content in ("", "# Text\n"):
        path.write_text(content)
        outcome = run("inspect", path)
        assert outcome.code == 3
        assert outcome.err.startswith(
            f"error: {path}: it is neither a wheel nor a library"
        )


@pytest.mark.parametrize("keys", [{}, {"providers": {"nvidia": {"x": 1}}}])
def test_one_version_is_named_where_a_document_has_none(
    keys: dict[str, object], run: Run, tmp_path: Path
) -> None:
    path = tmp_path / "demo-1.0-variants.json"
    path.write_text(json.dumps({"unknown": 1, **keys}))
    out = run("validate", path).out
    versions = re.findall(r"\bversion (\d\.\d\.\d)", out)
    assert len(versions) >= 2
    assert len({*versions}) == 1
    assert "add default-priorities" not in out
