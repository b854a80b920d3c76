"""Versions of the kernel driver, and the CUDA version that each branch reports."""

from __future__ import annotations

from .environment import CudaVersion

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .environment import Environment

__all__ = ["cuda_of_kernel_driver", "driver_numbers", "outrun_kernel_driver"]


def driver_numbers(version: str | None) -> tuple[int, int] | None:
    """Return the first two numbers of a driver version: (575, 57) of ``575.57.08``."""
    major, _, rest = (version or "").partition(".")
    minor = rest.partition(".")[0]
    if not (version or "").isascii() or not 0 < len(major) < 6 or not len(minor) < 6:
        return None
    if not major.isdigit() or not minor.isdigit():
        return None
    return int(major), int(minor)


def cuda_of_kernel_driver(version: str | None) -> CudaVersion | None:
    """Return the CUDA version of the branch of a kernel driver, if it is known.

    Tegra drivers have branches of their own, which the table does not list.
    """
    numbers = driver_numbers(version)
    if numbers is None:
        return None
    # Only a detected kernel driver needs the table; forced values do not load it.
    from .driver_table import CUDA_OF_BRANCH

    cuda = CUDA_OF_BRANCH.get(numbers[0])
    return CudaVersion(*cuda) if cuda else None


def outrun_kernel_driver(environment: Environment) -> CudaVersion | None:
    """Return the CUDA version of the kernel driver if the user-mode driver is newer.

    The cuda-compat libraries have this effect, on purpose or because a container
    image contains them. ``None`` means that the user-mode driver is not newer, or
    that one of the versions is not known.
    """
    user = environment.cuda_driver_version
    forced = (environment.source or "").startswith("forced")
    if user is None or forced:
        return None
    kernel = cuda_of_kernel_driver(environment.kernel_driver_version)
    return kernel if kernel is not None and user > kernel else None
