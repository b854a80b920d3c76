"""The compilers of GPU code for a stack, and their target GPUs.

The CUDA version of torch is read from its files, without running its code. nvcc prints
its CUDA version. NVRTC has the version of its distribution.

The tables list the GPUs that a release of CUDA supports. For extensions of torch, the
variable ``TORCH_CUDA_ARCH_LIST`` lists the targets. Its grammar is that of
``torch.utils.cpp_extension`` in torch 2.15. Entries are separated by semicolons or
spaces. An entry is a compute capability, with an optional suffix, and an optional
``+PTX``: ``8.0``, ``9.0a`` or ``9.0a+PTX``. The name of an architecture is replaced by
one or several entries.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from packaging.version import Version

from nvidia_variant_provider.errors import printable
from nvidia_variant_provider.machine.environment import ComputeCapability, CudaVersion

from ..builds.needs import parse_backend
from ..findings import Reported
from ..gpu_code.units import ptx_toolkit
from ..knowledge.tables import gpu_models, runs_machine_code, runs_ptx, toolkits
from ..signals import unstopped
from .assemblers import Assembler, find_assemblers
from .distributions import Distribution, Need, find_triton
from .installation import read_head
from .programs import Program, ask_versions, find_program
from .software import Software


def compiles_for(
    cuda: CudaVersion, capability: ComputeCapability, suffix: str = ""
) -> bool | None:
    """Return whether a release of CUDA emits machine code for a compute capability.

    :param suffix: ``a`` for the target with features that only this GPU has.
    :returns: ``None`` if the tables have neither the release nor the GPU.
    """
    toolkit = toolkits().get(cuda)
    if toolkit is not None:
        return f"{capability.sm}{suffix}" in toolkit.targets
    model = gpu_models().get(capability)
    if model is None:
        return None
    last = model.last_toolkit
    return model.first_toolkit <= cuda and (last is None or cuda <= last)


def is_older_than(cuda: CudaVersion, capability: ComputeCapability) -> bool:
    """Return whether a release of CUDA came before a GPU.

    Such a release emits PTX for an older target, which the driver compiles for the GPU.
    """
    model = gpu_models().get(capability)
    return model is not None and cuda < model.first_toolkit


def driver_for_ptx(cuda: CudaVersion) -> CudaVersion:
    """Return the CUDA version of the oldest driver that reads PTX of a CUDA release.

    CUDA 12.6 emits the same PTX version as 12.5, so a driver for 12.5 reads it.
    """
    toolkit = toolkits().get(cuda)
    if toolkit is None:
        return cuda
    return ptx_toolkit(toolkit.ptx_isa) or cuda


VARIABLE = "TORCH_CUDA_ARCH_LIST"

_NAMES = {
    "Kepler+Tesla": "3.7",
    "Kepler": "3.5+PTX",
    "Maxwell+Tegra": "5.3",
    "Maxwell": "5.0;5.2+PTX",
    "Pascal": "6.0;6.1+PTX",
    "Volta+Tegra": "7.2",
    "Volta": "7.0+PTX",
    "Turing": "7.5+PTX",
    "Ampere+Tegra": "8.7",
    "Ampere": "8.0;8.6+PTX",
    "Ada": "8.9+PTX",
    "Hopper": "9.0+PTX",
    "Blackwell+Tegra": "11.0",
    "Blackwell": "10.0;10.3;12.0;12.1+PTX",
    "Rubin": "10.7+PTX",
}
"""The names in torch 2.15, from ``named_arches``. Names with ``+Tegra`` come first,
because torch replaces the names as text, one after the other."""

_ENTRY = re.compile(r"([0-9]{1,2})\.([0-9])([af]?)(\+PTX)?")


@dataclass(frozen=True, kw_only=True, slots=True)
class ArchitectureList(Reported):
    """The parsed value of ``TORCH_CUDA_ARCH_LIST``.

    :param text: the value itself.
    :param machine_code: the targets of machine code, such as ``80`` and ``90a``.
    :param ptx: the targets of PTX.
    :param unknown: the entries that torch rejects.
    """

    text: str
    machine_code: tuple[str, ...]
    ptx: tuple[str, ...]
    unknown: tuple[str, ...] = ()

    def has_code_for(
        self,
        capability: ComputeCapability,
        toolkit: CudaVersion | None = None,
        driver: CudaVersion | None = None,
    ) -> bool:
        """Return whether an extension gets machine code that runs on a GPU.

        :param toolkit: the CUDA version of the compiler.
        """
        return any(
            runs_machine_code(name, capability, toolkit, driver)
            for name in self.machine_code
        )

    def has_ptx_for(self, capability: ComputeCapability) -> bool:
        """Return whether an extension gets PTX that a GPU can run."""
        return any(runs_ptx(name, capability) for name in self.ptx)


def parse_architectures(text: str) -> ArchitectureList | None:
    """Parse a value of ``TORCH_CUDA_ARCH_LIST``.

    :returns: ``None`` if torch selects the targets itself: the value is empty or
        ``native``.
    """
    if not text or text == "native":
        return None
    expanded = text.replace(" ", ";")
    for name, numbers in _NAMES.items():
        expanded = expanded.replace(name, numbers)
    entries = dict.fromkeys(expanded.split(";"))
    matches = list(filter(None, map(_ENTRY.fullmatch, entries)))
    targets = {f"{int(m[1])}{m[2]}{m[3]}": None for m in matches}
    return ArchitectureList(
        text=text,
        machine_code=tuple(targets),
        ptx=tuple({f"{int(m[1])}{m[2]}{m[3]}": None for m in matches if m[4]}),
        unknown=tuple(x for x in entries if not _ENTRY.fullmatch(x)),
    )


_VERSION_FILE = "torch/version.py"
_CUDA = re.compile(
    r"^cuda\b[^=\n]*=\s*(?:None|['\"](?P<cuda>[0-9]{1,3}\.[0-9]{1,3})[^'\"]*['\"])",
    re.MULTILINE,
)
_CUDA_RUNTIME = re.compile(r"cuda-toolkit|nvidia-cuda-runtime(-cu[0-9]+)?")
_PINNED = re.compile(r"==\s*([0-9]{1,3}\.[0-9]{1,3})")


@dataclass(frozen=True, kw_only=True, slots=True)
class TorchBuild(Reported):
    """The installed build of torch.

    :param cuda: the CUDA version; ``None`` for a build without CUDA, or if unknown.
    :param source: the evidence for ``cuda``: ``torch/version.py``, ``label``,
        ``METADATA``, or ``None`` if there is no evidence.
    """

    version: str
    cuda: CudaVersion | None
    source: str | None

    @property
    def is_known(self) -> bool:
        """Whether the CUDA version of the build, or the lack of one, is known."""
        return self.source is not None


def find_torch(torch: Distribution | None, needs: Iterable[Need]) -> TorchBuild | None:
    """Find the CUDA version of the installed torch.

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
    """An installed copy of NVRTC, which compiles CUDA C++ while a program runs.

    :param cuda: the CUDA version of NVRTC; ``None`` if unknown.
    """

    distribution: Distribution
    cuda: CudaVersion | None

    def to_dict(self) -> dict[str, object]:
        """Return NVRTC for the JSON report."""
        return {
            "distribution": self.distribution.name,
            "version": self.distribution.version,
            "cuda": None if self.cuda is None else str(self.cuda),
        }


