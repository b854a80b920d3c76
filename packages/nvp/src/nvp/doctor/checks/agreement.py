"""ND304 to ND306 and ND403: whether the installed distributions agree with each other.

METADATA says what a distribution requires of others, and RECORD which files are its
own. What two distributions have under one path is what was installed last.
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator

from nvidia_variant_provider.strict_json import open_regular

from ...builds.needs import needs_of_name
from ...knowledge.builds import PROJECTS
from ..distributions import BUILT_FOR, TRITON, Distribution, Need, RecordedFile
from ..installation import OPENED
from ..model import Finding, Stack, check

_LIBRARIES = (".so", ".pyd", ".dll", ".dylib")
_LONGEST = 64 * 1024 * 1024
"""The most bytes that are read to tell whose file it is."""


@check("ND304", "error")
def find_wrong_libraries(stack: Stack) -> Iterator[Finding]:
    """An NVIDIA distribution is not of the version that METADATA requires."""
    cuda = ("nvidia-", "cuda-")
    yield from _find_unmet(stack, "ND304", lambda name: name.startswith(cuda))


@check("ND403", "error")
def find_wrong_triton(stack: Stack) -> Iterator[Finding]:
    """Triton is not of the version that torch requires."""
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
    """Yield requirements on some projects that what is installed does not meet."""
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
    for need, installed in _unmet(stack, BUILT_FOR.difference(TRITON).__contains__):
        # What is not there at all, pip and the import say themselves.
        if installed is not None and _is_of_gpu(need.user):
            unmet.setdefault(need.name, []).append((need, installed))
    for pairs in unmet.values():
        users = sorted({need.user.name for need, _ in pairs})
        wanted = list(dict.fromkeys(need.text for need, _ in pairs))
        for need, installed in pairs:
            strict = _is_compiled(need.user) or _is_exact(need)
            yield Finding.of(
                code="ND305",
                distribution=need.user.name,
                path=need.user.folder,
                message=_say_unmet(need, installed),
                hint=_agree(stack, users, wanted, installed),
                severity=None if strict else "warning",
            )


def _is_of_gpu(user: Distribution) -> bool:
    own = user.name in BUILT_FOR or user.name.startswith("jax-cuda")
    return own or not PROJECTS.isdisjoint(user.required)


def _is_compiled(user: Distribution) -> bool:
    return any(_is_library(item) for item in user.files)


def _is_library(item: RecordedFile) -> bool:
    return item.path.endswith(_LIBRARIES) or ".so." in item.path


def _is_exact(need: Need) -> bool:
    """Return whether a requirement has one version, or those of one release."""
    items = list(need.requirement.specifier)
    exact = any(item.operator in ("==", "===", "~=") for item in items)
    return exact or len(items) > len({item.version for item in items})


def _agree(
    stack: Stack, users: list[str], wanted: list[str], installed: Distribution
) -> str:
    """Return the commands that replace either side; companions are replaced together.

    Nothing is built from source: what is built here is for what is installed here.
    """
    kept = f"{installed.name}=={installed.public_version}"
    only = ["--only-binary", ",".join(users)]
    keep = stack.pip("install", "--upgrade", *only, *users, kept)
    # Where they require different releases, no other one serves all.
    if len(wanted) > 1:
        return f"{keep}, which keeps {installed.name}"
    return f"{keep}, which keeps {installed.name}, or {stack.pip('install', *wanted)}"


@check("ND306", "error")
def find_shared_files(stack: Stack) -> Iterator[Finding]:
    """Two distributions have installed different files under one path."""
    owners: dict[str, list[tuple[Distribution, RecordedFile]]] = {}
    for distribution in stack.distributions.values():
        for item in distribution.files:
            if _is_library(item) and item.digest:
                path = distribution.locate(item.path)
                owners.setdefault(path, []).append((distribution, item))
    shared: dict[tuple[str, ...], dict[str, list[tuple[Distribution, RecordedFile]]]]
    shared = {}
    for path, pairs in owners.items():
        if len({item.digest for _, item in pairs}) > 1:
            names = tuple(distribution.name for distribution, _ in pairs)
            shared.setdefault(names, {})[path] = pairs
    for names, files in shared.items():
        path, pairs = min(files.items(), key=lambda pair: pair[1][0][1].size or 0)
        more = f" and {len(files) - 1} more" if len(files) > 1 else ""
        titles = " and ".join(stack.distributions[name].title for name in names)
        winner = _find_winner(path, pairs)
        last = f"; what is there is of {winner.name}" if winner is not None else ""
        kept = _find_wanted(stack, names)
        yield Finding.of(
            code="ND306",
            distribution=names[0],
            path=path,
            message=f"{titles} have different files of one name, "
            f"{os.path.basename(path)}{more}{last}",
            hint=f"remove both and install one of them: "
            f"{stack.pip('uninstall', '--yes', *names)} && "
            f"{stack.pip('install', _required_text(stack, kept))}",
        )


def _find_winner(
    path: str, pairs: Iterable[tuple[Distribution, RecordedFile]]
) -> Distribution | None:
    """Return whose file it is that is there; ``None`` where nobody can tell."""
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


def _find_wanted(stack: Stack, names: Iterable[str]) -> str:
    """Return which of several distributions is for this machine.

    It uses the GPU where there is one, and its CUDA is that of torch or one that the
    driver runs.
    """
    driver = stack.environment.cuda_driver_version
    torch = stack.toolchain.torch
    cuda_of_torch = torch.cuda if torch is not None else None
    required = {need.name for need in stack.requirements}

    def fitness(name: str) -> tuple[object, ...]:
        needs = needs_of_name(name)
        cuda = needs.cuda if needs is not None else None
        uses_gpu = name in PROJECTS or cuda is not None
        runs = cuda is None or driver is None or cuda.major <= driver.major
        of_torch = bool(cuda and cuda_of_torch and cuda.major == cuda_of_torch.major)
        fits = uses_gpu == (driver is not None)
        return runs, fits, of_torch, name in required, cuda or (0, 0), name

    return max(names, key=fitness)


def _required_text(stack: Stack, name: str) -> str:
    texts = (need.text for need in stack.requirements if need.name == name)
    return next(texts, name)
