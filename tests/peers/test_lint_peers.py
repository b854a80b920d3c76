"""What the linter finds, compared with what uv 0.13.8 and variantlib 0.2.2 do.

The machine is always the same, CUDA 12.9 and an H100. When a case starts to fail, a
peer has changed: correct the case, the `clients` of the rule, and ``docs/rules.md``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from support.documents import forced
from support.outcomes import REFUSED, uv_outcome
from support.uv_installer import InstallError, UvIndex, uv_index
from support.variantlib_peer import isolate, run_command, variantlib_outcome
from support.wheels import stub_wheel, variants_json_name, wheel_name

from nvidia_variant_provider.lint.rules import ERROR, NOTE, RULES, WARNING
from nvidia_variant_provider.lint.runner import check_paths

FOLDER = Path(__file__).parents[2] / "fixtures" / "lint"
H100 = forced("12.9", "9.0")

# What uv and variantlib select from the documents of fixtures/lint/.

REFUSED_BY_BOTH = [
    "NV107-no-namespace-listed",
    "NV108-null",
    "NV108-wrong-type",
    "NV109-unknown-priority",
    "NV109-unknown-provider-key",
    "NV110-empty-second-source",
    "NV110-no-source",
    "NV110-two-sources",
    "NV111-no-provider",
    "NV111-not-in-priorities",
    "NV112-undeclared-namespace",
    "NV113-null-with-properties",
    "NV116-feature-order-incomplete",
    "NV116-feature-order-missing",
    "NV117-feature-order-of-a-plugin",
    "NV117-plugin-api-without-plugin",
    "NV201-dash",
    "NV201-malformed-label",
    "NV203-malformed-namespace",
    "NV204-malformed-feature",
    "NV204-malformed-feature-of-a-label",
    "NV205-malformed-value",
    "NV207-value-twice",
    "NV208-no-value",
    "NV211-malformed-marker",
]

SILENT = {
    "NV115-same-properties": "cu12",
    "NV206-not-sorted": "cu12",
    # The other values still match; without them, another build would be selected.
    "NV302-unknown-value": "cu12",
    "NV303-two-lower-bounds": "cu12",
    "NV304-empty-range": "cu12",
    "NV305-upper-bound": "cu12",
    "NV306-no-sm-arch": "cu12",
    "NV309-label-says-otherwise": "null",
    "NV310-strict-bound": "cu126",
    "NV311-architecture-specific": "cu12",
    "NV315-shadowed": "cu12",
}

DIFFERENT = {
    "NV104-no-schema": (REFUSED, "cu12"),
    "NV105-unknown-major": ("cu12", "cu12"),
    "NV105-unknown-schema": ("cu12", "cu12"),
    # The document has the shape of 0.2.0 under the URL of another version.
    "NV106-old-version": ("cu12", "cu12"),
    "NV106-without-providers": ("null", REFUSED),
    "NV107-key-missing": ("null", REFUSED),
    "NV109-unknown-key": (REFUSED, "cu12"),
    "NV110-empty-source": ("cu12", REFUSED),
    "NV113-empty-label": ("cu12", REFUSED),
    "NV113-empty-namespace": ("cu12", REFUSED),
    "NV202-label-too-long": ("cu12_with_everything", "cu12_with_everything"),
    "NV207-namespace-twice": (REFUSED, "cu12"),
    "NV208-static-feature": ("cu12", REFUSED),
    "NV209-malformed-plugin-api": ("cu12", REFUSED),
    "NV314-marker": ("null", "cu12"),
    "NV314-optional": ("null", "null"),
    "NV314-plugin-api": ("null", "cu12"),
    "NV314-url": ("null", "cu12"),
    "NV314-version": ("null", "cu12"),
}

SEVERITY_OF: dict[str, str] = {code: rule.severity for code, rule in RULES.items()}

CASES: dict[str, tuple[str | None, str | None]] = {
    **dict.fromkeys(REFUSED_BY_BOTH, (REFUSED, REFUSED)),
    **{case: (label, label) for case, label in SILENT.items()},
    **DIFFERENT,
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("uv")


@pytest.fixture(scope="module")
def index(root: Path) -> Iterator[UvIndex]:
    with uv_index(root) as value:
        yield value


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, value in H100.items():
        monkeypatch.setenv(name, value)
    isolate(monkeypatch, tmp_path)


@pytest.mark.parametrize("case", CASES)
def test_the_clients_select_or_refuse_as_the_case_says(
    case: str, index: UvIndex
) -> None:
    document = json.loads((FOLDER / f"{case}.json").read_bytes())
    assert uv_outcome(index, document, H100) == CASES[case][0]
    assert variantlib_outcome(document) == CASES[case][1]


def test_only_errors_are_refused() -> None:
    """`validate` fails for whatever a client refuses."""
    for case, outcomes in CASES.items():
        if REFUSED in outcomes:
            assert SEVERITY_OF[case[:5]] == ERROR


# The near miss of NV211 is of an old version, since it needs a marker.
NEAR_MISSES = {path.name[:5] for path in FOLDER.glob("*-near-miss.json")} - {"NV211"}


@pytest.mark.parametrize("code", sorted(NEAR_MISSES))
def test_near_misses_are_accepted(code: str, index: UvIndex) -> None:
    document = json.loads((FOLDER / f"{code}-near-miss.json").read_bytes())
    assert uv_outcome(index, document, H100) != REFUSED
    assert variantlib_outcome(document) != REFUSED


@pytest.mark.parametrize("feature", ["compute_capability", "sm_arch"])
def test_unknown_features_and_values_give_the_cpu_build(
    feature: str, index: UvIndex, tmp_path: Path
) -> None:
    """NV301 and NV302: the clients silently leave the GPU unused."""
    document = json.loads((FOLDER / "clean.json").read_bytes())
    for properties in document["variants"].values():
        if properties:
            properties["nvidia"][feature] = ["9.0"]
    path = tmp_path / "x.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    code = "NV302" if feature == "sm_arch" else "NV301"
    assert code in {f.code for f in check_paths([path])}
    assert uv_outcome(index, document, H100) == "null"
    assert variantlib_outcome(document) == "null"


def test_a_feature_without_value_is_dropped_by_variantlib(index: UvIndex) -> None:
    """NV208: variantlib ignores the feature, and installs the build on any GPU."""
    document = json.loads((FOLDER / "clean.json").read_bytes())
    document["variants"] = {
        "null": {},
        "cu12": {
            "nvidia": {"cuda_version_lower_bound": ["12.0"], "sm_arch": []},
        },
    }
    assert uv_outcome(index, document, H100) == REFUSED
    assert variantlib_outcome(document) == "cu12"


# Folders of releases

CLEAN: Any = json.loads((FOLDER / "clean.json").read_bytes())
FAILS = "fails"


def without(label: str) -> Any:
    variants = {k: v for k, v in CLEAN["variants"].items() if k != label}
    return {**CLEAN, "variants": variants}


def of(label: str, *targets: str) -> Any:
    """Return the ``variant.json`` of a label, or one with other targets."""
    properties = {"nvidia": {"sm_arch": targets}}
    properties = properties if targets else CLEAN["variants"][label]
    return {**CLEAN, "variants": {label: properties}}


class Release:
    """A release of version 1.0 in the index of uv, which a test then damages."""

    def __init__(self, index: UvIndex, root: Path) -> None:
        self.project = index.publish(CLEAN)
        self.files = root / "index" / self.project
        self.metadata = self.files / variants_json_name(self.project, "1.0")
        self.wheel = self.files / wheel_name(self.project, "1.0", "cu12")

    def rewrite(self, variant_json: Any) -> None:
        """Build the wheel of cu12 again."""
        stub_wheel(self.files, self.project, "1.0", "cu12", variant_json=variant_json)

    def link(self) -> None:
        """Write the page of the project again."""
        page = self.files / "index.html"
        names = [path.name for path in self.files.iterdir() if path != page]
        links = "".join(f'<a href="{name}">{name}</a>\n' for name in sorted(names))
        page.write_text(f"<!DOCTYPE html>\n{links}", encoding="utf-8")


SPOILT: dict[str, tuple[Callable[[Release], object], str | None]] = {
    "NV401": (
        lambda r: r.metadata.rename(r.files / f"{r.project}-1.0-variants.json"),
        None,
    ),
    "NV402": (lambda r: r.wheel.unlink(), "null"),
    "NV403": (lambda r: r.metadata.write_text(json.dumps(without("cu12"))), "null"),
    "NV404": (lambda r: r.rewrite(None), FAILS),
    # uv selects by the file of the index, and then believes the wheel.
    "NV405 for this machine": (lambda r: r.rewrite(of("cu12", "90_real")), "cu12"),
    "NV405 for others": (lambda r: r.rewrite(of("cu12", "50_real")), FAILS),
    "NV409": (lambda r: r.metadata.unlink(), None),
    "NV411": (lambda r: r.wheel.write_bytes(b"<html>"), FAILS),
    "NV412": (lambda r: r.rewrite(of("cu13")), FAILS),
}


@pytest.mark.parametrize("case", SPOILT)
def test_uv_installs_or_fails_as_the_case_says(
    case: str, index: UvIndex, root: Path
) -> None:
    """Without the defect uv installs cu12; ``None`` is the non-variant wheel."""
    spoil, expected = SPOILT[case]
    release = Release(index, root)
    spoil(release)
    release.link()
    assert case[:5] in {f.code for f in check_paths([release.files])}
    if expected == FAILS:
        with pytest.raises(InstallError):
            index.install([release.project], H100)
    else:
        assert index.install([release.project], H100) == [expected]


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
        # Without isolation, variantlib asks this provider.
        *("--no-isolation", "--pyproject-toml", str(pyproject), *options),
    )


def labelled(label: str, lower: str, targets: Sequence[str]) -> list[str]:
    """Return the options for a label, with the values in this order."""
    return [
        *("--variant-label", label, "--property"),
        f"nvidia :: cuda_version_lower_bound :: {lower}",
        *(f"nvidia :: sm_arch :: {target}" for target in targets),
    ]


def test_what_variantlib_writes_is_clean(tmp_path: Path) -> None:
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
    assert check_paths([folder]) == []
    assert check_paths(folder.iterdir()) == []


def test_the_linter_finds_what_variantlib_lets_pass(tmp_path: Path) -> None:
    """variantlib checks each value, but not what the values mean together."""
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
    found = {f.code for f in check_paths([folder]) if f.severity != NOTE}
    assert found == {"NV304", "NV306", "NV307", "NV315"}
    assert {RULES[code].severity for code in found} == {ERROR, WARNING}


def test_wheels_of_one_label_that_differ(tmp_path: Path) -> None:
    """NV407: variantlib writes what one wheel says, and uv would believe it."""
    document = json.loads((FOLDER / "clean.json").read_bytes())
    for tag, target in ("py3-none-any", "80_real"), ("py3-none-win32", "90_real"):
        features = {"cuda_version_lower_bound": ["12.0"], "sm_arch": [target]}
        own = {**document, "variants": {"cu12": {"nvidia": features}}}
        stub_wheel(tmp_path, "torch", "2.9.1", "cu12", variant_json=own, tag=tag)
    # Rules on the contents of wheels do not apply: the wheels are stubs.
    found = check_paths([tmp_path], ignore=["NV5"])
    assert {f.code for f in found} == {"NV407", "NV409"}
    run_command("generate-index-json", "--directory", str(tmp_path))
    found = check_paths([tmp_path], ignore=["NV5"])
    assert {f.code for f in found if f.severity == ERROR} == {"NV405", "NV407"}
