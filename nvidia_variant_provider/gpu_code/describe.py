"""What is in a wheel, in rows and lines for people, and as data."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence

from ..errors import shown
from ..knowledge.tables import gpu_models
from ..machine.supported import LOWER_BOUND, NAMESPACE, SM_ARCH
from ..matrix.text import WIDTH
from ..metadata.writing import to_dict, to_text
from .claims import GpuSupport, TrueClaim, find_claim, find_gpus, gpus_of
from .report import LibraryReport, WheelReport
from .suggestion import Suggestion, suggest

__all__ = [
    "LEGEND",
    "as_data",
    "claim_lines",
    "gpu_rows",
    "library_rows",
    "suggestion_lines",
    "summary",
]

MAX_ROWS = 60
"""Libraries that are listed; some wheels have 16,000."""

LEGEND = (
    "native: machine code, which runs with any driver of that CUDA major",
    "ptx: the driver compiles it, and has to be that new",
    "no: the wheel, or one of its libraries, has nothing that runs there",
)
"""What the words of `gpu_rows` mean."""

Rows = tuple[tuple[str, ...], ...]
"""The header first."""


def as_data(report: WheelReport, *, with_suggestion: bool) -> dict[str, object]:
    """The report, with ``claim`` and ``gpus``; ``suggestion`` where it is wanted."""
    claim = find_claim(report)
    data = report.to_dict()
    data["claim"] = claim.to_dict()
    data["gpus"] = [gpu.to_dict() for gpu in find_gpus(report)]
    if with_suggestion:
        found = suggest(claim, report.path, report.kind)
        data["suggestion"] = found and {
            "label": found.label,
            "variant_json": to_dict(found.metadata),
            "pyproject": found.pyproject,
            "command": found.command,
        }
    return data


def summary(report: WheelReport) -> str:
    """One line: what was read, and how many of its libraries have GPU code."""
    with_code = [item for item in report.libraries if item.has_gpu_code]
    count = len(report.libraries)
    found = f"{len(with_code)} of {_counted(count, 'library', 'libraries')}"
    if not count:
        found = "no library"
    members = "" if report.kind == "file" else f", {_counted(report.members, 'file')}"
    verb = "has" if len(with_code) == 1 or count < 2 else "have"
    return f"{report.path}: {_size(report.size)}{members}; {found} {verb} GPU code"


def library_rows(libraries: Iterable[LibraryReport]) -> Rows:
    """A row for each library with GPU code; columns that would be empty left out.

    ``80:7`` are seven entries for 8.0, ``90 (8.8)`` is PTX for 9.0 in version 8.8 of
    the language; empty code holds no kernel.
    """
    listed = [item for item in libraries if item.has_gpu_code]
    header = ("file", "for", "machine code", "PTX", "LTO-IR", "empty", "compressed")
    rows = [_row(item) for item in listed[:MAX_ROWS]]
    if not rows:
        return ()
    used = [i for i in range(len(header)) if any(row[i] for row in rows)]
    table = [tuple(row[i] for i in used) for row in (header, *rows)]
    if len(listed) > MAX_ROWS:
        more = f"... and {len(listed) - MAX_ROWS} more, which --json lists"
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
    """What could be declared, then why, and what is to be known of it."""
    head = "It could declare:"
    if not claim.complete:
        head = "Not everything in it could be read; of what could, it could declare:"
    lines = [head]
    bound = claim.strict.version
    if bound is not None:
        lines.append(f"  {NAMESPACE} :: {LOWER_BOUND} :: {bound}")
    values = (*claim.sm_arch, *claim.exact)
    lines += [f"  {NAMESPACE} :: {SM_ARCH} :: {value}" for value in values]
    if len(lines) == 1:
        lines = [f"{head.removesuffix(':')} nothing of its GPU code"]
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
            f"{value} is {number}a code alone: true while {known} is all that gets it"
        )
    if claim.compiled:
        sentences.append(
            "Its PTX runs on more GPUs, to which these would give it: "
            + ", ".join(claim.compiled)
        )
    if claim.unnamed:
        sentences.append(f"No property can name: {', '.join(claim.unnamed)}")
    sentences += [
        f"{shown(name, 200)[1:-1]} has nothing that runs on {', '.join(targets)}, "
        "which others have"
        for name, targets in claim.lacking[:MAX_ROWS]
    ]
    for sentence in sentences:
        lines += textwrap.wrap(sentence, WIDTH, break_long_words=False)
    return lines


def gpu_rows(gpus: Sequence[GpuSupport]) -> Rows:
    """A row for each generation, or part of one, that the wheel serves in one way."""
    if not gpus:
        return ()
    models = gpu_models()
    groups: dict[tuple[object, ...], list[GpuSupport]] = {}
    for gpu in gpus:
        generation = (gpu.capability.major, _generation(gpu))
        key = (*generation, gpu.how, gpu.driver, gpu.lacking)
        groups.setdefault(key, []).append(gpu)
    rows = []
    for found in groups.values():
        first = found[0]
        names = dict.fromkeys(models[gpu.capability].name for gpu in found)
        driver = f"CUDA {first.driver}" if first.driver else ""
        if first.how != "no" and not driver:
            driver = "newer than any known"
        rows.append(
            (
                ", ".join(str(gpu.capability) for gpu in found),
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


def suggestion_lines(report: WheelReport) -> list[str]:
    """``variant.json``, what ``pyproject.toml`` needs, and the command."""
    found = suggest(find_claim(report), report.path, report.kind)
    if found is None:
        return [f"{report.path}: there is no GPU code that properties could name"]
    return [*_document(found), *_command(found)]


def _document(found: Suggestion) -> list[str]:
    return to_text(found.metadata).splitlines()


def _command(found: Suggestion) -> list[str]:
    return [
        "",
        "With this in pyproject.toml:",
        *(f"  {line}".rstrip() for line in found.pyproject.splitlines()),
        "run, with what pip install 'variantlib[cli]' brings:",
        f"  {found.command}",
    ]


def _counted(count: int, one: str, many: str = "") -> str:
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def _size(size: int) -> str:
    if size < 1024 * 1024:
        return f"{size / 1024:.1f} KiB"
    return f"{size / 1024 / 1024:.1f} MiB"
