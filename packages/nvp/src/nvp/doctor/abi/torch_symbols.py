"""The names that the libraries of the installed torch define."""

from __future__ import annotations

import base64
import hashlib
import re
from array import array
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from nvidia_variant_provider.strict_json import open_regular

from ...gpu_code.symbols import Symbol, read_symbols
from ..cache import kept_path, read_kept, write_kept
from ..distributions import Distribution
from .mangling import OF_TORCH, Abi, abi_of

__all__ = ["TorchSymbols", "read_library", "read_torch"]

_LIBRARY = re.compile(r"torch/lib/lib[^/]+\.so(\.[0-9.]+)?")


@dataclass(frozen=True, kw_only=True, slots=True)
class TorchSymbols:
    """The names in the namespaces of torch that the installed one defines.

    torch 2.15 has 41,000 of them. A name is kept as 64 bits of its hash.

    :param abi: ``None`` where no name says it.
    """

    hashes: frozenset[int]
    abi: Abi | None

    def defines(self, name: bytes) -> bool:
        """Return whether a library of torch has a name."""
        return _hash(name) in self.hashes


def read_torch(torch: Distribution, folder: str | None) -> TorchSymbols | None:
    """Read the libraries of torch, or what is kept of them.

    :param folder: where the names are kept; ``None`` keeps nothing.
    :returns: ``None`` where a library cannot be read, which is a defect of torch, or
        there is none.
    """
    files = [item for item in torch.files if _LIBRARY.fullmatch(item.path)]
    path = kept_path(folder, "symbols", torch, files)
    kept = _from_document(read_kept(path))
    if kept is not None:
        return kept
    hashes: set[int] = set()
    abis: Counter[Abi] = Counter()
    for item in files:
        try:
            symbols = list(read_library(torch.locate(item.path)))
        except (OSError, ValueError) as error:
            torch.defects.append(f"{item.path}: {error}")
            return None
        defined = [symbol.name for symbol in symbols if symbol.is_defined]
        hashes.update(map(_hash, defined))
        abis.update(filter(None, map(abi_of, defined)))
    if not hashes:
        return None
    # A few functions with strings of the other ABI come from libraries that are linked
    # statically.
    common = abis.most_common(1)
    result = TorchSymbols(
        hashes=frozenset(hashes), abi=common[0][0] if common else None
    )
    write_kept(path, _to_document(result))
    return result


def read_library(path: str) -> Iterator[Symbol]:
    """Yield the symbols of a library that are in the namespaces of torch.

    :raises OSError: it cannot be opened.
    :raises ValueError: it is not an ELF file, or is damaged.
    """
    with open_regular(path) as file:
        yield from read_symbols(file, OF_TORCH)


def _hash(name: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "little")


def _to_document(symbols: TorchSymbols) -> dict[str, str | None]:
    return {
        "abi": symbols.abi,
        "hashes": base64.b64encode(array("Q", symbols.hashes).tobytes()).decode(),
    }


def _from_document(document: object) -> TorchSymbols | None:
    if not isinstance(document, dict):
        return None
    abi, text = document.get("abi"), document.get("hashes")
    if abi not in ("new", "old", None) or not isinstance(text, str):
        return None
    hashes = array("Q")
    try:
        hashes.frombytes(base64.b64decode(text, validate=True))
    except ValueError:
        return None
    return TorchSymbols(hashes=frozenset(hashes), abi=abi) if hashes else None
