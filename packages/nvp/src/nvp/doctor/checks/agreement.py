"""ND304 to ND306, ND403 and ND5xx: whether the installed distributions are compatible.

The requirements in METADATA must be met. If two RECORDs list the same path, the file is
from the distribution that was installed last. Extensions must fit the installed torch.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator
from urllib.parse import unquote

from packaging.version import Version

from nvidia_variant_provider.strict_json import open_regular

from ...builds.needs import Abi, Backend, needs_of_name, parse_backend
from ...builds.verdicts import judge
from ...knowledge.builds import PROJECTS, build_records
from ...metadata.requirements import parse_requirement
from ...wheels.archive import parse_wheel_name
from ..abi import Extension, qualified_name
from ..commands import Advice
from ..distributions import (
    TRITON,
    Distribution,
    Need,
    RecordedFile,
    is_built_for,
)
from ..installation import OPENED
from ..model import MOST_FINDINGS, Finding, Stack, check, platform_of_wheel
from .replacing import find_companions, replace_extension

_LIBRARIES = (".so", ".pyd", ".dll", ".dylib")
_LONGEST = 64 * 1024 * 1024
"""The maximum size in bytes of a file that is hashed to find its owner."""

_MOST_HASHED = 4
"""The maximum number of hashed files for each set of distributions that share files."""


_MOST_SHARING = 20
"""The maximum number of compared distributions with a file; usually there are two."""


@check("ND304", "error")
def find_wrong_libraries(stack: Stack) -> Iterator[Finding]:
    """An NVIDIA distribution is not the version that METADATA requires."""
    cuda = ("nvidia-", "cuda-")
    yield from _find_unmet(stack, "ND304", lambda name: name.startswith(cuda))


@check("ND403", "error")
def find_wrong_triton(stack: Stack) -> Iterator[Finding]:
    """Triton is not the version that torch requires."""
    yield from _find_unmet(stack, "ND403", TRITON.__contains__)


def _find_unmet(
    stack: Stack, code: str, counts: Callable[[str], bool]
) -> Iterator[Finding]:
    for need, installed in _unmet(stack, counts):
        yield Finding.of(
            code=code,
            distribution=need.name,
            path=need.user.folder if installed is None else installed.folder,
            message=_say_unmet(need, installed),
            hint=stack.pip("install", need.text),
        )


def _unmet(
    stack: Stack, counts: Callable[[str], bool]
) -> Iterator[tuple[Need, Distribution | None]]:
    """Yield each unmet requirement with the installed distribution, if any."""
    for need in stack.requirements:
        if counts(need.name):
            installed = stack.distributions.get(need.name)
            if installed is None or not need.allows(installed.version):
                yield need, installed


def _say_unmet(need: Need, installed: Distribution | None) -> str:
    state = "not installed" if installed is None else installed.version
    return f"{need.user.title} requires {need.text}, and {need.name} is {state}"


@check("ND305", "error")
def find_wrong_companions(stack: Stack) -> Iterator[Finding]:
    """A GPU package was built for another release than is installed."""
    unmet: dict[str, list[tuple[Need, Distribution]]] = {}
    for need, installed in _unmet(stack, is_built_for):
        # Skip missing distributions, which pip and the import itself report, and parts
        # of jax with different versions, which ND208 reports.
        is_other = installed is not None and not need.name.startswith("jax-cuda")
        if installed is not None and is_other and _is_of_gpu(need.user):
            unmet.setdefault(need.name, []).append((need, installed))
    for pairs in unmet.values():
        users = sorted({need.user.name for need, _ in pairs})
        wanted = list(dict.fromkeys(need.text for need, _ in pairs))
        hint = _agree(stack, users[:MOST_FINDINGS], wanted, pairs[0][1])
        for need, installed in pairs:
            strict = _is_compiled(need.user) or need.is_exact
            yield Finding.of(
                code="ND305",
                distribution=need.user.name,
                path=need.user.folder,
                message=_say_unmet(need, installed),
                hint=hint,
                severity=None if strict else "warning",
            )


def _is_of_gpu(user: Distribution) -> bool:
    return is_built_for(user.name) or not PROJECTS.isdisjoint(user.required)


def _is_compiled(user: Distribution) -> bool:
    return any(_is_library(item) for item in user.files)


def _is_library(item: RecordedFile) -> bool:
    return item.path.endswith(_LIBRARIES) or ".so." in item.path


def _agree(
    stack: Stack, users: list[str], wanted: list[str], installed: Distribution
) -> Advice:
    """Return advice to replace the dependents, or the installed distribution.

    Dependents are installed only from wheels: pip might otherwise build from source.
    """
    name = installed.name
    kept = f"{name}=={installed.public_version}"
    only = ("--only-binary", ",".join(users))
    keep = stack.pip("install", "--upgrade", *only, *users, kept)
    others = [x for x in find_companions(stack, name) if x.name not in users]
    # Keep the installed release: another might not run here or fit all dependents.
    if len(wanted) > 1 or others or not _may_run(stack, installed, wanted[0]):
        return Advice(f"{keep}, which keeps {name}", (keep,))
    follow = stack.pip("install", *wanted)
    return Advice(f"{keep}, which keeps {name}, or {follow}", (follow,))


def _may_run(stack: Stack, installed: Distribution, wanted: str) -> bool:
    """Return whether a required release may run here, by the table of builds."""
    needed = parse_requirement(wanted)
    rows = [
        row
        for row in build_records().get(installed.name, ())
        if row.label is None and row.platform == platform_of_wheel(installed)
        if needed and needed.specifier.contains(row.version, prereleases=True)
    ]
    verdicts = {judge(row.needs, stack.environment).verdict for row in rows}
    return not (stack.has_gpu and rows) or verdicts != {"cannot"}


@check("ND306", "warning")
def find_shared_files(stack: Stack) -> Iterator[Finding]:
    """Two distributions have installed different files under one path."""
    owners: dict[str, list[tuple[Distribution, RecordedFile]]] = {}
    for distribution in stack.distributions.values():
        # Ignore a file that one RECORD lists twice.
        listed = (x for x in distribution.files if x.digest and _is_library(x))
        own = {distribution.locate(item.path): item for item in listed}
        for path, item in own.items():
            pairs = owners.setdefault(path, [])
            if len(pairs) < _MOST_SHARING:
                pairs.append((distribution, item))
    shared: dict[tuple[str, ...], dict[str, list[tuple[Distribution, RecordedFile]]]]
    shared = {}
    for path, pairs in owners.items():
        if len({item.digest for _, item in pairs}) > 1:
            names = tuple(distribution.name for distribution, _ in pairs)
            shared.setdefault(names, {})[path] = pairs
    for names, files in shared.items():
        smallest = sorted(files.items(), key=lambda pair: pair[1][0][1].size or 0)
        path, _ = smallest[0]
        more = f" and {len(files) - 1} more" if len(files) > 1 else ""
        titles = " and ".join(stack.distributions[name].title for name in names)
        found = [_find_winner(*pair) for pair in smallest[:_MOST_HASHED]]
        winners = sorted({winner.name for winner in found if winner is not None})
        last = f"; the files left are from {' and '.join(winners)}" if winners else ""
        remove = stack.pip("uninstall", "--yes", *names)
        wanted = max(names, key=lambda name: _suitability(stack, name))
        install = stack.pip("install", _required_text(stack, wanted))
        # Files from one distribution work together, but perhaps without the GPU.
        suits = _suitability(stack, wanted)[:2]
        unsuitable = any(_suitability(stack, name)[:2] < suits for name in winners)
        broken = len(winners) > 1 or (stack.has_gpu and unsuitable)
        yield Finding.of(
            code="ND306",
            distribution=names[0],
            path=path,
            message=f"{titles} have different files of one name, "
            f"{os.path.basename(path)}{more}{last}",
            hint=Advice(
                f"remove both and install one of them: {remove} && {install}",
                (remove, install),
            ),
            severity="error" if broken else None,
        )


def _find_winner(
    path: str, pairs: Iterable[tuple[Distribution, RecordedFile]]
) -> Distribution | None:
    """Return the distribution whose RECORD has the hash of the file, if any."""
    (first, _), *_ = pairs
    try:
        with open_regular(path) as file:
            size = file.seek(0, os.SEEK_END)
            if size > _LONGEST or not first.limits.take(OPENED, size, of=first.name):
                return None
            file.seek(0)
            data = file.read(_LONGEST)
    except (OSError, ValueError):
        return None
    own: dict[str, str] = {}
    for distribution, item in pairs:
        name, _, digest = item.digest.partition("=")
        if name in ("sha256", "sha384", "sha512"):
            if name not in own:
                hashed = hashlib.new(name, data).digest()
                own[name] = base64.urlsafe_b64encode(hashed).decode().rstrip("=")
            if own[name] == digest:
                return distribution
    return None


def _suitability(stack: Stack, name: str) -> tuple[bool, bool, object]:
    """Return a sort key for how well a distribution fits this machine, best last.

    :returns: whether the driver supports its CUDA; whether it uses the GPU (without a
        driver, whether it uses only the CPU); and a tiebreaker.
    """
    driver = stack.environment.cuda_driver_version
    torch = stack.toolchain.torch
    cuda_of_torch = torch.cuda if torch is not None else None
    needs = needs_of_name(name)
    cuda = needs.cuda if needs is not None else None
    uses_gpu = name in PROJECTS or cuda is not None
    runs = cuda is None or driver is None or cuda.major <= driver.major
    of_torch = bool(cuda and cuda_of_torch and cuda.major == cuda_of_torch.major)
    return (
        runs,
        uses_gpu == (driver is not None),
        (of_torch, name in stack.needs_by_name, cuda or (0, 0), name),
    )


def _required_text(stack: Stack, name: str) -> str:
    needs = stack.needs_by_name.get(name)
    return needs[0].text if needs else name


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
            hint=replace_extension(stack, extension.distribution),
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
                    hint=replace_extension(stack, distribution),
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
            hint=replace_extension(stack, distribution),
        )


def _first_of_each(stack: Stack, kind: str) -> Iterator[Extension]:
    """Yield each distribution's first library with symbols in the field ``kind``."""
    seen: set[str] = set()
    for extension in stack.extensions:
        name = extension.distribution.name
        if name not in seen and getattr(extension, kind):
            seen.add(name)
            yield extension


def _is_extension(stack: Stack, distribution: Distribution, label: Backend) -> bool:
    # METADATA is not enough: torch-scatter and its siblings do not declare torch.
    if label.torch is not None or "torch" in distribution.required:
        return True
    return distribution.name in stack.linked_with_torch


def _differences(stack: Stack, label: Backend) -> Iterator[str]:
    torch = stack.toolchain.torch
    if torch is None:
        return
    installed = _release(torch.version)
    # Compare minor releases of torch, because patch releases keep the ABI.
    if label.torch is not None and installed not in (None, label.torch):
        yield f"torch {label.torch[0]}.{label.torch[1]} ({torch.version} is installed)"
    # Compare major versions of CUDA, because minor versions are compatible.
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
    """Yield the local version labels of a distribution and of its original wheel."""
    _, _, label = distribution.version.partition("+")
    if label:
        yield label
    try:
        # urlsplit() would take quadratic time for some URLs.
        name = unquote(re.split(r"[?#]", distribution.origin_url)[0].rpartition("/")[2])
        local = Version(parse_wheel_name(name).version).local
    except ValueError:
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
