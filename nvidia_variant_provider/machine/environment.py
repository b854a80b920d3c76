"""The facts about a machine: the driver's CUDA version and the GPUs.

An `Environment` is made from forced values, detection or a snapshot file. Later steps
of the pipeline get no other information about the machine. Forced values and settings
come from a mapping of environment variables.
"""

from __future__ import annotations

from ..errors import InputError, OverrideError, join, shown
from ..light import Frozen
from . import reasons

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import TypeGuard, TypeVar

    T = TypeVar("T", bound="_MajorMinor")


CUDA_DRIVER_VERSION = "NV_VARIANT_PROVIDER_FORCE_CUDA_DRIVER_VERSION"
SM_ARCH = "NV_VARIANT_PROVIDER_FORCE_SM_ARCH"
MINOR_VERSION_COMPATIBILITY = "NV_VARIANT_PROVIDER_MINOR_VERSION_COMPATIBILITY"
DETECT_TIMEOUT = "NV_VARIANT_PROVIDER_DETECT_TIMEOUT"

_TIMEOUT = 20.0
"""The default deadline of detection, in seconds.

Idle GPUs take about 1.5 s. Users report 25 s for eight A100 GPUs without persistence
mode; such a machine needs persistence mode or a longer deadline.
"""

_MAX_NUMBER = 9999
"""The largest minor number of a forced CUDA version: snapshots reject more digits."""

_NO_MAJOR = 100
"""The lowest number that is too high for a major CUDA version. A text with such a
number is the version of a driver, or a CUDA version without dots."""

_MAX_TEXT = 256


class _MajorMinor(tuple[int, int]):
    """A version of two numbers, such as 12.9."""

    __slots__ = ()

    def __new__(cls: type[T], major: int, minor: int = 0) -> T:
        return tuple.__new__(cls, (major, minor))

    def __getnewargs__(self) -> tuple[int, int]:
        return self[0], self[1]

    @property
    def major(self) -> int:
        return self[0]

    @property
    def minor(self) -> int:
        return self[1]

    def __str__(self) -> str:
        return f"{self[0]}.{self[1]}"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self[0]}, {self[1]})"

    @classmethod
    def parse(cls: type[T], text: str) -> T:
        """Return the value of a text of the form ``MAJOR.MINOR``.

        :raises ValueError: the text has a different form.
        """
        major, _, minor = text.partition(".")
        # isdigit() alone accepts characters that int() rejects, such as a superscript.
        if not (text.isascii() and major.isdigit() and minor.isdigit()):
            raise ValueError(f"{shown(text)} is not of the form MAJOR.MINOR")
        if len(text) > 9:
            raise ValueError(f"{shown(text)} is too long for a version")
        return cls(int(major), int(minor))


class CudaVersion(_MajorMinor):
    """A CUDA version, such as ``CudaVersion(12, 9)``."""

    __slots__ = ()


class ComputeCapability(_MajorMinor):
    """A GPU's compute capability: ``ComputeCapability(9, 0)`` stands for ``sm_90``."""

    __slots__ = ()

    @property
    def sm(self) -> str:
        """The number in the names of targets: ``90`` for 9.0, ``120`` for 12.0."""
        return f"{self[0]}{self[1]}"


class Gpu(Frozen):
    """One GPU.

    :param index: the number in the driver's enumeration, from 0.
    :param name: the product name; ``None`` if unknown.
    :param compute_capability: ``None`` if unknown.
    :param reason: the reason code if the GPU could not be read, else ``None``.
    """

    index: int
    name: str | None = None
    compute_capability: ComputeCapability | None = None
    reason: str | None = None

    def to_dict(self) -> dict[str, object]:
        """Return the GPU as an element of ``gpus`` in a snapshot."""
        capability = self.compute_capability
        return {
            "index": self.index,
            "name": self.name,
            "compute_capability": None if capability is None else str(capability),
            "reason": self.reason,
        }

    @classmethod
    def from_dict(cls, data: object, place: str = "") -> Gpu:
        """Return the GPU of an object in the form that `to_dict` returns.

        :param place: the place of ``data`` in the document, for error messages.
        :raises InputError: an unknown key, a wrong type or a malformed version.
        """
        from ..strict_json import as_integer

        fields = _known(data, ("index", "name", "compute_capability", "reason"), place)
        if "index" not in fields:
            raise InputError("index is missing", place=place or "top level")
        index = as_integer(fields["index"], join(place, "index"))
        if index < 0:
            raise InputError(f"{index} is not an index", place=join(place, "index"))
        return cls(
            index=index,
            name=_text(fields, "name", place),
            compute_capability=_version(
                ComputeCapability, fields, "compute_capability", place
            ),
            reason=_text(fields, "reason", place),
        )


