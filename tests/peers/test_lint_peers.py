"""The reactions of uv 0.13.8 and variantlib 0.2.2 to the defects that rules report.

What docs/rules.md says about clients is measured here, and a test fails for a rule
without a measurement. Most cases run on a machine with CUDA 12.9 and an H100. If a case
starts to fail, a client has changed: correct the case, and the section of the rule on
that page.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest
from support.client_outcomes import CASES, CONTENT, ON_PAGES, OTHER_MACHINES
from support.documents import forced
from support.grids import some_of
from support.lint_cases import CASES as LINT_CASES
from support.lint_cases import lint_document, lint_text, write_case
from support.outcomes import REFUSED, uv_outcome
from support.uv_installer import InstallError, Release, UvIndex, uv_index
from support.variantlib_peer import isolate, run_command, variantlib_outcome
from support.wheels import stub_wheel, variants_json_name, wheel_name

from nvp import api
from nvp.findings import ERROR, NOTE, WARNING
from nvp.lint.findings import RULES
from nvp.wheels.variant_json import read_wheel

H100 = forced("12.9", "9.0")

MEASURED: set[str] = {"NV419", "NV420", "NV421"}
"""The rules that single tests measure: here, and in ``test_lint_page_peers.py``. Tables
of cases name further rules."""

Test = TypeVar("Test", bound=Callable[..., None])


def measures(*codes: str) -> Callable[[Test], Test]:
    """Register the rules whose texts about clients the decorated test measures."""

    def register(test: Test) -> Test:
        MEASURED.update(codes)
        return test

    return register


SEVERITY_OF: dict[str, str] = {code: rule.severity for code, rule in RULES.items()}


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, value in H100.items():
        monkeypatch.setenv(name, value)
    isolate(monkeypatch, tmp_path)


@pytest.mark.parametrize("case", some_of(((case,) for case in CASES), 7))
def test_selection_from_a_defective_document(case: str, index: UvIndex) -> None:
    document = lint_document(case)
    assert uv_outcome(index, document, H100) == CASES[case][0]
    assert variantlib_outcome(document) == CASES[case][1]


@pytest.mark.parametrize("case", OTHER_MACHINES)
def test_selection_on_the_machines_that_a_rule_is_about(
    case: str, index: UvIndex, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cuda, sm, label = OTHER_MACHINES[case]
    machine = forced(cuda, sm)
    for name, value in machine.items():
        monkeypatch.setenv(name, value)
    document = lint_document(case)
    assert case[:5] in {f.code for f in api.validate([write_case(case, tmp_path)])}
    assert uv_outcome(index, document, machine) == label
    assert variantlib_outcome(document) == label


@measures("NV210")
def test_uv_ignores_a_provider_with_a_malformed_requirement(index: UvIndex) -> None:
    document = lint_document("clean")
    document["providers"]["nvidia"]["requires"] = ["nvidia-variant-provider >> 0.0.1"]
    assert uv_outcome(index, document, H100) == "null"
    # variantlib does not check the requirement of an installed plugin.
    assert variantlib_outcome(document) == "cu12"


def test_only_errors_are_refused() -> None:
    """`validate` fails for whatever a client refuses."""
    for case, outcomes in CASES.items():
        if REFUSED in outcomes:
            assert SEVERITY_OF[case[:5]] == ERROR


# The near miss of NV211 has an old schema version, because it needs a marker.
NEAR_MISSES = {case[:5] for case in LINT_CASES if "near-miss" in case} - {"NV211"}


@pytest.mark.parametrize("code", some_of(((c,) for c in sorted(NEAR_MISSES)), 7))
def test_clients_accept_near_misses(code: str, index: UvIndex) -> None:
    document = lint_document(f"{code}-near-miss")
    assert uv_outcome(index, document, H100) != REFUSED
    assert variantlib_outcome(document) != REFUSED


@measures("NV301", "NV302")
@pytest.mark.parametrize("feature", ["compute_capability", "sm_arch"])
def test_unknown_features_and_values_give_the_cpu_build(
    feature: str, index: UvIndex, tmp_path: Path
) -> None:
    """Both clients install the CPU build without a message."""
    document = lint_document("clean")
    for properties in document["variants"].values():
        if properties:
            properties["nvidia"][feature] = ["9.0"]
    path = tmp_path / "x.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    code = "NV302" if feature == "sm_arch" else "NV301"
    assert code in {f.code for f in api.validate([path])}
    assert uv_outcome(index, document, H100) == "null"
    assert variantlib_outcome(document) == "null"


@measures("NV208")
def test_variantlib_drops_a_feature_without_values(index: UvIndex) -> None:
    """A build for Blackwell is selected for a Hopper GPU."""
    document = lint_document("clean")
    document["variants"] = {
        "null": {},
        "cu12": {
            "nvidia": {"cuda_version_lower_bound": ["12.0"], "sm_arch": []},
        },
    }
    assert uv_outcome(index, document, H100) == REFUSED
    assert variantlib_outcome(document) == "cu12"


# Directories of releases

CLEAN: Any = lint_document("clean")
FAILS = "fails"


def without(label: str) -> Any:
    variants = {k: v for k, v in CLEAN["variants"].items() if k != label}
    return {**CLEAN, "variants": variants}


def of(label: str, *targets: str) -> Any:
    """Return the ``variant.json`` of a label, or one with other targets."""
    properties = {"nvidia": {"sm_arch": targets}}
    properties = properties if targets else CLEAN["variants"][label]
    return {**CLEAN, "variants": {label: properties}}


def copy_fixture(name: str) -> Callable[[Release], object]:
    """Return a function that makes a document of fixtures/lint the metadata."""
    data = lint_text(name)
    return lambda release: release.metadata.write_bytes(data)


DAMAGED: dict[str, tuple[Callable[[Release], object], str | None]] = {
    "NV100": (copy_fixture("NV100-not-json"), FAILS),
    "NV100 encoding": (copy_fixture("NV100-not-utf-8"), FAILS),
    "NV101": (copy_fixture("NV101-byte-order-mark"), FAILS),
    "NV102": (copy_fixture("NV102-key-twice"), "cu12"),
    "NV103": (copy_fixture("NV103-nan"), FAILS),
    "NV401": (
        lambda r: r.metadata.rename(r.files / f"{r.project}-1.0-variants.json"),
        None,
    ),
    "NV402": (lambda r: r.wheel.unlink(), "null"),
    "NV403": (lambda r: r.metadata.write_text(json.dumps(without("cu12"))), "null"),
    "NV404": (lambda r: r.rewrite(None), FAILS),
    # uv selects by the file of the index, and then uses the metadata of the wheel.
    "NV405 for this machine": (lambda r: r.rewrite(of("cu12", "90_real")), "cu12"),
    "NV405 for others": (lambda r: r.rewrite(of("cu12", "50_real")), FAILS),
    "NV409": (lambda r: r.metadata.unlink(), None),
    "NV410": (lambda r: os.utime(r.metadata, (1, 1)), "cu12"),
    "NV411": (lambda r: r.wheel.write_bytes(b"<html>"), FAILS),
    "NV412": (lambda r: r.rewrite(of("cu13")), FAILS),
    "NV413 version": (lambda r: r.edit("Version: 1.0", "Version: 1.1"), FAILS),
    "NV413 name": (lambda r: r.edit("Name: ", "Name: x-"), FAILS),
    "NV414": (lambda r: r.edit("Tag: py3-none-any", "Tag: py2-none-any"), "cu12"),
    "NV415": (lambda r: r.wheel.rename(r.files / r.wheel.name.capitalize()), "cu12"),
    "NV416": (
        lambda r: stub_wheel(
            *(r.files, r.project, "1.0", "cu12"),
            variant_json=of("cu12"),
            tag="py2-none-any",
            requires=["x"],
        ),
        "cu12",
    ),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_uv_installs_from_a_damaged_release(
    case: str, index: UvIndex, root: Path
) -> None:
    """Check that uv installs cu12 only without the damage; ``None`` is the non-variant
    wheel."""
    damage, expected = DAMAGED[case]
    release = Release(index, root)
    damage(release)
    release.link()
    assert case[:5] in {f.code for f in api.validate([release.files])}
    if expected == FAILS:
        with pytest.raises(InstallError):
            index.install([release.project], H100)
    else:
        assert index.install([release.project], H100) == [expected]


@pytest.mark.parametrize(
    ("case", "outcome"),
    [
        ("NV100-not-json", REFUSED),
        ("NV100-not-utf-8", REFUSED),
        ("NV101-byte-order-mark", REFUSED),
        ("NV102-key-twice", "cu12"),
        ("NV103-nan", "cu12"),
    ],
)
def test_variantlib_reads_with_the_parser_of_python(case: str, outcome: str) -> None:
    data = lint_text(case)
    try:
        document = json.loads(data.decode())
    except ValueError:
        assert outcome == REFUSED
    else:
        assert variantlib_outcome(document) == outcome


@measures("NV114")
def test_uv_installs_nothing_without_a_fallback(index: UvIndex, root: Path) -> None:
    release = Release(index, root)
    release.metadata.write_text(json.dumps(without("null")), encoding="utf-8")
    for label in (None, "null"):
        (release.files / wheel_name(release.project, "1.0", label)).unlink()
    release.link()
    assert "NV114" in {f.code for f in api.validate([release.files])}
    with pytest.raises(InstallError, match="unsupported wheel variants"):
        index.install([release.project], forced("11.8", "8.0"))


@measures("NV408")
def test_uv_refuses_variant_markers(index: UvIndex, root: Path) -> None:
    release = Release(index, root)
    for wheel in release.files.glob("*.whl"):
        wheel.unlink()
    release.metadata.unlink()
    stub_wheel(
        release.files,
        release.project,
        "1.0",
        requires=["numpy; 'nvidia' in variant_namespaces"],
    )
    release.link()
    assert "NV408" in {f.code for f in api.validate(release.files.glob("*.whl"))}
    with pytest.raises(InstallError, match="could not be parsed"):
        index.install([release.project], H100, dependencies=True)


# The contents of wheels


@pytest.mark.parametrize("code", CONTENT)
def test_uv_does_not_read_the_libraries_of_a_wheel(code: str, tmp_path: Path) -> None:
    wheel, (cuda, sm), label = CONTENT[code]
    with uv_index(tmp_path) as index:
        folder = tmp_path / "index" / "demo"
        folder.mkdir()
        path = wheel.write(folder)
        assert code in {f.code for f in api.validate([path])}
        if wheel.label is not None:
            stub_wheel(folder, "demo", "1.0")
            own = read_wheel(str(path)).variant_json
            assert own is not None
            (folder / variants_json_name("demo", "1.0")).write_bytes(own)
        names = sorted(item.name for item in folder.iterdir())
        links = "".join(f'<a href="{name}">{name}</a>' for name in names)
        (folder / "index.html").write_text(f"<!DOCTYPE html>{links}", encoding="utf-8")
        assert index.install(["demo"], forced(cuda, sm)) == [label]


# Files that variantlib writes

PYPROJECT = """
[variant.default-priorities]
namespace = ["nvidia"]

