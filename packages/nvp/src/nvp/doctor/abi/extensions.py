"""Extensions of torch: distributions with libraries that are linked with it."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from ...gpu_code.symbols import Symbol
from ..distributions import Distribution
from ..software import Software
from .mangling import abi_of, with_other_tag
from .torch_symbols import TorchSymbols, read_library

__all__ = [
    "Extension",
    "find_extensions",
    "libraries_of_extensions",
    "torch_libraries",
]

_TORCH = ("libtorch", "libc10")


@dataclass(frozen=True, kw_only=True, slots=True)
class Extension:
    """A library of an extension that wants names which torch does not define.

    :param path: where the library is.
    :param other_abi: the names that belong to another C++ ABI than torch's.
    :param missing: the other names.
    """

    distribution: Distribution
    path: str
    other_abi: tuple[bytes, ...]
    missing: tuple[bytes, ...]


def torch_libraries(software: Software, distribution: Distribution) -> tuple[str, ...]:
    """Return the libraries of a distribution that are linked with torch.

    :returns: paths of RECORD.
    """
    report = None if distribution.name == "torch" else software.code_of(distribution)
    if report is None:
        return ()
    return tuple(
        library.path
        for library in report.libraries
        if library.format == "elf"
        and any(name.startswith(_TORCH) for name in library.needed)
    )


def libraries_of_extensions(software: Software) -> Iterator[tuple[Distribution, str]]:
    """Yield the libraries that are linked with torch, with the paths of RECORD."""
    for distribution in software.distributions.values():
        for path in torch_libraries(software, distribution):
            yield distribution, path


def find_extensions(
    libraries: Collection[tuple[Distribution, str]], torch: TorchSymbols
) -> Iterator[Extension]:
    """Yield the libraries that want names of torch which nobody defines.

    A name that another extension defines is not missing: torchaudio has a library for
    its functions, and another one that makes them known to Python.

    :param libraries: as `libraries_of_extensions` yields them.
    """
    wanted: list[tuple[Distribution, str, set[bytes]]] = []
    defined: set[bytes] = set()
    for distribution, path in libraries:
        place = distribution.locate(path)
        try:
            symbols = list(read_library(place))
        except (OSError, ValueError) as error:
            distribution.defects.append(f"{path}: {error}")
            continue
        defined.update(symbol.name for symbol in symbols if symbol.is_defined)
        wanted.append((distribution, place, set(_missing(symbols, torch))))
    for distribution, place, names in wanted:
        left = sorted(names - defined)
        if left:
            yield _extension(distribution, place, left, torch)


def _missing(symbols: list[Symbol], torch: TorchSymbols) -> Iterator[bytes]:
    for symbol in symbols:
        # The loader leaves a weak name empty where nobody defines it.
        wanted = not (symbol.is_defined or symbol.is_weak)
        if wanted and not torch.defines(symbol.name):
            yield symbol.name


def _extension(
    distribution: Distribution, path: str, names: list[bytes], torch: TorchSymbols
) -> Extension:
    other = [name for name in names if _is_of_other_abi(name, torch)]
    return Extension(
        distribution=distribution,
        path=path,
        other_abi=tuple(other),
        missing=tuple(name for name in names if name not in other),
    )


def _is_of_other_abi(name: bytes, torch: TorchSymbols) -> bool:
    if torch.abi is None:
        return False
    abi = abi_of(name)
    if abi is not None:
        return abi != torch.abi
    # The name of a function that returns a string has a tag in the new ABI alone.
    other = with_other_tag(name)
    return other is not None and torch.defines(other)
