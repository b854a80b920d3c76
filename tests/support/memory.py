"""The peak memory of reading a document, measured in a child process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

__all__ = ["MIB", "peak_of_reading"]

MIB = 1024 * 1024

# ``ru_maxrss`` of a new process may be that of its parent, so read the peak of the
# process itself from ``/proc``.
_CHILD = """
import json, os, sys
def peak():
    if sys.platform == "linux":
        for line in open("/proc/self/status"):
            if line.startswith("VmHWM"):
                return int(line.split()[1]) * 1024
    import resource
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024
{prepare}
before = peak()
try:
    outcome = read(sys.argv[1])
except Exception as error:
    outcome = str(error)
print(json.dumps([peak() - before, str(outcome)]))
"""


def peak_of_reading(path: Path, prepare: str) -> tuple[int, str]:
    """Return the peak in bytes, and the result or the error of the reader.

    :param prepare: code that imports what is needed and defines ``read(path)``.
    """
    done = subprocess.run(
        [sys.executable, "-c", _CHILD.format(prepare=prepare), str(path)],
        capture_output=True,
        check=True,
        encoding="utf-8",
    )
    peak, outcome = json.loads(done.stdout)
    return peak, outcome
