"""ND1xx, ND208 and ND307: whether programs get to the GPUs of the machine.

The driver may be unusable or hidden. And programs need parts of their own: jax has its
GPU code in a plug-in, bitsandbytes a library for each CUDA, and TensorFlow and
CTranslate2 open NVIDIA's libraries by name when they are first used. Where one is
missing, a program runs without the GPU and says little about it.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name
from packaging.version import Version

from nvidia_variant_provider.machine import reasons
from nvidia_variant_provider.machine.environment import CudaVersion, is_failure
from nvidia_variant_provider.strict_json import open_regular

from ...files import read_resource
from ...gpu_code.bounds import major_of_name
from ..distributions import Distribution, allows, holds, parse_requirements
from ..installation import OPENED, read_head
from ..loader import LIBRARY_PATH, split_library_path
from ..model import Finding, Stack, check
from .forms import find_forms_for_cpus
from .libraries import find_installed, project_for, purpose_of

if TYPE_CHECKING:
    from packaging.requirements import Requirement


_MASK = "CUDA_VISIBLE_DEVICES"
_SANDBOXES = {"SNAP": ("Snap", "snap"), "FLATPAK_ID": ("Flatpak", "flatpak")}
"""The variable that each sandbox sets, and its name."""

_CAPABILITIES = "NVIDIA_DRIVER_CAPABILITIES"
_NEEDED = ("compute", "utility")
_LACKS = {reasons.NO_USER_DRIVER: "compute", reasons.NO_NVML: "utility"}
_CONTAINER_FILES = (".dockerenv", "run/.containerenv")

_DRIVER = "libcuda.so.1"
_SMALLEST_DRIVER = 1024 * 1024
"""The stub of a toolkit has some 60 kB, and a driver's library has 20 MB and more."""

_CONSUMER = ("GeForce", "TITAN")
"""CUDA Compatibility: "The forward compatible upgrade is supported on data center GPUs
and on select NGC-Ready RTX boards"."""

_PLUGIN = re.compile(r"jax-cuda([0-9]+)-plugin")
_OTHER_PLUGINS = ("jax-rocm", "jax-metal", "libtpu", "intel-extension-for-openxla")
_OF_BITSANDBYTES = re.compile(
    r"bitsandbytes/libbitsandbytes_cuda([0-9]{3})\.(?:so|dll)"
)
_NVIDIA = re.compile(r"nvidia-([a-z0-9-]+?)(?:-cu([0-9]+))?")
_NAMES = re.compile(rb"lib(?:cu|nccl)[A-Za-z_]{0,40}\.so\.[0-9]{1,4}")

_PIECE = 1024 * 1024
_OVERLAP = 64
"""Bytes of a piece that may begin a name, which the next piece ends."""

_MOST_NAMES = 1000
"""The most names of one file; programs have ten."""

_SONAMES: Mapping[str, tuple[str, int | None]] = {
    "cuda-runtime": ("cudart", 0),
    "cublas": ("cublas", 0),
    "cufft": ("cufft", -1),
    "cusolver": ("cusolver", -1),
    "nccl": ("nccl", None),
    "cudnn": ("cudnn", None),
}
"""The library of each purpose, and its major version beside that of CUDA.

That of the others is in the version that METADATA requires.
"""


@check("ND101", "error")
def find_unreadable_driver(stack: Stack) -> Iterator[Finding]:
    """A driver is there that could not be asked."""
    environment = stack.environment
    codes = [(environment.reason, "")]
    codes += [(gpu.reason, f"GPU {gpu.index}: ") for gpu in environment.gpus]
    for code, subject in codes:
        if is_failure(code):
            sentence, step = reasons.explain(code)
            message = f"{subject}{sentence} ({code})"
            yield Finding.of(code="ND101", message=message, hint=step)


