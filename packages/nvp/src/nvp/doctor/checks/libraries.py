"""ND301 to ND303: whether programs find CUDA's libraries, and which copies load."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from ...builds.needs import needs_of_name
from ...builds.verdicts import judge
from ...findings import Severity
from ...gpu_code.bounds import major_of_name
from ...gpu_code.units import is_of_nvidia
from ...knowledge.builds import build_records
from ...knowledge.tables import find_vendors
from ..commands import Advice, Command
from ..distributions import Distribution
from ..installation import read_head
from ..loader import LIBRARY_PATH, Failure, Loaded
from ..loading import Libraries, Loading, is_of_torch
from ..model import Finding, Stack, check, platform_of_wheel
from ..nvidia import (
    cuda_of_name,
    find_installed,
    folder_of,
    need_of,
    project_for,
    purpose_of,
)
from .builds import find_refused
from .replacing import replace_builds

_PATHFINDER = "cuda-pathfinder"
"""The project with which programs find NVIDIA's libraries on demand."""


_MOST_NAMED = 30
"""The maximum number of missing libraries in a finding."""


@check("ND301", "error")
def find_missing_libraries(stack: Stack) -> Iterator[Finding]:
    """A library that GPU code is linked with is missing."""
    groups: dict[tuple[str, str, Severity], dict[str, Failure]] = {}
    refused = find_refused(stack)
    for loading, failure in _failures(stack):
        # Skip a build that cannot start with the driver, which ND201 reports.
        if loading.distribution.name in refused:
            continue
        # Report the owner of a failing library once for all programs that load it.
        owner = stack.libraries.owner(failure.user) or loading.distribution
        if owner.is_library and not is_of_nvidia(failure.name):
            # Skip optional plug-ins of NVIDIA's libraries, such as network plug-ins.
            continue
        severity = _severity_of_missing(stack, owner, loading, failure)
        place = find_installed(stack, failure.name)
        outcome = failure.reason or ("elsewhere" if place else "nowhere")
        key = owner.name, outcome, severity
        group = groups.setdefault(key, {})
        if len(group) < _MOST_NAMED:
            group.setdefault(failure.name, failure)
    for (name, _, severity), failures in groups.items():
        owner = stack.distributions[name]
        outcome = _search_outcome(stack, list(failures.values()))
        yield Finding.of(
            code="ND301",
            distribution=name,
            path=next(iter(failures.values())).user,
            message=f"{name} {owner.version} is linked with {_listed(failures)}, "
            f"{outcome}",
            hint=_hint_for_missing(stack, owner, list(failures.values())),
            severity=severity,
        )


@check("ND302", "warning")
def find_two_cudas(stack: Stack) -> Iterator[Finding]:
    """Libraries of two CUDA major versions serve one purpose."""
    by_purpose: dict[str, dict[int, Distribution]] = {}
    for distribution in stack.distributions.values():
        if (known := cuda_of_name(distribution)) is not None:
            by_purpose.setdefault(known[0], {})[known[1]] = distribution
    for purpose, by_cuda in sorted(by_purpose.items()):
        if len(by_cuda) == 1:
            continue
        names = [_with_users(stack, by_cuda[cuda]) for cuda in sorted(by_cuda)]
        oldest = by_cuda[min(by_cuda)]
        yield Finding.of(
            code="ND302",
            distribution=oldest.name,
            path=oldest.folder,
            message=f"{purpose} is installed for CUDA "
            f"{' and '.join(map(str, sorted(by_cuda)))}: {' and '.join(names)}"
            f"{_loaded_together(stack, purpose)}",
            hint=_keep_apart(stack, by_cuda.values()),
        )


def _keep_apart(stack: Stack, installed: Iterable[Distribution]) -> Advice:
    said = "keep the programs for each CUDA in environments of their own"
    unused = [x.name for x in installed if not stack.is_required(x.name)]
    if not unused:
        return Advice(said)
    remove = stack.pip("uninstall", "--yes", unused[0])
    return Advice(f"{said}, or remove what nothing requires: {remove}", (remove,))


