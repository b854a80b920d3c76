"""The requirements that builds place on a machine, and the table of released builds.

Each line of ``builds.json`` is a record with its source and date, taken from an
inspected wheel, METADATA, or the documentation of a vendor. ``tools/update_builds.py``
regenerates the table. A line is parsed only when its project is needed, because parsing
the whole table would slow down every start of pip.
"""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from operator import itemgetter
from typing import Any, Literal, TypeAlias

from packaging.version import Version

from nvidia_variant_provider.machine.environment import ComputeCapability, CudaVersion

from ..files import read_resource

TYPE_CHECKING = False
if TYPE_CHECKING:
    from packaging.requirements import Requirement
    from packaging.specifiers import SpecifierSet

    from ..metadata.requirements import Work

# Import the tables of GPUs only in functions, because most projects have no GPU code
# and do not need them.

Evidence: TypeAlias = Literal[
    "variants.json", "table", "inspected", "metadata", "label"
]
"""The kinds of evidence for the needs of a build, best first."""

How: TypeAlias = Literal["native", "ptx"]

PROJECTS = frozenset(
    {
        *("bitsandbytes", "ctranslate2", "cudf-cu12", "cudf-cu13", "cuml-cu12"),
        *("cuml-cu13", "cupy-cuda11x", "cupy-cuda12x", "cupy-cuda13x"),
        *("faiss-gpu-cu11", "faiss-gpu-cu12", "jax-cuda12-pjrt", "jax-cuda12-plugin"),
        *("jax-cuda13-pjrt", "jax-cuda13-plugin", "libcudf-cu12", "libcudf-cu13"),
        *("libcuml-cu12", "libcuml-cu13", "onnxruntime-gpu", "sglang"),
        *("spconv-cu126", "tensorflow", "torch", "torchao", "torchaudio", "torchcodec"),
        *("torchvision", "vllm", "xformers", "xgboost"),
    }
)
"""The projects of the table whose verdicts decide whether dependent builds run.

The table also has lightgbm, paddlepaddle-gpu and triton, on which no build depends:
torch runs without the GPU code of triton.
"""


_LONGEST = 500
"""The maximum length of the clauses of a requirement; real ones have a tenth of it."""


class CudaMajor(CudaVersion):
    """A CUDA version whose minor is unknown; it is compared as minor 0."""

    __slots__ = ()

    def __str__(self) -> str:
        return str(self.major)


