"""ND3xx: the libraries that GPU code is linked with."""

from __future__ import annotations

from ..model import Check

__all__ = ["LIBRARY_CHECKS"]

LIBRARY_CHECKS = (
    Check(
        code="ND304",
        title="an NVIDIA distribution is not of the version that METADATA requires",
        meaning="A build was compiled and tested with one version of each library of "
        "CUDA, and its METADATA pins it. Another one is installed, or none: something "
        "that was installed later has replaced it, or it was installed without "
        "dependencies.",
        seen="undefined symbol: __nvJitLinkComplete_12_4, version libnvJitLink.so.12",
        mend="Install the version that is required, with the command of the finding. "
        "Where two projects require different versions, keep them in environments of "
        "their own.",
    ),
)
