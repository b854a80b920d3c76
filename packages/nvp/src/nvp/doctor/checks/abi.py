"""ND5xx: whether extensions of torch agree with the torch that is installed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from urllib.parse import unquote, urlsplit

from packaging.utils import parse_wheel_filename
from packaging.version import Version

from ...builds.needs import Abi, Backend, parse_backend
from ..abi import Extension, qualified_name, torch_libraries
from ..distributions import Distribution
from ..model import Finding, Stack, check

_FLAGS: dict[Abi, str] = {
    "new": "_GLIBCXX_USE_CXX11_ABI=1",
    "old": "_GLIBCXX_USE_CXX11_ABI=0",
}


@check("ND501", "error")
def find_other_abi(stack: Stack) -> Iterator[Finding]:
    """An extension was built for another C++ ABI than torch."""
    symbols = stack.torch_symbols if stack.extensions else None
    if symbols is None or symbols.abi is None:
        return
    for extension in _first_of_each(stack, "other_abi"):
        theirs: Abi = "old" if symbols.abi == "new" else "new"
        yield Finding.of(
            code="ND501",
            distribution=extension.distribution.name,
            path=extension.path,
            message=f"{extension.distribution.title} was built with "
            f"{_FLAGS[theirs]}, and {_torch(stack)} with {_FLAGS[symbols.abi]}: it "
            f"needs {_examples(extension.other_abi)} in the other C++ ABI",
            hint=_replace(stack, extension.distribution),
        )


@check("ND502", "error")
def find_other_labels(stack: Stack) -> Iterator[Finding]:
    """An extension names another torch, CUDA or ABI than is installed."""
    if "torch" not in stack.distributions:
        return
    for distribution in stack.distributions.values():
        if distribution.name == "torch":
            continue
        for text in _labels(distribution):
            label = parse_backend(text)
            if label is None or not _is_extension(stack, distribution, label):
                continue
            differences = list(_differences(stack, label))
            if differences:
                yield Finding.of(
                    code="ND502",
                    distribution=distribution.name,
                    path=distribution.folder,
                    message=f"{distribution.name} {distribution.public_version}"
                    f"+{text} is for {' and '.join(differences)}",
                    hint=_replace(stack, distribution),
                )
                break


@check("ND503", "error")
def find_missing_symbols(stack: Stack) -> Iterator[Finding]:
    """An extension needs a symbol that the installed torch does not have."""
    for extension in _first_of_each(stack, "missing"):
        distribution = extension.distribution
        yield Finding.of(
            code="ND503",
            distribution=distribution.name,
            path=extension.path,
            message=f"{distribution.title} needs {_examples(extension.missing)}, "
            f"which {_torch(stack)} does not have",
            hint=_replace(stack, distribution),
        )


def _first_of_each(stack: Stack, kind: str) -> Iterator[Extension]:
    """Yield one library of each distribution that has names of a kind."""
    seen: set[str] = set()
    for extension in stack.extensions:
        name = extension.distribution.name
        if name not in seen and getattr(extension, kind):
            seen.add(name)
            yield extension


def _is_extension(stack: Stack, distribution: Distribution, label: Backend) -> bool:
    # torch-scatter and its siblings do not name torch in METADATA.
    if label.torch is not None or "torch" in distribution.required:
        return True
    return bool(torch_libraries(stack, distribution))


def _differences(stack: Stack, label: Backend) -> Iterator[str]:
    torch = stack.toolchain.torch
    if torch is None:
        return
    installed = _release(torch.version)
    # The ABI of torch is that of a minor release: patches keep it.
    if label.torch is not None and installed not in (None, label.torch):
        yield f"torch {label.torch[0]}.{label.torch[1]} ({torch.version} is installed)"
    # Minor-version compatibility holds for libraries of one CUDA major version.
    if label.cuda is not None and torch.is_known:
        named = label.cuda
        if torch.cuda is None:
            yield f"CUDA {named} ({_torch(stack)} has none)"
        elif label.cuda.major != torch.cuda.major:
            yield f"CUDA {named} ({_torch(stack)} is for CUDA {torch.cuda})"
    symbols = None if label.abi is None else stack.torch_symbols
    if symbols is not None and symbols.abi not in (None, label.abi):
        theirs: Abi = "old" if symbols.abi == "new" else "new"
        yield f"{_FLAGS[theirs]} (the symbols of {_torch(stack)} have the other form)"


def _release(version: str) -> tuple[int, int] | None:
    try:
        parsed = Version(version)
    except ValueError:
        return None
    return parsed.major, parsed.minor


def _labels(distribution: Distribution) -> Iterator[str]:
    """Yield the local version labels of a distribution and of the wheel it is from."""
    _, _, label = distribution.version.partition("+")
    if label:
        yield label
    # "Recording the Direct URL Origin of installed distributions" (PEP 610).
    data = distribution.read("direct_url.json")
    if data is None:
        return
    try:
        url = json.loads(data)["url"]
        name = unquote(urlsplit(url).path.rpartition("/")[2])
        local = parse_wheel_filename(name)[1].local
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return
    if local and local != label.lower():
        yield local


def _examples(names: tuple[bytes, ...]) -> str:
    shown = " ".join(qualified_name(names[0]).split())[:100]
    count = len(names) - 1
    if not count:
        return shown
    return f"{shown} and {count} other symbol{'s' if count > 1 else ''}"


def _torch(stack: Stack) -> str:
    return stack.distributions["torch"].title


def _replace(stack: Stack, distribution: Distribution) -> str:
    from ...builds.vendors import say_elsewhere

    torch = stack.distributions["torch"].public_version
    pin = f"torch=={torch}"
    command = stack.pip("install", "--upgrade", distribution.name, pin)
    found = stack.elsewhere(distribution, _release(torch))
    unknown = [item for item in found if item.version is None]
    sentences = say_elsewhere(
        unknown, lambda words: stack.pip("install", "--upgrade", *words, pin)
    )
    if not sentences:
        return command
    return f"{'; '.join(sentences)}; or from your own index: {command}"
