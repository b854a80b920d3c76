"""ND307: whether programs find the libraries that they open by name.

TensorFlow, CTranslate2 and others open NVIDIA's libraries at first use, and run without
the GPU if a library is missing. The loader searches the directories of
``LD_LIBRARY_PATH`` and the system. Programs with cuda-pathfinder first search NVIDIA's
distributions, and use a library from there whatever its CUDA version.
"""

from __future__ import annotations

import glob
import json
import logging
import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from packaging.utils import canonicalize_name
from packaging.version import Version

from nvidia_variant_provider.strict_json import open_regular

from ...builds.needs import needs_of_name
from ...files import read_resource
from ...gpu_code.bounds import major_of_name
from ...metadata.requirements import holds
from ..commands import Advice
from ..distributions import Distribution, allows, parse_requirements
from ..installation import OPENED
from ..model import Finding, Stack, check
from ..nvidia import (
    Library,
    find_in_system,
    find_installed,
    libraries,
    library_of,
    project_for,
    purpose_of,
)
from .replacing import install_extra

if TYPE_CHECKING:
    from packaging.requirements import Requirement

logger = logging.getLogger(__name__)

_PATHFINDER = "cuda-pathfinder"
_NAMES = re.compile(rb"lib(?:cu|nccl)[A-Za-z_]{0,40}\.so\.[0-9]{1,4}")

_PIECE = 1024 * 1024
_OVERLAP = 64
"""The overlap of consecutive reads in bytes, to find names that span two reads."""

_MOST_NAMES = 1000
"""The maximum number of names read from a file; programs contain about ten."""

_LARGEST = ("cublas", "cudnn")
"""The only libraries to check for CTranslate2: other names in its code belong to parts
of these libraries, or to libraries of other programs."""


class _Record(NamedTuple):
    """The libraries that programs open, and the locations that they search.

    :param projects: the projects of the programs.
    :param source: the source of this record.
    :param extra: the extra that installs the libraries.
    :param opens: the names of the libraries; empty if only the code contains the names.
    :param looks: the searched locations, in order: ``wheels``, ``conda``, ``system``
        and ``toolkit``. Programs that use cuda-pathfinder search them all.
    :param install: the requirement to install, with ``{project}`` and ``{cuda}``.
    """

    projects: list[str]
    source: str
    date: str
    extra: str | None = None
    opens: Sequence[str] = ()
    looks: Sequence[str] = ()
    install: str | None = None


class _Opened(NamedTuple):
    """A library that a program cannot open.

    :param problem: a clause, such as ``libnvvm.so.4, which is found nowhere``.
    :param folder: the directory of the library, if the program does not search it.
    """

    name: str
    problem: str
    folder: str | None = None


@check("ND307", "warning")
def find_missing_opened(stack: Stack) -> Iterator[Finding]:
    """A library that a program opens by name is missing or has the wrong version."""
    if not stack.has_gpu:
        return
    table = json.loads(read_resource("knowledge", "opened_libraries.json"))
    for record in (_Record(**row) for row in table):
        for name in record.projects:
            own = stack.distributions.get(name)
            if own is None or not (cuda := _cuda_of(stack, own)):
                continue
            opened = list(_find_missing(stack, own, record, cuda))
            if opened:
                yield Finding.of(
                    code="ND307",
                    distribution=own.name,
                    path=own.folder,
                    message=f"{own.title} does not use the GPU without what it opens "
                    f"by name: {'; '.join(x.problem for x in opened)}",
                    hint=_advise(stack, own, record, cuda, opened),
                )


def _cuda_of(stack: Stack, own: Distribution) -> int | None:
    """Return the CUDA major version whose libraries a program opens."""
    named = needs_of_name(own.name)
    if named is not None and named.cuda is not None:
        return named.cuda.major
    # cuda-bindings loads the libraries of its own CUDA major version.
    bindings = stack.distributions.get("cuda-bindings")
    if bindings is not None and _has_pathfinder(stack, own):
        major = bindings.version.partition(".")[0]
        return int(major) if major.isdecimal() else None
    driver = stack.environment.cuda_driver_version
    return None if driver is None else driver.major