MOST_GPUS = 1024
"""The maximum number of GPUs in a snapshot. The child process has the same limit."""

_MOST_CAPABILITIES = 32
"""The maximum number of different compute capabilities in a snapshot, for each of which
each build is judged. All GPUs of NVIDIA together have fewer."""


class Environment(Frozen):
    """The facts that decide which builds a machine can run.

    :param cuda_driver_version: the newest CUDA version that the user-mode driver
        supports, or ``None`` without a driver.
    :param kernel_driver_version: the version of the kernel driver, such as
        ``575.57.08``.
    :param gpus: all GPUs, including those that could not be read.
    :param source: the origin of the facts: ``forced``, ``nvml``, ``libcuda`` or
        ``snapshot``. ``forced+nvml`` means that the CUDA version is forced and that
        the GPUs come from NVML. ``None`` means that there are no facts.
    :param reason: the reason code if there is no CUDA version or no GPU, else
        ``None``.
    """

    cuda_driver_version: CudaVersion | None = None
    kernel_driver_version: str | None = None
    source: str | None = None
    reason: str | None = None
    gpus: tuple[Gpu, ...] = ()

    @property
    def compute_capabilities(self) -> tuple[ComputeCapability, ...]:
        """The distinct known capabilities, highest first."""
        distinct = {gpu.compute_capability for gpu in self.gpus}
        return tuple(sorted((c for c in distinct if c is not None), reverse=True))

    def to_dict(self) -> dict[str, object]:
        """Return the snapshot, as ``schemas/environment.schema.json`` describes it."""
        version = self.cuda_driver_version
        return {
            "cuda_driver_version": None if version is None else str(version),
            "kernel_driver_version": self.kernel_driver_version,
            "source": self.source,
            "reason": self.reason,
            "gpus": [gpu.to_dict() for gpu in self.gpus],
        }

    @classmethod
    def from_dict(cls, data: object, place: str = "") -> Environment:
        """Return the environment of a snapshot.

        :param place: the place of ``data`` in the document, for error messages.
        :raises InputError: an unknown key, a wrong type or a malformed version, with
            its place such as ``gpus[1].compute_capability``.
        """
        from ..strict_json import as_list

        optional = ("kernel_driver_version", "source", "reason")
        required = ("cuda_driver_version", "gpus")
        fields = _known(data, required + optional, place)
        for key in required:
            if key not in fields:
                hint = "save one with: nvp detect --json"
                where = place or "top level"
                raise InputError(f"{key} is missing", place=where, hint=hint)
        gpus_place = join(place, "gpus")
        listed = as_list(fields["gpus"], gpus_place)
        if len(listed) > MOST_GPUS:
            raise InputError(f"more than {MOST_GPUS} GPUs", place=gpus_place)
        gpus = tuple(
            Gpu.from_dict(item, join(gpus_place, index))
            for index, item in enumerate(listed)
        )
        if len({gpu.compute_capability for gpu in gpus}) > _MOST_CAPABILITIES:
            message = f"more than {_MOST_CAPABILITIES} different compute capabilities"
            raise InputError(message, place=gpus_place)
        if len({gpu.index for gpu in gpus}) != len(gpus):
            raise InputError("two GPUs have the same index", place=gpus_place)
        return cls(
            cuda_driver_version=_version(
                CudaVersion, fields, "cuda_driver_version", place
            ),
            kernel_driver_version=_text(fields, "kernel_driver_version", place),
            source=_text(fields, "source", place),
            reason=_text(fields, "reason", place),
            gpus=gpus,
        )