@check("ND102", "error")
def find_missing_capabilities(stack: Stack) -> Iterator[Finding]:
    """A container without the capability compute or utility."""
    if not stack.is_here or not _is_container(stack):
        return
    given = stack.environ.get(_CAPABILITIES, "")
    names = {name.strip() for name in given.split(",") if name.strip()}
    lacking: list[str] = []
    if names and "all" not in names:
        lacking = [name for name in _NEEDED if name not in names]
    lacking = lacking or [
        name for reason, name in _LACKS.items() if stack.environment.reason == reason
    ]
    if lacking:
        wanted = ",".join(sorted({*names, *_NEEDED}))
        yield Finding.of(
            code="ND102",
            message="this container lacks the capability "
            f"{' and '.join(lacking)} of the NVIDIA driver",
            hint=f"start it with -e {_CAPABILITIES}={wanted}",
        )


@check("ND103", "error")
def find_stub_driver(stack: Stack) -> Iterator[Finding]:
    """A stub of libcuda stands where programs find it."""
    path = _first_driver(stack)
    if path is None:
        return
    real = os.path.realpath(path)
    if "stubs" in real.split(os.sep) or os.path.getsize(real) < _SMALLEST_DRIVER:
        yield Finding.of(
            code="ND103",
            path=path,
            message=f"programs find the stub {real} instead of the driver's libcuda: "
            "it serves for linking and cannot run anything",
            hint="remove its folder from LD_LIBRARY_PATH, or remove the file",
        )


@check("ND104", "error")
def find_compatibility_libraries(stack: Stack) -> Iterator[Finding]:
    """Libraries of cuda-compat that a GPU does not support."""
    environment = stack.environment
    path = _first_driver(stack)
    is_compat = path is not None and "compat" in os.path.realpath(path).split(os.sep)
    refused = environment.reason == reasons.COMPAT_NOT_SUPPORTED
    names = [gpu.name or "" for gpu in environment.gpus]
    consumer = [name for name in names if any(word in name for word in _CONSUMER)]
    if not refused and not (is_compat and consumer):
        return
    gpu = f"a {consumer[0]}" if consumer else "this GPU"
    yield Finding.of(
        code="ND104",
        path=path if is_compat else None,
        message=f"programs find the libraries of cuda-compat, and {gpu} does not "
        "support them: they are for data-centre GPUs",
        hint="remove the compat folder from LD_LIBRARY_PATH, and install a driver that "
        "is new enough",
    )


def _is_container(stack: Stack) -> bool:
    if stack.environ.get("NVIDIA_VISIBLE_DEVICES") or stack.environ.get("container"):
        return True
    return any(os.path.exists(os.path.join(stack.root, f)) for f in _CONTAINER_FILES)


def _first_driver(stack: Stack) -> str | None:
    """Return the libcuda that a program of this machine loads, if there is one."""
    return _find_in_system(stack, _DRIVER) if stack.is_here else None


def _find_in_system(stack: Stack, name: str) -> str | None:
    """Return the library that a program gets which opens it by its name."""
    folders = split_library_path(stack.environ.get(LIBRARY_PATH, ""))
    return stack.libraries.system.find(name, folders)


@check("ND105", "warning")
def find_hidden_gpus(stack: Stack) -> Iterator[Finding]:
    """The GPUs or the driver are hidden from programs."""
    if not stack.is_here:
        return
    mask = stack.environ.get(_MASK)
    # CUDA C++ Programming Guide: only devices before the first invalid index are seen.
    if mask is not None and stack.environment.gpus and mask.strip() in ("", "-1"):
        yield Finding.of(
            code="ND105",
            message=f"{_MASK}={mask} hides all GPUs of this machine from programs",
            hint=f"unset {_MASK}, or name the GPUs, such as {_MASK}=0",
        )
    python = os.path.realpath(stack.installation.python or "")
    for variable, (name, folder) in _SANDBOXES.items():
        if not (stack.environ.get(variable) and f"/{folder}/" in python):
            continue
        yield Finding.of(
            code="ND105",
            path=python,
            message=f"this Python is inside a {name}, which sees the libraries of the "
            "driver only where the package was given them",
            hint="use a Python outside of it, such as that of the system or of uv",
        )


