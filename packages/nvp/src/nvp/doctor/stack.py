"""What the checks look at: a machine, its software, and what follows from both."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from .abi.symbols import (
    Extension,
    TorchSymbols,
    find_extensions,
    libraries_of_extensions,
    read_torch,
)
from .loading import LIBRARY_PATH, Libraries
from .software import Software
from .toolchain.compilers import Toolchain

__all__ = ["Stack"]


@dataclass(frozen=True, kw_only=True)
class Stack(Software):
    """A machine with its software, and what its programs load, compile and need.

    Each part is made when a check asks for it, and once.
    """

    @cached_property
    def libraries(self) -> Libraries:
        """What the programs of the stack load, with ``LD_LIBRARY_PATH`` as it is."""
        return Libraries(self, self.environ.get(LIBRARY_PATH, ""))

    @cached_property
    def toolchain(self) -> Toolchain:
        """The compilers and the assemblers that make GPU code for the stack."""
        return Toolchain(self)

    @cached_property
    def torch_symbols(self) -> TorchSymbols | None:
        """The names that the installed torch defines; ``None`` where nobody knows."""
        torch = self.distributions.get("torch")
        return None if torch is None else read_torch(torch, self.reader.folder)

    @cached_property
    def extensions(self) -> tuple[Extension, ...]:
        """What the distributions that are linked with torch need of it."""
        libraries = tuple(libraries_of_extensions(self))
        torch = self.torch_symbols if libraries else None
        return () if torch is None else tuple(find_extensions(libraries, torch))
