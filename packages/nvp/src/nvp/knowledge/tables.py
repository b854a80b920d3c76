"""Typed access to the tables of GPUs, CUDA toolkits, drivers and vendors' indexes.

Each record of the JSON files has its source and date. The scripts in ``tools/``
regenerate the files, and ``tests/nvp/knowledge`` checks the rules for all records.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from operator import attrgetter
from typing import Any, Literal

from nvidia_variant_provider.machine.environment import ComputeCapability, CudaVersion

from ..files import read_resource

TYPE_CHECKING = False
if TYPE_CHECKING:
    from packaging.specifiers import SpecifierSet

NATIVE, PTX, UNKNOWN = "native", "ptx", "unknown"
"""How code runs on a GPU: as machine code, as PTX that the driver compiles, or not
known."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuModel:
    """The GPUs of one compute capability.

    :param tegra: whether the GPUs are part of a system on a chip. They share machine
        code with other GPUs only in the cases of `tegra_code`.
    :param first_toolkit: the first CUDA version that compiles for the GPUs.
    :param last_toolkit: the last CUDA version that compiles for the GPUs, or ``None``
        if the newest one does.
    """

    compute_capability: ComputeCapability
    architecture: str
    products: str
    tegra: bool
    first_toolkit: CudaVersion
    last_toolkit: CudaVersion | None
    source: str
    date: str

    @property
    def name(self) -> str:
        """The common name of the first product, such as ``GeForce GTX 750 Ti``."""
        _, _, products = self.products.rpartition(": ")
        return products.partition(" (")[0].split(",")[0].strip()


@dataclass(frozen=True, kw_only=True, slots=True)
class Toolkit:
    """A CUDA toolkit release.

    :param targets: the targets for which its assembler makes machine code, such as
        ``90``, ``90a`` and ``100f``; ``90`` stands for ``sm_90``.
    :param ptx_isa: the PTX version that the toolkit emits, as (major, minor).
    """

    version: CudaVersion
    targets: tuple[str, ...]
    ptx_isa: tuple[int, int]
    source: str
    date: str


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuDrivers:
    """The driver branches that support a compute capability.

    :param first_branch: the first branch, such as 570.
    :param last_branch: the last branch, or ``None`` if support has no known end.
    """

    compute_capability: ComputeCapability
    first_branch: int
    last_branch: int | None
    source: str
    date: str


@cache
def gpu_models() -> Mapping[ComputeCapability, GpuModel]:
    """Return the GPUs, keyed by compute capability, ascending.

    The oldest are those for which wheels were built in 2018, although variant
    properties can name GPUs only from 5.0.
    """
    models = [
        GpuModel(
            compute_capability=ComputeCapability.parse(record["compute_capability"]),
            architecture=record["architecture"],
            products=record["products"],
            tegra=record["tegra"],
            first_toolkit=CudaVersion.parse(record["first_toolkit"]),
            last_toolkit=_version(record["last_toolkit"]),
            source=record["source"],
            date=record["date"],
        )
        for record in _read("gpus")
    ]
    models.sort(key=lambda model: model.compute_capability)
    return {model.compute_capability: model for model in models}


@cache
def toolkits() -> Mapping[CudaVersion, Toolkit]:
    """Return the toolkits since CUDA 9.0, keyed by version, ascending.

    CUDA 12.7 is missing, because only drivers were published for it. Data before 11.7
    is from documentation, because no package index has these toolkits; the rest was
    measured with the toolkits.
    """
    releases = [
        Toolkit(
            version=CudaVersion.parse(record["version"]),
            targets=tuple(record["targets"]),
            ptx_isa=parse_isa(record["ptx_isa"]),
            source=record["source"],
            date=record["date"],
        )
        for record in [*_read("older_toolkits"), *_read("toolkits")]
    ]
    ordered = sorted(releases, key=attrgetter("version"))
    return {toolkit.version: toolkit for toolkit in ordered}


