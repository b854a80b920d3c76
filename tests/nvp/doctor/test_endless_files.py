"""Files whose reading never ends, which `doctor` must not read."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from nvp.doctor.checks.opened import _names_in
from nvp.doctor.distributions import Distribution


@pytest.mark.skipif(sys.platform != "linux", reason="there is no /proc")
def test_files_without_a_size_are_not_searched_for_names(tmp_path: Path) -> None:
    """Reading /proc/kmsg waits for ever, and RECORD may name it."""
    own = Distribution(name="demo", version="1", folder=str(tmp_path / "x.dist-info"))
    comm = Path("/proc/thread-self/comm")
    before = comm.read_text()
    comm.write_text("libcudnn.so.9")
    try:
        (tmp_path / "demo.so").write_text("libcudnn.so.9")
        (tmp_path / "endless.so").symlink_to("/proc/thread-self/comm")
        assert [*_names_in(own, "demo.so")] == ["libcudnn.so.9"]
        assert [*_names_in(own, "endless.so")] == []
    finally:
        comm.write_text(before)