def _has_pathfinder(stack: Stack, own: Distribution) -> bool:
    return _PATHFINDER in stack.needed_for(own.name)


def _find_missing(
    stack: Stack, own: Distribution, record: _Record, cuda: int
) -> Iterator[_Opened]:
    if record.extra is not None:
        yield from _missing_of_extra(stack, own, record.extra)
        return
    if not record.opens:
        yield from _missing_of_names(stack, own)
        return
    looks = record.looks
    if _has_pathfinder(stack, own):
        looks = ("wheels", "conda", "system", "toolkit")
    for name in record.opens if looks else ():
        library = libraries()[name.lower()]
        wanted = library.soname(cuda)
        if wanted is None:
            continue
        found = next(
            ((x, y) for x in looks for y in _places(stack, library, wanted, x)), None
        )
        if found is None:
            yield _Opened(wanted, f"{wanted}, which is found nowhere")
            continue
        place, path = found
        logger.info("%s opens %s: found by %s, %s", own.title, wanted, place, path)
        there = os.path.basename(os.path.realpath(path))
        if not there.startswith(wanted) and ".so." in there:
            problem = f"{wanted}, and it gets another one by {place}: {path}"
            yield _Opened(wanted, problem)


def _places(stack: Stack, library: Library, wanted: str, place: str) -> Iterator[str]:
    """Yield the files of a library in one kind of location, in search order.

    The locations are from cuda-pathfinder's search_steps.py: site-packages, then
    CONDA_PREFIX, then the loader, then CUDA_PATH or CUDA_HOME, and the toolkit whose
    libcudart the loader finds.
    """
    if place == "wheels":
        roots, folders = [*stack.installation.folders], library.folders
        yield from (x for f in folders for r in roots for x in _in(r, f, library))
        return
    if place == "system":
        if not _is_in_system(stack, wanted):
            names = (name for name in library.sonames if name != wanted)
            yield from filter(None, (find_in_system(stack, name) for name in names))
        else:
            yield find_in_system(stack, wanted) or wanted
        return
    variables = ("CONDA_PREFIX",) if place == "conda" else ("CUDA_PATH", "CUDA_HOME")
    environ = stack.environ if stack.is_here else {}
    roots = [root for name in variables if (root := environ.get(name))][:1]
    if place == "toolkit":
        cudart = libraries()["cudart"].sonames
        paths = filter(None, (find_in_system(stack, name) for name in cudart))
        roots += [os.path.dirname(os.path.dirname(path)) for path in paths]
    below = "nvvm/lib64" if library.name == "nvvm" else "lib64"
    for root in roots:
        for folder in (below, "lib"):
            yield from _in(root, folder, library)


def _in(root: str, folder: str, library: Library) -> Iterator[str]:
    start = os.path.join(glob.escape(root), *folder.split("/"))
    pattern = os.path.join(start, f"lib{glob.escape(library.name)}.so*")
    # `realpath` fails for a chain of links that is too long for Linux.
    yield from filter(os.path.exists, sorted(glob.glob(pattern), reverse=True))


def _is_in_system(stack: Stack, name: str) -> bool:
    known = not stack.is_here or stack.libraries.system.is_cache_known
    return not known or find_in_system(stack, name) is not None


def _advise(
    stack: Stack,
    own: Distribution,
    record: _Record,
    cuda: int,
    opened: list[_Opened],
) -> str | Advice:
    if record.install is not None:
        wanted = record.install.format(project=own.name, cuda=cuda)
        return Advice.of(install_extra(stack, wanted, own))
    names = [item.name for item in opened]
    if all(item.folder for item in opened):
        folders = ":".join(dict.fromkeys(item.folder or "" for item in opened))
        wanted = shlex.quote(folders)
        return f"add the directories that have them to LD_LIBRARY_PATH: {wanted}"
    major = next(filter(None, map(major_of_name, names)), None) or cuda
    projects = {project_for(stack, name, own, major) for name in names}
    command = stack.pip("install", *sorted(filter(None, projects)))
    places = [library_of(name) for name in names]
    folders = ":".join(
        dict.fromkeys(
            os.path.join(stack.installation.folders[0], item.folder(major))
            for item in places
            if item is not None
        )
    )
    said = f", and add their directories to LD_LIBRARY_PATH: {shlex.quote(folders)}"
    return Advice.of(command).before(said)


