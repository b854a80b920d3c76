"""ND1xx and ND208: whether programs can access the GPUs of the machine.

The driver may be unusable or hidden. Some programs also need a separate part: jax has
its GPU code in a plug-in, and bitsandbytes has a library for each CUDA version. Without
that part, a program runs without the GPU, almost silently.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
from collections.abc import Iterator, Mapping

from packaging.version import Version

from nvidia_variant_provider.errors import shown
from nvidia_variant_provider.machine import reasons
from nvidia_variant_provider.machine.environment import CudaVersion, is_failure

from ...builds.verdicts import judge
from ...knowledge.builds import build_records
from ..commands import Command
from ..distributions import Distribution
from ..installation import read_head
from ..model import Finding, Stack, check, platform_of_wheel
from ..nvidia import find_in_system
from .builds import find_form, find_forms_for_cpus
from .replacing import install_extra

_MASK = "CUDA_VISIBLE_DEVICES"
_SANDBOXES = {"SNAP": ("Snap", "snap"), "FLATPAK_ID": ("Flatpak", "flatpak")}
"""The variable that each sandbox sets, and the sandbox's name and directory."""

_FIRST_NEAR = Version("0.49")
"""From this release on, a bitsandbytes library serves all minor versions of CUDA."""

_INSTALLED = {"Snap": "/snap/", "Flatpak": "/var/lib/flatpak/"}
_GIVEN = "NVIDIA_VISIBLE_DEVICES"
_DRIVER_OF_RELEASE = re.compile(r"libcuda\.so\.([0-9]{3}\.[0-9.]+)$")

_OF_LOST_DEVICES = (reasons.UNKNOWN_ERROR, reasons.NO_PERMISSION)
_LOST_DEVICES = (
    "restart the container: it has lost its devices, as after systemctl daemon-reload "
    "on the host; so that it does not happen again, give it the devices by name "
    "(--device /dev/nvidia0 --device /dev/nvidiactl --device /dev/nvidia-uvm), or let "
    "Docker use the cgroup driver cgroupfs"
)

_CAPABILITIES = "NVIDIA_DRIVER_CAPABILITIES"
_NEEDED = ("compute", "utility")
_LACKS = {reasons.NO_USER_DRIVER: "compute", reasons.NO_NVML: "utility"}
_CONTAINER_FILES = (".dockerenv", "run/.containerenv")

_DRIVER = "libcuda.so.1"
_SMALLEST_DRIVER = 1024 * 1024
"""The minimum size in bytes of a driver's library: stubs have 60 kB, drivers 20 MB."""

_CONSUMER = ("GeForce", "TITAN")
"""Product lines without cuda-compat. CUDA Compatibility: "The forward compatible
upgrade is supported on data center GPUs and on select NGC-Ready RTX boards"."""

_PART = re.compile(r"jax-cuda([0-9]+)-(plugin|pjrt)")
_OTHER_PLUGINS = ("jax-rocm", "jax-metal", "libtpu", "intel-extension-for-openxla")
_OF_BITSANDBYTES = re.compile(
    r"bitsandbytes/libbitsandbytes_cuda([0-9]{3})\.(?:so|dll)"
)


@check("ND101", "error")
def find_unreadable_driver(stack: Stack) -> Iterator[Finding]:
    """The driver could not be queried."""
    environment = stack.environment
    codes = [(environment.reason, "")]
    codes += [(gpu.reason, f"GPU {gpu.index}: ") for gpu in environment.gpus]
    for code, subject in codes:
        if is_failure(code):
            sentence, step = reasons.explain(code)
            # In a container, the likely cause is systemd, whose reload removes devices.
            if code in _OF_LOST_DEVICES and stack.is_here and _is_container(stack):
                step = _LOST_DEVICES
            message = f"{subject}{sentence} ({code})"
            yield Finding.of(code="ND101", message=message, hint=step)
    if not any(is_failure(code) for code, _ in codes):
        yield from _find_other_driver(stack)


def _find_other_driver(stack: Stack) -> Iterator[Finding]:
    """Report a libcuda that is not from the same driver release as the kernel module.

    CUDA then returns the error 803, or 804 on GPUs without forward compatibility. NVML
    may work, because it may be from the matching driver release.
    """
    path, loaded = _first_driver(stack), stack.environment.kernel_driver_version
    real = "" if path is None else os.path.realpath(path)
    match = _DRIVER_OF_RELEASE.search(real)
    if match is None or loaded is None or "compat" in real.split(os.sep):
        return
    if match[1] != loaded:
        sentence, step = reasons.explain(reasons.DRIVER_MISMATCH)
        yield Finding.of(
            code="ND101",
            path=path,
            message=f"{sentence}: programs find that of {match[1]}, and the kernel has "
            f"{loaded} ({reasons.DRIVER_MISMATCH})",
            hint="remove the driver's libraries from the image of the container: those "
            "of the host are mounted"
            if _is_container(stack)
            else step,
        )


