"""Driver branches and the CUDA version that each reports.

Source: "Toolkit Driver Version" table of NVIDIA's CUDA toolkit release notes,
13.2 Update 2 edition; 565 from its own driver, 610 and 615 from later notes as
others quote them. Read on 2026-11-20.
"""

from __future__ import annotations

from .environment import CudaVersion

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .environment import Environment

__all__ = [
    "CUDA_OF_BRANCH",
    "cuda_of_kernel_driver",
    "driver_numbers",
    "outrun_kernel_driver",
]

CUDA_OF_BRANCH = {
    450: CudaVersion(11, 0),
    455: CudaVersion(11, 1),
    460: CudaVersion(11, 2),
    465: CudaVersion(11, 3),
    470: CudaVersion(11, 4),
    495: CudaVersion(11, 5),
    510: CudaVersion(11, 6),
    515: CudaVersion(11, 7),
    520: CudaVersion(11, 8),
    525: CudaVersion(12, 0),
    530: CudaVersion(12, 1),
    535: CudaVersion(12, 2),
    545: CudaVersion(12, 3),
    550: CudaVersion(12, 4),
    555: CudaVersion(12, 5),
    560: CudaVersion(12, 6),
    565: CudaVersion(12, 7),
    570: CudaVersion(12, 8),
    575: CudaVersion(12, 9),
    580: CudaVersion(13, 0),
    590: CudaVersion(13, 1),
    595: CudaVersion(13, 2),
    610: CudaVersion(13, 3),
    615: CudaVersion(13, 4),
}
"""By the first part of the kernel driver's version. Tegra has branches of its own."""


def driver_numbers(version: str | None) -> tuple[int, int] | None:
    """The first two numbers of a driver version: (575, 57) of ``575.57.08``."""
    major, _, rest = (version or "").partition(".")
    minor = rest.partition(".")[0]
    if not (version or "").isascii() or not 0 < len(major) < 6 or not len(minor) < 6:
        return None
    if not major.isdigit() or not minor.isdigit():
        return None
    return int(major), int(minor)


def cuda_of_kernel_driver(version: str | None) -> CudaVersion | None:
    """The CUDA version of the branch of a kernel driver, if it is known."""
    parts = driver_numbers(version)
    return CUDA_OF_BRANCH.get(parts[0]) if parts else None


def outrun_kernel_driver(environment: Environment) -> CudaVersion | None:
    """The CUDA version of the kernel driver, where the user-mode one is newer.

    That is what the cuda-compat libraries do, on purpose or left over in a
    container image. ``None``: it is not so, or cannot be told.
    """
    user = environment.cuda_driver_version
    kernel = cuda_of_kernel_driver(environment.kernel_driver_version)
    forced = (environment.source or "").startswith("forced")
    if user is None or kernel is None or forced:
        return None
    return kernel if user > kernel else None