def _loaded_together(stack: Stack, purpose: str) -> str:
    """Return a clause on libraries of two CUDA versions in one process, or ``""``."""
    for process in stack.libraries.processes:
        by_cuda: dict[int, str] = {}
        for item in process.loaded:
            name = os.path.basename(item.path)
            cuda = major_of_name(name)
            if cuda is None or cuda in by_cuda or purpose_of(name) != purpose:
                continue
            *_, first = item.chain
            user = stack.libraries.owner(first.path)
            reason = "" if user is None or user.is_library else f" (for {user.name})"
            by_cuda.setdefault(cuda, f"{name}{reason}")
            if len(by_cuda) > 1:
                named = " and ".join(by_cuda[cuda] for cuda in sorted(by_cuda))
                return f"; a program that imports all of it loads {named} together"
    return ""


@check("ND303", "warning")
def find_other_copies(stack: Stack) -> Iterator[Finding]:
    """LD_LIBRARY_PATH replaces an installed library."""
    if not (stack.is_here and stack.environ.get(LIBRARY_PATH)):
        return
    plain = Libraries(stack)
    folders = tuple(os.path.realpath(f) + os.sep for f in stack.installation.folders)
    installed = {n: x for n, x in _loaded(plain) if x.real.startswith(folders)}
    first = {n: x for n, x in _loaded(stack.libraries) if x.place == LIBRARY_PATH}
    names: dict[tuple[str, str], list[str]] = {}
    for name, item in sorted(first.items()):
        twin = installed.get(name)
        owner = None if twin is None else plain.owner(twin.real)
        if twin is None or owner is None or twin.real == item.real:
            continue
        folder = os.path.dirname(item.path)
        names.setdefault((folder, owner.name), []).append(name)
    for (folder, owner_name), others in names.items():
        owner = stack.distributions[owner_name]
        yield Finding.of(
            code="ND303",
            distribution=owner_name,
            path=os.path.join(folder, others[0]),
            message=f"LD_LIBRARY_PATH puts the {', '.join(others)} of {folder} before "
            f"that of {owner.name} {owner.version}",
            hint=f"remove {_entry(folder)} from LD_LIBRARY_PATH, or unset it",
        )


def _entry(folder: str) -> str:
    if folder != os.curdir:
        return shlex.quote(folder)
    return "the empty entry, which means the current directory,"


def _failures(stack: Stack) -> Iterator[tuple[Loading, Failure]]:
    """Yield failures to load libraries, except consequences of other failures."""
    loadings = stack.libraries.loadings
    paths = {(x.distribution.name, x.library.path): x for x in loadings}
    chosen: dict[tuple[str, str], Loading | None] = {}
    torch_fails = any(x.failures for x in loadings if x.distribution.name == "torch")
    for loading in loadings:
        name = loading.distribution.name
        key = name, loading.alternatives[0]
        if key not in chosen:
            among = [x for p in loading.alternatives if (x := paths.get((name, p)))]
            chosen[key] = _loaded_alternative(stack, among)
        if loading is not chosen[key]:
            continue
        for failure in loading.failures:
            if torch_fails and is_of_torch(failure.name):
                continue
            looks_itself = _PATHFINDER in loading.distribution.required
            if not (looks_itself and find_installed(stack, failure.name)):
                yield loading, failure


def _loaded_alternative(stack: Stack, alternatives: list[Loading]) -> Loading | None:
    """Return the library that a program selects from copies for several CUDA versions.

    The program selects a library that can be loaded. If none can be loaded, the newest
    library that the driver supports is returned, because it is the one to fix.

    :returns: ``None`` if a torch extension has no copy for torch's CUDA version.
    """
    driver, torch = stack.environment.cuda_driver_version, stack.toolchain.torch
    program = alternatives[-1].distribution
    if len(alternatives) > 1 and torch is not None and torch.is_known:
        own = {major_of_name(n) for x in alternatives for n in x.library.needed}
        if _extends_torch(stack, program) and (
            torch.cuda is None or torch.cuda.major not in own
        ):
            return None
    fitting = [
        item
        for item in alternatives
        if driver is None or max(item.library.cuda_runtime, default=0) <= driver.major
    ]
    working = [item for item in alternatives if not item.failures]
    return (working or fitting or alternatives)[-1]


