"""Everything that makes GPU code for a stack, found and asked for its version."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property

from nvidia_variant_provider.errors import printable

from ..distributions import Distribution
from ..software import Software
from .architectures import VARIABLE, ArchitectureList, parse_architectures
from .assemblers import Assembler, Choice, find_assemblers, find_triton
from .compilers import Nvrtc, find_nvcc, find_nvrtc
from .programs import Place, Program, ask_versions
from .torch_build import TorchBuild, find_torch

__all__ = ["Toolchain"]

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
        return tuple(item.assembler(self._programs) for item in self._choices)

    @cached_property
    def nvcc(self) -> tuple[Program, ...]:
        """The compilers for extensions; torch uses the first one."""
        return tuple(map(self._programs.__getitem__, self._compilers))

    @cached_property
    def _programs(self) -> Mapping[Place, Program]:
        """All programs, asked for their versions side by side."""
        places = [place for choice in self._choices for place in choice.places]
        return ask_versions([*places, *self._compilers])

    @cached_property
    def _choices(self) -> tuple[Choice, ...]:
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

    def problems(self, told: Collection[str | None] = ()) -> list[str]:
        """Return what is wrong with programs, in sentences.

        :param told: the paths of programs that are left out.
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
            if program.problem is not None and program.path not in told
        ]