@dataclass(frozen=True, kw_only=True, slots=True)
class LibraryCode:
    """The GPU code of one library.

    :param name: the library's path in the wheel.
    :param cuda: the CUDA toolkit that built the library; ``None`` if unknown.
    :param machine_code: the targets of the machine code, such as ``90`` and ``90a``.
    :param ptx: for each target of the PTX, the minimum CUDA version of a driver that
        compiles it; ``None`` if that is newer than any known version.
    :param minor: whether the library is small compared with the largest one of the
        build. Minor libraries alone do not make a build run: torch 2.8.0 has only its
        linear algebra for compute capability 6.1.
    """

    name: str
    cuda: CudaVersion | None = None
    machine_code: frozenset[str] = frozenset()
    ptx: Mapping[str, CudaVersion | None] = field(default_factory=dict)
    minor: bool = False

    def how(
        self, capability: ComputeCapability, driver: CudaVersion
    ) -> How | Literal["unknown"] | None:
        """Return how the code runs on a GPU with a driver; ``None`` if it does not.

        A driver runs machine code from toolkits of the same or an older CUDA major, and
        compiles PTX from toolkits that are not newer than the driver.
        """
        from .tables import runs_machine_code, runs_ptx

        if self.cuda is not None and self.cuda.major > driver.major:
            return None
        doubtful = False
        for target in self.machine_code:
            runs = runs_machine_code(target, capability, self.cuda, driver)
            if runs:
                return "native"
            doubtful = doubtful or runs is None
        for target, needed in self.ptx.items():
            if needed is not None and needed <= driver and runs_ptx(target, capability):
                return "ptx"
        return "unknown" if doubtful else None

    def not_known(self, capability: ComputeCapability) -> str:
        """Return why it is unknown whether the machine code runs on a GPU."""
        targets = ", ".join(sorted_targets(self.machine_code))
        toolkit = f"CUDA {self.cuda}" if self.cuda else "an unknown CUDA"
        return (
            f"it is unknown whether its machine code for {targets} runs on compute "
            f"capability {capability}: it is of {toolkit}, and newer code is known to"
        )

    def ptx_toolkit(self, capability: ComputeCapability) -> CudaVersion | None:
        """Return the minimum CUDA version of a driver to compile the PTX for a GPU."""
        from .tables import runs_ptx

        drivers = [
            needed
            for target, needed in self.ptx.items()
            if needed is not None and runs_ptx(target, capability)
        ]
        return min(drivers, default=None)

    def to_dict(self) -> dict[str, object]:
        """Return the library as in ``builds.json``."""
        ptx = {
            target: None if (needed := self.ptx[target]) is None else str(needed)
            for target in sorted_targets(self.ptx)
        }
        return {
            "name": self.name,
            **({} if self.cuda is None else {"cuda": str(self.cuda)}),
            **(
                {"real": sorted_targets(self.machine_code)} if self.machine_code else {}
            ),
            **({"ptx": ptx} if ptx else {}),
            **({"minor": True} if self.minor else {}),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> LibraryCode:
        """Create the library from the result of `to_dict`."""
        return cls(
            name=data["name"],
            cuda=parse_cuda(data.get("cuda")),
            machine_code=frozenset(data.get("real", ())),
            ptx={
                target: parse_cuda(needed)
                for target, needed in data.get("ptx", {}).items()
            },
            minor=data.get("minor", False),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Needs:
    """The requirements that a build places on a machine.

    :param source: the evidence, such as ``METADATA requires
        nvidia-cuda-runtime-cu12==12.8.90``.
    :param cuda: the CUDA toolkit that the whole build requires, or ``None`` if unknown.
    :param pieces: the libraries with GPU code, in groups: one library, or libraries
        for several CUDA versions, of which a program loads one. ``None`` if the GPU
        code is unknown; empty for a build without code of its own, such as cuml, which
        requires libcuml.
    :param gpu: ``False`` if the build certainly uses no GPU.
    :param library: whether the build is one of NVIDIA's own libraries, with code for
        every GPU that a toolkit of its CUDA major supports.
    :param doubt: why ``cuda`` is ambiguous; ``None`` if it is not.
    :param requires: the ``Requires-Dist`` fields; empty if unknown. Only requirements
        on GPU projects matter.
    """

    evidence: Evidence
    source: str
    cuda: CudaVersion | None = None
    pieces: tuple[tuple[LibraryCode, ...], ...] | None = None
    gpu: bool = True
    library: bool = False
    doubt: str | None = None
    requires: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, object]:
        """Return the fields for a record, without the source."""
        pieces = None
        if self.pieces is not None:
            pieces = [[item.to_dict() for item in piece] for piece in self.pieces]
        return {
            **({} if self.cuda is None else {"cuda": str(self.cuda)}),
            **({} if self.gpu else {"gpu": False}),
            **({} if pieces is None else {"pieces": pieces}),
            **({"requires": list(self.requires)} if self.requires else {}),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Needs:
        """Create the needs from a record of the table.

        :param data: the record, with its ``source`` and ``date``.
        """
        source: str = data["source"]
        by_metadata = source.startswith("METADATA")
        return cls(
            evidence="metadata" if by_metadata else "table",
            source=source if by_metadata else _source(data["date"]),
            cuda=parse_cuda(data.get("cuda")),
            pieces=tuple(
                tuple(LibraryCode.from_dict(item) for item in piece)
                for piece in data["pieces"]
            )
            if "pieces" in data
            else None,
            gpu=data.get("gpu", True),
            requires=tuple(data.get("requires", ())),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class BuildRecord:
    """One build of a release for one platform.

    :param project: the normalized name.
    :param version: the public version, without the label.
    :param label: the local version label, such as ``cu128``; ``None`` for the build on
        PyPI, which has no label.
    :param platform: ``linux_x86_64``, ``linux_aarch64``, ``win_amd64`` or ``any``.
    :param needs: the needs of the build, shortened by `needs_in_table`.
    :param wheels: the SHA-256 of each inspected file, keyed by name.
    :param source: ``inspected``; or evidence from METADATA, such as ``METADATA requires
        torch==2.9.1``; or the documentation of the build.
    :param date: the date of the evidence, such as ``2026-11-21``.
    """

    project: str
    version: str
    label: str | None
    platform: str
    needs: Needs
    wheels: Mapping[str, str]
    source: str
    date: str

    def to_dict(self) -> dict[str, object]:
        """Return the record as in ``builds.json``."""
        return {
            "project": self.project,
            "version": self.version,
            **({} if self.label is None else {"label": self.label}),
            "platform": self.platform,
            **self.needs.to_dict(),
            **({"wheels": dict(self.wheels)} if self.wheels else {}),
            "source": self.source,
            "date": self.date,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> BuildRecord:
        """Create the record from the result of `to_dict`."""
        return cls(
            project=data["project"],
            version=data["version"],
            label=data.get("label"),
            platform=data["platform"],
            needs=Needs.from_dict(data),
            wheels=data.get("wheels", {}),
            source=data["source"],
            date=data["date"],
        )


@cache
def build_records() -> Mapping[str, Sequence[BuildRecord]]:
    """Return the records of each project, keyed by its normalized name."""
    return {project: _records(project) for project in _lines()}


@cache
def _records(project: str) -> Sequence[BuildRecord]:
    lines = _lines().get(project, ())
    return [BuildRecord.from_dict(json.loads(line)) for line in lines]


@cache
def _lines() -> Mapping[str, Sequence[str]]:
    """Map each project, a line's first value, to its lines of ``builds.json``."""
    lines: dict[str, list[str]] = {}
    for line in read_resource("knowledge", "builds.json").splitlines()[1:-1]:
        lines.setdefault(line.split('"', 4)[3], []).append(line.removesuffix(","))
    return lines


def find_record(
    project: str,
    version: str | Version,
    platform: str,
    *,
    file_name: str | None = None,
    sha256: str | None = None,
) -> BuildRecord | None:
    """Find the record of a wheel.

    :param version: the version with its local label, if any.
    :param platform: ``linux_x86_64``, ``linux_aarch64``, ``win_amd64`` or ``any``.
    :param sha256: the SHA-256 of the wheel, if known. A record with a different hash
        for this file name is not returned.
    """
    from packaging.utils import canonicalize_name

    try:
        parsed = Version(version) if isinstance(version, str) else version
    except ValueError:
        return None
    # Parsing is slow for pages with 10,000 builds: parse only labeled versions.
    release = Version(parsed.public) if parsed.local else parsed
    record = _index(canonicalize_name(project)).get((release, parsed.local, platform))
    if record is None or file_name is None or sha256 is None:
        return record
    return record if record.wheels.get(file_name, sha256) == sha256 else None


@cache
def _index(project: str) -> dict[tuple[Version, str | None, str], BuildRecord]:
    return {
        (Version(record.version), record.label, record.platform): record
        for record in _records(project)
    }


def find_neighbours(
    project: str, release: Version, platform: str | None
) -> tuple[BuildRecord, ...]:
    """Return the records of the nearest older and newer inspected releases.

    :param project: the normalized name.
    :param release: a release without an inspected wheel.
    """
    read = _read_releases(project, platform)
    older = bisect_left(read, release, key=itemgetter(0))
    newer = bisect_right(read, release, key=itemgetter(0))
    return tuple(item for _, item in (*read[:older][-1:], *read[newer:][:1]))


@cache
def _read_releases(
    project: str, platform: str | None
) -> Sequence[tuple[Version, BuildRecord]]:
    """Return the records of inspected wheels, oldest release first."""
    read = [
        (Version(record.version), record)
        for record in _records(project)
        if record.needs.pieces and record.platform == platform
    ]
    return sorted(read, key=itemgetter(0))


def needs_in_table(needs: Needs, date: str) -> Needs:
    """Return the needs of an inspected wheel as its record stores them.

    Only requirements on projects of the table are kept.

    :param date: the day of the inspection, such as ``2026-11-21``.
    """
    requires = required_projects(needs.requires, PROJECTS)
    return replace(
        needs, evidence="table", source=_source(date), requires=(*requires.values(),)
    )


def required_projects(
    requires: Iterable[str], projects: Iterable[str], work: Work | None = None
) -> dict[str, str]:
    """Select the requirements on some projects.

    Requirements of extras are ignored, because an installation without the extra does
    not need them. So are several requirements on a project with markers, because only
    one of them may apply.

    :param requires: the ``Requires-Dist`` fields.
    :param projects: normalized names, such as those of the build table.
    :param work: limits the characters to parse, each of which takes four steps, because
        METADATA may have 10,000 requirements.
    :returns: ``{project: requirement}``, without extras and markers.
    """
    from packaging.utils import canonicalize_name

    from ..metadata.requirements import parse_requirement

    wanted = tuple(projects)
    required: dict[str, list[Requirement]] = {}
    for text in requires:
        # The parser is slow, and a wheel may have hundreds of requirements.
        if not canonicalize_name(text).startswith(wanted):
            continue
        if work is not None and not work.take(4 * len(text)):
            break
        requirement = parse_requirement(text)
        if requirement is None or "extra" in str(requirement.marker or ""):
            continue
        name = canonicalize_name(requirement.name)
        # A long one takes long to compare with the releases of its project.
        if name in wanted and len(str(requirement.specifier)) <= _LONGEST:
            required.setdefault(name, []).append(requirement)
    return {
        name: f"{each[0].name}{_combined(each)}"
        for name, each in required.items()
        if len(each) == 1 or not any(x.marker for x in each)
    }


def _combined(requirements: Sequence[Requirement]) -> SpecifierSet:
    """Return the specifier of all requirements on a project, as far as it is short."""
    combined = requirements[0].specifier
    for requirement in requirements[1:]:
        both = combined & requirement.specifier
        combined = both if len(str(both)) <= _LONGEST else combined
    return combined


def sorted_targets(targets: Iterable[str]) -> list[str]:
    """Return sorted targets such as ``90`` and ``90a``, oldest GPU first."""
    return sorted(targets, key=lambda target: (int(target.rstrip("af")), target))


def _source(date: str) -> str:
    return f"table of builds, {date}"


def parse_cuda(text: str | None) -> CudaVersion | None:
    """Parse ``12.8`` as a version, and ``12`` as a `CudaMajor`."""
    if text is None:
        return None
    return CudaMajor(int(text)) if text.isdigit() else CudaVersion.parse(text)
