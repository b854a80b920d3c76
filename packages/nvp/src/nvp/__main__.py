"""The entry point of the process: ``nvp`` and ``python -m nvp``.

To run a command inside a longer process, as tests do, call `nvp.cli.main`.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys

from . import __version__

_PATIENCE = 2.0
"""The number of seconds to wait for threads after a signal."""


def run() -> int:
    """Run the command line of this process, and return its exit code."""
    try:
        import signal

        # Around the command, there is nothing to clean, and Python would ignore an
        # exception that is raised at the end of an import.
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, lambda *_: os._exit(130))
        # A parent that ignores SIGCHLD, such as a daemon, passes this on. The kernel
        # would then drop the exit codes of children.
        if sys.platform != "win32" and (
            signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN
        ):
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        from .signals import ending

        with ending():
            code = _run()
    except KeyboardInterrupt:  # before or after `main`, which returns the same code
        code = 130
    except SystemExit as error:  # after a signal, or with --help
        code = error.code if isinstance(error.code, int) else 1
    is_busy = _has_busy_thread()
    if code > 128 and not is_busy:
        _wait_for_threads()
    if code > 128 or is_busy:
        # Python alone would wait for all threads, which may hang, and would end by the
        # signal itself if that interrupted ``exec``.
        atexit._run_exitfuncs()
        os._exit(code)
    return code


def _run() -> int:
    # A command creates many objects and few cycles. Collecting cycles after every 700
    # new objects took a third of the time of a long lock file or inventory.
    gc.set_threshold(100_000)
    _leave_out_program_of_httpx()
    problem = _foreign_provider()
    if problem is not None:
        return _refuse(problem)
    # Import after the check, because `cli` needs inner modules of the provider.
    from .cli import main

    # At exit, Python would look for cycles among all objects, which takes longer than
    # many commands. The memory is freed anyway.
    atexit.register(gc.freeze)
    atexit.register(_flush_stderr)
    return main(sys.argv[1:])


def _wait_for_threads() -> None:
    """Wait for threads, such as one that writes a file, but not without an end."""
    import threading
    import time
    from contextlib import suppress

    end = time.monotonic() + _PATIENCE
    for thread in threading.enumerate():
        if not thread.daemon and thread is not threading.current_thread():
            with suppress(RuntimeError):  # a signal interrupted its start
                thread.join(max(0.0, end - time.monotonic()))


def _flush_stderr() -> None:
    """Flush stderr, and drop text that cannot be written, such as to a full disk.

    Otherwise Python would flush at exit, and a failure would change the exit code.
    """
    try:
        sys.stderr.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


def _leave_out_program_of_httpx() -> None:
    """Keep httpx from importing its own command line, with pygments, rich and click.

    No nvp command uses it, and it takes a seventh of the import time of ``nvp pip``.
    """

    def main() -> None:
        """Replace the entry point of httpx's command line, which httpx modifies."""

    program = type(sys)("httpx._main")
    program.__dict__["main"] = main
    sys.modules[program.__name__] = program


def _foreign_provider() -> str | None:
    """Return the problem with the provider that Python imports, or ``None``.

    Other distributions have a module of the same name, which may have replaced the
    provider of this package.
    """
    name = "nvidia_variant_provider"
    try:
        import nvidia_variant_provider as provider

        version = getattr(provider, "__version__", None)
        if version == __version__:
            # Another package can have the same version, but not this inner module.
            import nvidia_variant_provider.light

            return None
    except Exception as error:  # noqa: BLE001  # a foreign package may raise anything
        found = f"{name} cannot be used: {type(error).__name__}: {error}"
    else:
        place = getattr(provider, "__file__", None) or "a directory without __init__.py"
        found = f"{name} is version {version or 'unknown'}, from {place}"
    return (
        f"{found}; nvp needs its own provider: pip install --force-reinstall "
        f"nvidia-variant-provider=={__version__}"
    )


def _refuse(problem: str) -> int:
    line = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in problem)
    # CI services read "##vso[...]", for example, as a command.
    line = line.replace("##", "# #")
    if sys.argv[1:] == ["--version"]:
        print(f"nvp {__version__}")  # noqa: T201
        print(f"warning: {line.encode('ascii', 'backslashreplace').decode()}")  # noqa: T201
        return 0
    print(f"error: {line}", file=sys.stderr)  # noqa: T201
    return 2


def _has_busy_thread() -> bool:
    """Return whether a thread that reads an index is still running.

    Such a thread waits for a name server, and at exit Python would wait for it.
    """
    # No such thread runs if its module was not imported, or if Ctrl-C interrupted the
    # import.
    threads = sys.modules.get("nvp.index.http.threads")
    is_running = getattr(threads, "is_running", None)
    return is_running is not None and bool(is_running())


if __name__ == "__main__":
    sys.exit(run())