@check("ND106", "error")
def find_linux_driver_in_wsl(stack: Stack) -> Iterator[Finding]:
    """A driver for Linux is installed inside WSL."""
    if not os.path.exists(os.path.join(stack.root, "dev/dxg")):
        return
    path = _first_driver(stack)
    # CUDA on WSL User Guide: "users must not install any NVIDIA GPU Linux driver
    # within WSL 2".
    if path is not None and "wsl" not in os.path.realpath(path).split(os.sep):
        yield Finding.of(
            code="ND106",
            path=path,
            message=f"programs find {path}, a driver for Linux, and WSL has that of "
            "Windows in /usr/lib/wsl/lib",
            hint="remove the driver's packages inside WSL, such as with apt purge "
            "'libnvidia-compute-*', and keep the driver of Windows",
        )


@check("ND208", "warning")
def find_missing_backends(stack: Stack) -> Iterator[Finding]:
    """A program has no part for the GPU of this machine, or one that does not fit."""
    if stack.has_gpu:
        yield from _check_jax(stack)
        yield from find_forms_for_cpus(stack)
    yield from _check_bitsandbytes(stack)


def _check_jax(stack: Stack) -> Iterator[Finding]:
    jaxlib = stack.distributions.get("jaxlib")
    others = [n for n in stack.distributions if n.startswith(_OTHER_PLUGINS)]
    # Releases of jaxlib before the plug-ins had the GPU code themselves.
    if jaxlib is None or others or "cuda" in jaxlib.version:
        return
    plugins = {
        int(match[1]): distribution
        for name, distribution in stack.distributions.items()
        if (match := _PLUGIN.fullmatch(name))
    }
    for cuda, plugin in plugins.items():
        # jaxlib/plugin_support.py does not use a plug-in of another version.
        if plugin.public_version != jaxlib.public_version:
            yield Finding.of(
                code="ND208",
                distribution=plugin.name,
                path=plugin.folder,
                message=f"{plugin.title} does not work with {jaxlib.title}: jax uses a "
                "plug-in of its own version only",
                hint=_install_extra(stack, f"jax[cuda{cuda}]", jaxlib),
                severity="error",
            )
    driver = stack.environment.cuda_driver_version
    if not plugins and driver is not None:
        newest = min(driver.major, 13)
        yield Finding.of(
            code="ND208",
            distribution="jaxlib",
            path=jaxlib.folder,
            message=f"{jaxlib.title} has no plug-in for CUDA, so that jax computes "
            "without the GPU of this machine",
            hint=_install_extra(stack, f"jax[cuda{newest}]", jaxlib)
            if newest >= 12
            else "install a driver for CUDA 12 or newer: the plug-ins of jax need one",
        )


def _install_extra(stack: Stack, wanted: str, part: Distribution) -> str:
    """Return the command that adds an extra to a program, and keeps its version.

    :param wanted: such as ``jax[cuda12]``.
    :param part: has the version of the program, where that is not installed itself.
    """
    program = stack.distributions.get(wanted.partition("[")[0], part)
    return stack.pip("install", f"{wanted}=={program.public_version}")


def _check_bitsandbytes(stack: Stack) -> Iterator[Finding]:
    own = stack.distributions.get("bitsandbytes")
    torch = stack.toolchain.torch
    if own is None or torch is None or torch.cuda is None:
        return
    found = {m[1] for f in own.files if (m := _OF_BITSANDBYTES.fullmatch(f.path))}
    known = sorted(CudaVersion(int(text[:2]), int(text[2:])) for text in found)
    loader = read_head(own.locate("bitsandbytes/cextension.py"))
    # Since 0.49, it takes a library for another minor version of the same CUDA.
    near = "same major" in loader
    if not known or any(
        cuda == torch.cuda or (near and cuda.major == torch.cuda.major)
        for cuda in known
    ):
        return
    yield Finding.of(
        code="ND208",
        distribution=own.name,
        path=own.locate("bitsandbytes"),
        message=f"{own.title} has no library for CUDA {torch.cuda} of torch "
        f"{torch.version}, only for {', '.join(map(str, known))}",
        hint=stack.pip("install", "--upgrade", own.name),
        severity="error",
    )


