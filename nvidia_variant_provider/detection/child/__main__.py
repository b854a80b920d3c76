"""The child process of `probe`: asks one native library.

Run as a script in isolated mode, never imported. Arguments: ``nvml`` or
``libcuda``, the folder of nvidia-ml-py, and the seconds after which nobody waits
any more. It prints a line ``ready`` before it loads anything foreign, a JSON
document in a line of its own whenever it has learnt something, so that what is
known survives a hang or a crash, and a line ``end`` when it is done. A document
has the keys of a snapshot; a GPU that was not asked yet has the reason ``pending``.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType


def main(library: str, bindings: str, seconds: int) -> None:
    """Ask ``library`` and print what it says."""
    _end_after(seconds)
    # The native library shares this process's stdout: keep the real one aside.
    answer_to = os.dup(1)
    os.dup2(2, 1)
    # Isolated mode leaves the standard library only; what lies in these two
    # folders is found after it.
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path += [here, os.path.dirname(here), bindings]
    from quick_json import dumps  # type: ignore[import-not-found]  # beside this script

    _write(answer_to, "ready\n")
    if library == "nvml":
        _stand_in_for_imports()
        import nvml as questions  # type: ignore[import-not-found]
    else:
        import libcuda as questions  # type: ignore[import-not-found]
    for document in questions.ask():
        _write(answer_to, f"{dumps(document)}\n")
    _write(answer_to, "end\n")


def _end_after(seconds: int) -> None:
    """Do not outlive a parent that was killed while the driver hangs."""
    try:
        # `signal` itself would import enum.
        from _signal import alarm  # type: ignore[import-not-found]
    except ImportError:
        return
    alarm(seconds)


def _write(descriptor: int, text: str) -> None:
    data = text.encode("ascii")
    while data:
        data = data[os.write(descriptor, data) :]


def _stand_in_for_imports() -> None:
    """Spare nvidia-ml-py two imports that it does not need for what is asked.

    ``ctypes.util`` brings subprocess, shutil and tempfile, ``string`` brings re:
    together more than a third of the time of this process, which runs nothing
    but `nvml.ask`.
    """
    util = _module("ctypes.util")
    util.find_library = lambda name: None  # type: ignore[attr-defined]  # noqa: ARG005
    string = _module("string")
    string.capwords = lambda text, sep=None: sep.join(  # type: ignore[attr-defined]
        word.capitalize() for word in text.split(sep)
    )


def _module(name: str) -> ModuleType:
    module = type(sys)(name)
    sys.modules[name] = module
    return module


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
    # Driver threads and exit handlers have crashed processes that were done.
    os._exit(0)