@cache
def driver_branches() -> Mapping[int, CudaVersion]:
    """Return ``{driver branch: CUDA version that it reports}``, ascending."""
    return {
        record["branch"]: CudaVersion.parse(record["cuda"])
        for record in _read("drivers")["branches"]
    }


def newest_cuda() -> CudaVersion:
    """Return the newest CUDA version with a known toolkit or driver."""
    return max(*toolkits(), *driver_branches().values())


@cache
def driver_versions() -> tuple[CudaVersion, ...]:
    """Return the CUDA versions that drivers report, ascending.

    The list ends one minor version after `newest_cuda`, because a toolkit may be known
    before its driver branch, and releases are prepared for the next toolkit.
    """
    known, newest = set(driver_branches().values()), newest_cuda()
    kits = {version for version in toolkits() if version >= min(known)}
    return tuple(sorted({*known, *kits, CudaVersion(newest.major, newest.minor + 1)}))


@cache
def ptx_versions() -> Mapping[CudaVersion, tuple[int, int]]:
    """Return the newest PTX version that each CUDA version compiles, ascending.

    The keys include CUDA 12.7, for which only drivers were published.
    """
    versions = {
        CudaVersion.parse(record["cuda"]): parse_isa(record["ptx_isa"])
        for record in _read("drivers")["branches"]
        if record["ptx_isa"] is not None
    }
    versions |= {version: toolkit.ptx_isa for version, toolkit in toolkits().items()}
    return dict(sorted(versions.items()))


@cache
def gpu_drivers() -> Mapping[ComputeCapability, GpuDrivers]:
    """Return the driver branches of each compute capability, ascending."""
    records = [
        GpuDrivers(
            compute_capability=ComputeCapability.parse(record["compute_capability"]),
            first_branch=record["first_branch"],
            last_branch=record["last_branch"],
            source=record["source"],
            date=record["date"],
        )
        for record in _read("drivers")["gpu_drivers"]
    ]
    return {record.compute_capability: record for record in records}


@cache
def can_exist(cuda: CudaVersion, capability: ComputeCapability) -> bool:
    """Return whether a driver that reports ``cuda`` can support a GPU.

    Any driver can support a GPU that the tables do not list. An unlisted CUDA version
    counts as one branch newer than the nearest older version, so its drivers do not
    support GPUs that older drivers dropped.
    """
    branches = [branch for branch, v in driver_branches().items() if v <= cuda]
    drivers = gpu_drivers().get(capability)
    if drivers is None or not branches:
        return True
    follows = cuda not in driver_branches().values()
    last = drivers.last_branch
    return drivers.first_branch <= branches[-1] and (
        last is None or branches[-1] + follows <= last
    )


@cache
def ptx_targets() -> Mapping[str, Mapping[str, frozenset[str]]]:
    """Return ``{ptxas version: {PTX target: targets that accept this PTX}}``."""
    return {
        record["ptxas"]: {
            source: frozenset(targets)
            for source, targets in record["assembles"].items()
        }
        for record in _read("ptx_targets")
    }


@cache
def tegra_code() -> Mapping[
    tuple[ComputeCapability, ComputeCapability],
    tuple[CudaVersion, CudaVersion | None] | None,
]:
    """Return the compatibility of machine code between Tegra and other GPUs.

    :returns: ``{(code, GPU): (driver, toolkit)}``: for two compute capabilities, the
        oldest driver that accepts the code, and the first toolkit whose code is known
        to run, or ``None`` for any toolkit. The value is ``None`` if no code runs.
    """
    crossings: dict[
        tuple[ComputeCapability, ComputeCapability],
        tuple[CudaVersion, CudaVersion | None] | None,
    ] = {}
    for record in _read("tegra"):
        driver = _version(record["from_driver"])
        value = None if driver is None else (driver, _version(record["from_toolkit"]))
        gpu = ComputeCapability.parse(record["gpu"])
        for code in record["code"]:
            crossings[ComputeCapability.parse(code), gpu] = value
    return crossings


