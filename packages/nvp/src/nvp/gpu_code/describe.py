"""Describe the GPU code of a wheel in tables and sentences, and as data for reports.

Publishers also get the ``variant.json`` for the build, and the command that adds it.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from nvidia_variant_provider.errors import shown
from nvidia_variant_provider.machine.supported import LOWER_BOUND, NAMESPACE, SM_ARCH
from nvidia_variant_provider.metadata.fields import VALUE
from nvidia_variant_provider.metadata.model import (
    PLUGIN_API,
    REQUIRES,
    Provider,
    VariantsMetadata,
)
from nvidia_variant_provider.metadata.versions import WRITTEN

from ..knowledge.tables import (
    NATIVE,
    PTX,
    driver_branches,
    driver_versions,
    gpu_models,
)
from ..metadata.checking import to_dict
from .claims import GpuSupport, TrueClaim, find_claim, find_gpus, gpus_of
from .report import LibraryReport, WheelReport

MAX_ROWS = 60
"""The maximum number of listed libraries; some wheels have 16,000."""

_LEGEND = {
    NATIVE: "has machine code, which runs with any driver of that CUDA major",
    PTX: "the driver compiles some of the code, and must be at least that new",
    "no": "the wheel, or one of its libraries, has no code that runs there",
    "unknown": "has code for a desktop GPU or a Jetson; whether it runs is unknown",
}
"""The meaning of each value of `GpuSupport.how`."""

Rows = tuple[tuple[str, ...], ...]
"""The rows of a table, the header first."""

_LABELLED = re.compile(rf".+-[^-]+-[^-]+-[^-]+-({VALUE.pattern})\.whl")
_INSTALL = "pip install 'variantlib[cli]'"
_PYPROJECT = f"""\
[variant.default-priorities]
namespace = ["{NAMESPACE}"]

[variant.providers.{NAMESPACE}]
requires = ["{REQUIRES}"]
plugin-api = "{PLUGIN_API}"
"""


def as_data(report: WheelReport) -> dict[str, object]:
    """Return the report as JSON data, with ``claim`` and ``gpus``."""
    data = report.to_dict()
    data["claim"] = find_claim(report).to_dict()
    data["gpus"] = [gpu.to_dict() for gpu in find_gpus(report)]
    return data


def summary(report: WheelReport) -> str:
    """Return one line about the file, with the number of libraries with GPU code."""
    with_code = [item for item in report.libraries if item.has_gpu_code]
    count = len(report.libraries)
    libraries = f"{len(with_code)} of {_counted(count, 'library', 'libraries')}"
    if not count:
        libraries = "no library"
    members = "" if report.kind == "file" else f", {_counted(report.members, 'file')}"
    verb = "has" if len(with_code) == 1 or count < 2 else "have"
    return f"{report.path}: {_size(report.size)}{members}; {libraries} {verb} GPU code"


def library_rows(libraries: Iterable[LibraryReport]) -> Rows:
    """Return a row for each library with GPU code, without empty columns.

    ``80:7`` stands for seven entries for 8.0, and ``90 (8.8)`` for PTX for 9.0 in
    version 8.8 of the language. The column "empty" has the code without kernels.
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
    """Return lines with the possible declaration, its reasons and remarks."""
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
        for name, targets in list(claim.lacking.items())[:MAX_ROWS]
    ]
    return lines + sentences


def gpu_rows(gpus: Sequence[GpuSupport]) -> Rows:
    """Return a row for each group of GPUs with the same generation and support."""
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
        if first.how in (NATIVE, PTX) and not driver:
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


def legend(gpus: Sequence[GpuSupport]) -> list[str]:
    """Return a line for each kind of support in the table of `gpu_rows`."""
    used = {gpu.how for gpu in gpus}
    return [f"{how}: {words}" for how, words in _LEGEND.items() if how in used]


def _generation(gpu: GpuSupport) -> str:
    architecture = gpu_models()[gpu.capability].architecture
    return architecture.partition(" (")[0].partition(",")[0]


def _counted(count: int, one: str, many: str = "") -> str:
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def _size(size: int) -> str:
    if size < 1024 * 1024:
        return f"{size / 1024:.1f} KiB"
    return f"{size / 1024 / 1024:.1f} MiB"


@dataclass(frozen=True, kw_only=True, slots=True)
class Suggestion:
    """The suggested declaration of a build.

    :param label: the label of the wheel, or a label from the strict bound (``cu129``).
    :param metadata: the contents of ``variant.json``.
    :param pyproject: the part of ``pyproject.toml`` that variantlib reads.
    :param command: ``variantlib make-variant`` with its arguments, quoted for a shell.
        It runs in the environment of this package, where variantlib queries the
        provider for the properties. In an isolated environment, variantlib would
        install the provider from an index.
    :param install: the command that installs the requirements of ``command``.
    """

    label: str
    metadata: VariantsMetadata
    pyproject: str
    command: str
    install: str = _INSTALL

    def to_dict(self) -> dict[str, object]:
        """Return the fields, with the metadata as ``variant_json``."""
        return {
            "label": self.label,
            "variant_json": to_dict(self.metadata),
            "pyproject": self.pyproject,
            "command": self.command,
            "install": self.install,
        }


