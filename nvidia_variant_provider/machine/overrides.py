"""Read forced values and settings from a mapping of environment variables."""

from __future__ import annotations

from ..errors import OverrideError, shown
from .environment import ComputeCapability, CudaVersion, Environment, Gpu

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

CUDA_DRIVER_VERSION = "NV_VARIANT_PROVIDER_FORCE_CUDA_DRIVER_VERSION"
SM_ARCH = "NV_VARIANT_PROVIDER_FORCE_SM_ARCH"
MINOR_VERSION_COMPATIBILITY = "NV_VARIANT_PROVIDER_MINOR_VERSION_COMPATIBILITY"
DETECT_TIMEOUT = "NV_VARIANT_PROVIDER_DETECT_TIMEOUT"

_TIMEOUT = 20.0
"""The default deadline of detection, in seconds.

Idle GPUs take about 1.5 s. Eight A100 without persistence mode were reported to take
25 s; such a machine needs the persistence mode or a longer deadline.
"""

_MAX_NUMBER = 9999
"""The limit for the minor of a forced version: a snapshot has room for four digits."""

_NO_MAJOR = 100
"""No CUDA version has such a major; drivers have, and CUDA versions without dots."""


def forced_cuda_version(environ: Mapping[str, str]) -> CudaVersion | None:
    """Return the forced CUDA version of the driver, or ``None``.

    The variable holds a PEP 440 version, of which the major and the minor version
    count: ``12.9`` and ``12.9.1`` mean 12.9, and ``12`` means 12.0.

    :raises OverrideError: the text is not a version, or it is that of a driver.
    """
    text = environ.get(CUDA_DRIVER_VERSION)
    if not text:
        return None
    hint = "give a version such as 12.9, or unset it"
    try:
        parts = text.split(".")
        # The usual form needs no import. `packaging` reads the other forms.
        if text.isascii() and len(text) < 20 and all(map(str.isdigit, parts)):
            release = tuple(map(int, parts))
        else:
            from packaging.version import Version

            release = Version(text).release
    except ValueError:
        release = ()
    if release and release[0] >= _NO_MAJOR:
        release, hint = (), _probably_meant(release)
    if not release:
        message = f"{shown(text)} is not a CUDA version"
        raise OverrideError(message, path=CUDA_DRIVER_VERSION, hint=hint)
    major, minor = (*release, 0)[:2]
    return CudaVersion(major, min(minor, _MAX_NUMBER))


def _probably_meant(release: tuple[int, ...]) -> str:
    """Return what to do about a number that is too large for a CUDA version.

    ``128`` is how labels spell 12.8, and ``12080`` is how CUDA's own functions do.
    """
    number = release[0]
    if number < 1000:
        major, minor = divmod(number, 10)
    else:
        major, minor = number // 1000, number % 1000 // 10
    if len(release) == 1 and 9 <= major < 20:
        return f"{major}.{minor} was probably meant"
    return (
        "it looks like the number of a driver, next to which nvidia-smi shows the CUDA "
        "version, such as 12.9"
    )


def forced_compute_capability(environ: Mapping[str, str]) -> ComputeCapability | None:
    """Return the forced compute capability, or ``None``.

    :raises OverrideError: the text is not ``MAJOR.MINOR``.
    """
    text = environ.get(SM_ARCH)
    if not text:
        return None
    try:
        # White space around a CUDA version does not count either.
        return ComputeCapability.parse(text.strip())
    except ValueError:
        hint = "give MAJOR.MINOR such as 9.0, or unset it"
        message = f"{shown(text)} is not a compute capability"
        raise OverrideError(message, path=SM_ARCH, hint=hint) from None


def minor_version_compatibility(environ: Mapping[str, str]) -> bool:
    """Return whether the user has opted in to CUDA's minor-version compatibility.

    :raises OverrideError: the text is neither ``0`` nor ``1``.
    """
    text = environ.get(MINOR_VERSION_COMPATIBILITY, "")
    if text not in ("", "0", "1"):
        message, hint = f"{shown(text)} is neither 0 nor 1", "give 1, or unset it"
        raise OverrideError(message, path=MINOR_VERSION_COMPATIBILITY, hint=hint)
    return text == "1"


def detection_timeout(environ: Mapping[str, str]) -> float:
    """Return the number of seconds that detection may take.

    :raises OverrideError: the variable holds no positive number.
    """
    text = environ.get(DETECT_TIMEOUT)
    if not text:
        return _TIMEOUT
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= 3600:  # also false for NaN
        message = f"{shown(text)} is not a number of seconds up to 3600"
        hint = "give a number above 0, or unset it"
        raise OverrideError(message, path=DETECT_TIMEOUT, hint=hint)
    return seconds


def apply_forced(
    environment: Environment,
    cuda: CudaVersion | None,
    capability: ComputeCapability | None,
) -> Environment:
    """Return the environment with the forced values instead of the detected ones."""
    if cuda is None and capability is None:
        return environment
    cuda_source = gpu_source = environment.source
    if cuda is not None:
        cuda_source = "forced"
        environment = environment.replace(cuda_driver_version=cuda)
    if capability is not None:
        gpu_source = "forced"
        environment = environment.replace(
            gpus=(Gpu(index=0, compute_capability=capability),)
        )
    if environment.cuda_driver_version is not None and environment.gpus:
        environment = environment.replace(reason=None)
    sources = dict.fromkeys(item for item in (cuda_source, gpu_source) if item)
    return environment.replace(source="+".join(sources) or None)
