"""The rule table: every code that a finding can have.

Codes are stable and never reused: NV1xx structure, NV2xx grammar, NV3xx meaning for
NVIDIA, NV4xx consistency of a release, NV5xx content of wheels. The page
docs/rules.md has a section for each rule.
"""

from __future__ import annotations

from .model import ERROR, NOTE, SEVERITIES, WARNING, Code, Rule, Severity

__all__ = [
    "ERROR",
    "NOTE",
    "RULES",
    "SEVERITIES",
    "WARNING",
    "Code",
    "Rule",
    "Severity",
]

_BOTH_REFUSE = "uv fails the whole install, variantlib raises"
_UV_REFUSES = "uv fails the whole install, variantlib accepts it"
_SILENT = "both accept it, and users get another build without a word"
_NEITHER_LOOKS = "neither looks"
_NO_CODE = "both install it on GPUs that it has no code for"

_TABLE: tuple[tuple[Code, Severity, str, str], ...] = (
    # Structure
    ("NV100", ERROR, "cannot be read", _BOTH_REFUSE),
    ("NV101", ERROR, "byte order mark", _BOTH_REFUSE),
    (
        "NV102",
        ERROR,
        "key given twice",
        "uv takes the last of two labels, variantlib the last of all keys",
    ),
    ("NV103", ERROR, "NaN or Infinity", "uv fails the install, variantlib goes on"),
    ("NV104", ERROR, "no $schema", _UV_REFUSES),
    ("NV105", ERROR, "unknown $schema", "both go by the shape"),
    (
        "NV106",
        ERROR,
        "old schema version",
        "no released client selects from the shape of that version",
    ),
    (
        "NV107",
        ERROR,
        "key missing",
        "uv fails the install, or gives the null variant; variantlib raises",
    ),
    ("NV108", ERROR, "wrong type", _BOTH_REFUSE),
    (
        "NV109",
        ERROR,
        "unknown key",
        "uv fails the install; variantlib accepts it at the top",
    ),
    (
        "NV110",
        ERROR,
        "provider without one source",
        "uv fails the install, or gives the null variant; variantlib raises",
    ),
    ("NV111", ERROR, "namespaces and providers differ", _BOTH_REFUSE),
    ("NV112", ERROR, "undeclared namespace", _BOTH_REFUSE),
    (
        "NV113",
        ERROR,
        "null rules broken",
        "variantlib raises; uv refuses properties of null only",
    ),
    ("NV114", WARNING, "no fallback", "both install nothing where no label fits"),
    ("NV115", WARNING, "same properties twice", "both take the first label by name"),
    ("NV116", ERROR, "feature-order incomplete", _BOTH_REFUSE),
    ("NV117", ERROR, "key for another kind of provider", _BOTH_REFUSE),
    # Grammar
    ("NV201", ERROR, "malformed label", _BOTH_REFUSE),
    (
        "NV202",
        ERROR,
        "label too long",
        "neither looks; clients of that version refuse it",
    ),
    ("NV203", ERROR, "malformed namespace", _BOTH_REFUSE),
    ("NV204", ERROR, "malformed feature", _BOTH_REFUSE),
    ("NV205", ERROR, "malformed value", _BOTH_REFUSE),
    ("NV206", NOTE, "values not sorted", _NEITHER_LOOKS),
    (
        "NV207",
        ERROR,
        "value given twice",
        "uv fails the install; variantlib raises, but for namespaces",
    ),
    (
        "NV208",
        ERROR,
        "no value",
        "uv fails the install; variantlib raises, or drops the feature",
    ),
    (
        "NV209",
        ERROR,
        "malformed plugin-api",
        "uv ignores the provider, variantlib raises",
    ),
    (
        "NV210",
        ERROR,
        "malformed requirement",
        "uv ignores the provider; variantlib raises where it needs the name",
    ),
    (
        "NV211",
        ERROR,
        "malformed marker",
        "no released client reads markers of old versions",
    ),
    # Meaning for NVIDIA
    ("NV301", ERROR, "unknown feature", _SILENT),
    ("NV302", ERROR, "unknown value", _SILENT),
    ("NV303", ERROR, "several values of a single-valued feature", _SILENT),
    ("NV304", ERROR, "bounds that exclude each other", _SILENT),
    ("NV305", WARNING, "upper bound shuts out newer drivers", _SILENT),
    ("NV306", WARNING, "no sm_arch", _NO_CODE),
    ("NV307", ERROR, "target that no such toolkit emits", _SILENT),
    ("NV308", WARNING, "target that the named toolkit does not emit", _NEITHER_LOOKS),
    ("NV309", WARNING, "label and lower bound differ", _NEITHER_LOOKS),
    ("NV310", NOTE, "lower bound stricter than needed", _SILENT),
    ("NV311", ERROR, "only architecture-specific code", _SILENT),
    ("NV312", WARNING, "GPU generation left out", "both give those GPUs the CPU build"),
    ("NV313", NOTE, "no PTX for newer GPUs", "both give newer GPUs the CPU build"),
    (
        "NV314",
        ERROR,
        "provider that uv ignores",
        "uv treats nvidia as unsupported: all get CPU",
    ),
    ("NV315", WARNING, "label that nothing selects", _SILENT),
    # Consistency of a release
    ("NV401", ERROR, "file name not normalised", "both do not find it"),
    ("NV402", ERROR, "label without wheel", "uv passes it over, variantlib offers it"),
    ("NV403", ERROR, "wheel whose label is not listed", "uv does not select it"),
    ("NV404", ERROR, "wheel without variant.json", "uv fails to install it"),
    (
        "NV405",
        ERROR,
        "wheel and index differ",
        "uv selects by the index and fails where the wheel does not fit",
    ),
    (
        "NV406",
        ERROR,
        "metadata that cannot be merged",
        "variantlib logs an error and keeps the first",
    ),
    (
        "NV407",
        ERROR,
        "wheels of one label differ",
        "variantlib logs an error and keeps the first",
    ),
    ("NV408", ERROR, "variant markers in METADATA", "no installer accepts them today"),
    ("NV409", ERROR, "no variants.json", "uv does not see the variant wheels"),
    ("NV410", WARNING, "variants.json older than wheels", _NEITHER_LOOKS),
    ("NV411", ERROR, "file that cannot be read as a wheel", "both fail to install it"),
    (
        "NV412",
        ERROR,
        "variant.json of another label",
        "variantlib leaves the wheel out, uv fails to install it",
    ),
    # Content of wheels
    ("NV501", ERROR, "declared code that is not there", _NO_CODE),
    (
        "NV502",
        WARNING,
        "code that is not declared",
        "both give those GPUs another build",
    ),
    ("NV503", NOTE, "declared by another name", _NEITHER_LOOKS),
    ("NV504", ERROR, "declared PTX that is not there", _NO_CODE),
    (
        "NV505",
        ERROR,
        "PTX newer than the lower bound",
        "both install it where the driver refuses its PTX",
    ),
    (
        "NV506",
        ERROR,
        "lower bound below the linked CUDA",
        "both install it where CUDA refuses the driver",
    ),
    ("NV507", ERROR, "architecture-specific code declared as plain", _NO_CODE),
    ("NV508", ERROR, "declared target of empty cubins", _NO_CODE),
    ("NV509", WARNING, "libraries that disagree", _NEITHER_LOOKS),
    ("NV510", ERROR, "GPU build without GPU code", _NO_CODE),
    ("NV511", NOTE, "GPU code that nothing declares", "both install it on any machine"),
    ("NV512", ERROR, "GPU code that cannot be read", _NEITHER_LOOKS),
)

RULES: dict[Code, Rule] = {
    code: Rule(code=code, severity=severity, title=title, clients=clients)
    for code, severity, title, clients in _TABLE
}
