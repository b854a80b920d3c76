"""The child process of `probe`: asks NVML and prints one JSON document.

Run as a script in isolated mode, never imported: the first argument is the
folder of nvidia-ml-py. The native library shares this process's stdout, so the
real one is kept aside before anything is loaded.
"""

from __future__ import annotations

import os
import sys


def main() -> int:
    """Print the document to the real stdout; 0 unless something broke."""
    answer_to = os.dup(1)
    os.dup2(2, 1)
    # Isolated mode leaves the standard library only; what lies in these two
    # folders is found after it.
    sys.path += [os.path.dirname(os.path.abspath(__file__)), sys.argv[1]]
    import json

    import nvml  # type: ignore[import-not-found]  # lies beside this script

    document = json.dumps(nvml.query()).encode()
    while document:
        document = document[os.write(answer_to, document) :]
    return 0


if __name__ == "__main__":
    # Driver threads and exit handlers have crashed processes that were done.
    os._exit(main())