[variant.providers.nvidia]
requires = ["nvidia-variant-provider>=0.0.1,<1.0.0"]
plugin-api = "nvidia_variant_provider.plugin:NvidiaVariantPlugin"
"""


def make_variant(folder: Path, *options: str) -> None:
    """Let variantlib make a labelled wheel from the non-variant wheel in ``folder``."""
    pyproject = folder.parent / "pyproject.toml"
    pyproject.write_text(PYPROJECT, encoding="utf-8")
    wheel = folder / "torch-2.9.1-py3-none-any.whl"
    run_command(
        "make-variant",
        *("--file", str(wheel), "--output-directory", str(folder)),
        # Without isolation, variantlib queries this provider.
        *("--no-isolation", "--pyproject-toml", str(pyproject), *options),
    )


def labelled(label: str, lower: str, targets: Sequence[str]) -> list[str]:
    """Return the options for a label, with the values in this order."""
    return [
        *("--variant-label", label, "--property"),
        f"nvidia :: cuda_version_lower_bound :: {lower}",
        *(f"nvidia :: sm_arch :: {target}" for target in targets),
    ]


def test_lint_accepts_what_variantlib_writes(tmp_path: Path) -> None:
    folder = tmp_path / "torch"
    folder.mkdir()
    stub_wheel(folder, "torch", "2.9.1")
    make_variant(folder, "--null-variant")
    old = ["50_real", "60_real", "70_real", "80_real"]
    make_variant(folder, *labelled("cu126", "12.0", ["90_real", *old]))
    targets = ["120_virtual", "120_real", "80_real", "90_real", "100_real"]
    make_variant(folder, *labelled("cu130", "13.0", targets))
    run_command("generate-index-json", "--directory", str(folder))
    files = sorted(path.name for path in folder.iterdir())
    assert files == [
        "torch-2.9.1-py3-none-any-cu126.whl",
        "torch-2.9.1-py3-none-any-cu130.whl",
        "torch-2.9.1-py3-none-any-null.whl",
        "torch-2.9.1-py3-none-any.whl",
        "torch-2.9.1-variants.json",
    ]
    assert api.validate([folder]) == []
    assert api.validate(folder.iterdir()) == []


def test_variantlib_writes_metadata_with_defects_of_meaning(tmp_path: Path) -> None:
    """The plugin checks single values, but not combinations of values."""
    folder = tmp_path / "torch"
    folder.mkdir()
    stub_wheel(folder, "torch", "2.9.1")
    modern = ["80_real", "90_real", "100_real", "120_real"]
    make_variant(folder, *labelled("cu130", "13.0", ["70_real", *modern]))
    make_variant(
        folder,
        *("--variant-label", "cu128", "--property"),
        "nvidia :: cuda_version_lower_bound :: 12.8",
        "nvidia :: cuda_version_upper_bound :: 12.8",
    )
    run_command("generate-index-json", "--directory", str(folder))
    codes = {f.code for f in api.validate([folder]) if f.severity != NOTE}
    assert codes == {"NV304", "NV306", "NV307", "NV315"}
    assert {RULES[code].severity for code in codes} == {ERROR, WARNING}


@measures("NV407")
def test_variantlib_keeps_the_first_of_two_wheels_that_differ(tmp_path: Path) -> None:
    """uv would use the metadata, which is wrong for one of the wheels."""
    document = lint_document("clean")
    for tag, target in ("py3-none-any", "80_real"), ("py3-none-win32", "90_real"):
        features = {"cuda_version_lower_bound": ["12.0"], "sm_arch": [target]}
        own = {**document, "variants": {"cu12": {"nvidia": features}}}
        stub_wheel(tmp_path, "torch", "2.9.1", "cu12", variant_json=own, tag=tag)
    # Rules on the contents of wheels do not apply: the wheels are stubs.
    findings = api.validate([tmp_path], ignore=["NV5"])
    assert {f.code for f in findings} == {"NV407", "NV409"}
    run_command("generate-index-json", "--directory", str(tmp_path))
    findings = api.validate([tmp_path], ignore=["NV5"])
    assert {f.code for f in findings if f.severity == ERROR} == {"NV405", "NV407"}


@measures("NV406")
def test_variantlib_keeps_the_first_of_two_orders(tmp_path: Path) -> None:
    document = lint_document("clean")
    document["providers"]["x86_64"] = {"requires": ["provider-variant-x86-64"]}
    for label, names in (
        ("cu12", ["nvidia", "x86_64"]),
        ("cu13", ["x86_64", "nvidia"]),
    ):
        own = {
            **document,
            "default-priorities": {"namespace": names},
            "variants": {label: document["variants"][label]},
        }
        stub_wheel(tmp_path, "torch", "2.9.1", label, variant_json=own)
    run_command("generate-index-json", "--directory", str(tmp_path))
    written = json.loads((tmp_path / variants_json_name("torch", "2.9.1")).read_bytes())
    # Which of the wheels comes first depends on the order of the directory.
    first = written["default-priorities"]["namespace"]
    assert first in (["nvidia", "x86_64"], ["x86_64", "nvidia"])
    findings = api.validate([tmp_path], ignore=["NV5"])
    assert "NV406" in {f.code for f in findings}


# All rules


def test_every_claim_about_clients_is_measured() -> None:
    """A new rule needs a case in one of the tables, or a test with `measures`."""
    tables = (*CASES, *OTHER_MACHINES, *DAMAGED, *CONTENT, *ON_PAGES)
    measured = {case[:5] for case in tables} | MEASURED
    missing = set(RULES) - measured
    assert not missing, "no test here measures what uv and variantlib do"
    assert measured <= set(RULES)
