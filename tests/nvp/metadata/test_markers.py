"""Variant markers against the text of PEP 825, and against `packaging` for the rest."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.markers import Marker
from packaging.requirements import Requirement

from nvidia_variant_provider.errors import InputError
from nvidia_variant_provider.resolution.inputs import marker_holds
from nvp.builds.needs import requirements_on
from nvp.metadata.requirements import (
    NON_VARIANT,
    SelectedVariant,
    evaluate_requirement,
    has_variant_markers,
    holds,
)

CUDA = SelectedVariant(
    label="cuda12.6",
    properties=frozenset(
        {
            ("nvidia", "cuda_version_lower_bound", "12.0"),
            ("nvidia", "sm_arch", "90_real"),
        }
    ),
)
NULL = SelectedVariant(label="null")

LINUX = "platform_system == 'Linux'"


def kept(marker: str, variant: SelectedVariant = CUDA) -> str | None:
    return evaluate_requirement(f"dep; {marker}", variant)


class TestPepExamples:
    """The seven examples of PEP 825, "Evaluating variant markers"."""

    foobar = SelectedVariant(
        label="foobar", properties=frozenset({("foo", "bar", "baz")})
    )
    examples = (
        ('dep1; variant_label == "foobar"', (True, False, False)),
        ('dep2; variant_label != "null"', (True, False, True)),
        ('dep3; variant_label == ""', (False, False, True)),
        ('dep4; "foo" in variant_namespaces', (True, False, False)),
        ('dep5; "foo :: bar" in variant_features', (True, False, False)),
        ('dep6; "foo :: bar :: baz" in variant_properties', (True, False, False)),
        ('dep7; "foo::bar::baz" in variant_properties', (True, False, False)),
    )

    @pytest.mark.parametrize(("line", "expected"), examples)
    def test_variant_null_and_non_variant_wheel(
        self, line: str, expected: tuple[bool, bool, bool]
    ) -> None:
        variants = (self.foobar, NULL, NON_VARIANT)
        results = [evaluate_requirement(line, variant) for variant in variants]
        name = line.partition(";")[0]
        assert results == [name if holds else None for holds in expected]

    def test_a_property_that_the_machine_does_not_support_is_not_in_the_set(
        self,
    ) -> None:
        # The label has 110_real and 120_real; this machine supports 120_real.
        variant = SelectedVariant(
            label="x", properties=frozenset({("nvidia", "sm_arch", "120_real")})
        )
        marker = '"nvidia :: sm_arch :: {}" in variant_properties'
        assert kept(marker.format("120_real"), variant) == "dep"
        assert kept(marker.format("110_real"), variant) is None

    @pytest.mark.parametrize(
        "marker",
        [
            '"nvidia :: sm_arch" in variant_properties',
            '"nvidia" in variant_features',
            '"nvidia :: sm_arch" in variant_namespaces',
        ],
    )
    def test_each_set_has_members_of_one_kind(self, marker: str) -> None:
        assert kept(marker) is None


class TestOtherMarkersStay:
    @pytest.mark.parametrize(
        ("marker", "left"),
        [
            (f"{LINUX} and 'nvidia' in variant_namespaces", LINUX),
            (f"'nvidia' in variant_namespaces and {LINUX}", LINUX),
            (f"('nvidia' in variant_namespaces) and ({LINUX})", LINUX),
            (f"'amd' in variant_namespaces or {LINUX}", LINUX),
            (
                f"{LINUX} and (extra == 'a' or extra == 'b' or variant_label == '')",
                f"{LINUX} and (extra == 'a' or extra == 'b')",
            ),
            (
                f"{LINUX} and variant_label != '' and python_version >= '3.9'",
                f"{LINUX} and python_version >= '3.9'",
            ),
            (
                f"extra == 'a' or {LINUX} and 'nvidia' in variant_namespaces",
                f"extra == 'a' or {LINUX}",
            ),
            (
                "variant_label != 'null' and os_name  not   in 'nt'",
                "os_name not in 'nt'",
            ),
        ],
    )
    def test_what_is_left(self, marker: str, left: str) -> None:
        assert kept(marker) == f"dep; {left}"

    @pytest.mark.parametrize(
        "marker",
        [
            f"{LINUX} and 'amd' in variant_namespaces",
            f"({LINUX} or extra == 'a') and variant_label == 'null'",
        ],
    )
    def test_a_dependency_of_another_variant_is_left_out(self, marker: str) -> None:
        assert kept(marker) is None

    def test_one_that_holds_in_any_case_has_no_marker(self) -> None:
        assert kept(f"{LINUX} or 'nvidia' in variant_namespaces") == "dep"

    @pytest.mark.parametrize(
        "line",
        [
            "dep",
            "dep>=1; python_version >= '3.9'",
            "dep; platform_version == 'variant_label'",
            'dep[x]>=1 ;  os_name=="nt" or (extra == "a")',
        ],
    )
    def test_a_dependency_without_variant_markers_is_unchanged(self, line: str) -> None:
        assert not has_variant_markers(line)
        assert evaluate_requirement(line, CUDA) == line

    def test_a_url_keeps_the_white_space_before_its_marker(self) -> None:
        line = f"dep @ https://a.example/x;y.whl ; {LINUX} and variant_label != ''"
        settled = evaluate_requirement(line, CUDA)
        assert settled == f"dep @ https://a.example/x;y.whl ; {LINUX}"
        assert Requirement(settled).url == "https://a.example/x;y.whl"


class TestOperators:
    @pytest.mark.parametrize(
        ("comparison", "holds"),
        [
            ("variant_label == 'cuda12.6'", True),
            ("'cuda12.6' == variant_label", True),
            ("variant_label === 'cuda12.6'", True),
            ("variant_label != 'cuda12.6'", False),
            ("variant_label in 'cuda12.6 cuda12.8'", True),
            ("'cuda' in variant_label", True),
            ("variant_label in 'cuda'", False),
            ("'cuda' not in variant_label", False),
            ('"nvidia" in variant_namespaces', True),
            ("'nvidia' not in variant_namespaces", False),
            ("'nvidi' in variant_namespaces", False),
            ("'nvidia::sm_arch' in variant_features", True),
            ("' nvidia  ::\tsm_arch ' in variant_features", True),
            ("'nvidia :: sm_arch :: 90_real' not   in variant_properties", False),
            ("'sm_arch' in variant_features", False),
        ],
    )
    def test_holds(self, comparison: str, holds: bool) -> None:
        assert kept(comparison) == ("dep" if holds else None)

    @pytest.mark.parametrize(
        ("marker", "message"),
        [
            ("variant_label > 'a'", "> is not defined for variant_label"),
            ("variant_label ~= 'a'", "~= is not defined"),
            ("variant_namespaces == 'nvidia'", "is a set"),
            ("variant_namespaces in 'nvidia'", "is a set"),
            ("'nvidia' == variant_namespaces", "is a set"),
            ("variant_label == os_name", "quoted string"),
            ("variant_label", "expected an operator"),
            ("(variant_label == 'a'", "closing parenthesis"),
            ("variant_label == 'a' os_name", "end of the marker"),
            ("variant_label == 'a", "unexpected"),
            ("'a' == 'b' & variant_label == 'a'", "unexpected '&'"),
            ("(" * 200 + "variant_label == 'a'" + ")" * 200, "nested too deeply"),
        ],
    )
    def test_a_use_that_the_pep_does_not_define_is_an_error(
        self, marker: str, message: str
    ) -> None:
        with pytest.raises(InputError, match=message):
            kept(marker)


COMPARISONS = {
    "variant_label == 'cuda12.6'": True,
    "'null' == variant_label": False,
    "'nvidia' in variant_namespaces": True,
    "'nvidia :: sm_arch :: 80_real' in variant_properties": False,
    "os_name == 'posix'": None,
    "sys_platform == 'linux'": None,
    "extra == 'a'": None,
}


def trees(*comparisons: str) -> st.SearchStrategy[str]:
    def deeper(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        joined = st.tuples(inner, st.sampled_from(["and", "or"]), inner).map(" ".join)
        return joined | inner.map(lambda text: f"({text})")

    leaves = st.sampled_from(comparisons or sorted(COMPARISONS))
    return st.recursive(leaves, deeper, max_leaves=12)


@given(marker=trees())
def test_the_rest_means_what_the_whole_marker_means(marker: str) -> None:
    settled = kept(marker)
    # `packaging` cannot read variant markers, but knows comparisons that always or
    # never hold: those that stand for the variant markers here.
    whole = marker
    for comparison, known in COMPARISONS.items():
        if known is not None:
            always = f"python_version {'>' if known else '<'} '3'"
            whole = whole.replace(comparison, always)
    expected = Requirement(f"dep; {whole}").marker
    assert expected is not None
    assert settled is None or not has_variant_markers(settled)
    rest = Requirement(settled).marker if settled is not None else None
    for os_name, platform, extra in itertools.product(
        ("posix", "nt"), ("linux", "win32"), ("", "a")
    ):
        machine = {"os_name": os_name, "sys_platform": platform, "extra": extra}
        holds = settled is not None and (rest is None or rest.evaluate(machine))
        assert holds is expected.evaluate(machine)


@given(line=st.text(alphabet="dep;@ ()'\"=<>andorit_variant_label:", max_size=60))
def test_any_text_is_evaluated_or_refused(line: str) -> None:
    try:
        settled = evaluate_requirement(line, CUDA)
    except InputError:
        return
    assert settled is None or settled == line or not has_variant_markers(settled)


@pytest.mark.parametrize(
    "marker", ['"x" in extras', 'extra ~= "1"', 'python_version ~= "3"']
)
def test_a_marker_that_cannot_be_evaluated_does_not_hold(marker: str) -> None:
    """pip refuses such a requirement, but not the page of its project."""
    line = f'dep; sys_platform == "linux" and {marker}'
    assert requirements_on([line, "other"], "linux_x86_64") == ("other",)


def test_packaging_that_does_not_know_a_variable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def evaluate(*_: object) -> bool:
        raise KeyError("extras")  # as packaging 26.2

    monkeypatch.setattr(Marker, "evaluate", evaluate)
    assert not holds(Requirement('dep; "x" in extras'), {})
    assert marker_holds('"x" in extras') is None


def test_many_spaces_take_linear_time() -> None:
    """In quadratic time, this test would take half an hour."""
    spaces = " " * 1_000_000
    member = f"nvidia{spaces}::{spaces}sm_arch"
    assert kept(f'"{member}" in variant_features') == "dep"
    assert kept(f'"{member}{spaces}x" in variant_features') is None


@given(
    marker=trees(
        "os_name == 'posix'",
        "sys_platform != 'linux'",
        "python_version >= '3.10'",
        "python_version in '3.9 3.12'",
        "'3.11' > python_version",
    )
)
def test_a_requirement_counts_if_it_may_apply_on_the_platform(marker: str) -> None:
    marker = f"{marker} and platform_system"
    expected = Requirement(f"dep; {marker} == 'Linux'").marker
    assert expected is not None
    here = {"os_name": "posix", "sys_platform": "linux", "platform_system": "Linux"}
    applies = any(
        expected.evaluate({**here, "python_version": f"3.{minor}"})
        for minor in range(8, 16)
    )
    text = f"dep; {marker} == 'Linux'"
    assert bool(requirements_on([text], "linux_x86_64")) is applies


@given(
    marker=trees(
        "python_version >= '3.10'",
        "python_version in '3.9 3.12'",
        "'3.11' > python_version",
        "python_full_version != '3.11.*'",
    ),
    pythons=st.sets(st.integers(9, 14), min_size=1),
)
def test_a_requirement_counts_if_it_applies_on_all_pythons(
    marker: str, pythons: set[int]
) -> None:
    expected = Requirement(f"dep; {marker}").marker
    assert expected is not None
    applies = all(
        expected.evaluate(
            {
                "python_version": f"3.{minor}",
                "python_full_version": f"3.{minor}.{patch}",
            }
        )
        for minor in pythons
        for patch in (0, 99)
    )
    found = requirements_on([f"dep; {marker}"], "linux_x86_64", pythons=pythons)
    assert bool(found) is applies


def test_a_requirement_on_some_patch_releases_does_not_count() -> None:
    lines = ["dep; python_full_version < '3.11.5'", "other; python_version < '3.12'"]
    assert requirements_on(lines, "linux_x86_64", pythons={11}) == (lines[1],)
