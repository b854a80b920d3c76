"""Decide whether a build runs on a machine, and why not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from packaging.version import Version

from nvidia_variant_provider.errors import shown
from nvidia_variant_provider.machine.environment import (
    ComputeCapability,
    CudaVersion,
    Environment,
)

from ..knowledge.builds import (
    BuildRecord,
    CudaMajor,
    Evidence,
    How,
    LibraryCode,
    Needs,
    sorted_targets,
)

Verdict: TypeAlias = Literal["runs", "partly", "cannot", "cpu", "unknown"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Judgement:
    """The verdict on a build for one machine.

    :param verdict: ``cannot`` only if the build certainly cannot run.
    :param how: ``native`` or ``ptx``; ``None`` if the build does not run or its machine
        code is unknown.
    :param evidence: the source of the verdict; ``None`` for ``unknown``.
    :param reasons: sentences without a period, if the verdict is not ``runs``.
    :param cuda: the CUDA toolkit of the build.
    :param strict: whether the driver is as new as that toolkit, so minor-version
        compatibility is not needed.
    :param asked: ``False`` if METADATA was not read, such as that of an older release.
    :param lacking: the GPUs of the machine that the build has no code for, although it
        runs on the one with the highest compute capability.
    :param fits: if the limits on a dependency allow only releases that cannot run:
        whether the build accepts one of these releases; otherwise ``None``.
    :param is_silent: whether there is no evidence about the build at all.
    :param is_open: whether nothing is known of the release that the build pins, or only
        another index has that release.
    :param pythons: the versions of Python for which all required projects have builds;
        ``None`` if this is not known.
    """

    verdict: Verdict
    how: How | None = None
    evidence: Evidence | None = None
    reasons: tuple[str, ...] = ()
    cuda: CudaVersion | None = None
    strict: bool = True
    asked: bool = True
    lacking: tuple[ComputeCapability, ...] = ()
    fits: bool | None = None
    is_silent: bool = False
    is_open: bool = False
    pythons: frozenset[int] | None = None

    def limit(self, pythons: frozenset[int]) -> frozenset[int]:
        """Return the versions of Python for which required projects have builds.

        A build that cannot run is refused for every version.

        :param pythons: the versions for which the build itself exists.
        """
        if self.pythons is None or self.verdict == "cannot":
            return pythons
        return pythons & self.pythons

    @property
    def preference(self) -> tuple[bool, bool, tuple[int, int]]:
        """A sort key for builds that run; the best one sorts last.

        The best build runs completely, and has the highest CUDA that the driver
        strictly supports, or else the lowest one that needs minor-version
        compatibility.
        """
        major, minor = self.cuda or (0, 0)
        nearest = (major, minor) if self.strict else (-major, -minor)
        return self.verdict == "runs", self.strict, nearest


UNKNOWN = Judgement(
    verdict="unknown", reasons=("it is unknown what the build needs",), is_silent=True
)


def not_asked(because: str) -> Judgement:
    """Return the verdict on a build whose METADATA was not read."""
    reason = f"its METADATA was not read: {because}"
    return replace(UNKNOWN, reasons=(reason,), asked=False)


_RANKS: tuple[Verdict, ...] = ("runs", "partly", "unknown", "cannot")


def judge(
    needs: Needs | None,
    environment: Environment,
    *,
    every_gpu: bool = False,
    near: Sequence[BuildRecord] = (),
) -> Judgement:
    """Judge a build for a machine.

    GPUs with an unknown compute capability are ignored.

    :param needs: ``None`` without evidence.
    :param every_gpu: require the build to run on every GPU of the machine. Otherwise
        the highest compute capability decides.
    :param near: the nearest older and newer releases whose code was read. If one of
        them has no code for a GPU, a build that was not read might also lack it.
    """
    if needs is None:
        return UNKNOWN
    if not needs.gpu:
        return Judgement(verdict="cpu", evidence=needs.evidence)
    driver = environment.cuda_driver_version
    if driver is None:
        return _judgement(needs, "cannot", ("this machine has no NVIDIA driver",))
    refusal = refusal_of_driver(needs, driver)
    if refusal is not None:
        return _judgement(needs, "cannot", (refusal,), driver)
    capabilities = environment.compute_capabilities
    if not capabilities:
        known = needs.pieces is not None or needs.cuda is not None
        return _judgement(needs, "runs", (), driver) if known else UNKNOWN
    judged = {
        capability: _judge_for(needs, driver, capability, near)
        for capability in capabilities
    }
    first = judged[capabilities[0]]
    if every_gpu:
        first = max(judged.values(), key=lambda item: _RANKS.index(item.verdict))
    reasons = dict.fromkeys(
        reason
        for capability in reversed(capabilities)
        for reason in judged[capability].reasons
        if first.verdict != "cannot" or judged[capability].verdict == "cannot"
    )
    runs = first.verdict in ("runs", "partly")
    return replace(
        first,
        verdict="partly" if runs and reasons else first.verdict,
        reasons=tuple(reasons),
        lacking=tuple(
            c for c in capabilities if runs and judged[c].verdict == "cannot"
        ),
    )


def _judge_for(
    needs: Needs,
    driver: CudaVersion,
    capability: ComputeCapability,
    near: Sequence[BuildRecord],
) -> Judgement:
    """Judge a build for one GPU."""
    if needs.pieces is None:
        return _judge_by_toolkit(needs, driver, capability, near)
    return _judge_by_code(needs, needs.pieces, driver, capability)


def refusal_of_driver(needs: Needs, driver: CudaVersion) -> str | None:
    """Explain why the driver is too old; ``None`` if its CUDA major is new enough."""
    oldest = [] if needs.cuda is None else [needs.cuda]
    for piece in needs.pieces or ():
        versions = [code.cuda for code in piece if code.cuda is not None]
        if len(versions) == len(piece):
            oldest.append(min(versions))
    newest = max(oldest, default=None)
    if newest is None or newest.major <= driver.major:
        return None
    return (
        f"it needs a driver for CUDA {newest.major}, but this one is for CUDA {driver} "
        f"({needs.source})"
    )


def _judge_by_toolkit(
    needs: Needs,
    driver: CudaVersion,
    capability: ComputeCapability,
    near: Sequence[BuildRecord],
) -> Judgement:
    cuda = needs.cuda
    if cuda is None:
        if not needs.doubt:
            return UNKNOWN
        return Judgement(verdict="unknown", reasons=(needs.doubt,))
    from ..knowledge.tables import gpu_models

    model = gpu_models().get(capability)
    last = model.last_toolkit if model else None
    if last is not None and last < cuda:
        reason = (
            f"CUDA {cuda} does not compile for compute capability {capability}, "
            f"CUDA {last} was the last to do so ({needs.source})"
        )
        return _judgement(needs, "cannot", (reason,), driver)
    first = model.first_toolkit if model else None
    is_later = isinstance(cuda, CudaMajor) and first and first.major == cuda.major
    if is_later and not needs.library:
        reason = (
            f"CUDA {first} is the first to compile for compute capability {capability},"
            f" and it is unknown which CUDA {cuda} the build is of ({needs.source})"
        )
        return _judgement(needs, "unknown", (reason,), driver)
    if not is_later and (first is None or first > cuda):
        reason = (
            f"CUDA {cuda} is older than compute capability {capability}: only PTX "
            "would run, and it is unknown whether the build has any"
        )
        return _judgement(needs, "unknown", (reason,), driver)
    if doubt := _doubt(driver, capability, near):
        return _judgement(needs, "unknown", (doubt,), driver)
    return _judgement(needs, "runs", (), driver)


def _doubt(
    driver: CudaVersion, capability: ComputeCapability, near: Sequence[BuildRecord]
) -> str | None:
    """Explain why a build whose code was not read may have no code for a GPU."""
    from ..knowledge.tables import gpu_models

    model = gpu_models().get(capability)
    for record in near:
        needs = record.needs
        if refusal_of_driver(needs, driver) is None and (
            _judge_by_code(needs, needs.pieces or (), driver, capability).verdict
            == "cannot"
        ):
            return (
                f"its code was not read, and {record.version} has none for compute "
                f"capability {capability}"
            )
    if model is not None and model.tegra:
        return (
            f"its code was not read, and few builds have code for {capability}, which "
            "is the compute capability of a Jetson"
        )
    return None


def _judge_by_code(
    needs: Needs,
    pieces: Sequence[Sequence[LibraryCode]],
    driver: CudaVersion,
    capability: ComputeCapability,
) -> Judgement:
    reasons: list[str] = []
    ways: list[How | Literal["unknown"] | None] = []
    runs = may_run = False
    for piece in pieces:
        found = {code.how(capability, driver): code for code in reversed(piece)}
        way = next(way for way in _WAYS if way in found)
        ways.append(way)
        if way is None:
            reasons.append(_no_code(piece, capability, driver))
        elif way == "unknown":
            code = found[way]
            reasons.append(f"{code.name}: {code.not_known(capability)}")
            may_run = may_run or not piece[0].minor
        else:
            runs = runs or not piece[0].minor
    if not pieces or (runs and not reasons):
        how: How = "ptx" if "ptx" in ways else "native"
        return _judgement(needs, "runs", (), driver, how if pieces else None)
    if runs:
        how = "ptx" if "ptx" in ways else "native"
        return _judgement(needs, "partly", tuple(reasons), driver, how)
    return _judgement(needs, "unknown" if may_run else "cannot", tuple(reasons), driver)


_WAYS: tuple[How | Literal["unknown"] | None, ...] = ("native", "ptx", "unknown", None)
"""The ways in which code runs on a GPU, best first."""


def _no_code(
    piece: Sequence[LibraryCode], capability: ComputeCapability, driver: CudaVersion
) -> str:
    name = piece[0].name
    needed = [
        version
        for code in piece
        if (version := code.ptx_toolkit(capability)) is not None
    ]
    if needed:
        return (
            f"{name} has only PTX for compute capability {capability}, which needs a "
            f"driver for CUDA {min(needed)}, but this one is for CUDA {driver}"
        )
    targets = sorted_targets({t for code in piece for t in code.machine_code})
    only = f", only for {', '.join(targets)}" if targets else ""
    return f"{name} has no code for compute capability {capability}{only}"


def _judgement(
    needs: Needs,
    verdict: Verdict,
    reasons: tuple[str, ...],
    driver: CudaVersion | None = None,
    how: How | None = None,
) -> Judgement:
    return Judgement(
        verdict=verdict,
        how=how,
        evidence=needs.evidence if verdict != "unknown" else None,
        reasons=reasons,
        cuda=needs.cuda,
        strict=driver is not None and (needs.cuda is None or needs.cuda <= driver),
    )


def find_refusal(
    requirement: str, judged: Mapping[Version, Sequence[Judgement]]
) -> str | None:
    """Explain why no release that satisfies a requirement runs.

    torchvision 0.29 requires ``torch>=2.14.0``. If none of these releases runs,
    torchvision cannot run. Selecting this torchvision would also select a torch that
    cannot run, because an exact pin of a dependency admits yanked files.

    :param requirement: such as ``torch>=2.14.0``.
    :param judged: for each release, the judgement of each of its builds.
    :returns: ``None`` if a release that satisfies the requirement runs or may run, or
        if there is no such release, which the installer reports itself.
    """
    from ..metadata.requirements import parse_requirement

    parsed = parse_requirement(requirement)
    if parsed is None:
        return None
    # Filter first: most requirements allow only a few of a hundred releases.
    found = sorted(parsed.specifier.filter(judged, prereleases=True))
    allowed = [version for version in found if judged[version]]
    if not allowed:
        return None
    for version in allowed:
        if any(judgement.verdict != "cannot" for judgement in judged[version]):
            return None
    newest = allowed[-1]
    reason = next(iter(judged[newest][0].reasons), "it cannot run")
    wanted = shown(requirement, 100)[1:-1]
    return f"it requires {wanted}, and none of these runs here: {newest}: {reason}"


def judge_by_pin(
    requirement: str,
    judged: Mapping[Version, Sequence[Judgement]],
    environment: Environment,
    near: Sequence[BuildRecord] = (),
) -> Judgement | None:
    """Judge a build by the builds of the release that it pins.

    torchvision 0.25.0 requires ``torch==2.10.0``, so it was built against that release
    and runs with it.

    :param requirement: such as ``torch==2.10.0``; a range is no evidence, because it
        does not name the release that the build was built with.
    :param judged: for each release, the judgement of each of its builds.
    :param near: as for `judge`.
    :returns: ``None`` for a range, and if all builds are known not to use a GPU here.
    """
    from ..metadata.requirements import parse_requirement

    parsed = parse_requirement(requirement)
    if parsed is None or [s.operator for s in parsed.specifier] != ["=="]:
        return None
    pinned = parsed.specifier.filter(judged, prereleases=True)
    found = [judgement for version in pinned for judgement in judged[version]]
    running = [each for each in found if each.verdict in ("runs", "partly")]
    wanted = shown(requirement, 100)[1:-1]
    if not running and found and all(each.verdict != "unknown" for each in found):
        return None
    if not running:
        reason = f"it requires {wanted}, of which nothing is known"
        return Judgement(verdict="unknown", reasons=(reason,), is_open=True)
    cuda = {judgement.cuda for judgement in running}
    driver = environment.cuda_driver_version
    for capability in environment.compute_capabilities[:1]:
        doubt = driver and _doubt(driver, capability, near)
        if doubt:
            return Judgement(verdict="unknown", reasons=(doubt,))
    return Judgement(
        verdict="runs",
        evidence="metadata",
        reasons=(f"it requires {wanted}, which runs here; its code was not read",),
        cuda=cuda.pop() if len(cuda) == 1 else None,
        strict=all(judgement.strict for judgement in running),
    )


def find_lacking(
    requirement: str, judged: Mapping[Version, Sequence[Judgement]]
) -> frozenset[ComputeCapability]:
    """Return the GPUs for which no build that satisfies a requirement has code.

    torchvision 0.23 may have code for a GPU, while the required ``torch==2.8.0`` has no
    code for that GPU.

    :param judged: for each release, the judgement of each of its builds.
    """
    from ..metadata.requirements import parse_requirement

    parsed = parse_requirement(requirement)
    allowed = parsed.specifier.filter(judged, prereleases=True) if parsed else ()
    each = [j for version in allowed for j in judged[version]]
    some = [frozenset(j.lacking) for j in each if j.verdict != "cannot"]
    return frozenset.intersection(*some) if some else frozenset()


def leave_out(
    judgement: Judgement, lacking: Mapping[ComputeCapability, str]
) -> Judgement:
    """Add GPUs to ``judgement.lacking``: a required project has no code for them.

    :param lacking: for each GPU, the required project without code for it.
    """
    more = {gpu: name for gpu, name in lacking.items() if gpu not in judgement.lacking}
    if judgement.verdict not in ("runs", "partly") or not more:
        return judgement
    reasons = (
        f"the {name} that it requires has no code for compute capability {gpu}"
        for gpu, name in more.items()
    )
    return replace(
        judgement,
        verdict="partly",
        reasons=(*judgement.reasons, *reasons),
        lacking=(*judgement.lacking, *more),
    )