def find_nvcc(environ: Mapping[str, str], root: str) -> Iterator[Program]:
    """Yield each nvcc that a build may use, in torch's order.

    torch uses nvcc from ``CUDA_HOME`` or ``CUDA_PATH``, or else from ``PATH``, or else
    from /usr/local/cuda. CMake searches ``PATH`` first.

    :param root: the root directory of the system.
    """
    places: dict[str, str] = {}
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if folder := environ.get(variable):
            places.setdefault(os.path.join(folder, "bin", _NVCC), variable)
    path = find_program(_NVCC, environ)
    if path is not None:
        places.setdefault(path, "PATH")
    default = os.path.join(root, *_DEFAULT, "bin", _NVCC)
    if not places and os.path.exists(default):
        places[default] = "/usr/local/cuda"
    for place, named_by in places.items():
        yield Program(path=place, named_by=named_by)


def _cuda_of_version(version: str) -> CudaVersion | None:
    """Return the CUDA version of a release, such as (12, 8) for 12.8.93."""
    try:
        release = Version(version).release
    except ValueError:
        return None
    return CudaVersion(*release[:2]) if len(release) > 1 else None


_ELSEWHERE = (
    "the programs and the environment variables are those of this system, and the "
    "machine that was named may have others"
)


@dataclass(frozen=True)
class Toolchain:
    """The compilers and assemblers of a stack.

    All programs are run once, in parallel, when a version is first needed.
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

    @property
    def assemblers(self) -> tuple[Assembler, ...]:
        """The programs with which Triton may assemble PTX."""
        return self._programs[0]

    @property
    def nvcc(self) -> tuple[Program, ...]:
        """The compilers for extensions; torch uses the first one."""
        return self._programs[1]

    @cached_property
    def _programs(self) -> tuple[tuple[Assembler, ...], tuple[Program, ...]]:
        """The assemblers and the compilers, with their versions."""
        software = self.software
        found: list[Assembler] = []
        if self.triton is not None:
            found += find_assemblers(
                self.triton,
                software.distributions.get("torch"),
                software.environ,
                software.environment.compute_capabilities,
            )
        nvcc = list(find_nvcc(software.environ, software.root))
        with unstopped():  # programs must be ended in any case
            programs = [*(x for item in found for x in item.programs), *nvcc]
            asked = ask_versions(programs, software.environ)
        assemblers = [
            replace(
                item,
                bundled=asked[item.bundled],
                other=item.other and asked[item.other],
            )
            for item in found
        ]
        return tuple(assemblers), tuple(asked[program] for program in nvcc)

    @cached_property
    def nvrtc(self) -> tuple[Nvrtc, ...]:
        """The installed copies of NVRTC, which programs use at run time."""
        return tuple(
            Nvrtc(distribution=x, cuda=_cuda_of_version(x.version))
            for x in self.software.distributions.values()
            if _NVRTC.fullmatch(x.name)
        )

    @cached_property
    def architectures(self) -> ArchitectureList | None:
        """The targets in ``TORCH_CUDA_ARCH_LIST``; ``None`` if torch selects them."""
        return parse_architectures(self.software.environ.get(VARIABLE, ""))

    def to_dict(self) -> Mapping[str, object]:
        """Return the toolchain for the JSON report."""
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
        """Return sentences about unknown facts of the toolchain."""
        sentences = [] if self.software.is_here else [_ELSEWHERE]
        sentences += self.problems()
        if self.torch is not None and not self.torch.is_known:
            sentences.append(
                f"it is unknown which CUDA torch {self.torch.version} is for"
            )
        return sentences

    def problems(self, reported: Collection[str | None] = ()) -> list[str]:
        """Return sentences about programs whose version is unknown.

        :param reported: paths that findings name; programs at these paths are left out.
        """
        programs = [x for item in self.assemblers for x in item.programs]
        return [
            f"{printable(program.path)}, by {program.named_by}: {program.problem}"
            for program in (*programs, *self.nvcc)
            if program.problem is not None and program.path not in reported
        ]
