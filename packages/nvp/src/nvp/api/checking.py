"""Check whether pinned or installed releases run on machines."""

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
    """Check whether pinned releases run on machines.

    The function runs no code of a package. It uses the table of builds first, and reads
    METADATA of other builds by HTTP range requests.

    :param files: lock files, requirements files, the output of ``pip freeze`` or of
        ``pip inspect``, or scripts with inline metadata (PEP 723).
    :param python: an interpreter or an environment, whose installed packages are also
        checked.
    :param machines: the machines, as `read_machines` returns them; by default
        ``environment``.
    :param environment: the machine; by default the one that `detect` returns.
    :param extras: the extras to install. Without extras and groups, every set of
        conflicting extras or groups in a file is judged separately.
    :param groups: the dependency groups to install.
    :param platforms: the platform tags of the target, such as
        ``manylinux_2_28_aarch64``; by default those of this machine.
    :param python_version: the version of Python, such as ``3.12``; by default that of
        the running interpreter, if the file supports that version.
    :param every_gpu: require builds to run on every GPU of a machine.
    :param offline: make no requests.
    :param inspect: read the GPU code of wheels if other evidence is not enough.
    :param suggest: for each release that cannot run, find the newest one that runs.
    :param index_url: the index for files without a URL, by default that of pip's
        configuration.
    :param extra_index_urls: further indexes.
    :param environ: environment variables, by default those of the process.
    :param watch: as for `releases`.
    :return: ``files`` has the pinned builds with a verdict for each of ``machines``.
    :raises InputError: a file cannot be read or has none of these forms.
    :raises UsageError: there is nothing to check, or no file has a requested extra or
        group.
    """
    from ..checking.asking import Asker
    from ..checking.judging import check_file
    from ..checking.model import CheckReport
    from ..checking.text import THIS
    from ..files import cache_folder
    from ..fleet.serving import Group, group_machines
    from ..pins.reading import pins_of_environment, read_pins

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
        return find_suggestions(report, platforms=platforms)
    from ..checking.asking import ReleaseFinder

    finder = ReleaseFinder(environ=environ, indexes=indexes)
    return find_suggestions(report, finder, platforms)


def check_installed(
    *projects: str,
    environment: Environment | None = None,
    every_gpu: bool = False,
    raise_for: Literal["cannot", "unknown"] | None = None,
    environ: Mapping[str, str] | None = None,
) -> tuple[CheckedPin, ...]:
    """Check whether installed GPU packages can run, before they are imported.

    Call this function at the start of an application, before an engine that takes
    minutes to load. It reads only the ``*.dist-info`` of the projects and of their
    requirements. It queries no index and opens no library; use `doctor` for that.

    :param projects: such as ``vllm``; by default every installed project.
    :param environment: the machine; by default the one that `detect` returns.
    :param every_gpu: require builds to run on every GPU of the machine.
    :param raise_for: raise an error for a build that certainly cannot run; with
        ``"unknown"``, also for one without evidence.
    :param environ: environment variables, by default those of the process.
    :return: a record for each GPU build; its ``worst`` has the verdict, the evidence
        and the reasons.
    :raises CannotRunError: ``raise_for`` applies; its ``message`` has the reason, and
        its ``hint`` the command that fixes it.
    :raises UsageError: a project is not installed.
    """
    from ..checking.judging import check_file, pins_of_projects, refuse
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