def driver_numbers(version: str | None) -> tuple[int, int] | None:
    """Return (575, 57) for the driver version ``575.57.08``; ``None`` if malformed."""
    major, _, rest = (version or "").partition(".")
    minor = rest.partition(".")[0]
    if not (version or "").isascii() or not 0 < len(major) < 6 or not len(minor) < 6:
        return None
    if not major.isdigit() or not minor.isdigit():
        return None
    return int(major), int(minor)


def cuda_of_kernel_driver(version: str | None) -> CudaVersion | None:
    """Return the CUDA version for the branch of a kernel driver; ``None`` if unknown.

    Tegra drivers have branches of their own, which the table does not list.
    """
    numbers = driver_numbers(version)
    if numbers is None:
        return None
    # Import late: forced values do not need the table.
    from .driver_table import CUDA_OF_BRANCH

    cuda = CUDA_OF_BRANCH.get(numbers[0])
    return CudaVersion(*cuda) if cuda else None


def outrun_kernel_driver(environment: Environment) -> CudaVersion | None:
    """Return the CUDA version of the kernel driver if the user-mode driver is newer.

    The cuda-compat libraries of a container image have this effect, intended or not.
    ``None`` means that the user-mode driver is not newer, or that a version is unknown.
    """
    user = environment.cuda_driver_version
    forced = (environment.source or "").startswith("forced")
    if user is None or forced:
        return None
    kernel = cuda_of_kernel_driver(environment.kernel_driver_version)
    return kernel if kernel is not None and user > kernel else None


# Only snapshots and cached results are read from JSON. Their readers import
# `strict_json` late, so an installer with forced values does not load it.


def _known(data: object, keys: tuple[str, ...], place: str) -> Mapping[str, object]:
    from ..strict_json import as_object

    fields = as_object(data, place)
    for key in fields:
        if key not in keys:
            hint = f"known keys: {', '.join(keys)}"
            raise InputError("unknown key", place=join(place, key), hint=hint)
    return fields


def _text(fields: Mapping[str, object], key: str, place: str) -> str | None:
    from ..strict_json import as_string

    value = fields.get(key)
    if value is None:
        return None
    text = as_string(value, join(place, key))
    if len(text) > _MAX_TEXT:
        message = f"{len(text)} characters, at most {_MAX_TEXT} are allowed"
        raise InputError(message, place=join(place, key))
    return text


def _version(
    kind: type[T], fields: Mapping[str, object], key: str, place: str
) -> T | None:
    text = _text(fields, key, place)
    if text is None:
        return None
    try:
        return kind.parse(text)
    except ValueError as error:
        raise InputError(str(error), place=join(place, key)) from None


def is_failure(reason: str | None) -> TypeGuard[str]:
    """Return whether a reason code means that a driver or GPU could not be queried."""
    return reason is not None and reason not in reasons.MISSING


def forced_cuda_version(environ: Mapping[str, str]) -> CudaVersion | None:
    """Return the forced CUDA version of the driver, or ``None``.

    The variable is a PEP 440 version, of which only the first two numbers matter:
    ``12.9`` and ``12.9.1`` mean 12.9, and ``12`` means 12.0.

    :raises OverrideError: the text is not a version, or is the version of a driver.
    """
    text = environ.get(CUDA_DRIVER_VERSION)
    if not text:
        return None
    hint = "give a version such as 12.9, or unset it"
    try:
        parts = text.split(".")
        # The usual form is read without an import; `packaging` reads other forms.
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
    """Return the hint for a number that is too large for a major CUDA version.

    Labels spell 12.8 as ``128``, and CUDA's own functions return ``12080`` for it.
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
        # Surrounding white space is ignored, as for a CUDA version.
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
    """Return the deadline of detection, in seconds.

    :raises OverrideError: the variable is not a positive number.
    """
    text = environ.get(DETECT_TIMEOUT)
    if not text:
        return _TIMEOUT
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= 3600:  # "not", because every comparison with NaN is false
        message = f"{shown(text)} is not a number of seconds up to 3600"
        hint = "give a number above 0, or unset it"
        raise OverrideError(message, path=DETECT_TIMEOUT, hint=hint)
    return seconds


def apply_forced(
    environment: Environment,
    cuda: CudaVersion | None,
    capability: ComputeCapability | None,
) -> Environment:
    """Return the environment with forced values in place of detected ones."""
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
