"""The first screen, which ``nvp`` prints without a command: the first steps."""

from __future__ import annotations

import sys
import sysconfig
from collections import Counter
from collections.abc import Iterator, Mapping

from nvidia_variant_provider.errors import ProviderError, printable
from nvidia_variant_provider.machine import reasons
from nvidia_variant_provider.machine.environment import Environment, is_failure

from .. import __version__
from ..files import page_url
from .render import Result, terminal_width, wrap_line

_WIDTH = 80
"""The width if stdout is not a terminal."""

_KINDS = 2
"""The maximum number of listed kinds of GPUs: the screen has at most 15 lines."""

_OTHER = "--cuda-driver 12.8 --sm-arch 9.0"

_ABSENT = {
    f"nvp releases torch {_OTHER}": "plan for another machine",
    f"nvp check uv.lock {_OTHER}": "check a lock file for it",
    "nvp fleet nodes.json --project torch": "plan for a cluster",
}
"""The commands for a machine without a GPU, with their purpose."""


def start(environ: Mapping[str, str]) -> Result:
    """Return the first screen; if detection fails, the screen has the error."""
    width = terminal_width(sys.stdout) or _WIDTH
    commands = _ABSENT
    text = [f"nvp {__version__}: GPU packages that run on your machine", ""]
    try:
        from nvidia_variant_provider.detection import detect

        environment = detect(environ)
    except ProviderError as error:  # such as a malformed forced value
        text.append(f"Driver: {error}")
    else:
        text += _facts(environment)
        newest = _newest_torch(environment)
        if newest is not None:
            known = "of the releases that nvp knows"
            text.append(f"torch:  {newest} is the newest that runs here, {known}")
            commands = {
                "nvp pip install torch": "install the build that runs here",
                "nvp doctor": "check what is installed",
                "nvp releases torch": "show which releases run, and why",
            }
        elif is_failure(environment.reason):
            commands = {
                "nvp doctor": "find out why",
                "nvp detect --no-cache": "query the driver again",
                f"nvp releases torch {_OTHER}": "plan with other values",
            }
        elif environment.cuda_driver_version and environment.compute_capabilities:
            text.append("torch:  no release that nvp knows runs here")
            commands = {
                "nvp releases torch --vendor-indexes": "look at other indexes",
                "nvp doctor": "check what is installed",
                f"nvp releases torch {_OTHER}": "plan for another machine",
            }
        else:
            text.append("torch:  runs on the CPU only")
    lines = [part for line in text for part in wrap_line(printable(line), width)]
    lines += ["", "Do this first:"]
    longest = max(map(len, commands))
    for command, purpose in commands.items():
        line = f"  {command:{longest}}  {purpose}"
        lines.append(line if len(line) <= width else f"  {command}")
    lines += ["", "All commands:  nvp --help", f"Documentation: {page_url('')}"]
    return Result(text=lines, verbatim=True)


def _facts(environment: Environment) -> Iterator[str]:
    cuda, reason = environment.cuda_driver_version, environment.reason
    why = reasons.explain(reason)[0] if reason else ""
    if reason and is_failure(reason):
        why = f"{why}; {reasons.explain(reason)[1]}"
    forced = " (forced)" if "forced" in (environment.source or "") else ""
    if cuda is None:
        yield f"Driver: none ({why})" if why else "Driver: none"
        return
    yield f"Driver: supports CUDA {cuda}{forced}"
    kinds = Counter(
        f"{gpu.name or 'a GPU'}, compute capability "
        f"{gpu.compute_capability or 'unknown'}"
        for gpu in environment.gpus
    )
    for kind, count in kinds.most_common(_KINDS):
        yield f"GPU:    {f'{count} x ' if count > 1 else ''}{kind}"
    if len(kinds) > _KINDS:
        yield f"GPU:    and {len(kinds) - _KINDS} other kinds: nvp detect"
    if not kinds:
        yield f"GPU:    none ({why})" if why else "GPU:    none"


def _newest_torch(environment: Environment) -> str | None:
    """Return the newest torch in the build table that uses a GPU of the machine."""
    if not environment.compute_capabilities:
        return None
    from ..builds.vendors import newest_in_table

    platform = sysconfig.get_platform().replace("-", "_")
    return newest_in_table("torch", environment, platform)