@check("ND102", "error")
def find_missing_capabilities(stack: Stack) -> Iterator[Finding]:
    """A container lacks the driver capability "compute" or "utility"."""
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
        wanted = shlex.quote(",".join(sorted({*names, *_NEEDED})))
        yield Finding.of(
            code="ND102",
            message="this container lacks the capability "
            f"{' and '.join(lacking)} of the NVIDIA driver",
            hint=f"start it with -e {_CAPABILITIES}={wanted}",
        )


@check("ND103", "error")
def find_stub_driver(stack: Stack) -> Iterator[Finding]:
    """Programs find a stub of libcuda."""
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
            hint="remove its directory from LD_LIBRARY_PATH, or remove the file",
        )


@check("ND104", "error")
def find_compatibility_libraries(stack: Stack) -> Iterator[Finding]:
    """A GPU does not support the cuda-compat libraries."""
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
        "support them: they are for data-center GPUs",
        hint="remove the compat directory from LD_LIBRARY_PATH, and install a newer "
        "driver",
    )


def _is_container(stack: Stack) -> bool:
    if stack.environ.get("NVIDIA_VISIBLE_DEVICES") or stack.environ.get("container"):
        return True
    return any(os.path.exists(os.path.join(stack.root, f)) for f in _CONTAINER_FILES)


def _first_driver(stack: Stack) -> str | None:
    """Return the path of the libcuda that programs on this machine load, if any."""
    return find_in_system(stack, _DRIVER) if stack.is_here else None


@check("ND105", "warning")
def find_hidden_gpus(stack: Stack) -> Iterator[Finding]:
    """The GPUs or the driver are hidden from programs."""
    if not stack.is_here:
        return
    mask, count = stack.environ.get(_MASK), len(stack.environment.gpus)
    if mask is not None and count and _hides_all(mask, count):
        yield Finding.of(
            code="ND105",
            message=f"{_MASK}={shown(mask)} hides all GPUs of this machine from "
            "programs",
            hint=f"unset {_MASK}, or name the GPUs, such as {_MASK}=0",
        )
    given = stack.environ.get(_GIVEN, "")
    if given in ("void", "none") and not count and _is_container(stack):
        yield Finding.of(
            code="ND105",
            message=f"{_GIVEN}={given} gives this container no GPU",
            hint=f"start it with --gpus all, or with -e {_GIVEN}=all",
        )
    python = stack.installation.python
    # Check both paths: the interpreter of a virtual environment is often a link.
    paths = [] if python is None else [python, os.path.realpath(python)]
    for variable, (name, folder) in _SANDBOXES.items():
        inside = stack.environ.get(variable) and any(f"/{folder}/" in x for x in paths)
        if not inside and not any(x.startswith(_INSTALLED[name]) for x in paths):
            continue
        yield Finding.of(
            code="ND105",
            path=paths[1],
            message=f"this Python is inside a {name}, which sees the libraries of the "
            "driver only where the package was given them",
            hint="use a Python outside of it, such as that of the system or of uv",
        )


def _hides_all(mask: str, count: int) -> bool:
    """Return whether a value of ``CUDA_VISIBLE_DEVICES`` hides all GPUs.

    CUDA C++ Programming Guide: only devices before the first invalid index are visible.
    """
    first = mask.partition(",")[0].strip()
    if first.isdecimal() and first.isascii():
        return int(first[:9]) >= count
    return not first.startswith(("GPU-", "MIG-"))


@check("ND106", "error")
def find_linux_driver_in_wsl(stack: Stack) -> Iterator[Finding]:
    """A Linux driver is installed inside WSL."""
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
    """The GPU part of a program is missing or does not fit."""
    if stack.has_gpu:
        yield from _check_jax(stack)
        yield from find_forms_for_cpus(stack)
    yield from _check_bitsandbytes(stack)


