"""uv, which installs from a local index of stub wheels."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import Distribution
from pathlib import Path
from typing import Any

import uv
from support.index_server import serve
from support.release_cases import CLEAN, edit_wheel
from support.wheels import publish, stub_wheel, variants_json_name, wheel_name

__all__ = ["InstallError", "Release", "UvIndex", "uv_index"]


class InstallError(Exception):
    """Raised when uv installs nothing; the text is the output of uv."""


class UvIndex:
    """An index, and a uv whose only index it is.

    Each release is a project of its own, because all installations share one cache: uv
    caches project pages and metadata.
    """

    def __init__(self, folder: Path, url: str) -> None:
        self.url = url
        self._folder = folder
        self._count = itertools.count()

    def publish(self, metadata: Mapping[str, Any]) -> str:
        """Publish a release with a wheel for each label; return the project's name."""
        name = f"project-{next(self._count)}"
        publish(self._folder / "index", metadata, name, "1.0")
        return name

    def install(
        self,
        projects: Sequence[str],
        forced: Mapping[str, str],
        *,
        dependencies: bool = False,
    ) -> list[str | None]:
        """Install into a new directory; return the label of each, or ``None``.

        :param forced: the environment variables that force a machine.
        :param dependencies: whether uv reads the requirements of the wheels.
        :raises InstallError: uv fails.
        """
        target = self._folder / f"target-{next(self._count)}"
        command = [uv.find_uv_bin(), "pip", "install", "--no-config"]
        command += [] if dependencies else ["--no-deps"]
        command += ["--preview-features", "wheel-variants"]
        command += ["--default-index", self.url, "--target", str(target), *projects]
        done = subprocess.run(
            command,
            env=self._environ(forced),
            cwd=self._folder,
            capture_output=True,
            encoding="utf-8",
            timeout=120,
            check=False,
        )
        if done.returncode:
            raise InstallError(done.stderr)
        labels = dict(_installed(path) for path in target.glob("*.dist-info"))
        return [labels[project] for project in projects]

    def _environ(self, forced: Mapping[str, str]) -> dict[str, str]:
        environ = {
            name: value
            for name, value in os.environ.items()
            if not name.upper().startswith(("UV_", "NV_VARIANT_PROVIDER_"))
            and not name.upper().endswith("_PROXY")
        }
        return environ | {
            "UV_CACHE_DIR": str(self._folder / "cache"),
            "UV_PYTHON": sys.executable,
            "UV_PYTHON_DOWNLOADS": "never",
            # Without this variable, uv queries the operating system for a proxy.
            "NO_PROXY": "127.0.0.1",
            **forced,
        }


@contextmanager
def uv_index(folder: Path) -> Iterator[UvIndex]:
    """Serve a `UvIndex` below ``folder`` while the context lasts."""
    index = folder / "index"
    index.mkdir()
    with serve(index) as url:
        yield UvIndex(folder, url)


def _installed(info: Path) -> tuple[str, str | None]:
    distribution = Distribution.at(info)
    text = distribution.read_text("variant.json")
    if text is None:
        return distribution.metadata["Name"], None
    (label,) = json.loads(text)["variants"]
    return distribution.metadata["Name"], label


class Release:
    """Version 1.0 of a project in the index of uv, for tests to damage."""

    def __init__(self, index: UvIndex, root: Path) -> None:
        self.project = index.publish(CLEAN)
        self.files = root / "index" / self.project
        self.metadata = self.files / variants_json_name(self.project, "1.0")
        self.wheel = self.files / wheel_name(self.project, "1.0", "cu12")

    def rewrite(self, variant_json: Any) -> None:
        """Write the wheel of cu12 again."""
        stub_wheel(self.files, self.project, "1.0", "cu12", variant_json=variant_json)

    def edit(self, old: str, new: str) -> None:
        """Change a text in the ``*.dist-info`` of the wheel."""
        edit_wheel(self.wheel, {}, {old: new})

    def link(self) -> None:
        """Write the page of the project again, without hashes of the files."""
        page = self.files / "index.html"
        names = [path.name for path in self.files.iterdir() if path != page]
        links = "".join(f'<a href="{name}">{name}</a>\n' for name in sorted(names))
        page.write_text(f"<!DOCTYPE html>\n{links}", encoding="utf-8")


def install_with_uv(
    url: str, target: Path, environ: dict[str, str], requirement: str, *words: str
) -> subprocess.CompletedProcess[str]:
    """Install a requirement into a directory with uv, from one index."""
    command = [uv.find_uv_bin(), "pip", "install", "--no-config", "--default-index"]
    return subprocess.run(
        [*command, url, "--target", str(target), requirement, *words],
        env={
            **environ,
            "UV_CACHE_DIR": str(target.parent / "uv"),
            "UV_PYTHON": sys.executable,
        },
        capture_output=True,
        encoding="utf-8",
        timeout=120,
        check=False,
    )