def suggest(
    claim: TrueClaim, path: str, kind: str, *, relaxed: bool = False
) -> Suggestion | None:
    """Suggest a declaration; ``None`` if properties can name none of the GPU code.

    :param path: the path or URL of the wheel for the command.
    :param kind: the kind of the report; the command has the path only for ``wheel``.
    :param relaxed: use the bound of minor-version compatibility, if there is one.
    """
    # Declare `90a` code as `90_real`: this is correct as long as only 9.0 supports the
    # value. Without the value, GPUs that cannot run the build would get the build.
    values = claim.relaxed_sm_arch if relaxed else (*claim.sm_arch, *claim.exact)
    bound = claim.relaxed.version if relaxed else claim.strict.version
    if bound is None or not values:
        return None
    features: Mapping[str, tuple[str, ...]] = {
        LOWER_BOUND: (str(bound),),
        SM_ARCH: tuple(sorted(values)),
    }
    if path.startswith(("http://", "https://")):  # use the name of the downloaded file
        path = unquote(urlsplit(path).path).rpartition("/")[2]
    is_wheel = kind == "wheel" and path.endswith(".whl")
    match = _LABELLED.fullmatch(re.split(r"[/\\]", path)[-1]) if is_wheel else None
    named = match[1] if match is not None and _is_label(match[0]) else None
    # The label names the CUDA version of the build, even if an older driver suffices.
    built = claim.strict.version or bound
    label = named or f"cu{built.major}{built.minor}"
    metadata = VariantsMetadata(
        schema=WRITTEN,
        namespaces=(NAMESPACE,),
        providers={NAMESPACE: Provider(requires=(REQUIRES,), plugin_api=PLUGIN_API)},
        variants={label: {NAMESPACE: features}},
    )
    file = path if is_wheel else "WHEEL"
    # Add a directory to a name that would look like an option.
    file = f"./{file}" if file.startswith("-") else file
    # Use another directory, because variantlib's output would overwrite its input.
    folder = "relabelled" if named else "."
    words = ["variantlib", "make-variant", "--no-isolation", "-f", file, "-o", folder]
    words += ["--variant-label", label]
    for feature, listed in features.items():
        for value in listed:
            words += ["-p", f"{NAMESPACE} :: {feature} :: {value}"]
    command = shlex.join(words)
    return Suggestion(
        label=label,
        metadata=metadata,
        pyproject=_PYPROJECT,
        command=f"mkdir -p {folder} && {command}" if named else command,
    )


def _is_label(file_name: str) -> bool:
    """Return whether the last part of a wheel's name is a label, not the platform."""
    parts = file_name.split("-")
    build = parts[2][:1].isdigit()
    return len(parts) == 6 + build


def how_to_add(suggestion: Suggestion, *, pyproject: bool = True) -> list[str]:
    """Return the section of ``pyproject.toml``, and the command with its preconditions.

    :param pyproject: whether to include the section.
    """
    section = [f"  {line}".rstrip() for line in suggestion.pyproject.splitlines()]
    return [
        *(["Add this to pyproject.toml:", *section] if pyproject else []),
        "Install variantlib where nvp is installed:",
        f"  {suggestion.install}",
        "Then run this command:",
        f"  {suggestion.command}",
    ]


def cost_lines(claim: TrueClaim) -> list[str]:
    """Return lines about the machines that the strict and the relaxed bound exclude."""
    strict, relaxed = claim.strict.version, claim.relaxed.version
    if strict is None:
        return []
    if relaxed is None or relaxed >= strict:
        why = f": {claim.relaxed.reason}" if relaxed is None else ""
        return [f"There is no looser bound than {strict}{why}"]
    between = [cuda for cuda in driver_versions() if relaxed <= cuda < strict]
    branches = [str(n) for n, cuda in driver_branches().items() if cuda in between]
    drivers = f"drivers for CUDA {relaxed} to {max(between, default=relaxed)}"
    if branches:
        drivers += f" (branches {', '.join(branches)})"
    values = (*claim.sm_arch, *claim.exact)
    lost = [value for value in values if value not in claim.relaxed_sm_arch]
    kept = {gpu for value in claim.relaxed_sm_arch for gpu in gpus_of(value)}
    gpus = sorted({gpu for value in lost for gpu in gpus_of(value)} - kept)
    more = ""
    if lost:
        more = f", but then {', '.join(lost)} must not be declared"
        if gpus:
            more += f", so that GPUs of {', '.join(map(str, gpus))} do not get it"
    return [
        f"With the bound {strict}, machines with {drivers} do not get the build, "
        "although they run its machine code",
        f"With the bound {relaxed} (--suggest --relaxed), they get it{more}",
    ]