@check("ND307", "warning")
def find_missing_opened(stack: Stack) -> Iterator[Finding]:
    """A library that a program opens by name is found nowhere."""
    if not stack.has_gpu:
        return
    for record in json.loads(read_resource("knowledge", "opened_libraries.json")):
        own = stack.distributions.get(record["project"])
        if own is None:
            continue
        if record["extra"] is None:
            missing, hint = _missing_of_names(stack, own)
        else:
            missing = list(_missing_of_extra(stack, own, record["extra"]))
            hint = _install_extra(stack, record["install"], own)
        if missing:
            yield Finding.of(
                code="ND307",
                distribution=own.name,
                path=own.folder,
                message=f"{own.title} opens {', '.join(missing)} by name, and without "
                "it does not use the GPU",
                hint=hint,
            )


def _missing_of_extra(stack: Stack, own: Distribution, extra: str) -> Iterator[str]:
    """Yield the libraries that an extra would bring, and that are not there."""
    variables = stack.installation.marker_variables()
    for requirement in parse_requirements(own, lambda x: x.startswith("nvidia-")):
        if not _is_of_extra(requirement, extra, variables):
            continue
        name = canonicalize_name(requirement.name)
        match = _NVIDIA.fullmatch(name)
        if match is None or match[1] not in _SONAMES:
            continue
        allowed, installed = requirement.specifier, stack.distributions.get(name)
        stem, shift = _SONAMES[match[1]]
        major = int(match[2] or 13) + (shift or 0)
        if shift is None:
            floors = [s.version for s in allowed if s.operator in (">=", "==", "~=")]
            major = Version(floors[0].removesuffix(".*")).major if floors else 0
        library = f"lib{stem}.so.{major}"
        if installed is None:
            if not _is_in_system(stack, library):
                yield f"{library}, which is found nowhere,"
        elif not allows(requirement, installed.version):
            yield f"{library} of {name}{allowed}, which is {installed.version} here,"


def _is_of_extra(
    requirement: Requirement, extra: str, variables: Mapping[str, str]
) -> bool:
    if requirement.marker is None:
        return False
    return holds(requirement, {**variables, "extra": extra}) and not holds(
        requirement, {**variables, "extra": ""}
    )


def _missing_of_names(stack: Stack, own: Distribution) -> tuple[list[str], str]:
    """Find the libraries that the code of a program names, and that are missing.

    The program looks where the loader looks, and not into NVIDIA's distributions.

    :returns: the libraries, and what to do.
    """
    named: set[str] = set()
    for item in own.files:
        if ".so" in item.path:
            named.update(_names_in(own, item.path))
    # A program names parts of cuDNN, which come with it: one name says enough.
    first = {purpose_of(name): name for name in sorted(named, reverse=True)}
    absent = [
        name
        for purpose, name in sorted(first.items(), key=str)
        if purpose in ("cublas", "cudnn") and not _is_in_system(stack, name)
    ]
    places = [find_installed(stack, name) for name in absent]
    if all(places):
        folders = ":".join(dict.fromkeys(place[1] for place in places if place))
        wanted = shlex.quote(folders)
        return absent, f"add the folders that have them to LD_LIBRARY_PATH: {wanted}"
    cuda = major_of_name(first.get("cublas", ""))
    projects = {project_for(stack, name, own, cuda) for name in absent}
    install = stack.pip("install", *sorted(filter(None, projects)))
    return absent, f"{install}, and add their folders to LD_LIBRARY_PATH"


def _names_in(own: Distribution, path: str) -> Iterator[str]:
    """Yield the names of libraries in a file, as far as there are few of them."""
    names: set[bytes] = set()
    try:
        with open_regular(own.locate(path)) as file:
            rest = b""
            # Some files of Linux have no size, and no end: /proc/kmsg waits for more.
            left = os.fstat(file.fileno()).st_size
            while piece := file.read(min(_PIECE, left)):
                left -= len(piece)
                if not own.limits.take(OPENED, len(piece), of=own.name):
                    break
                for match in _NAMES.finditer(rest + piece):
                    names.add(match[0])
                    if len(names) > _MOST_NAMES:
                        return
                rest = piece[-_OVERLAP:]
    except (OSError, ValueError):
        return
    yield from (name.decode("ascii") for name in names)


def _is_in_system(stack: Stack, name: str) -> bool:
    known = not stack.is_here or stack.libraries.system.is_cache_known
    return not known or _find_in_system(stack, name) is not None
