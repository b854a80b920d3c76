"""ND301 to ND303: whether programs find the libraries of CUDA, and which they load."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from ...builds.needs import needs_of_name
from ...findings import Severity
from ...gpu_code.bounds import major_of_name
from ...gpu_code.units import is_of_nvidia
from ..abi import torch_libraries
from ..distributions import Distribution, Need
from ..installation import read_head
from ..loader import LIBRARY_PATH, Failure, Loaded
from ..loading import Libraries, Loading, is_of_torch
from ..model import Finding, Stack, check
from .builds import replace_builds

_PATHFINDER = "cuda-pathfinder"
"""Projects that use it look for NVIDIA's libraries themselves when they need them."""


@check("ND301", "error")
def find_missing_libraries(stack: Stack) -> Iterator[Finding]:
    """A library that GPU code is linked with is found nowhere."""
    groups: dict[tuple[str, str, Severity], dict[str, Failure]] = {}
    for loading, failure in _failures(stack):
        # What a library is linked with is missing for all that load the library.
        owner = stack.libraries.owner(failure.user) or loading.distribution
        if owner.is_library and not is_of_nvidia(failure.name):
            # Plug-ins, such as those for networks, are next to NVIDIA's libraries.
            continue
        severity = _severity_of_missing(stack, owner, loading, failure)
        place = find_installed(stack, failure.name)
        outcome = failure.reason or ("elsewhere" if place else "nowhere")
        key = owner.name, outcome, severity
        groups.setdefault(key, {}).setdefault(failure.name, failure)
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
    """Libraries of two CUDA majors for one purpose."""
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
            hint="keep the programs for each CUDA in environments of their own, or "
            f"remove what nothing requires: {stack.pip('uninstall', oldest.name)}",
        )


def _loaded_together(stack: Stack, purpose: str) -> str:
    """Return which libraries of different CUDA majors one process loads, if any."""
    for process in stack.libraries.processes:
        by_cuda: dict[int, str] = {}
        for item in process.loaded:
            name = os.path.basename(item.path)
            cuda = major_of_name(name)
            if cuda is None or purpose_of(name) != purpose:
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
    """LD_LIBRARY_PATH puts another copy before the installed one."""
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
    return "the empty entry, which means the current folder,"


def _failures(stack: Stack) -> Iterator[tuple[Loading, Failure]]:
    """Yield what cannot be loaded, leaving out what another failure explains."""
    loadings = stack.libraries.loadings
    paths = {(x.distribution.name, x.library.path): x for x in loadings}
    torch_fails = any(x.failures for x in loadings if x.distribution.name == "torch")
    for loading in loadings:
        name = loading.distribution.name
        alternatives = [x for p in loading.alternatives if (x := paths.get((name, p)))]
        if loading is not _loaded_alternative(stack, alternatives):
            continue
        for failure in loading.failures:
            if torch_fails and is_of_torch(failure.name):
                continue
            looks_itself = _PATHFINDER in loading.distribution.required
            if not (looks_itself and find_installed(stack, failure.name)):
                yield loading, failure


