"""Check that torch extensions fit the installed torch.

An extension is a distribution with libraries that are linked with torch's libraries. An
extension may need symbols that the installed torch does not define.

Names are mangled by the rules of the Itanium C++ ABI:
https://itanium-cxx-abi.github.io/cxx-abi/abi.html#mangling
"""

from __future__ import annotations

import base64
import hashlib
import re
from array import array
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import partial

from nvidia_variant_provider.strict_json import open_regular

from ..builds.needs import Abi
from ..gpu_code.dynamic import Symbol, read_symbols
from .distributions import Distribution
from .installation import SYMBOLS
from .software import Software, kept_path, read_kept, write_kept

OF_TORCH = re.compile(
    # Functions, and tables of classes, such as vtables. "N" begins a name inside a
    # namespace, and "K" marks a const function.
    rb"_Z(?:T[VTISC]|GV|Th?n?[0-9_]+)?N[VKRO]*(?:3c10|2at|5torch|6caffe2)"
    # The functions of torch's stable C ABI, and of its Python bindings (THP).
    rb"|(?:aoti_)?torch_|THP[A-Z]"
)
"""A pattern that matches the prefixes of torch's symbols."""

_NESTED = re.compile(rb"_Z(?:T[VTISC]|GV|Th?n?[0-9_]+)?N[VKRO]*")
_TAG = b"B5cxx11"
_IN_NAMESPACE = b"7__cxx11"

_FOR_TORCH = re.compile(r"torch[-_]?([0-9]{2,3})(?![0-9])[^/]*$")
"""A pattern for a library that is for one torch release: ``torch210`` for 2.10."""

_LENGTH = re.compile(rb"[0-9]{1,6}")
_TOKEN = re.compile(
    rb"(?P<length>[0-9]+)"
    rb"|(?P<string>Ss)"  # std::string of the old ABI
    # One match takes everything up to a length or Ss: names may have 65,000 bytes.
    rb"|(?:[^0-9LST]+"
    rb"|L[a-z]n?[0-9]{1,20}E"  # a number that is a template argument
    rb"|[ST][0-9A-Z]{0,12}_"  # a substitution for an earlier name
    rb"|(?!Ss)[LST])+"
)


def abi_of(name: bytes) -> Abi | None:
    """Return the C++ ABI of a function, from its mangled name.

    :returns: ``new`` or ``old``; ``None`` for most names, which do not show the ABI.
    """
    # GCC: "in the new ABI ... std::string is std::__cxx11::string", and a function that
    # returns a std::string has the tag in its name.
    if _IN_NAMESPACE in name or _TAG in name:
        return "new"
    return "old" if b"Ss" in name and _has_old_string(name) else None


def with_other_tag(name: bytes) -> bytes | None:
    """Return a mangled name with the ABI tag removed, or added if it is missing.

    :returns: ``None`` for a name with parts other than identifiers in namespaces.
    """
    if _TAG in name:
        return name.replace(_TAG, b"")
    end = _end_of_name(name)
    return None if end is None else name[:end] + _TAG + name[end:]


def qualified_name(name: bytes) -> str:
    """Return a readable name, such as ``c10::detail::torchCheckFail``.

    The result ends before the first part that is not an identifier, such as a template
    argument. A name outside of namespaces is returned unchanged.
    """
    match = _NESTED.match(name)
    if match is None:
        return name.decode("utf-8", "backslashreplace")
    parts, _ = _identifiers(name, match.end())
    return "::".join(parts) or name.decode("utf-8", "backslashreplace")


def _end_of_name(name: bytes) -> int | None:
    """Return the offset after a nested name that has only identifiers, or ``None``."""
    match = _NESTED.match(name)
    if match is None:
        return None
    _, at = _identifiers(name, match.end())
    return at if name[at : at + 1] == b"E" else None


def _identifiers(name: bytes, at: int) -> tuple[list[str], int]:
    """Return the consecutive identifiers from an offset, and the offset after them."""
    parts = []
    while match := _LENGTH.match(name, at):
        at = match.end() + int(match[0])
        text = name[match.end() : at]
        parts.append(text.decode("utf-8", "backslashreplace"))
    return parts, min(at, len(name))


def _has_old_string(name: bytes) -> bool:
    at = 0
    while match := _TOKEN.match(name, at):
        if match["string"]:
            return True
        at = match.end()
        digits = match["length"]
        if digits:
            # Skip the identifier itself, which may contain "Ss".
            at += int(digits[:6])
    return False


_LIBRARY = re.compile(r"torch/lib/lib[^/]+\.so(\.[0-9.]+)?")


@dataclass(frozen=True, kw_only=True, slots=True)
class TorchSymbols:
    """The symbols in torch's namespaces that the installed torch defines.

    torch 2.15 has 41,000 such symbols. Each name is stored as 64 bits of its hash.

    :param abi: the C++ ABI; ``None`` if no name shows it.
    """

    hashes: frozenset[int]
    abi: Abi | None

    def defines(self, name: bytes) -> bool:
        """Return whether a library of torch defines a name."""
        return _hash(name) in self.hashes


