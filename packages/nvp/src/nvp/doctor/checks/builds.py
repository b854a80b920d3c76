"""ND2xx: whether the installed builds run on the machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import wraps
from itertools import islice
from typing import Any, Literal, NamedTuple

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from nvidia_variant_provider.errors import InputError
from nvidia_variant_provider.machine.environment import ComputeCapability, CudaVersion
from nvidia_variant_provider.metadata.document import read_metadata
from nvidia_variant_provider.resolution.resolver import resolve_metadata

from ...builds.needs import parse_backend
from ...builds.verdicts import refusal_of_driver
from ...knowledge.builds import PROJECTS, LibraryCode, Needs, find_record
from ...knowledge.tables import cpu_forms
from ...matrix.cells import every_value
from ..commands import Advice
from ..distributions import Distribution
from ..model import MOST_FINDINGS, Find, Finding, Stack, check, platform_of_wheel
from .replacing import replace_builds, replace_extension

_State = Literal["native", "ptx", "unknown", "newer ptx", "nothing"]
_STATES: tuple[_State, ...] = ("native", "ptx", "unknown", "newer ptx", "nothing")
"""How a GPU can run the code of a library, best first."""

_MOST_TOGETHER = 20
"""The maximum number of programs that one command replaces, to keep hints short."""


class _Piece(NamedTuple):
    """How one GPU runs one library of a build, or the best of several alternatives.

    :param needed: for ``newer ptx``, the minimum CUDA version of a driver for the PTX.
    """

    code: LibraryCode
    targets: tuple[str, ...]
    state: _State
    needed: CudaVersion | None


def _of_programs(find: Find) -> Find:
    """Decorate a check to omit findings about libraries that reported programs require.

    Replacing a program also replaces its NVIDIA libraries. One command replaces the
    programs of several findings, because most programs require each other; beyond
    `_MOST_TOGETHER` programs, each finding has its own command.
    """

    @wraps(find)
    def find_of_programs(stack: Stack) -> Iterator[Finding]:
        findings = list(islice(find(stack), MOST_FINDINGS))
        brought = stack.needed_for(*{item.distribution or "" for item in findings})
        rest = []
        for item in findings:
            name = item.distribution or ""
            if not (stack.distributions[name].is_library and name in brought):
                rest.append(item)
        names = tuple(dict.fromkeys(item.distribution or "" for item in rest))
        if len(names) > _MOST_TOGETHER:
            yield from rest
            return
        together = replace_builds(stack, *names)
        for item in rest:
            own = replace_builds(stack, item.distribution or "")
            hint = item.hint.replace(own.text, together.text)
            commands = together.commands if item.commands else ()
            yield replace(item, hint=hint, commands=commands)

    return find_of_programs


@check("ND201", "error")
@_of_programs
def find_newer_builds(stack: Stack) -> Iterator[Finding]:
    """The driver is too old for the CUDA major version of a build."""
    driver = stack.environment.cuda_driver_version
    if driver is None:
        return
    for distribution, needs in _builds(stack):
        refusal = refusal_of_driver(needs, driver)
        if refusal is not None:
            yield Finding.of(
                code="ND201",
                distribution=distribution.name,
                path=distribution.folder,
                message=f"{distribution.title} cannot start: {refusal}",
                hint=replace_builds(stack, distribution.name),
            )


@check("ND202", "error")
@_of_programs
def find_builds_without_code(stack: Stack) -> Iterator[Finding]:
    """A build has no code for a GPU."""
    left_out: dict[str, list[tuple[ComputeCapability, list[_Piece]]]] = {}
    for distribution, capability, pieces in _pieces_by_gpu(stack):
        bad = _in_state(pieces, "nothing")
        # ND205 reports PTX that is newer than the driver.
        if (
            bad
            and not _runs_a_larger_one(pieces)
            and not _in_state(pieces, "newer ptx")
        ):
            left_out.setdefault(distribution.name, []).append((capability, bad))
    for name, pairs in left_out.items():
        distribution = stack.distributions[name]
        targets = sorted(
            {t for _, bad in pairs for x in bad for t in x.targets}, key=_number
        )
        only = f", only for {', '.join(targets)}" if targets else ""
        hint = replace_builds(stack, name)
        newest = stack.newest_on_pypi(distribution)
        if stack.has_several_gpus and newest is not None:
            hint = hint.after(
                f"{name} {newest} is the newest release that runs on each GPU: "
            )
        bare = {capability for capability, _ in pairs}
        rest = [g for g in stack.environment.gpus if g.compute_capability not in bare]
        if rest:
            indices = ",".join(str(gpu.index) for gpu in rest)
            hint = hint.before(
                f"; or leave the others out: CUDA_VISIBLE_DEVICES={indices}"
            )
        yield Finding.of(
            code="ND202",
            distribution=name,
            path=distribution.locate(pairs[0][1][0].code.name),
            message=f"{distribution.title} has no code for compute capability "
            f"{' and '.join(map(str, sorted(bare)))}{only}",
            hint=hint,
            severity="warning" if rest else None,
        )


@check("ND203", "warning")
def find_partial_builds(stack: Stack) -> Iterator[Finding]:
    """Some libraries of a build have no code for a GPU."""
    for distribution, capability, pieces in _pieces_by_gpu(stack):
        for piece in _in_state(pieces, "unknown")[:1]:
            yield Finding.of(
                code="ND203",
                distribution=distribution.name,
                path=distribution.locate(piece.code.name),
                message=f"{distribution.title}: {piece.code.not_known(capability)}",
                hint=replace_builds(stack, distribution.name).after(
                    "let nvp doctor --live try it, or replace the build: "
                ),
            )
        bad = _in_state(pieces, "nothing")
        if not bad or not _runs_a_larger_one(pieces):
            continue
        names = ", ".join(dict.fromkeys(piece.code.name for piece in bad[:3]))
        more = f" and {len(bad) - 3} more" if len(bad) > 3 else ""
        yield Finding.of(
            code="ND203",
            distribution=distribution.name,
            path=distribution.locate(bad[0].code.name),
            message=f"{distribution.title} has no code for compute capability "
            f"{capability} in {names}{more}",
            hint=replace_builds(stack, distribution.name).after(
                "check that you do not need what this part does, or replace the build: "
            ),
        )


@check("ND204", "warning")
@_of_programs
def find_only_ptx(stack: Stack) -> Iterator[Finding]:
    """A build has only PTX for a GPU."""
    for distribution, capability, pieces in _pieces_by_gpu(stack):
        # Skip a required library, because the user has not selected it.
        if distribution.is_library and stack.is_required(distribution.name):
            continue
        if ptx := _in_state(pieces, "ptx"):
            yield Finding.of(
                code="ND204",
                distribution=distribution.name,
                path=distribution.locate(ptx[0].code.name),
                message=f"{distribution.title} has only PTX for compute capability "
                f"{capability}: the driver compiles it when it is first used",
                hint="expect a slow first start; CUDA_CACHE_PATH and "
                "CUDA_CACHE_MAXSIZE say where the result is kept, and how much of it",
            )


@check("ND205", "error")
@_of_programs
def find_newer_ptx(stack: Stack) -> Iterator[Finding]:
    """A build has only PTX for a GPU, and the driver is too old for it."""
    driver = stack.environment.cuda_driver_version
    for distribution, capability, pieces in _pieces_by_gpu(stack):
        if newer := _in_state(pieces, "newer ptx"):
            needed = min(p.needed for p in newer if p.needed is not None)
            yield Finding.of(
                code="ND205",
                distribution=distribution.name,
                path=distribution.locate(newer[0].code.name),
                message=f"{distribution.title} has only PTX for compute capability "
                f"{capability}, which needs a driver for CUDA {needed}; this one is "
                f"for CUDA {driver}",
                hint=replace_builds(stack, distribution.name).after(
                    f"install a driver for CUDA {needed} or newer, or replace the "
                    "build: "
                ),
            )


@check("ND206", "error")
def find_wrong_variants(stack: Stack) -> Iterator[Finding]:
    """An installed variant does not fit the machine."""
    for distribution in stack.distributions.values():
        data = distribution.variant_json
        if data is None:
            continue
        try:
            metadata = read_metadata(data)
        except InputError as error:
            distribution.defects.append(f"its variant.json: {error.message}")
            continue
        # Plugins of other namespaces would be code, perhaps of the environment.
        resolution = resolve_metadata(
            metadata,
            stack.environment,
            supported=every_value(metadata),
            enable_optional=True,
        )
        for label, reasons in resolution.rejected.items():
            causes = "; ".join(reason.sentence for reason in reasons)
            yield Finding.of(
                code="ND206",
                distribution=distribution.name,
                path=distribution.folder,
                message=f"the variant {label} of {distribution.title} does not fit "
                f"this machine: {causes}",
                hint=replace_builds(stack, distribution.name),
            )


@check("ND207", "warning")
def find_builds_without_gpu(stack: Stack) -> Iterator[Finding]:
    """A CPU build is installed on a machine with a GPU."""
    if not stack.has_gpu:
        return
    for distribution in stack.distributions.values():
        # Skip projects whose GPU build has a different name: ND208 reports them.
        if not _is_cpu_build(stack, distribution) or find_form(distribution):
            continue
        yield Finding.of(
            code="ND207",
            distribution=distribution.name,
            path=distribution.folder,
            message=f"{distribution.title} is a build without GPU code, although "
            "this machine has a GPU",
            hint=_replace_cpu_build(stack, distribution),
        )


def _replace_cpu_build(stack: Stack, distribution: Distribution) -> Advice:
    torch = stack.toolchain.torch
    # An extension must fit the installed torch, so look for a build for its release.
    if torch is not None and torch.cuda is not None:
        linked = distribution.name in stack.linked_with_torch
        if linked and distribution.name not in PROJECTS:
            return replace_extension(stack, distribution)
    return replace_builds(stack, distribution.name)


def _is_cpu_build(stack: Stack, distribution: Distribution) -> bool:
    try:
        label = Version(distribution.version).local
    except ValueError:
        label = None
    backend = parse_backend(label)
    if backend is not None:
        return backend.kind == "cpu"
    if distribution.name not in PROJECTS:
        return False
    torch = stack.toolchain.torch
    if distribution.name == "torch" and torch is not None and torch.is_known:
        return torch.cuda is None
    said = [stack.needs_of(distribution)]
    # The table has no builds by conda or from source. Without WHEEL, the platform is a
    # guess, so do not use the table if the files show the needs.
    is_published = distribution.installer != "conda" and not distribution.is_from_source
    if is_published and (said == [None] or distribution.read("WHEEL")):
        platform = platform_of_wheel(distribution)
        record = find_record(distribution.name, distribution.version, platform)
        said.append(None if record is None else record.needs)
    uses = [needs.gpu for needs in said if needs is not None]
    return bool(uses) and not any(uses)


def find_refused(stack: Stack) -> frozenset[str]:
    """Return the names of the distributions that cannot start with the driver."""
    driver = stack.environment.cuda_driver_version
    return frozenset(
        distribution.name
        for distribution, needs in _builds(stack)
        if driver is not None and refusal_of_driver(needs, driver) is not None
    )


def _builds(stack: Stack) -> Iterator[tuple[Distribution, Needs]]:
    """Yield each readable distribution with GPU code, and its needs on a machine."""
    for distribution, _ in stack.with_gpu_code():
        needs = stack.needs_of(distribution)
        if needs is not None and needs.gpu:
            yield distribution, needs


def _pieces_by_gpu(
    stack: Stack,
) -> Iterator[tuple[Distribution, ComputeCapability, list[_Piece]]]:
    """Yield each build with each GPU, and how the GPU runs the libraries of the build.

    Builds that cannot start with the driver are left out, with the NVIDIA libraries
    that they require. An NVIDIA library selects kernels from several files at run time,
    such as a file only for Blackwell, so its result is only the file that runs best.
    """
    driver = stack.environment.cuda_driver_version
    if driver is None:
        return
    builds = list(_builds(stack))
    refused = find_refused(stack)
    brought = stack.needed_for(*refused)
    for distribution, needs in builds:
        name = distribution.name
        if name in refused:
            continue
        if distribution.is_library and name in brought:
            continue
        for capability in stack.environment.compute_capabilities:
            pieces = [_stand(p, capability, driver) for p in needs.pieces or ()]
            if pieces and distribution.is_library:
                pieces = [min(pieces, key=lambda piece: _STATES.index(piece.state))]
            yield distribution, capability, pieces


def _in_state(pieces: list[_Piece], state: _State) -> list[_Piece]:
    return [piece for piece in pieces if piece.state == state]


def _runs_a_larger_one(pieces: list[_Piece]) -> bool:
    """Return whether a GPU may run any library that is not small (see `minor`)."""
    running = ("native", "ptx", "unknown")
    return any(p.state in running and not p.code.minor for p in pieces)


def _stand(
    piece: tuple[LibraryCode, ...], capability: ComputeCapability, driver: CudaVersion
) -> _Piece:
    ways = {code.how(capability, driver): code for code in reversed(piece)}
    targets = tuple({target for code in piece for target in code.machine_code})
    if "native" in ways:
        return _Piece(ways["native"], targets, "native", None)
    if "ptx" in ways:
        return _Piece(ways["ptx"], targets, "ptx", None)
    if "unknown" in ways:
        return _Piece(ways["unknown"], targets, "unknown", None)
    needed = [
        (version, code)
        for code in piece
        if (version := code.ptx_toolkit(capability)) is not None
    ]
    if needed:
        version, code = min(needed, key=lambda pair: pair[0])
        return _Piece(code, targets, "newer ptx", version)
    return _Piece(piece[0], targets, "nothing", None)


def _number(target: str) -> tuple[int, str]:
    return int(target.rstrip("af")), target


def find_form(distribution: Distribution) -> Mapping[str, Any] | None:
    """Return the table row of a distribution if it is CPU-only, otherwise ``None``."""
    row = cpu_forms().get(distribution.name)
    if row is None or row.get("platform") not in (
        None,
        platform_of_wheel(distribution),
    ):
        return None
    allowed = SpecifierSet(row.get("releases", ""))
    try:
        fits = allowed.contains(distribution.public_version, prereleases=True)
    except ValueError:  # raised by packaging before 26
        return None
    return row if fits else None


def find_forms_for_cpus(stack: Stack) -> Iterator[Finding]:
    """Yield a finding for each CPU-only distribution, with its replacement."""
    for name in cpu_forms():
        own = stack.distributions.get(name)
        row = None if own is None else find_form(own)
        if own is None or row is None:
            continue
        wanted = row.get("gpu", "")
        other = wanted.partition("[")[0]
        # If the GPU distribution is installed too, ND306 reports the shared files.
        if other in stack.distributions:
            continue
        message = f"{own.title} computes without the GPU of this machine"
        hint = Advice(row.get("advice", ""))
        if wanted:
            remove = stack.pip("uninstall", "--yes", name)
            install = stack.pip("install", *row.get("options", ()), wanted)
            message += f"; {wanted} uses it"
            said = f"to use the GPU, put it in its place: {remove} && {install}"
            hint = Advice(said, (remove, install))
        is_required = any(need.name == other for need in stack.requirements)
        yield Finding.of(
            code="ND208",
            distribution=name,
            path=own.folder,
            message=message,
            hint=hint,
            severity="warning" if is_required else row["severity"],
        )
