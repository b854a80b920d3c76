"""The same metadata read by uv 0.13.8, variantlib 0.2.2 and this project.

The machine is always the same, CUDA 12.9 and an H100. When a case starts to fail, a
peer has changed: correct the case, or move it to `AGREED`. Quotes are from PEP 817 and
PEP 825.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.documents import PROVIDER, TORCH, TORCH_LABELS, document, forced, nvidia
from support.grids import some_of
from support.outcomes import REFUSED, our_outcome, uv_outcome
from support.uv_installer import UvIndex
from support.variantlib_peer import isolate, variantlib_outcome

H100 = forced("12.9", "9.0")
HOST = "https://variants-schema.wheelnext.dev"

VARIANTS = TORCH["variants"]
CPU = {"x86_64": {"level": ["v3"]}}
UNKNOWN = {"requires": ["no-such-variant-provider"]}
STATIC = {"cuda_version_lower_bound": ["13.0", "12.6"], "sm_arch": ["90_real"]}
ORDER = ["cuda_version_lower_bound", "sm_arch"]


@dataclass(frozen=True, kw_only=True)
class Case:
    """The selection of each client; ``None`` is the non-variant wheel."""

    metadata: Mapping[str, Any]
    uv: str | None
    variantlib: str | None
    ours: str | None
    why: str


def torch(schema: str = "v0.2.0.json", **providers: Any) -> dict[str, Any]:
    """Return the release with these providers, of which ``nvidia`` comes first."""
    known = {"nvidia": PROVIDER} | providers
    return document(VARIANTS, providers=known, schema=f"{HOST}/{schema}")


def torch_without_providers(schema: str) -> dict[str, Any]:
    metadata = torch(schema)
    del metadata["providers"]
    return metadata


def without(mapping: Mapping[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in mapping.items() if name != key}


# Providers: who answers for the namespace nvidia

OWN_RULES = "uv has its own provider, and uses it only for the usual reference to ours"

PROVIDERS = {
    "requires without 0.0.1": Case(
        metadata=torch(
            nvidia={**PROVIDER, "requires": ["nvidia-variant-provider>=0.0.2"]}
        ),
        uv="null",
        variantlib="cu128",
        ours="cu128",
        why=f"{OWN_RULES}; that provider counts as version 0.0.1",
    ),
    "requires this version": Case(
        metadata=torch(
            nvidia={**PROVIDER, "requires": ["nvidia-variant-provider>=0.1"]}
        ),
        uv="null",
        variantlib="cu128",
        ours="cu128",
        why=f"{OWN_RULES}; that provider counts as version 0.0.1",
    ),
    "requires with a marker": Case(
        metadata=torch(
            nvidia={
                **PROVIDER,
                "requires": ["nvidia-variant-provider; python_version >= '3'"],
            }
        ),
        uv="null",
        variantlib="cu128",
        ours="cu128",
        why=OWN_RULES,
    ),
    "two requirements": Case(
        metadata=torch(
            nvidia={**PROVIDER, "requires": ["nvidia-variant-provider", "packaging"]}
        ),
        uv="null",
        variantlib="cu128",
        ours="cu128",
        why=OWN_RULES,
    ),
    "no plugin-api": Case(
        metadata=torch(nvidia=without(PROVIDER, "plugin-api")),
        uv="null",
        variantlib="cu128",
        ours="cu128",
        why='"If it is missing, the package name from the first dependency specifier '
        'in requires is used"; uv does not infer it',
    ),
    "module as plugin-api": Case(
        metadata=torch(nvidia={**PROVIDER, "plugin-api": "nvidia_variant_provider"}),
        uv="null",
        variantlib="cu128",
        ours="cu128",
        why="this spells out what is inferred in the case above",
    ),
    "plugin-api with spaces": Case(
        metadata=torch(
            nvidia={
                **PROVIDER,
                "plugin-api": "nvidia_variant_provider.plugin : NvidiaVariantPlugin",
            }
        ),
        uv="null",
        variantlib=REFUSED,
        ours="cu128",
        why="this is the same object reference; uv compares the text, and variantlib "
        "allows the spaces but imports a module with a space in its name",
    ),
    "another plugin": Case(
        metadata=torch(nvidia=UNKNOWN),
        uv="null",
        variantlib=REFUSED,
        ours="cu128",
        why="we answer for nvidia wherever its provider comes from; variantlib fails "
        "if a plugin is not installed",
    ),
    "builtin": Case(
        metadata=torch(nvidia={"builtin": "gpu"}),
        uv="null",
        variantlib=REFUSED,
        ours="cu128",
        why="we answer for nvidia wherever its provider comes from",
    ),
    "PEP 825 0.1.0": Case(
        metadata=torch_without_providers("peps/825/v0.1.0.json"),
        uv="null",
        variantlib=REFUSED,
        ours="cu128",
        why="PEP 825 leaves open how the answer is obtained; this package is one way",
    ),
    "PEP 825 0.1.1": Case(
        metadata=torch_without_providers("peps/825/v0.1.1.json"),
        uv="null",
        variantlib=REFUSED,
        ours="cu128",
        why="PEP 825 leaves open how the answer is obtained; this package is one way",
    ),
    "other plugin is not installed": Case(
        metadata=document(
            {**VARIANTS, "v3": CPU}, providers={"x86_64": UNKNOWN, "nvidia": PROVIDER}
        ),
        uv="cu128",
        variantlib=REFUSED,
        ours="cu128",
        why="its namespace is unsupported, but the other namespaces are not affected",
    ),
    "optional static-properties": Case(
        metadata=torch(
            nvidia={
                "static-properties": STATIC,
                "feature-order": ORDER,
                "optional": True,
            }
        ),
        uv="null",
        variantlib="cu130",
        ours="null",
        why='optional comes first: "instead assume that its properties are '
        'incompatible"; variantlib uses them anyway',
    ),
}

# Validity: which documents are refused

DEGRADE = (
    'an installer "SHOULD prefer to degrade gracefully rather than fail outright", so '
    "we resolve what can be understood"
)

VALIDITY = {
    "1.0.0": Case(
        metadata=torch("v1.0.0.json"),
        uv="cu128",
        variantlib="cu128",
        ours=REFUSED,
        why='"Tools MUST reject metadata with a major version number that they do not '
        'support"; the others look at the shape only',
    ),
    "0.0.3": Case(
        metadata=torch("v0.0.3.json", nvidia={**PROVIDER, "install-time": True}),
        uv=REFUSED,
        variantlib=REFUSED,
        ours="cu128",
        why="the others read only the current version",
    ),
    "no $schema": Case(
        metadata=without(TORCH, "$schema"),
        uv=REFUSED,
        variantlib="cu128",
        ours="cu128",
        why=DEGRADE,
    ),
    "unknown key": Case(
        metadata={**TORCH, "extra": {}},
        uv=REFUSED,
        variantlib="cu128",
        ours=REFUSED,
        why="version 0.2.0 has no such key, and its schema allows no others",
    ),
    "feature without values": Case(
        metadata=document(
            {
                **VARIANTS,
                "any": {
                    "nvidia": {"cuda_version_lower_bound": ["12.9"], "sm_arch": []}
                },
            }
        ),
        uv=REFUSED,
        variantlib="any",
        ours=REFUSED,
        why='"at least one value for every feature listed in its properties MUST be '
        'compatible"; variantlib forgets the feature',
    ),
    "namespace without provider": Case(
        metadata=document({**VARIANTS, "v3": CPU}, namespaces=["nvidia", "x86_64"]),
        uv=REFUSED,
        variantlib=REFUSED,
        ours="cu128",
        why=DEGRADE,
    ),
    "provider without namespace": Case(
        metadata=document(
            VARIANTS,
            providers={"nvidia": PROVIDER, "x86_64": UNKNOWN},
            namespaces=["nvidia"],
        ),
        uv=REFUSED,
        variantlib=REFUSED,
        ours="cu128",
        why=DEGRADE,
    ),
    "provider without any source": Case(
        metadata=torch(nvidia={"plugin-api": PROVIDER["plugin-api"]}),
        uv=REFUSED,
        variantlib=REFUSED,
        ours="cu128",
        why=DEGRADE,
    ),
    "static-properties without feature-order": Case(
        metadata=torch(nvidia={"static-properties": STATIC}),
        uv=REFUSED,
        variantlib=REFUSED,
        ours="cu130",
        why=f"{DEGRADE}: features have the order of the file",
    ),
    "static-properties and requires": Case(
        metadata=torch(
            nvidia={
                "static-properties": STATIC,
                "feature-order": ORDER,
                "requires": PROVIDER["requires"],
            }
        ),
        uv=REFUSED,
        variantlib=REFUSED,
        ours="cu130",
        why=f"{DEGRADE}: the static properties, as in the drafts before 0.2.0",
    ),
}

AGREED = {
    "optional": Case(
        metadata=torch(nvidia={**PROVIDER, "optional": True}),
        uv="null",
        variantlib="null",
        ours="null",
        why='"the installer MUST NOT query said provider by default"',
    ),
    "optional without null": Case(
        metadata=document(
            TORCH_LABELS, providers={"nvidia": {**PROVIDER, "optional": True}}
        ),
        uv=None,
        variantlib=None,
        ours=None,
        why="only the non-variant wheel is left",
    ),
    "static-properties": Case(
        metadata=torch(nvidia={"static-properties": STATIC, "feature-order": ORDER}),
        uv="cu130",
        variantlib="cu130",
        ours="cu130",
        why="they are used as given, although the driver does not run cu130",
    ),
    "static-properties of one feature": Case(
        metadata=document(
            {"null": {}, "old": nvidia("12.6"), "new": nvidia("12.9")},
            providers={
                "nvidia": {"static-properties": {"cuda_version_lower_bound": ["12.6"]}}
            },
        ),
        uv="old",
        variantlib="old",
        ours="old",
        why="they are used as given, although the driver runs the new one as well",
    ),
    "URL of PEP 850": Case(
        metadata=torch("peps/850/v0.2.0.json"),
        uv="cu128",
        variantlib="cu128",
        ours="cu128",
        why="the URL names the same version",
    ),
    "newer minor version": Case(
        metadata=torch("v0.3.0.json"),
        uv="cu128",
        variantlib="cu128",
        ours="cu128",
        why='tools "SHOULD accept metadata with a newer minor version number"',
    ),
    "value given twice": Case(
        metadata=document({"null": {}, "x": nvidia(sm=["90_real", "90_real"])}),
        uv=REFUSED,
        variantlib=REFUSED,
        ours=REFUSED,
        why="values are a set",
    ),
}

CASES = {
    f"{table}: {name}": case
    for table, cases in {
        "providers": PROVIDERS,
        "validity": VALIDITY,
        "agreed": AGREED,
    }.items()
    for name, case in cases.items()
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_uv_selects_as_the_case_says(case: Case, index: UvIndex) -> None:
    assert uv_outcome(index, case.metadata, H100) == case.uv, case.why


@pytest.mark.parametrize("case", some_of(zip(CASES.values()), 3))
def test_variantlib_selects_as_the_case_says(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    isolate(monkeypatch, tmp_path)
    for name, value in H100.items():
        monkeypatch.setenv(name, value)
    assert variantlib_outcome(case.metadata) == case.variantlib, case.why


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_we_select_as_the_case_says(case: Case) -> None:
    assert our_outcome(case.metadata, H100) == case.ours, case.why


def test_each_case_is_in_the_right_table() -> None:
    for case in AGREED.values():
        assert case.uv == case.variantlib == case.ours
    for case in (PROVIDERS | VALIDITY).values():
        assert (case.uv, case.variantlib) != (case.ours, case.ours)