def _loaded_alternative(stack: Stack, alternatives: list[Loading]) -> Loading | None:
    """Return the library that a program takes of several for different CUDA versions.

    It takes the one for its CUDA, which can be loaded; where none can, the newest that
    the driver supports is what the user has to make work.

    :returns: ``None`` where none is for the CUDA of torch, which is another finding.
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
    """Return why libraries are not loaded, which is the same for all of them."""
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
        # A program that is imported before may load it.
        return "warning"
    other = _find_other_cuda(stack, owner, loading.failures)
    if other is None and not stack.is_here:
        # Another machine may have the library in its system.
        return "note"
    if loading.distribution.name in stack.libraries.working:
        # onnxruntime-gpu has a part for TensorRT, and does without it.
        return "warning"
    is_possible = other is not None and other.runs and not stack.is_here
    return "warning" if is_possible else "error"


def _hint_for_missing(
    stack: Stack, owner: Distribution, failures: list[Failure]
) -> str:
    if failures[0].reason:
        broken = stack.libraries.owner(failures[0].path or "") or owner
        return stack.pip("install", "--force-reinstall", "--no-deps", broken.name)
    other = _find_other_cuda(stack, owner, failures)
    if other is not None and not other.runs:
        return f"{other.sentence}: {replace_builds(stack, *other.names)}"
    places = [find_installed(stack, failure.name) for failure in failures]
    if folders := dict.fromkeys(place[1] for place in places if place is not None):
        return (
            f"{_say_preloading(owner)}, or add the folder to LD_LIBRARY_PATH: "
            f"{shlex.quote(os.pathsep.join(folders))}"
        )
    needs = [need_of(stack, failure.name, owner) for failure in failures]
    again = sorted({n.name for n in needs if n and n.name in stack.distributions})
    if again:
        # They are installed, and the files are not there.
        return stack.pip("install", "--force-reinstall", "--no-deps", *again)
    texts = {need.text for need in needs if need is not None}
    cuda = next(filter(None, (major_of_name(f.name) for f in failures)), None)
    for failure, need in zip(failures, needs, strict=True):
        if need is None and (text := project_for(stack, failure.name, owner, cuda)):
            texts.add(text)
    if not texts:
        return "install the library, or add the folder that has it to LD_LIBRARY_PATH"
    command = stack.pip("install", *sorted(texts))
    if other is None:
        return command
    return f"{command}; or {other.sentence}: {stack.reinstall(*other.names)}"


def _say_preloading(owner: Distribution) -> str:
    # ONNX Runtime has such a function since 1.21.
    package = owner.name.partition("-")[0]
    if "\ndef preload_dlls(" in read_head(owner.locate(f"{package}/__init__.py")):
        return f"call {package}.preload_dlls() first, which loads them, or import torch"
    return "import a program first that loads it, such as torch"


class _OtherCuda(NamedTuple):
    """A build for another CUDA than what it works with.

    :param names: what has to be replaced.
    :param runs: whether it runs all the same, with libraries of its own CUDA.
    """

    sentence: str
    names: tuple[str, ...]
    runs: bool


def _find_other_cuda(
    stack: Stack, owner: Distribution, failures: Iterable[Failure]
) -> _OtherCuda | None:
    """Return with what the CUDA of a build does not agree.

    torch and its extensions share one process, and an extension with libraries of its
    own does not work there. A driver runs builds for older CUDA majors as well.
    """
    wanted = next(filter(None, (major_of_name(f.name) for f in failures)), None)
    torch, driver = stack.toolchain.torch, stack.environment.cuda_driver_version
    # A project for one CUDA has no build for another.
    if wanted is None or owner.name == "torch" or needs_of_name(owner.name) is not None:
        return None
    if torch and torch.cuda and _extends_torch(stack, owner):
        pins = (n for n in stack.requirements if n.name == "torch" and n.user is owner)
        names = (owner.name, *["torch"] * any("==" in need.text for need in pins))
        if torch.cuda.major == wanted:
            return None
        return _OtherCuda(
            f"{owner.name} is a build for CUDA {wanted}, and torch {torch.version} is "
            f"for CUDA {torch.cuda.major}: take builds for one CUDA",
            names,
            runs=False,
        )
    if driver is None or driver.major == wanted:
        return None
    if driver.major < wanted:
        sentence = f"the driver is for CUDA {driver.major}: take an older build"
        return _OtherCuda(sentence, (owner.name,), runs=False)
    sentence = f"take a build for CUDA {driver.major}, as the driver is"
    return _OtherCuda(sentence, (owner.name,), runs=True)


def _extends_torch(stack: Stack, distribution: Distribution) -> bool:
    """Return whether torch shares a process with what a distribution has."""
    linked = torch_libraries(stack, distribution)
    return "torch" in distribution.required or bool(linked)


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
    """Yield what the programs load, under each of its names."""
    for process in libraries.processes:
        for item in process.loaded:
            for name in {*item.names, item.dynamic.soname}:
                yield name, item


_STEM = re.compile(r"lib([a-z0-9-]+(?:_[a-z]+)*?)(?:[-.][0-9a-f]{8,})?\.so.*")

_PURPOSES: Mapping[str, str] = {
    "cudart": "cuda-runtime",
    "cublas": "cublas",
    "cublaslt": "cublas",
    "nvblas": "cublas",
    "nvrtc": "cuda-nvrtc",
    "nvrtc-builtins": "cuda-nvrtc",
    "cupti": "cuda-cupti",
    "cufft": "cufft",
    "cufftw": "cufft",
    "curand": "curand",
    "cusolver": "cusolver",
    "cusolvermg": "cusolver",
    "cusparse": "cusparse",
    "cusparselt": "cusparselt",
    "nccl": "nccl",
    "nvshmem_host": "nvshmem",
    "nvjitlink": "nvjitlink",
    "cufile": "cufile",
    "cufile_rdma": "cufile",
    "nvtoolsext": "nvtx",
    "nvjpeg": "nvjpeg",
    "nvfatbin": "nvfatbin",
}
"""The name of the distribution ``nvidia-...`` by the name of the library."""

_OF_NO_CUDA = frozenset({"cudnn", "cusparselt", "nccl", "nvshmem"})
"""These have a release for each CUDA major. Since CUDA 13, the others have their own
version, and no CUDA in the name."""

_DISTRIBUTED = frozenset({*_PURPOSES.values(), *_OF_NO_CUDA, "npp"})
_NAME = re.compile(r"nvidia-(?P<purpose>[a-z0-9-]+?)(?:-cu(?P<cuda>[0-9]{2}))?")
_LAYOUT = re.compile(r"nvidia/cu([0-9]{2})/")


def purpose_of(name: str) -> str | None:
    """Return what a library is for, such as ``cublas`` for ``libcublasLt.so.13``."""
    match = _STEM.fullmatch(name.lower())
    if match is None:
        return None
    if match[1].startswith("cudnn"):
        return "cudnn"
    return "npp" if match[1].startswith("npp") else _PURPOSES.get(match[1])


def cuda_of_name(distribution: Distribution) -> tuple[str, int] | None:
    """Return what one of NVIDIA's distributions is for, and for which CUDA major.

    :returns: ``None`` for a distribution that brings no library of CUDA.
    """
    match = _NAME.fullmatch(distribution.name)
    if match is None or match["purpose"] not in _DISTRIBUTED:
        return None
    if match["cuda"]:
        return match["purpose"], int(match["cuda"])
    for item in distribution.files:
        if layout := _LAYOUT.match(item.path):
            return match["purpose"], int(layout[1])
    return None


def find_installed(stack: Stack, name: str) -> tuple[Distribution, str] | None:
    """Return the installed distribution that has a library, and the file's folder.

    Only the distributions of NVIDIA count, which bring libraries for others, and only
    files that are there.
    """
    for distribution, recorded in stack.nvidia_files.get(name, ()):
        path = distribution.locate(recorded)
        if os.path.isfile(path):
            return distribution, os.path.dirname(path)
    return None


def need_of(stack: Stack, name: str, user: Distribution) -> Need | None:
    """Return the requirement by which a distribution gets a library.

    :param name: the library, such as ``libcublas.so.13``.
    :param user: the distribution that is linked with it.
    """
    purpose = purpose_of(name)
    if purpose is None:
        return None
    pattern = re.compile(rf"nvidia-{purpose}(?:-cu[0-9]+)?")
    # torch requires cuda-toolkit, which requires nvidia-cublas for an extra. An extra
    # that no distribution asks for does not count.
    users = {user.name, *stack.needed_names.get(user.name, ())}
    fitting = [
        (place, need)
        for name in users
        for place, need in stack.needs_of_libraries.get(name, ())
        if pattern.fullmatch(need.name)
    ]
    return min(fitting, key=lambda pair: pair[0])[1] if fitting else None


def project_for(
    stack: Stack, name: str, user: Distribution, cuda: int | None
) -> str | None:
    """Return the project that has a library.

    :param user: the distribution that is linked with it.
    :param cuda: the CUDA major that the library is for; ``None`` where only what the
        distribution needs says it.
    :returns: ``None`` where nobody knows it.
    """
    if is_of_torch(name):
        return "torch"
    purpose = purpose_of(name)
    if cuda is None:
        version = stack.cuda_of(user)
        cuda = None if version is None else version.major
    if purpose is None or cuda is None:
        return None
    if cuda < 13 or purpose in _OF_NO_CUDA:
        return f"nvidia-{purpose}-cu{cuda}"
    return f"nvidia-{purpose}"