def read_torch(torch: Distribution, folder: str | None) -> TorchSymbols | None:
    """Read the symbols of torch from its libraries or from the cache.

    :param folder: the directory of the cache; ``None`` disables it.
    :returns: ``None`` if no symbol is found, or if a library is missing or unreadable,
        which is recorded as a defect.
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
            symbols = list(read_library(torch, item.path))
        except (OSError, ValueError) as error:
            torch.defects.append(f"{item.path}: {error}")
            return None
        defined = [symbol.name for symbol in symbols if symbol.is_defined]
        hashes.update(map(_hash, defined))
        abis.update(filter(None, map(abi_of, defined)))
    if not hashes:
        return None
    # Use the most common ABI: statically linked libraries contribute a few functions
    # with strings of the other ABI.
    common = abis.most_common(1)
    result = TorchSymbols(
        hashes=frozenset(hashes), abi=common[0][0] if common else None
    )
    data = array("Q", result.hashes).tobytes()
    write_kept(path, {"abi": result.abi, "hashes": base64.b64encode(data).decode()})
    return result


def read_library(distribution: Distribution, path: str) -> Iterator[Symbol]:
    """Yield the symbols of a library that are in the namespaces of torch.

    :param path: the path in RECORD.

    :raises OSError: the library cannot be opened.
    :raises ValueError: the library is not ELF, is damaged, or has too many symbols.
    """
    take = partial(distribution.limits.take, SYMBOLS, of=distribution.name)
    with open_regular(distribution.locate(path)) as file:
        yield from read_symbols(file, OF_TORCH, take=take)


def _hash(name: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "little")


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


@dataclass(frozen=True, kw_only=True, slots=True)
class Extension:
    """A library of an extension, with required symbols that no library defines.

    :param path: the path of the library.
    :param other_abi: the undefined symbols whose C++ ABI differs from torch's.
    :param missing: the remaining undefined symbols.
    """

    distribution: Distribution
    path: str
    other_abi: tuple[bytes, ...]
    missing: tuple[bytes, ...]


def libraries_of_extensions(software: Software) -> Iterator[tuple[Distribution, str]]:
    """Yield the distribution and the path in RECORD of each library linked with torch.

    If a distribution has libraries for several releases of torch, libraries for
    releases that are not installed are skipped, because programs do not load them.
    """
    torch = software.distributions.get("torch")
    own = "".join(torch.version.split(".")[:2]) if torch is not None else ""
    for name, paths in software.linked_with_torch.items():
        named = {path: match[1] for path in paths if (match := _FOR_TORCH.search(path))}
        is_choice = len({*named.values()}) > 1
        for path in paths:
            if not is_choice or named.get(path, own) == own:
                yield software.distributions[name], path


def find_extensions(
    libraries: Collection[tuple[Distribution, str]], torch: TorchSymbols
) -> Iterator[Extension]:
    """Yield the libraries with undefined symbols in the namespaces of torch.

    A symbol that another extension defines is not missing: torchaudio has one library
    with its functions, and another library that registers them in Python.

    :param libraries: from `libraries_of_extensions`; unreadable ones become defects.
    """
    wanted: list[tuple[Distribution, str, set[bytes]]] = []
    defined: set[bytes] = set()
    for distribution, path in libraries:
        place = distribution.locate(path)
        try:
            symbols = list(read_library(distribution, path))
        except (OSError, ValueError) as error:
            distribution.defects.append(f"{path}: {error}")
            continue
        defined.update(symbol.name for symbol in symbols if symbol.is_defined)
        wanted.append((distribution, place, set(_missing(symbols, torch))))
    for distribution, place, names in wanted:
        left = sorted(names - defined)
        other = {name for name in left if _is_of_other_abi(name, torch)}
        if left:
            yield Extension(
                distribution=distribution,
                path=place,
                other_abi=tuple(name for name in left if name in other),
                missing=tuple(name for name in left if name not in other),
            )


def _missing(symbols: list[Symbol], torch: TorchSymbols) -> Iterator[bytes]:
    for symbol in symbols:
        # Ignore weak symbols, which the loader accepts without a definition.
        wanted = not (symbol.is_defined or symbol.is_weak)
        if wanted and not torch.defines(symbol.name):
            yield symbol.name


def _is_of_other_abi(name: bytes, torch: TorchSymbols) -> bool:
    if torch.abi is None:
        return False
    abi = abi_of(name)
    if abi is not None:
        return abi != torch.abi
    # Only the new ABI adds a tag to the name of a function that returns a string: torch
    # may define the name with the tag added or removed.
    other = with_other_tag(name)
    return other is not None and torch.defines(other)