def _search_outcome(stack: Stack, failures: Sequence[Failure]) -> str:
    """Return a clause on why libraries are not loaded; all have the same reason."""
    if failures[0].reason:
        return failures[0].reason
    places = [find_installed(stack, failure.name) for failure in failures]
    names = sorted({place[0].name for place in places if place is not None})
    if not names:
        return "which the loader finds nowhere"
    have = "has it" if len(failures) == 1 else f"ha{'ve' if names[1:] else 's'} them"
    return f"and the loader does not look where {_listed(names)} {have}"


def _severity_of_missing(
    stack: Stack, owner: Distribution, loading: Loading, failure: Failure
) -> Severity:
    if need_of(stack, failure.name, owner) is not None or failure.reason:
        return "error"
    if find_installed(stack, failure.name) is not None:
        # Another program that is imported earlier may load the library.
        return "warning"
    other = _find_other_cuda(stack, owner, loading.failures)
    if other is None and not stack.is_here:
        # The checked machine is a different machine: its system may have the library.
        return "note"
    if loading.distribution.name in stack.libraries.working:
        # The part may be optional: onnxruntime-gpu works without its TensorRT library.
        return "warning"
    is_possible = other is not None and other.runs and not stack.is_here
    return "warning" if is_possible else "error"


def _hint_for_missing(
    stack: Stack, owner: Distribution, failures: list[Failure]
) -> str | Command | Advice:
    if failures[0].reason:
        return stack.restore(stack.libraries.owner(failures[0].path or "") or owner)
    other = _find_other_cuda(stack, owner, failures)
    if other is not None and not other.runs:
        again = replace_builds(stack, *other.names[:1], beside=other.names[1:]).after(
            f"{other.sentence}: "
        )
        return again if other.way is None else again.before(f"; or {other.way}")
    places = [find_installed(stack, failure.name) for failure in failures]
    if folders := dict.fromkeys(place[1] for place in places if place is not None):
        return (
            f"{_say_preloading(owner)}, or add the directory to LD_LIBRARY_PATH: "
            f"{shlex.quote(os.pathsep.join(folders))}"
        )
    needs = [need_of(stack, failure.name, owner) for failure in failures]
    texts: dict[str, None] = {}
    cuda = next(filter(None, (major_of_name(f.name) for f in failures)), None)
    for failure, need in zip(failures, needs, strict=True):
        known = None if need is None else stack.distributions.get(need.name)
        if known is not None and _has_recorded(known, failure.name):
            # The distribution is installed, but its file is missing.
            return stack.restore(known)
        if need is not None and known is None:
            texts[need.text] = None
        elif text := project_for(stack, failure.name, owner, cuda):
            texts[text] = None
    if not texts:
        return (
            "install the library, or add the directory that has it to LD_LIBRARY_PATH"
        )
    install = stack.pip("install", *sorted(texts))
    if not any(needs) and not owner.is_library:
        # Without a requirement on a library, a program might not search its directory.
        later = filter(None, (folder_of(stack, x.name, cuda) for x in failures))
        path = os.pathsep.join(dict.fromkeys(later))
        added = f", and add its directory to LD_LIBRARY_PATH: {shlex.quote(path)}"
        command = Advice.of(install).before(added if path else "")
    else:
        command = Advice.of(install)
    if other is None:
        return command
    again = replace_builds(stack, *other.names[:1], beside=other.names[1:]).after(
        f"{other.sentence}: "
    )
    return Advice.first_of(again, command)


def _has_recorded(distribution: Distribution, name: str) -> bool:
    """Return whether RECORD lists the library ``name``, or lists no libraries."""
    names = {item.path.rpartition("/")[2] for item in distribution.files}
    return name in names or not any(".so" in item for item in names)


def _say_preloading(owner: Distribution) -> str:
    # ONNX Runtime has had preload_dlls() since 1.21.
    package = owner.name.partition("-")[0]
    if "\ndef preload_dlls(" in read_head(owner.locate(f"{package}/__init__.py")):
        return f"call {package}.preload_dlls() first, which loads them, or import torch"
    return "import a program first that loads it, such as torch"


