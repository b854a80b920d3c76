"""The command line as a process of its own: ``nvp``, and ``python -m nvp``.

`nvp.cli.main` runs a command in a process that goes on afterwards, as tests do.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys

from . import __version__


def run() -> int:
    """Run the words of the process, and return its exit code."""
    # A command makes many objects and few cycles. Looking for these after every 700 new
    # objects took a third of the time of a long lock file or inventory.
    gc.set_threshold(100_000)
    try:
        problem = _foreign_provider()
        if problem is not None:
            return _refuse(problem)
        # Not before the check: this imports inner modules of the provider.
        from .cli import main
    except KeyboardInterrupt:
        return 130  # as `main` does

    # At its end, Python would look for cycles among all objects of all modules, which
    # takes longer than many a command. The memory is freed without that.
    atexit.register(gc.freeze)
    code = main(sys.argv[1:])
    if _has_busy_thread():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


def _foreign_provider() -> str | None:
    """Return what is wrong with the provider that Python imports, or ``None``.

    Other distributions have a module of the same name, and an installer may have put
    one of them in the place of the provider that belongs to this command.
    """
    name = "nvidia_variant_provider"
    try:
        import nvidia_variant_provider as provider

        version = getattr(provider, "__version__", None)
        if version == __version__:
            # Another package can have the same number, but not this inner module.
            import nvidia_variant_provider.light

            return None
    except Exception as error:  # noqa: BLE001  # whatever a foreign package raises
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
    if sys.argv[1:] == ["--version"]:
        print(f"nvp {__version__}")  # noqa: T201
        print(f"warning: {line.encode('ascii', 'backslashreplace').decode()}")  # noqa: T201
        return 0
    print(f"error: {line}", file=sys.stderr)  # noqa: T201
    return 2


def _has_busy_thread() -> bool:
    """Return whether a thread of the index has not ended.

    Such a thread waits for a server or a keyring, and Python would wait for the thread.
    """
    # Most commands have not imported the index.
    client = sys.modules.get("nvp.index.http.client")
    return client is not None and client.is_running()


if __name__ == "__main__":
    sys.exit(run())
