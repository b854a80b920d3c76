"""Derive the supported properties from an `Environment`, without querying the machine.

The values are those of the published provider 0.0.2: installers reimplement them, and
published wheels depend on them.
"""

from __future__ import annotations

import sys

from ..errors import printable
from ..light import Frozen
from . import reasons
from .environment import (
    ComputeCapability,
    CudaVersion,
    driver_numbers,
    is_failure,
    outrun_kernel_driver,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from .environment import Environment

NAMESPACE = "nvidia"
LOWER_BOUND = "cuda_version_lower_bound"
UPPER_BOUND = "cuda_version_upper_bound"
SM_ARCH = "sm_arch"

# The limits of the catalog, defined only here. They are part of the contract with
# installers that reimplement the provider: widen them when the published catalog grows,
# not when a new GPU or CUDA version appears.
OLDEST = CudaVersion(11, 0)
NEWEST = CudaVersion(15, 20)
"""The catalog names CUDA 11 to 15, each major with the minors 0 to 20."""

LOWEST = ComputeCapability(5, 0)
HIGHEST = ComputeCapability(12, 9)
"""The catalog names the capabilities 5.0 to 12.9, each major with the minors 0 to 9."""


class VariantFeatureConfig(Frozen):
    """A feature with its values, as provider plugins return them (PEP 817).

    :param name: the feature, such as ``sm_arch``.
    :param values: at least one value, the most preferred first.
    :param multi_value: whether one wheel may declare several values of the feature.
    """

    name: str
    values: list[str]
    multi_value: bool

    def __init__(self, name: str, values: list[str], multi_value: bool) -> None:
        super().__init__(name=name, values=values, multi_value=multi_value)

    __hash__ = None  # type: ignore[assignment]  # the list of values can change


class VariantProperty(Frozen):
    """A property such as ``nvidia :: sm_arch :: 90_real``."""

    namespace: str
    feature: str
    value: str

    def __init__(self, namespace: str, feature: str, value: str) -> None:
        super().__init__(namespace=namespace, feature=feature, value=value)

    def __str__(self) -> str:
        return f"{self.namespace} :: {self.feature} :: {self.value}"


def catalog_capabilities() -> list[ComputeCapability]:
    """Return every compute capability that the catalog names, ascending."""
    return [
        ComputeCapability(major, minor)
        for major in range(LOWEST.major, HIGHEST.major + 1)
        for minor in range(10)
    ]


def all_features() -> list[VariantFeatureConfig]:
    """Return the catalog: every value that a wheel may declare."""
    versions = list(_majors(NEWEST.major, OLDEST.major))
    numbers = range(int(HIGHEST.sm), int(LOWEST.sm) - 1, -1)
    targets = [f"{sm}_{kind}" for kind in ("real", "virtual") for sm in numbers]
    return [
        VariantFeatureConfig(LOWER_BOUND, versions, multi_value=False),
        VariantFeatureConfig(UPPER_BOUND, versions.copy(), multi_value=False),
        VariantFeatureConfig(SM_ARCH, targets, multi_value=True),
    ]


def supported_sm_arch(capability: ComputeCapability, *, ptx: bool = True) -> list[str]:
    """Return the ``sm_arch`` values that a GPU supports, best first.

    The values are ``XY_real ... X0_real X0_virtual``. The list is empty for a
    capability outside the catalog.

    :param ptx: whether to include the ``virtual`` value.
    """
    major, minor = capability
    if not LOWEST <= capability <= HIGHEST or minor > 9:
        return []
    values = [f"{major}{lower}_real" for lower in range(minor, -1, -1)]
    return [*values, f"{major}0_virtual"] if ptx else values


def has_machine_code(targets: Iterable[str], capability: ComputeCapability) -> bool:
    """Return whether one of the ``sm_arch`` values stands for SASS that a GPU runs."""
    return not {*supported_sm_arch(capability, ptx=False)}.isdisjoint(targets)


def supported_features(
    environment: Environment, *, minor_version_compatibility: bool = False
) -> tuple[list[VariantFeatureConfig], list[str]]:
    """Return the supported features, and notes, as ``(features, notes)``.

    ``features`` is a subset of `all_features` (PEP 817: "The value returned by
    get_supported_configs() MUST be a subset of the feature names and values
    returned by get_all_configs()"). The best values come first, and features without
    values are left out. ``notes`` are sentences on facts that features cannot express.
    """
    # The driver's library may write any text.
    notes = list(map(printable, _notes(environment)))
    driver = environment.cuda_driver_version
    if driver is None or driver < OLDEST:
        return [], notes
    version = _clamped(driver)
    relaxed = minor_version_compatibility and _above_floor(environment)
    lower = [*_minors(version.major, version.minor, 0), str(version.major)]
    lower += _majors(version.major - 1, OLDEST.major)
    if relaxed:
        # The versions up to the driver's come first, then newer ones, ascending.
        newer = _minors(version.major, NEWEST.minor, version.minor + 1)
        lower += reversed(list(newer))
    upper = list(_majors(NEWEST.major, version.major + 1))
    upper += _minors(version.major, NEWEST.minor, version.minor + 1)
    # A driver's JIT compiler rejects PTX from a newer toolkit, and properties do not
    # record that toolkit. So offer no PTX if builds for newer versions are accepted.
    capabilities = environment.compute_capabilities
    targets = (
        supported_sm_arch(capabilities[0], ptx=not relaxed) if capabilities else []
    )
    features = [
        VariantFeatureConfig(LOWER_BOUND, lower, multi_value=False),
        VariantFeatureConfig(UPPER_BOUND, upper, multi_value=False),
        VariantFeatureConfig(SM_ARCH, targets, multi_value=True),
    ]
    return [feature for feature in features if feature.values], notes


def left_out(environment: Environment) -> list[str]:
    """Return notes on GPUs that a build for the newest GPU might not support."""
    capabilities = environment.compute_capabilities
    others = [str(c) for c in capabilities[1:] if c.major != capabilities[0].major]
    if not others or environment.cuda_driver_version is None:
        return []
    return [
        f"sm_arch describes the GPU of compute capability {capabilities[0]}: a build "
        f"that is chosen by it may have no kernels for {', '.join(others)} (resolve "
        "--every-gpu keeps only builds with code for each GPU)"
    ]


def _notes(environment: Environment) -> list[str]:
    """Return sentences about facts that the features cannot express."""
    notes: list[str] = []
    if is_failure(environment.reason) or environment.reason == reasons.NO_GPU:
        sentence, step = reasons.explain(environment.reason)
        notes.append(f"{environment.reason}: {sentence}; {step}")
    capabilities = environment.compute_capabilities
    driver = environment.cuda_driver_version
    if driver is None:
        if capabilities:
            notes.append(
                f"compute capability {capabilities[0]} has no effect: "
                "the driver's CUDA version is not known"
            )
        return notes
    if driver < OLDEST:
        notes.append(
            f"the driver's CUDA {driver} is older than {OLDEST}, the oldest version "
            "that variant properties can name: no nvidia property is supported"
        )
        return notes
    version = _clamped(driver)
    if version != driver:
        notes.append(
            f"variant properties cannot name the driver's CUDA {driver}: "
            f"it counts as {version}"
        )
    kernel = outrun_kernel_driver(environment)
    if kernel is not None:
        notes.append(
            f"the user-mode driver is for CUDA {driver}, the kernel driver "
            f"{environment.kernel_driver_version} for {kernel}: the answer assumes "
            "cuda-compat libraries, which work on data-center GPUs only"
        )
    if capabilities and not supported_sm_arch(capabilities[0]):
        notes.append(
            f"variant properties cannot name compute capability {capabilities[0]}, "
            f"only {LOWEST} to {HIGHEST}: no sm_arch is supported"
        )
    unread = [gpu for gpu in environment.gpus if gpu.compute_capability is None]
    if capabilities and unread:
        listed = ", ".join(f"{gpu.index} ({gpu.reason})" for gpu in unread)
        notes.append(f"the answer does not cover GPUs that cannot be read: {listed}")
    return notes


def _majors(newest: int, oldest: int) -> Iterator[str]:
    """Yield ``X.20 ... X.0 X`` for each major, newest first."""
    for major in range(newest, oldest - 1, -1):
        yield from _minors(major, NEWEST.minor, 0)
        yield str(major)


def _minors(major: int, newest: int, oldest: int) -> Iterator[str]:
    return (f"{major}.{minor}" for minor in range(newest, oldest - 1, -1))


def _clamped(driver: CudaVersion) -> CudaVersion:
    """Return the newest version of the catalog that is not newer than ``driver``."""
    if driver > NEWEST:
        return NEWEST
    return CudaVersion(driver.major, min(driver.minor, NEWEST.minor))


def _above_floor(environment: Environment) -> bool:
    """Return whether minor-version compatibility applies to the driver.

    NVIDIA's CUDA compatibility guide gives a lowest driver for each major version. Only
    CUDA 11 was first published with older drivers: 11.0 came with Linux driver 450.51,
    and the lowest driver is 450.80.02. If the version of the kernel driver is unknown,
    for example with forced values, the CUDA version alone decides.
    """
    driver = environment.cuda_driver_version
    kernel = driver_numbers(environment.kernel_driver_version)
    if driver is None or driver.major != OLDEST.major or kernel is None:
        return driver is not None
    from .driver_table import FLOORS

    system = "windows" if sys.platform == "win32" else "linux"
    return kernel >= FLOORS[system][driver.major]