def _check_jax(stack: Stack) -> Iterator[Finding]:
    jaxlib = stack.distributions.get("jaxlib")
    others = [n for n in stack.distributions if n.startswith(_OTHER_PLUGINS)]
    # Skip stacks with another backend, or with an old jaxlib that has its own GPU code.
    if jaxlib is None or others or "cuda" in jaxlib.version or find_form(jaxlib):
        return
    parts: dict[int, dict[str, Distribution]] = {}
    for name, distribution in stack.distributions.items():
        if match := _PART.fullmatch(name):
            parts.setdefault(int(match[1]), {})[match[2]] = distribution
    plugins = {cuda: own["plugin"] for cuda, own in parts.items() if "plugin" in own}
    for cuda, plugin in plugins.items():
        lacking = f"jax-cuda{cuda}-pjrt"
        # jaxlib/plugin_support.py rejects a plug-in of a different version.
        others = [
            item.title
            for item in parts[cuda].values()
            if item.public_version != jaxlib.public_version
        ]
        if others:
            message = (
                f"{' and '.join(others)} {'do' if others[1:] else 'does'} not work "
            )
            message += (
                f"with {jaxlib.title}: jax uses a plug-in of its own version only"
            )
        elif lacking in plugin.required and "pjrt" not in parts[cuda]:
            message = (
                f"{plugin.title} does not work without {lacking}, which is missing"
            )
        else:
            continue
        yield Finding.of(
            code="ND208",
            distribution=plugin.name,
            path=plugin.folder,
            message=message,
            hint=install_extra(stack, f"jax[cuda{cuda}]", jaxlib),
            severity="error",
        )
    if len(plugins) > 1:
        yield _say_two_plugins(stack, plugins)
    if not plugins and stack.environment.cuda_driver_version is not None:
        yield Finding.of(
            code="ND208",
            distribution="jaxlib",
            path=jaxlib.folder,
            message=f"{jaxlib.title} has no plug-in for CUDA, so that jax computes "
            "without the GPU of this machine",
            hint=_add_plugin(stack, jaxlib),
        )


def _say_two_plugins(stack: Stack, plugins: Mapping[int, Distribution]) -> Finding:
    driver = stack.environment.cuda_driver_version
    runs = [cuda for cuda in plugins if driver is None or cuda <= driver.major]
    kept = max(runs, default=min(plugins))
    names = [
        name
        for name in stack.distributions
        if (match := _PART.fullmatch(name)) and int(match[1]) != kept
    ]
    return Finding.of(
        code="ND208",
        distribution=plugins[kept].name,
        path=plugins[kept].folder,
        message=f"jax has plug-ins for CUDA {' and '.join(map(str, sorted(plugins)))}, "
        "and starts one of them only",
        hint=stack.pip("uninstall", "--yes", *names),
    )


def _add_plugin(stack: Stack, jaxlib: Distribution) -> str | Command:
    """Return a hint to add a plug-in to jax, for jaxlib's release if possible."""
    driver = stack.environment.cuda_driver_version
    platform = platform_of_wheel(jaxlib)
    running: dict[Version, int] = {}
    for cuda in (12, 13):
        for row in build_records().get(f"jax-cuda{cuda}-plugin", ()):
            runs = judge(row.needs, stack.environment).verdict
            if row.platform == platform and runs in ("runs", "partly"):
                running[Version(row.version)] = cuda
    if driver is not None and driver.major < 12:
        return "install a driver for CUDA 12 or newer: the plug-ins of jax need one"
    if not running:
        return "take a newer driver, or another package: no plug-in of jax runs here"
    newest = max(running)
    with contextlib.suppress(ValueError):
        own = Version(jaxlib.public_version)
        if own > newest or own in running:
            cuda = running.get(own, running[newest])
            return install_extra(stack, f"jax[cuda{cuda}]", jaxlib)
    return stack.pip("install", "--upgrade", f"jax[cuda{running[newest]}]=={newest}")


def _check_bitsandbytes(stack: Stack) -> Iterator[Finding]:
    own = stack.distributions.get("bitsandbytes")
    torch = stack.toolchain.torch
    if own is None or torch is None or torch.cuda is None:
        return
    found = {m[1] for f in own.files if (m := _OF_BITSANDBYTES.fullmatch(f.path))}
    known = sorted(CudaVersion(int(text[:2]), int(text[2:])) for text in found)
    loader = read_head(own.locate("bitsandbytes/cextension.py"))
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
        hint=_other_bitsandbytes(stack, own, torch.cuda),
        severity="error",
    )


def _other_bitsandbytes(
    stack: Stack, own: Distribution, cuda: CudaVersion
) -> str | Command:
    """Return a hint to install a release with a library for torch's CUDA version."""
    having: dict[Version, bool] = {}
    for row in build_records().get(own.name, ()):
        pieces = [code.name for piece in row.needs.pieces or () for code in piece]
        found = [m[1] for name in pieces if (m := _OF_BITSANDBYTES.fullmatch(name))]
        if row.platform == platform_of_wheel(own) and found:
            version = Version(row.version)
            near = f"{cuda.major}" if version >= _FIRST_NEAR else "none"
            exact = f"{cuda.major}{cuda.minor}"
            having[version] = any(x == exact or x.startswith(near) for x in found)
    releases = sorted(having)
    fitting = [version for version in releases if having[version]]
    if not fitting:
        return (
            f"no release of bitsandbytes that nvp knows has a library for CUDA {cuda}: "
            "take a build of torch for another CUDA, or another package"
        )
    # Find the start of the newest series of consecutive releases with the library.
    last = releases.index(fitting[-1])
    first = last
    while first > 0 and having[releases[first - 1]]:
        first -= 1
    wanted = f"{own.name}>={releases[first]}"
    if last + 1 < len(releases):
        wanted += f",<{releases[last + 1]}"
    return stack.pip("install", "--upgrade", wanted)