def _missing_of_extra(stack: Stack, own: Distribution, extra: str) -> Iterator[_Opened]:
    """Yield the missing and wrong libraries that an extra requires."""
    variables = stack.installation.marker_variables()
    for requirement in parse_requirements(own, lambda x: x.startswith("nvidia-")):
        if not _is_of_extra(requirement, extra, variables):
            continue
        name = canonicalize_name(requirement.name)
        library = _SONAMES.get(name.partition("-cu1")[0])
        if library is None:
            continue
        installed = stack.distributions.get(name)
        named = needs_of_name(name)
        cuda = named.cuda.major if named is not None and named.cuda is not None else 13
        soname = libraries()[library].soname(cuda) or ""
        if libraries()[library].each_cuda:
            allowed = requirement.specifier
            floors = [s.version for s in allowed if s.operator in (">=", "==", "~=")]
            major = Version(floors[0].removesuffix(".*")).major if floors else 0
            soname = f"lib{library}.so.{major}"
        if installed is None:
            if not _is_in_system(stack, soname):
                yield _Opened(soname, f"{soname}, which is found nowhere")
        elif not allows(requirement, installed.version):
            said = f"{soname} of {name}{requirement.specifier}"
            yield _Opened(soname, f"{said}, which is {installed.version} here")


_SONAMES: Mapping[str, str] = {
    "nvidia-cuda-runtime": "cudart",
    "nvidia-cublas": "cublas",
    "nvidia-cufft": "cufft",
    "nvidia-cusolver": "cusolver",
    "nvidia-nccl": "nccl",
    "nvidia-cudnn": "cudnn",
}
"""The NVIDIA projects that an extra may require, each with the name of its library."""


def _is_of_extra(
    requirement: Requirement, extra: str, variables: Mapping[str, str]
) -> bool:
    if requirement.marker is None:
        return False
    return holds(requirement, {**variables, "extra": extra}) and not holds(
        requirement, {**variables, "extra": ""}
    )


def _missing_of_names(stack: Stack, own: Distribution) -> Iterator[_Opened]:
    """Yield the missing libraries whose names are in the code of a program.

    Like the loader, the program does not search NVIDIA's distributions.
    """
    named: set[str] = set()
    for item in own.files:
        if ".so" in item.path:
            named.update(_names_in(own, item.path))
    # Parts of cuDNN are installed together, so check one name for each purpose.
    first = {purpose_of(name): name for name in sorted(named, reverse=True)}
    for purpose, name in sorted(first.items(), key=str):
        if purpose in _LARGEST and not _is_in_system(stack, name):
            place = find_installed(stack, name)
            outcome = "is found nowhere"
            if place is not None:
                outcome = f"is in {place[0].name}, where it does not look"
            folder = None if place is None else place[1]
            yield _Opened(name, f"{name}, which {outcome}", folder)


def _names_in(own: Distribution, path: str) -> Iterator[str]:
    """Yield the names of libraries in a file, up to a limit."""
    names: set[bytes] = set()
    try:
        with open_regular(own.locate(path)) as file:
            rest = b""
            # Read at most the file's size, because files such as /proc/kmsg never end.
            left = os.fstat(file.fileno()).st_size
            while piece := file.read(min(_PIECE, left)):
                left -= len(piece)
                if not own.limits.take(OPENED, len(piece), of=own.name):
                    break
                for match in _NAMES.finditer(rest + piece):
                    names.add(match[0])
                    if len(names) > _MOST_NAMES:
                        return
                rest = piece[-_OVERLAP:]
    except (OSError, ValueError):
        return
    yield from (name.decode("ascii") for name in names)
