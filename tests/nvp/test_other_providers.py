"""Another package in the place of the provider: a successor has the same name."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import uv
from support.stacks import Installed, make_stack
from support.wheels import stub_wheel

from nvp import __version__
from nvp.doctor.runner import diagnose

ADVICE = f"pip install --force-reinstall nvidia-variant-provider=={__version__}"

NAME = "nvidia-variant-provider"
MODULE = "nvidia_variant_provider/__init__.py"


@pytest.fixture
def nvp(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run ``nvp`` if Python finds another provider first."""

    def call(code: str, *words: str) -> subprocess.CompletedProcess[str]:
        module = tmp_path / MODULE
        module.parent.mkdir()
        module.write_text(code)
        return subprocess.run(
            [sys.executable, "-m", "nvp", *words],
            env={**os.environ, "PYTHONPATH": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
        )

    return call


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("__version__ = '0.1.0'", "nvidia_variant_provider is version 0.1.0, from "),
        ("", "nvidia_variant_provider is version unknown, from "),
        (
            f"__version__ = {__version__!r}",
            "nvidia_variant_provider cannot be used: ModuleNotFoundError: ",
        ),
        (
            "raise OSError('two\\nlines')",
            r"nvidia_variant_provider cannot be used: OSError: two\nlines; nvp needs",
        ),
        (
            "__version__ = '1\x1b]0;##vso[x]'",
            r"nvidia_variant_provider is version 1\x1b]0;# #vso[x], from ",
        ),
    ],
)
@pytest.mark.parametrize("words", [["detect"], ["doctor"], []], ids=str)
def test_the_command_says_so_in_one_line(
    code: str,
    said: str,
    words: list[str],
    nvp: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    done = nvp(code, *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"error: {said}")
    assert done.stderr.endswith(f"; nvp needs its own provider: {ADVICE}\n")
    assert done.stderr.count("\n") == 1


def test_the_version_has_a_second_line(
    nvp: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    done = nvp("__version__ = '0.1.0'", "--version")
    first, second = done.stdout.splitlines()
    assert first == f"nvp {__version__}"
    assert second.startswith("warning: nvidia_variant_provider is version 0.1.0, from ")
    assert second.endswith(ADVICE)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("installed", "notes"),
    [
        ({"nvp": "0.2.0", NAME: "0.2.0"}, ()),
        # Without the command, any provider may be installed.
        ({NAME: "0.1.0"}, ()),
        (
            {"nvp": "0.2.0", NAME: "0.1.0"},
            (
                f"nvp 0.2.0 does not run with {NAME} 0.1.0; pip install "
                f"--force-reinstall {NAME}==0.2.0",
            ),
        ),
    ],
)
def test_doctor_notes_it_in_the_environment_that_it_looks_at(
    installed: dict[str, str], notes: tuple[str, ...], tmp_path: Path
) -> None:
    items = [
        Installed(name=name, version=version) for name, version in installed.items()
    ]
    assert diagnose(make_stack(tmp_path, *items)).notes == notes


@pytest.mark.slow
class TestInstallers:
    """The installations of pip and uv with both on one index.

    The page docs/explanation/differences.md describes these results.
    """

    @pytest.fixture(autouse=True)
    def make(self, tmp_path: Path) -> None:
        for name, version, requires in (
            (NAME, "0.1.0", ["engine"]),
            (NAME, "0.2.0", []),
            ("engine", "1.0", []),
            ("nvp", "0.2.0", [f"{NAME}==0.2.0"]),
            ("other", "1.0", [f"{NAME}<0.2"]),
        ):
            code = f"__version__ = {version!r}".encode()
            members = {MODULE: code} if name == NAME else {}
            stub_wheel(tmp_path, name, version, requires=requires, members=members)
        subprocess.run(
            [
                uv.find_uv_bin(),
                "venv",
                "-q",
                "--no-config",
                "venv",
                "-p",
                sys.executable,
            ],
            cwd=tmp_path,
            check=True,
        )
        self.folder = tmp_path

    def install(self, installer: str, *words: str) -> subprocess.CompletedProcess[str]:
        options = ["--no-index", "--find-links", "."]
        program = {
            "pip": [
                *(sys.executable, "-m", "pip", "--isolated"),
                *("--disable-pip-version-check", "--python", "venv", "install"),
            ],
            "uv": [
                *(uv.find_uv_bin(), "pip", "install", "--no-config", "--no-cache"),
                *("--python", "venv/bin/python"),
            ],
        }[installer]
        return subprocess.run(
            [*program, *options, *words],
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
        )

    def versions(self, folder: str = "venv") -> list[str]:
        """Return the versions that RECORDs claim, and the one that Python imports."""
        infos = self.folder.glob(f"{folder}/**/nvidia_variant_provider-*.dist-info")
        (module,) = self.folder.glob(f"{folder}/**/{MODULE}")
        (code,) = module.read_text().splitlines()
        return [*sorted(path.name[24:29] for path in infos), code[-6:-1]]

    @pytest.mark.parametrize("installer", ["pip", "uv"])
    def test_the_newer_one_wins(self, installer: str) -> None:
        assert self.install(installer, f"{NAME}>=0.0.1,<1.0.0").returncode == 0
        assert self.versions() == ["0.2.0", "0.2.0"]

    @pytest.mark.parametrize(("installer", "is_told"), [("pip", True), ("uv", False)])
    def test_who_asks_for_the_older_one_gets_it(
        self, installer: str, *, is_told: bool
    ) -> None:
        assert self.install(installer, "nvp").returncode == 0
        done = self.install(installer, f"{NAME}==0.1.0")
        assert done.returncode == 0
        assert self.versions() == ["0.1.0", "0.1.0"]
        message = f"nvp 0.2.0 requires {NAME}==0.2.0, but you have"
        assert (message in done.stderr) == is_told
        # The installed one satisfies a requirement that allows both.
        assert self.install(installer, f"{NAME}<1.0.0").returncode == 0
        assert self.versions() == ["0.1.0", "0.1.0"]

    @pytest.mark.parametrize("installer", ["pip", "uv"])
    def test_one_environment_cannot_have_both(self, installer: str) -> None:
        assert self.install(installer, "nvp", "other").returncode == 1

    def test_pip_keeps_the_first_in_a_folder(self) -> None:
        for version in ("0.2.0", "0.1.0"):
            done = self.install("pip", "--target", "t", f"{NAME}=={version}")
            assert done.returncode == 0
        assert "already exists. Specify --upgrade to force replacement" in done.stderr
        assert self.versions("t") == ["0.1.0", "0.2.0", "0.2.0"]
        assert (self.folder / "t" / "engine.py").exists()

    def test_uv_replaces_the_first_in_a_folder(self) -> None:
        for version in ("0.2.0", "0.1.0"):
            done = self.install("uv", "--target", "t", f"{NAME}=={version}")
            assert done.returncode == 0
        assert self.versions("t") == ["0.1.0", "0.1.0"]