class _OtherCuda(NamedTuple):
    """A mismatch between the CUDA of a build and that of torch or the driver.

    :param names: the distributions to replace.
    :param runs: whether the build runs anyway, with libraries for its own CUDA.
    :param way: another way to fix the mismatch.
    """

    sentence: str
    names: tuple[str, ...]
    runs: bool
    way: str | None = None


def _find_other_cuda(
    stack: Stack, owner: Distribution, failures: Sequence[Failure]
) -> _OtherCuda | None:
    """Return the mismatch of a build's CUDA with torch or the driver, if any.

    torch and its extensions share one process, so both need the same CUDA major
    version. A driver also runs builds for older CUDA major versions.
    """
    wanted = next(filter(None, (major_of_name(f.name) for f in failures)), None)
    torch, driver = stack.toolchain.torch, stack.environment.cuda_driver_version
    extends = owner.name != "torch" and _extends_torch(stack, owner)
    if extends and torch and torch.is_known and torch.cuda is None:
        if wanted is None and not any("_cuda.so" in f.name for f in failures):
            return None
        sentence = (
            f"{owner.name} is a build for CUDA, and torch {torch.version} for CPUs"
        )
        return _OtherCuda(f"{sentence}: take a torch for CUDA", ("torch",), runs=False)
    # A project with a CUDA version in its name has no builds for other versions.
    if wanted is None or owner.name == "torch" or needs_of_name(owner.name) is not None:
        return None
    if torch and torch.cuda and extends:
        pins = (n for n in stack.requirements if n.name == "torch" and n.user is owner)
        names = (owner.name, *["torch"] * any("==" in need.text for need in pins))
        if torch.cuda.major == wanted:
            return None
        return _OtherCuda(
            f"{owner.name} is a build for CUDA {wanted}, and torch {torch.version} is "
            f"for CUDA {torch.cuda.major}: take builds for one CUDA",
            names,
            runs=False,
            way=_other_torch(stack, wanted),
        )
    if driver is None or driver.major == wanted:
        return None
    if driver.major < wanted:
        sentence = f"the driver is for CUDA {driver.major}: take an older build"
        return _OtherCuda(sentence, (owner.name,), runs=False)
    sentence = f"take a build for CUDA {driver.major}, as the driver is"
    return _OtherCuda(sentence, (owner.name,), runs=True)


def _extends_torch(stack: Stack, distribution: Distribution) -> bool:
    """Return whether a distribution is loaded into the process of torch."""
    name = distribution.name
    return "torch" in distribution.required or name in stack.linked_with_torch


def _other_torch(stack: Stack, cuda: int) -> str | None:
    """Return advice to install the same torch release for ``cuda``, if it runs here."""
    torch, driver = stack.distributions["torch"], stack.environment.cuda_driver_version
    if driver is None or driver.major < cuda:
        return None
    version, platform = torch.public_version, platform_of_wheel(torch)
    fitting = [
        row
        for row in build_records().get("torch", ())
        if (row.version, row.platform) == (version, platform)
        if row.needs.cuda is not None and row.needs.cuda.major == cuda
        if judge(row.needs, stack.environment).verdict in ("runs", "partly")
    ]
    row = min(fitting, key=lambda row: row.label or "", default=None)
    if row is None:
        return None
    words = ["--upgrade", "--force-reinstall", f"torch=={version}"]
    if row.label is not None:
        words += ["--index-url", find_vendors("torch")[0].find_url(row.label)]
    return f"take torch {version} for CUDA {cuda}: {stack.pip('install', *words)}"


def _listed(names: Iterable[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def _with_users(stack: Stack, distribution: Distribution) -> str:
    users = sorted(
        {n.user.name for n in stack.requirements if n.name == distribution.name}
    )
    named = f"{distribution.name} {distribution.version}"
    reason = f"for {', '.join(users)}" if users else "which nothing requires"
    return f"{named} ({reason})"


def _loaded(libraries: Libraries) -> Iterator[tuple[str, Loaded]]:
    """Yield each name of each loaded library, with the library."""
    for process in libraries.processes:
        for item in process.loaded:
            for name in {*item.names, item.dynamic.soname}:
                yield name, item
