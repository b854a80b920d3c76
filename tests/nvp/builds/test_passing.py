"""The releases that were passed over, and their common reason."""

from __future__ import annotations

from dataclasses import replace

from packaging.version import Version

from nvidia_variant_provider.machine.environment import CudaVersion
from nvp.builds.needs import parse_backend
from nvp.builds.page import ANY_PYTHON, Build, Visibility
from nvp.builds.stepping_back import common_reason, find_passed_over
from nvp.builds.verdicts import UNKNOWN, Judgement

DRIVER = "it needs a driver for CUDA 13, but this one is for CUDA 12.8"
SHOW = Visibility(action="show")


def build(
    version: str, reason: str | None = None, *, tag: str = "cp311", cuda: int = 13
) -> tuple[Build, Visibility]:
    """Return a wheel, which is yanked if there is a ``reason``."""
    judgement = Judgement(
        verdict="cannot" if reason else "runs",
        reasons=(f"{reason} (table of builds, 2026-11-21)",) if reason else (),
        cuda=CudaVersion(cuda, 0),
    )
    made = Build(
        file=f"torch-{version}-{tag}-{tag}-manylinux_2_28_x86_64.whl",
        version=Version(version),
        backend=parse_backend(Version(version).local),
        judgement=judgement,
        platform="linux_x86_64",
        pythons=frozenset({int(tag[3:])}) if tag[3:].isdigit() else ANY_PYTHON,
    )
    return made, Visibility(action="yank", reason=reason) if reason else SHOW


TAKEN = build("2.10.0")


def passed_over(*others: tuple[Build, Visibility]) -> list[tuple[list[str], str]]:
    groups = find_passed_over([TAKEN, *others], TAKEN[0])
    return [(list(map(str, group.versions)), group.reason) for group in groups]


def test_releases_with_one_reason_are_one_group() -> None:
    versions = ("2.15.0", "2.9.0", "2.11.0", "2.14.1")
    found = passed_over(*(build(version, DRIVER) for version in versions))
    assert found == [(["2.15.0", "2.14.1", "2.11.0"], DRIVER)]


def test_another_reason_in_between_makes_three_groups() -> None:
    found = passed_over(
        build("2.15.0", DRIVER), build("2.14.0", "it lies"), build("2.13.0", DRIVER)
    )
    assert [versions for versions, _ in found] == [["2.15.0"], ["2.14.0"], ["2.13.0"]]


def test_a_release_with_a_build_that_is_shown_was_not_passed_over() -> None:
    assert passed_over(build("2.15.0+cu130", DRIVER), build("2.15.0+cu128")) == []


def test_releases_for_other_pythons_and_platforms_do_not_count() -> None:
    other, each = build("2.15.0", DRIVER, tag="cp314")
    assert passed_over((other, each)) == []
    found = passed_over(build("2.15.0", DRIVER), (build("2.15.0", tag="cp39")[0], each))
    assert found == [(["2.15.0"], DRIVER)]
    mac = Build(
        file="torch-2.15.0-cp311-none-macosx_14_0_arm64.whl",
        version=Version("2.15.0"),
        backend=None,
        judgement=UNKNOWN,
    )
    assert passed_over(build("2.15.0", DRIVER), (mac, SHOW)) == [(["2.15.0"], DRIVER)]


def test_a_wheel_for_any_platform_was_taken_in_place_of_others() -> None:
    """sglang 0.5.10.post1 is pure Python, unlike newer releases."""
    pure = replace(TAKEN[0], file="torch-2.10.0-py3-none-any.whl", platform=None)
    newer = build("2.15.0", DRIVER)
    (found,) = find_passed_over([(pure, SHOW), newer], pure)
    assert list(map(str, found.versions)) == ["2.15.0"]


def test_pre_releases_do_not_count_unless_one_was_taken() -> None:
    assert passed_over(build("2.16.0.dev1", DRIVER)) == []
    nightly = build("2.16.0.dev0")
    found = find_passed_over([nightly, build("2.16.0.dev1", DRIVER)], nightly[0])
    assert [group.versions for group in found] == [(Version("2.16.0.dev1"),)]


def test_releases_that_were_not_allowed_do_not_count() -> None:
    found = find_passed_over(
        [TAKEN, build("2.15.0", DRIVER)],
        TAKEN[0],
        allows=lambda release: release < Version("2.12"),
    )
    assert found == ()


def test_the_reason_is_that_of_the_build_for_the_oldest_cuda() -> None:
    far = build("2.15.0+cu140", "it needs a driver for CUDA 14", cuda=14)
    assert passed_over(far, build("2.15.0+cu130", DRIVER)) == [(["2.15.0"], DRIVER)]


def test_requirements_that_differ_are_one_reason() -> None:
    reasons = [
        f"it requires torch{text}, and none of these runs here: 9: {DRIVER}"
        for text in (">=2.14.0", "==2.11.0", "<3,>=2.4")
    ]
    versions = ["2.15.0", "2.14.0", "2.13.0"]
    found = passed_over(*map(build, versions, reasons))
    assert found == [
        (versions, f"it requires a torch that does not run here: {DRIVER}")
    ]


def test_a_long_name_takes_linear_time() -> None:
    """In quadratic time, this test would take an hour."""
    reason = f"it requires {'a-' * 500_000}a"
    assert common_reason(reason) == reason
    assert common_reason(f"{reason}, and none of these runs here: 9: {DRIVER}") == (
        f"it requires a {reason[12:]} that does not run here: {DRIVER}"
    )