def runs_machine_code(
    target: str,
    capability: ComputeCapability,
    toolkit: CudaVersion | None = None,
    driver: CudaVersion | None = None,
) -> bool | None:
    """Return whether machine code for ``target`` runs on a GPU; ``None`` if unknown.

    The CUDA C++ programming guide says: code for X.y runs on X.z with z >= y, but
    "binary compatibility between desktop and Tegra is not supported". Drivers for CUDA
    13.2 and newer run both, and 10.1 is another name of 11.0; see `tegra_code`. Code
    for ``90a`` runs only on 9.0. Code for ``100f`` runs on all GPUs of ``100``.

    :param target: the target of the code, such as ``90``, ``90a`` or ``100f``.
    :param toolkit: the CUDA toolkit of the code, or ``None`` if unknown.
    :param driver: the CUDA version of the driver, or ``None`` for any that is new
        enough. Its CUDA major version must not be older than that of the toolkit.
    """
    number, suffix = target.rstrip("af"), target[-1:]
    wanted = ComputeCapability(*divmod(int(number), 10))
    if wanted == capability:
        return True
    crosses = _is_tegra(wanted) or _is_tegra(capability)
    bounds = tegra_code().get((wanted, capability))
    # A pair with two majors is one GPU with two names, 10.1 and 11.0.
    one_gpu = bounds is not None and wanted.major != capability.major
    if suffix == "a" and not one_gpu:
        return False
    if bounds is None:
        return wanted.major == capability.major and wanted < capability and not crosses
    oldest, known_from = bounds
    if driver is not None and driver < oldest:
        return False
    if known_from is None or (toolkit is not None and toolkit >= known_from):
        return True
    return None


def runs_ptx(target: str, capability: ComputeCapability) -> bool:
    """Return whether PTX for ``target`` compiles for a GPU.

    The driver must support the PTX version. According to tests with ptxas, generic PTX
    compiles for every target that is not lower, ``f`` PTX within its family, and ``a``
    PTX only for its own target.

    :param target: the target of the PTX, such as ``90``, ``90a`` or ``100f``.
    """
    if target.isdigit():
        return int(target) <= int(capability.sm)
    if target == f"{capability.sm}a":
        return True
    compiled = _compiled_for().get(target, ())
    return capability.sm in compiled or f"{capability.sm}a" in compiled


@cache
def _compiled_for() -> Mapping[str, frozenset[str]]:
    # Use all versions of ptxas since 12.9, the first with `f`, not only the newest one:
    # CUDA 13 renamed 10.1 to 11.0 and no longer makes code for 10.1.
    compiled: dict[str, frozenset[str]] = {}
    for version, table in ptx_targets().items():
        for target, gpus in table.items() if parse_isa(version) >= (12, 9) else ():
            compiled[target] = compiled.get(target, frozenset()) | gpus
    return compiled


def _is_tegra(capability: ComputeCapability) -> bool:
    model = gpu_models().get(capability)
    return model is not None and model.tegra


def _read(name: str) -> Any:
    return json.loads(read_resource("knowledge", f"{name}.json"))


def _version(text: str | None) -> CudaVersion | None:
    return None if text is None else CudaVersion.parse(text)


def parse_isa(text: str) -> tuple[int, int]:
    """Return (8, 7) for ``8.7``, and for longer versions such as ``8.7.1``."""
    major, minor = text.split(".")[:2]
    return int(major), int(minor)


@cache
def library_releases() -> Mapping[str, tuple[SpecifierSet, int]]:
    """Return the CUDA major of NVIDIA's libraries whose project names lack it.

    :returns: ``{project: (releases, CUDA major of these releases)}``.
    """
    from packaging.specifiers import SpecifierSet

    return {
        project: (SpecifierSet(record["releases"]), record["cuda"])
        for record in _read("libraries")
        for project in record["projects"]
    }


MISSING = "VERSION"
"""The placeholder for an unknown part of a URL."""


