"""Reports of wheels that do not exist, for tests of code that uses reports."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nvp.gpu_code.report import LibraryReport, WheelReport

__all__ = ["lib", "wheel"]


def lib(
    *targets: str,
    path: str = "demo/lib.so",
    isa: str = "8.0",
    needed: Sequence[str] = (),
    **changes: Any,
) -> LibraryReport:
    fields = {
        "format": "elf",
        "targets": dict.fromkeys(targets, 1),
        "ptx_isa": {t: (isa,) for t in targets if t.endswith("virtual")},
        "needed": tuple(needed),
        **changes,
    }
    return LibraryReport(path=path, **fields)


def wheel(
    *libraries: LibraryReport,
    requires: Sequence[str] = (),
    path: str = "demo-1.0-py3-none-any.whl",
) -> WheelReport:
    return WheelReport(
        path=path,
        kind="wheel",
        libraries=libraries,
        requires=tuple(requires),
    )
