"""`Environment` to the provider's answer; nothing here asks the machine.

The values are those of the published provider 0.0.2, because installers
reimplement them and wheels in the field depend on them.
"""

from __future__ import annotations

import sys

from . import reasons
from .drivers import driver_numbers, outrun_kernel_driver
from .environment import CudaVersion
from .properties import VariantFeatureConfig

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from .environment import ComputeCapability, Environment

__all__ = [
    "LOWER_BOUND",
    "NAMESPACE",
    "NEWEST",
    "OLDEST",
    "SM_ARCH",
    "UPPER_BOUND",
    "all_features",
    "left_out",
    "supported_features",
    "supported_sm_arch",
]

NAMESPACE = "nvidia"
LOWER_BOUND = "cuda_version_lower_bound"
UPPER_BOUND = "cuda_version_upper_bound"
SM_ARCH = "sm_arch"

OLDEST = CudaVersion(11, 0)
NEWEST = CudaVersion(15, 20)
"""The catalog names CUDA 11 to 15 with minors 0 to 20."""

_MIN_SM, _MAX_SM = (5, 0), (12, 9)

# CUDA 11.0 was published with Linux driver 450.51, but minor-version
# compatibility starts with 450.80.02 (452.39 on Windows). The floors of the
# later majors are the first drivers that report them.
_FLOOR_OF_11 = (452, 39) if sys.platform == "win32" else (450, 80)


def _majors(newest: int, oldest: int) -> Iterator[str]:
    """``X.20 ... X.0 X`` for each major, newest first."""
    for major in range(newest, oldest - 1, -1):
        yield from _minors(major, NEWEST.minor, 0)
        yield str(major)


def _minors(major: int, newest: int, oldest: int) -> Iterator[str]:
    return (f"{major}.{minor}" for minor in range(newest, oldest - 1, -1))


def all_features() -> list[VariantFeatureConfig]:
    """The catalog: every value that a wheel may declare."""
    versions = list(_majors(NEWEST.major, OLDEST.major))
    numbers = range(129, 49, -1)
    targets = [f"{sm}_{kind}" for kind in ("real", "virtual") for sm in numbers]
    return [
        VariantFeatureConfig(LOWER_BOUND, versions, multi_value=False),
        VariantFeatureConfig(UPPER_BOUND, versions.copy(), multi_value=False),
        VariantFeatureConfig(SM_ARCH, targets, multi_value=True),
    ]


def supported_sm_arch(capability: ComputeCapability, *, ptx: bool = True) -> list[str]:
    """The ``sm_arch`` values that a GPU supports, best first.

    ``XY_real ... X0_real X0_virtual``; empty for a capability that the catalog
    cannot name. ``ptx=False`` leaves the ``virtual`` one out.
    """
    major, minor = capability
    if not _MIN_SM <= (major, minor) <= _MAX_SM or minor > 9:
        return []
    values = [f"{major}{lower}_real" for lower in range(minor, -1, -1)]
    return [*values, f"{major}0_virtual"] if ptx else values


def supported_features(
    environment: Environment, *, minor_version_compatibility: bool = False
) -> tuple[list[VariantFeatureConfig], list[str]]:
    """What the machine supports, as ``(features, notes)``.

    ``features`` is a subset of `all_features` (PEP 817: "The value returned by
    get_supported_configs() MUST be a subset of the feature names and values
    returned by get_all_configs()"), values best first, without empty features.
    ``notes`` are sentences about what the answer had to leave out.
    """
    notes: list[str] = []
    if reasons.is_failure(environment.reason) or environment.reason == reasons.NO_GPU:
        sentence, step = reasons.explain(environment.reason)
        notes.append(f"{environment.reason}: {sentence}; {step}")
    capabilities = environment.compute_capabilities
    driver = environment.cuda_driver_version
    if driver is None:
        if capabilities:
            notes.append(
                f"compute capability {capabilities[0]} has no effect: "
                "no CUDA version of a driver is known"
            )
        return [], notes
    if driver < OLDEST:
        notes.append(
            f"CUDA {driver} of the driver is older than {OLDEST}, the oldest that "
            "variant properties can name: no nvidia property is supported"
        )
        return [], notes
    version = _clamped(driver)
    if version != driver:
        notes.append(
            f"CUDA {driver} of the driver cannot be named by variant properties: "
            f"it counts as {version}"
        )
    kernel = outrun_kernel_driver(environment)
    if kernel is not None:
        notes.append(
            f"the user-mode driver is for CUDA {driver}, the kernel driver "
            f"{environment.kernel_driver_version} for {kernel}: the answer goes by the "
            "first, as cuda-compat libraries allow on data-centre GPUs only"
        )
    lower = [*_minors(version.major, version.minor, 0), str(version.major)]
    lower += _majors(version.major - 1, OLDEST.major)
    relaxed = minor_version_compatibility and _above_floor(environment)
    if relaxed:
        # Strictly supported builds still win, then the nearest newer one.
        newer = _minors(version.major, NEWEST.minor, version.minor + 1)
        lower += reversed(list(newer))
    upper = list(_majors(NEWEST.major, version.major + 1))
    upper += _minors(version.major, NEWEST.minor, version.minor + 1)
    # PTX that is newer than the driver is refused by its JIT compiler, and the
    # properties do not tell which toolkit made a wheel's PTX.
    targets = (
        supported_sm_arch(capabilities[0], ptx=not relaxed) if capabilities else []
    )
    if capabilities and not targets:
        notes.append(
            f"compute capability {capabilities[0]} cannot be named by variant "
            "properties (5.0 to 12.9 can): no sm_arch is supported"
        )
    unread = [gpu for gpu in environment.gpus if gpu.compute_capability is None]
    if capabilities and unread:
        listed = ", ".join(f"{gpu.index} ({gpu.reason})" for gpu in unread)
        notes.append(f"the answer does not cover GPUs that cannot be read: {listed}")
    features = [
        VariantFeatureConfig(LOWER_BOUND, lower, multi_value=False),
        VariantFeatureConfig(UPPER_BOUND, upper, multi_value=False),
        VariantFeatureConfig(SM_ARCH, targets, multi_value=True),
    ]
    return [feature for feature in features if feature.values], notes


def left_out(environment: Environment) -> list[str]:
    """A note about GPUs that a build for the highest one may leave out."""
    capabilities = environment.compute_capabilities
    others = [str(c) for c in capabilities[1:] if c.major != capabilities[0].major]
    if not others or environment.cuda_driver_version is None:
        return []
    return [
        f"sm_arch describes the GPU of compute capability {capabilities[0]}: a build "
        f"that is chosen by it may have no kernels for {', '.join(others)} (resolve "
        "--every-gpu wants code for each)"
    ]


def _clamped(driver: CudaVersion) -> CudaVersion:
    if driver > NEWEST:
        return NEWEST
    return CudaVersion(driver.major, min(driver.minor, NEWEST.minor))


def _above_floor(environment: Environment) -> bool:
    """Is the driver new enough for minor-version compatibility of its major?

    Source: NVIDIA's CUDA compatibility guide. An unknown kernel driver (forced
    values) is taken by the CUDA version alone.
    """
    driver = environment.cuda_driver_version
    kernel = driver_numbers(environment.kernel_driver_version)
    if driver is None or driver.major != 11 or kernel is None:
        return driver is not None
    return kernel >= _FLOOR_OF_11
