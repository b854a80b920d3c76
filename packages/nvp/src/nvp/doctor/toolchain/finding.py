"""Everything that makes GPU code for a stack, found and asked for its version.

The installed torch says which CUDA it is for, without running its code. The nvcc that
builds extensions of torch is a program; NVRTC is an installed library.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from packaging.version import InvalidVersion, Version

from nvidia_variant_provider.errors import printable
from nvidia_variant_provider.machine.environment import CudaVersion

from ...builds.backends import parse_backend
from ..distributions import Distribution, Need
from ..installation import read_head
from ..software import Software
from .assemblers import Assembler, Candidate, find_assemblers, find_triton
from .programs import Place, Program, ask_versions
from .targets import VARIABLE, ArchitectureList, parse_architectures

__all__ = ["Nvrtc", "Toolchain", "TorchBuild"]

_VERSION_FILE = "torch/version.py"
_CUDA = re.compile(
    r"^cuda\b[^=\n]*=\s*(?:None|['\"](?P<cuda>[0-9]{1,3}\.[0-9]{1,3})[^'\"]*['\"])",
    re.MULTILINE,
)
_CUDA_RUNTIME = re.compile(r"cuda-toolkit|nvidia-cuda-runtime(-cu[0-9]+)?")
_PINNED = re.compile(r"==\s*([0-9]{1,3}\.[0-9]{1,3})")


@dataclass(frozen=True, kw_only=True, slots=True)
class TorchBuild:
    """The installed torch.

    :param cuda: ``None`` for a build without CUDA, and where nobody knows.
    :param source: what says so: ``torch/version.py``, ``label``, ``METADATA`` or
        ``None``.
    """

    version: str
    cuda: CudaVersion | None
    source: str | None

    @property
    def is_known(self) -> bool:
        """Whether it is known which CUDA it is for, or that it is for none."""
        return self.source is not None

    def to_dict(self) -> dict[str, object]:
        """Return the build as it stands in the JSON report."""
        return {
            "version": self.version,
            "cuda": None if self.cuda is None else str(self.cuda),
            "source": self.source,
        }


def find_torch(torch: Distribution | None, needs: Iterable[Need]) -> TorchBuild | None:
    """Find out which CUDA the installed torch is for.

    :param needs: the requirements that hold in the environment.
    """
    if torch is None:
        return None
    text = read_head(torch.locate(_VERSION_FILE))
    match = _CUDA.search(text)
    if match is not None:
        cuda = CudaVersion.parse(match["cuda"]) if match["cuda"] else None
        return TorchBuild(version=torch.version, cuda=cuda, source=_VERSION_FILE)
    backend = parse_backend(torch.version.partition("+")[2])
    if backend is not None:
        return TorchBuild(version=torch.version, cuda=backend.cuda, source="label")
    for need in needs:
        pinned = _PINNED.search(need.text)
        if need.user.name == "torch" and _CUDA_RUNTIME.fullmatch(need.name) and pinned:
            cuda = CudaVersion.parse(pinned[1])
            return TorchBuild(version=torch.version, cuda=cuda, source="METADATA")
    return TorchBuild(version=torch.version, cuda=None, source=None)


_NVCC = "nvcc.exe" if sys.platform == "win32" else "nvcc"
_NVRTC = re.compile(r"nvidia-cuda-nvrtc(-cu[0-9]+)?")
_DEFAULT = ("usr", "local", "cuda")


@dataclass(frozen=True, kw_only=True, slots=True)
class Nvrtc:
    """An installed NVRTC, which compiles CUDA C++ while a program runs.

    :param cuda: ``None`` where its version does not say it.
    """

    distribution: Distribution
    cuda: CudaVersion | None

    def fits(self, cuda: CudaVersion) -> bool:
        """Return whether it is of the same major version as a build."""
        return self.cuda is not None and self.cuda.major == cuda.major

    def to_dict(self) -> dict[str, object]:
        """Return NVRTC as it stands in the JSON report."""
        return {
            "distribution": self.distribution.name,
            "version": self.distribution.version,
            "cuda": None if self.cuda is None else str(self.cuda),
        }


def find_nvcc(environ: Mapping[str, str], root: str) -> Iterator[Place]:
    """Yield where each nvcc is that a build may use.

    torch takes the one in ``CUDA_HOME`` or ``CUDA_PATH``, then the one on ``PATH``,
    then that of /usr/local/cuda, and the first of these is what this yields first.
    CMake looks on ``PATH`` first.

    :param root: the root folder of the system.
    """
    places: dict[str, str] = {}
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if folder := environ.get(variable):
            places.setdefault(os.path.join(folder, "bin", _NVCC), variable)
    path = shutil.which(_NVCC, path=environ.get("PATH", ""))
    if path is not None:
        places.setdefault(path, "PATH")
    default = os.path.join(root, *_DEFAULT, "bin", _NVCC)
    if not places and os.path.exists(default):
        places[default] = "/usr/local/cuda"
    for place, named_by in places.items():
        yield Place(place, named_by)


def find_nvrtc(distributions: Mapping[str, Distribution]) -> Iterator[Nvrtc]:
    """Yield the installed NVRTC of each CUDA major version."""
    for distribution in distributions.values():
        if _NVRTC.fullmatch(distribution.name):
            cuda = _cuda_of_version(distribution.version)
            yield Nvrtc(distribution=distribution, cuda=cuda)


def _cuda_of_version(version: str) -> CudaVersion | None:
    """Return (12, 8) for the version 12.8.93."""
    try:
        release = Version(version).release
    except InvalidVersion:
        return None
    return CudaVersion(*release[:2]) if len(release) > 1 else None


_ELSEWHERE = (
    "the programs and the environment variables are those of this system, and the "
    "machine that was named may have others"
)


@dataclass(frozen=True)
class Toolchain:
    """The toolchain of a stack.

    Its programs run when one of them is asked for, side by side, and once.
    """

    software: Software

    @cached_property
    def torch(self) -> TorchBuild | None:
        """The installed torch."""
        torch = self.software.distributions.get("torch")
        return find_torch(torch, self.software.requirements)

    @cached_property
    def triton(self) -> Distribution | None:
        """The installed Triton."""
        return find_triton(self.software.distributions)

    @cached_property
    def assemblers(self) -> tuple[Assembler, ...]:
        """The programs that Triton runs."""
        return tuple(item.assembler(self._programs) for item in self._candidates)

    @cached_property
    def nvcc(self) -> tuple[Program, ...]:
        """The compilers for extensions; torch uses the first one."""
        return tuple(map(self._programs.__getitem__, self._compilers))

    @cached_property
    def _programs(self) -> Mapping[Place, Program]:
        """All programs, asked for their versions side by side."""
        places = [place for item in self._candidates for place in item.places]
        return ask_versions([*places, *self._compilers])

    @cached_property
    def _candidates(self) -> tuple[Candidate, ...]:
        software = self.software
        if self.triton is None:
            return ()
        return tuple(
            find_assemblers(
                self.triton,
                software.distributions.get("torch"),
                software.environ,
                software.environment.compute_capabilities,
            )
        )

    @cached_property
    def _compilers(self) -> tuple[Place, ...]:
        return tuple(find_nvcc(self.software.environ, self.software.root))

    @cached_property
    def nvrtc(self) -> tuple[Nvrtc, ...]:
        """The compilers that programs use while they run."""
        return tuple(find_nvrtc(self.software.distributions))

    @cached_property
    def architectures(self) -> ArchitectureList | None:
        """What extensions are compiled for, where a variable says it."""
        return parse_architectures(self.software.environ.get(VARIABLE, ""))

    def to_dict(self) -> Mapping[str, object]:
        """Return the toolchain as it stands in the JSON report."""
        torch, triton = self.torch, self.triton
        architectures = self.architectures
        return {
            "torch": None if torch is None else torch.to_dict(),
            "triton": None
            if triton is None
            else {"distribution": triton.name, "version": triton.version},
            "ptxas": [row for item in self.assemblers for row in item.to_dicts()],
            "nvcc": [program.to_dict() for program in self.nvcc],
            "nvrtc": [item.to_dict() for item in self.nvrtc],
            "architectures": None if architectures is None else architectures.to_dict(),
            "unknown": self.unknown(),
        }

    def unknown(self) -> list[str]:
        """Return what cannot be known of the toolchain, in sentences."""
        sentences = [] if self.software.is_here else [_ELSEWHERE]
        sentences += self.problems()
        if self.torch is not None and not self.torch.is_known:
            sentences.append(
                f"nothing says which CUDA torch {self.torch.version} is for"
            )
        return sentences

    def problems(self, reported: Collection[str | None] = ()) -> list[str]:
        """Return what is wrong with programs, in sentences.

        :param reported: the paths of findings; their programs are left out.
        """
        programs = [
            program
            for assembler in self.assemblers
            for program in (assembler.other, assembler.bundled)
            if program is not None
        ]
        return [
            f"{printable(program.path)}, by {program.named_by}: {program.problem}"
            for program in (*programs, *self.nvcc)
            if program.problem is not None and program.path not in reported
        ]
