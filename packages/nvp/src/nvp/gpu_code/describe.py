"""What was found in a wheel: tables and sentences for people, data for reports."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from nvidia_variant_provider.errors import shown
from nvidia_variant_provider.machine.supported import LOWER_BOUND, NAMESPACE, SM_ARCH

from ..knowledge.tables import gpu_models
from .claims import GpuSupport, TrueClaim, find_claim, find_gpus, gpus_of
from .report import LibraryReport, WheelReport
from .suggestion import Suggestion

__all__ = [
    "LEGEND",
    "as_data",
    "claim_lines",
    "gpu_rows",
    "how_to_add",
    "library_rows",
    "summary",
]

MAX_ROWS = 60
"""Libraries that are listed for people; some wheels have 16,000."""

LEGEND = (
    "native: has machine code, which runs with any driver of that CUDA major",
    "ptx: the driver compiles some of the code, and must be at least that new",
    "no: the wheel, or one of its libraries, has no code that runs there",
)
"""What the words in the tables of `gpu_rows` mean."""

Rows = tuple[tuple[str, ...], ...]
"""The rows of a table, the header first."""


def as_data(report: WheelReport) -> dict[str, object]:
    """Return the report with ``claim`` and ``gpus``."""
    data = report.to_dict()
    data["claim"] = find_claim(report).to_dict()
    data["gpus"] = [gpu.to_dict() for gpu in find_gpus(report)]
    return data


def summary(report: WheelReport) -> str:
    """Return one line: what was read, and how many of its libraries have GPU code."""
    with_code = [item for item in report.libraries if item.has_gpu_code]
    count = len(report.libraries)
    libraries = f"{len(with_code)} of {_counted(count, 'library', 'libraries')}"
    if not count:
        libraries = "no library"
    members = "" if report.kind == "file" else f", {_counted(report.members, 'file')}"
    verb = "has" if len(with_code) == 1 or count < 2 else "have"
    return f"{report.path}: {_size(report.size)}{members}; {libraries} {verb} GPU code"


def library_rows(libraries: Iterable[LibraryReport]) -> Rows:
    """Return a row for each library with GPU code, without columns that are empty.

    ``80:7`` stands for seven entries for 8.0, and ``90 (8.8)`` for PTX for 9.0 in
    version 8.8 of the language. Empty code has no kernel.
    """
    listed = [item for item in libraries if item.has_gpu_code]
    header = ("file", "for", "machine code", "PTX", "LTO-IR", "empty", "compressed")
    rows = [_row(item) for item in listed[:MAX_ROWS]]
    if not rows:
        return ()
    used = [i for i in range(len(header)) if any(row[i] for row in rows)]
    table = [tuple(row[i] for i in used) for row in (header, *rows)]
    if len(listed) > MAX_ROWS:
        more = f"... and {len(listed) - MAX_ROWS} more (--json lists all)"
        table.append((more, *("" for _ in used[1:])))
    return tuple(table)


def _row(item: LibraryReport) -> tuple[str, ...]:
    kernels = item.kernels
    real = {t.removesuffix("_real"): n for t, n in kernels.items() if "_real" in t}
    virtual = {t: n for t, n in kernels.items() if "_virtual" in t}
    ptx = [
        f"{_entries({target.removesuffix('_virtual'): count})} "
        f"({', '.join(item.ptx_isa.get(target, ()))})"
        for target, count in virtual.items()
    ]
    other = [f"{name}:{count}" for name, count in item.unknown.items()]
    form = {"elf": "ELF", "pe": "PE"}.get(item.format, item.format)
    return (
        item.path,
        f"{form} {item.machine}".strip() if item.machine != "cuda" else form,
        _entries(real),
        " ".join([*ptx, *other]),
        _entries(item.lto),
        _entries({t.removesuffix("_real"): n for t, n in item.stubs.items()}),
        " ".join(f"{name}:{count}" for name, count in item.compression.items()),
    )


def _entries(counts: Mapping[str, int]) -> str:
    return " ".join(f"{name}:{n}" if n > 1 else name for name, n in counts.items())


def claim_lines(claim: TrueClaim) -> list[str]:
    """Return what could be declared, then the reasons and what to know about it."""
    head = "It could declare:"
    if not claim.complete:
        head = "Some of it could not be read. By the rest, it could declare:"
    lines = [head]
    bound = claim.strict.version
    if bound is not None:
        lines.append(f"  {NAMESPACE} :: {LOWER_BOUND} :: {bound}")
    values = (*claim.sm_arch, *claim.exact)
    lines += [f"  {NAMESPACE} :: {SM_ARCH} :: {value}" for value in values]
    if len(lines) == 1:
        lines = [f"{head.removesuffix(':')} nothing about its GPU code"]
    sentences = []
    if claim.strict.reason:
        sentences.append(f"Bound: {claim.strict.reason}")
    if claim.relaxed.reason:
        version = claim.relaxed.version
        relaxed = "none" if version is None else str(version)
        sentences.append(
            f"Bound by minor-version compatibility: {relaxed}; {claim.relaxed.reason}"
        )
    for value in claim.exact:
        number = value.partition("_")[0]
        known = ", ".join(map(str, gpus_of(value)))
        sentences.append(
            f"For {value} there is only code for {number}a, so that it is true as long "
            f"as no GPU other than {known} supports the value"
        )
    if claim.compiled:
        sentences.append(
            "Its PTX runs on more GPUs, which would get it by these values: "
            + ", ".join(claim.compiled)
        )
    if claim.unnamed:
        sentences.append(f"No property can name {', '.join(claim.unnamed)}")
    sentences += [
        f"{shown(name, 200)[1:-1]} has no code that runs on {', '.join(targets)}, "
        "unlike other libraries"
        for name, targets in claim.lacking[:MAX_ROWS]
    ]
    return lines + sentences


def gpu_rows(gpus: Sequence[GpuSupport]) -> Rows:
    """Return a row for each generation of GPUs, or for a part of one."""
    if not gpus:
        return ()
    models = gpu_models()
    groups: dict[tuple[object, ...], list[GpuSupport]] = {}
    for gpu in gpus:
        generation = (gpu.capability.major, _generation(gpu))
        key = (*generation, gpu.how, gpu.driver, gpu.lacking)
        groups.setdefault(key, []).append(gpu)
    rows = []
    for group in groups.values():
        first = group[0]
        names = dict.fromkeys(models[gpu.capability].name for gpu in group)
        driver = f"CUDA {first.driver}" if first.driver else ""
        if first.how != "no" and not driver:
            driver = "newer than any known"
        rows.append(
            (
                ", ".join(str(gpu.capability) for gpu in group),
                f"{_generation(first)}: {', '.join(names)}",
                first.how,
                driver,
                ", ".join(first.lacking[:3]) + ", ..." * (len(first.lacking) > 3),
            )
        )
    header = ("GPU", "generation", "runs", "driver for", "not in")
    table = (header, *rows)
    if not any(row[-1] for row in rows):
        return tuple(row[:-1] for row in table)
    return table


def _generation(gpu: GpuSupport) -> str:
    architecture = gpu_models()[gpu.capability].architecture
    return architecture.partition(" (")[0].partition(",")[0]


def how_to_add(suggestion: Suggestion) -> list[str]:
    """Return what ``pyproject.toml`` needs, and the command, with its preconditions."""
    return [
        "Add this to pyproject.toml:",
        *(f"  {line}".rstrip() for line in suggestion.pyproject.splitlines()),
        "Install variantlib where nvp is installed:",
        f"  {suggestion.install}",
        "Then run this command:",
        f"  {suggestion.command}",
    ]


def _counted(count: int, one: str, many: str = "") -> str:
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def _size(size: int) -> str:
    if size < 1024 * 1024:
        return f"{size / 1024:.1f} KiB"
    return f"{size / 1024 / 1024:.1f} MiB"