@dataclass(frozen=True, kw_only=True, slots=True)
class VendorIndex:
    """The index of a vendor, or its indexes if it has one for each backend.

    :param maker: the vendor, such as ``PyTorch``.
    :param projects: the normalized names of the projects.
    :param backends: the values of ``{backend}`` in the URL, such as ``cu126``; empty if
        the CUDA version is in the names of projects.
    :param url: the template of the URL. ``{backend}`` is a backend, ``{version}`` a
        release of the project, and ``{torch}`` the minor release of torch for the
        build.
    :param kind: ``simple``, or ``links`` for a page of links (pip's ``--find-links``).
    :param platforms: the platforms of the wheels, such as ``win_amd64``.
    :param complete: whether the index has all dependencies and needs no other index.
    :param leader: the project, such as torch, that the other projects of the record are
        built for. The table of builds has this project.
    :param needs: projects of other records, required for the same CUDA version.
    :param releases: the releases on the index, such as ``<0.5``; empty for any.
    :param gpus: the supported compute capabilities; empty for all except Tegra.
    :param builds: a row for each known build: the release of torch, the backend and, if
        ``file`` is set, the newest release and its wheels' first and last Python.
    :param file: the template of the URL of a wheel in ``builds``. ``{abi}`` is ``TRUE``
        if torch has the new C++ ABI, and ``{python}`` a Python such as ``312``.
    :param source: the source of this record.
    :param confidence: ``seen`` if the documentation of the vendor or a repository that
        installs from the index confirms the record; otherwise ``recalled``.
    """

    maker: str
    projects: tuple[str, ...]
    backends: tuple[str, ...] = ()
    url: str
    kind: Literal["simple", "links"]
    platforms: tuple[str, ...] = ("linux_x86_64", "linux_aarch64")
    complete: bool = False
    leader: str | None = None
    needs: tuple[str, ...] = ()
    releases: str = ""
    gpus: tuple[ComputeCapability, ...] = ()
    builds: tuple[tuple[str, ...], ...] = ()
    file: str = ""
    source: str
    date: str
    confidence: Literal["seen", "recalled"]

    @property
    def folder(self) -> str:
        """The known part of the URL, up to its last slash."""
        return self.url.partition("{")[0].rpartition("/")[0] + "/"

    def find_url(
        self,
        backend: str | None,
        *,
        version: str | None = None,
        torch: Sequence[int] | None = None,
    ) -> str:
        """Return the URL for a backend, with `MISSING` for unknown parts."""
        return self.url.format(
            backend=backend or MISSING,
            version=version or MISSING,
            torch=f"{torch[0]}.{torch[1]}" if torch else MISSING,
        )

    def builds_for(self, torch: Sequence[int]) -> list[tuple[str, ...]] | None:
        """Return the rows of ``builds`` for a release of torch; ``None`` if unknown."""
        known = [(*map(int, row[0].split(".")),) for row in self.builds]
        if not known or (not self.file and (*torch[:2],) > max(known)):
            return None
        return [
            row
            for row, own in zip(self.builds, known, strict=True)
            if own == (*torch[:2],)
        ]


@cache
def vendor_indexes() -> tuple[VendorIndex, ...]:
    """Return all vendor indexes; for each project, the first takes precedence."""
    records = _read("vendor_indexes")
    for record in records:
        record["gpus"] = map(ComputeCapability.parse, record.get("gpus", ()))
        record["builds"] = map(tuple, record.get("builds", ()))
        lists = ("projects", "backends", "needs", "gpus", "platforms", "builds")
        for key in {*lists} & {*record}:
            record[key] = tuple(record[key])
    return tuple(VendorIndex(**record) for record in records)


def find_vendors(project: str) -> Sequence[VendorIndex]:
    """Return the vendor indexes that have a project."""
    from packaging.utils import canonicalize_name

    name = canonicalize_name(project)
    return [record for record in vendor_indexes() if name in record.projects]


@cache
def cpu_forms() -> Mapping[str, Mapping[str, Any]]:
    """Map CPU-only distributions to rows with ``gpu`` (a requirement) or ``advice``."""
    return {row["project"]: row for row in _read("cpu_forms")}
