"""Checks of what is pinned, or installed, against machines."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from nvidia_variant_provider.api import detect
from nvidia_variant_provider.errors import listed
from nvidia_variant_provider.machine.environment import Environment

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..checking.model import CheckedPin, CheckReport
    from ..index.releases.reading import Watch
    from ..inventories.model import Machine


def check(
    *files: str | os.PathLike[str],
    python: str | None = None,
    machines: Iterable[Machine] | None = None,
    environment: Environment | None = None,
    extras: Sequence[str] = (),
    groups: Sequence[str] = (),
    platforms: Sequence[str] = (),
    python_version: str | None = None,
    every_gpu: bool = False,
    offline: bool = False,
    inspect: bool = False,
    suggest: bool = False,
    index_url: str | None = None,
    extra_index_urls: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
    watch: Watch | None = None,
) -> CheckReport:
    """Check whether what files pin runs on machines.

    Nothing is installed, and no code of a package is run. The table of builds is asked
    first; METADATA of the builds that it does not know is read by ranges.

    :param files: lock files, requirements files, the output of ``pip freeze`` or of
        ``pip inspect``, or scripts with inline metadata (PEP 723).
    :param python: an interpreter or an environment, whose installed packages are
        checked as well.
    :param machines: such as `read_machines` returns them; by default ``environment``.
    :param environment: the machine; by default `detect` finds this one.
    :param extras: the extras that are installed. Without extras and groups, each
        choice of a file that excludes others is judged.
    :param groups: the dependency groups that are installed.
    :param platforms: the tags of the platform that is installed on, such as
        ``manylinux_2_28_aarch64``; by default, that of this machine.
    :param python_version: such as ``3.12``; by default, this Python where the file is
        for it.
    :param every_gpu: builds have to run on each GPU of a machine.
    :param offline: make no request.
    :param inspect: read the GPU code of wheels of which nothing else says enough.
    :param suggest: find the newest releases that run in place of those that cannot.
    :param index_url: the index for what the files have no URL of, by default the one
        that pip is configured for.
    :param extra_index_urls: further indexes.
    :param environ: environment variables, by default those of the process.
    :param watch: as for `releases`.
    :return: ``files`` has the pinned builds with a verdict for each of ``machines``.
    :raises InputError: a file cannot be read, or is of none of these forms.
    :raises UsageError: there is nothing to check, or a choice does not exist.
    """
    from ..checking.asking import Asker
    from ..checking.judging import check_file
    from ..checking.model import CheckReport
    from ..checking.text import THIS
    from ..files import cache_folder
    from ..fleet.serving import Group, group_machines
    from ..pins.environments import pins_of_environment
    from ..pins.reading import read_pins

    environ = os.environ if environ is None else environ
    pinned = [read_pins(os.fspath(path)) for path in files]
    if python is not None or not pinned:
        pinned.append(pins_of_environment(python, environ))
    if machines is None:
        found = detect(environ) if environment is None else environment
        machine_groups: Sequence[Group] = [Group(names=(THIS,), environment=found)]
    else:
        machine_groups = group_machines(machines)
    notes: dict[str, None] = {}
    indexes = {"url": index_url, "extra": extra_index_urls, "platforms": platforms}
    checked = []
    for file in pinned:
        notes.update(dict.fromkeys(file.notes))
        target = file.target(platforms, python_version)
        if (reason := file.why_not(target)) is not None:
            notes.setdefault(f"{file.path}: {reason}")
        asker = Asker(
            environ=environ,
            indexes=indexes,
            target=target,
            warn=notes.setdefault,
            cache=cache_folder(environ),
            offline=offline,
            inspect=inspect,
            watch=watch,
        )
        checked.append(
            check_file(
                file,
                target,
                machine_groups,
                chosen=file.choose(extras, groups) if extras or groups else None,
                every_gpu=every_gpu,
                ask=asker,
            )
        )
        others = [item.pin.title for item in checked[-1].pins if item.known.stands_in]
        if others:
            names = listed(others, 3)
            notes.setdefault(
                f"{file.path}: no wheel for Python {target.python} on this platform: "
                f"{names}"
            )
    report = CheckReport(
        machines=tuple(machine_groups), files=tuple(checked), notes=tuple(notes)
    )
    if not suggest:
        return report
    from ..checking.suggesting import suggest as find_suggestions

    if offline or python_version is not None:
        return find_suggestions(report)
    from ..checking.asking import ReleaseFinder

    return find_suggestions(report, ReleaseFinder(environ=environ, indexes=indexes))


def check_installed(
    *projects: str,
    environment: Environment | None = None,
    every_gpu: bool = False,
    raise_for: Literal["cannot", "unknown"] | None = None,
    environ: Mapping[str, str] | None = None,
) -> tuple[CheckedPin, ...]:
    """Check whether what is installed here can run, before it is imported.

    It is for the start of an application, in front of an engine that takes minutes to
    load. The ``*.dist-info`` of the projects and of what they require are read, and
    nothing is asked of an index. No library is opened: `doctor` does that.

    :param projects: such as ``vllm``; without any, everything that is installed counts.
    :param environment: the machine; by default `detect` finds this one.
    :param every_gpu: builds have to run on each GPU of the machine.
    :param raise_for: raise an error for a build that surely cannot run; with
        ``"unknown"``, also for one of which nothing is known.
    :param environ: environment variables, by default those of the process.
    :return: a record for each GPU build, whose ``worst`` is the verdict with its
        evidence and its reasons.
    :raises CannotRunError: ``raise_for`` applies. Its ``message`` says why, and its
        ``hint`` is the command that puts it right.
    :raises UsageError: a project is not installed.
    """
    from ..checking.judging import check_file
    from ..checking.preflight import pins_of_projects, refuse
    from ..checking.text import THIS
    from ..fleet.serving import Group
    from ..pins.targets import find_target

    environ = os.environ if environ is None else environ
    found = detect(environ) if environment is None else environment
    file = pins_of_projects(projects)
    group = Group(names=(THIS,), environment=found)
    checked = check_file(file, find_target(), [group], every_gpu=every_gpu)
    if raise_for is not None:
        refuse(checked, unknown=raise_for == "unknown")
    return checked.pins
