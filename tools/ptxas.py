"""Download ``ptxas`` from the package index, and find the targets that it assembles.

NVIDIA publishes its compiler on PyPI. The distributions for CUDA 12 are named
``nvidia-cuda-nvcc-cu12``, those for CUDA 13 and newer ``nvidia-cuda-nvcc``. ``ptxas``
runs on Linux without a GPU.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Ptxas", "fetch"]

CACHE = Path.home() / ".cache" / "nvidia-variant-provider-tools"
"""The directory of the downloaded programs."""

_KERNEL = """\
.version {isa}
.target sm_{target}
.address_size 64
.visible .entry kernel() {{ ret; }}
"""
_TARGET = re.compile(r"'sm_(\d+[af]?)'")
_RELEASE = re.compile(r"\bV(\d+\.\d+\.\d+)\b")
_ISA = re.compile(r"current version is '(\d+\.\d+)'")
_NO_SUCH_ISA = "99.9"


@dataclass(frozen=True, kw_only=True, slots=True)
class Ptxas:
    """The assembler of one CUDA toolkit.

    :param requirement: the distribution of the program, such as
        ``nvidia-cuda-nvcc==13.0.88``.
    """

    requirement: str
    path: Path

    def release(self) -> str:
        """Return the version that the program reports, such as ``13.0.88``."""
        return _search(_RELEASE, self._run("--version").stdout, self)

    def isa(self) -> str:
        """Return the newest PTX version that the program reads, such as ``9.0``.

        The program names its own version in the error for a version that does not
        exist.
        """
        kernel = _KERNEL.format(isa=_NO_SUCH_ISA, target="75")
        return _search(_ISA, self._assemble(kernel, "75").stderr, self)

    def targets(self) -> list[str]:
        """Return the targets for which the program makes SASS, such as ``90a``.

        Each target that ``--help`` lists is tried with a kernel.
        """
        listed = sorted(set(_TARGET.findall(self._run("--help").stdout)), key=_order)
        return [target for target in listed if self.assembles(target, [target])]

    def assembles(self, source: str, targets: Iterable[str]) -> list[str]:
        """Return the ``targets`` for which the program assembles PTX of ``source``."""
        kernel = _KERNEL.format(isa=self.isa(), target=source)
        return [
            target
            for target in targets
            if self._assemble(kernel, target).returncode == 0
        ]

    def _assemble(self, kernel: str, target: str) -> subprocess.CompletedProcess[str]:
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder, "kernel.ptx")
            source.write_text(kernel, encoding="ascii")
            output = str(Path(folder, "kernel.cubin"))
            return self._run(f"-arch=sm_{target}", str(source), "-o", output)

    def _run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self.path), *arguments], capture_output=True, text=True, check=False
        )


def fetch(requirement: str, cache: Path = CACHE) -> Ptxas:
    """Return the ``ptxas`` of a pinned requirement; download it once."""
    path = cache / requirement / "ptxas"
    if not path.exists():
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run(
                [
                    *(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"),
                    *("--only-binary", ":all:", "--dest", folder, requirement),
                ],
                check=True,
            )
            (wheel,) = Path(folder).glob("*.whl")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(_read_program(wheel))
            path.chmod(0o755)
    return Ptxas(requirement=requirement, path=path)


def _read_program(wheel: Path) -> bytes:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (n for n in archive.namelist() if n.endswith("/bin/ptxas"))
        return archive.read(name)


def _search(pattern: re.Pattern[str], text: str, ptxas: Ptxas) -> str:
    match = pattern.search(text)
    if match is None:
        raise SystemExit(f"{ptxas.requirement}: ptxas prints no {pattern.pattern}")
    return match[1]


def _order(target: str) -> tuple[int, str]:
    return int(target.rstrip("af")), target
