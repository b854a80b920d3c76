"""The regular wheels that installers see."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version

from nvidia_variant_provider.machine.environment import CudaVersion
from nvp.builds.needs import parse_backend
from nvp.builds.page import (
    Build,
    PageVisibility,
    find_visibility,
)
from nvp.builds.verdicts import Judgement, Verdict


def build(version: str, verdict: Verdict, *, strict: bool = True) -> Build:
    parsed = Version(version)
    backend = parse_backend(parsed.local)
    return Build(
        file=f"torch-{version}.whl",
        version=parsed,
        backend=backend,
        judgement=Judgement(
            verdict=verdict,
            cuda=backend.cuda if backend else CudaVersion(12, 8),
            strict=strict,
            reasons=("it cannot run",) if verdict == "cannot" else (),
        ),
    )


def shown(visibility: PageVisibility) -> set[str]:
    return {
        file.removeprefix("torch-").removesuffix(".whl")
        for file, each in visibility.files.items()
        if each.action == "show"
    }


def taken(visibility: PageVisibility) -> str:
    """Return the wheel that pip selects: the highest version that is not yanked."""
    return str(max(map(Version, shown(visibility))))


def test_what_the_installer_cannot_take_says_nothing() -> None:
    """A release for another Python is no reason to pass over others, and a placeholder
    is no alternative."""
    other = replace(build("3.0", "runs"), pythons=frozenset())
    placeholder = replace(build("0.0.1a0", "unknown"), pythons=frozenset())
    visibility = find_visibility(
        [other, build("2.0", "cannot"), build("1.0", "cannot"), placeholder],
        driver=True,
    )
    assert visibility.newest is None
    assert visibility.note is not None
    assert {"2.0", "1.0"} <= shown(visibility)


def test_a_pre_release_of_the_same_name_on_another_index() -> None:
    """The pre-release of this index is still shown, so its final release stays."""
    early, final = build("2.1a1", "runs"), build("1.0+cu130", "cannot")
    page = [early, replace(final, pythons=frozenset({11})), build("0.9+cu126", "runs")]
    other = replace(build("2.1a1", "cannot"), file=f"1/{early.file}", index=1)
    pythons = {frozenset({11}): [early.file]}
    for builds in (page, [*page, other], [other, *page]):
        visibility = find_visibility(builds, driver=True, early=pythons)
        assert visibility.files[final.file].action == "show"


def test_an_older_release_has_to_be_known_to_run() -> None:
    page = [build("3.0", "cannot"), build("2.0", "unknown"), build("1.0", "runs")]
    assert shown(find_visibility(page, driver=True)) == {"1.0"}
    # The newest release may run, so it is not passed over.
    assert shown(find_visibility(page[1:], driver=True)) == {"2.0", "1.0"}
    # If no release is known to run, a release that may run is selected.
    assert shown(find_visibility(page[:2], driver=True)) == {"2.0"}


def test_each_python_keeps_its_newest_release_that_runs() -> None:
    """A server cannot know the Python of its clients, and releases are for different
    ones."""
    page = [
        replace(build("4.0", "cannot"), pythons=frozenset({12, 13})),
        replace(build("3.0", "unknown"), pythons=frozenset({11, 12, 13})),
        replace(build("2.0", "runs"), pythons=frozenset({11, 12})),
        replace(build("1.0", "runs"), pythons=frozenset({11})),
    ]
    # No release is known to run for 3.13, so none is passed over.
    assert shown(find_visibility(page, driver=True)) == {"3.0", "2.0", "1.0"}
    page[1] = replace(page[1], pythons=frozenset({11, 12}))
    assert shown(find_visibility(page, driver=True)) == {"2.0", "1.0"}
    # The newest release for 3.11 may run, and that for 3.12 cannot.
    page[1] = replace(page[1], pythons=frozenset({11}))
    assert shown(find_visibility(page, driver=True)) == {"3.0", "2.0", "1.0"}


class TestOnePage:
    """A union page such as PyTorch's own, on a machine with a driver for CUDA 12.8."""

    page = (
        build("2.10.0+cu126", "runs"),
        build("2.10.0+cu128", "runs"),
        build("2.10.0+cu130", "cannot"),
        build("2.10.0+cpu", "cpu"),
        build("2.10.0+xpu", "unknown"),
        build("2.15.0+cu130", "cannot"),
        build("2.15.0+cpu", "cpu"),
        build("2.15.0+rocm7.2", "unknown"),
        build("2.15.0+xpu", "unknown"),
    )

    def test_the_newest_release_that_runs_and_its_highest_cuda(self) -> None:
        visibility = find_visibility(self.page, driver=True)
        assert shown(visibility) == {"2.10.0+cu128"}
        assert visibility.newest == Version("2.10.0")
        assert visibility.note is None

    def test_builds_for_other_hardware_are_hidden_and_not_yanked(self) -> None:
        visibility = find_visibility(self.page, driver=True)
        hidden = {f for f, d in visibility.files.items() if d.action == "hide"}
        assert hidden == {
            "torch-2.10.0+xpu.whl",
            "torch-2.15.0+rocm7.2.whl",
            "torch-2.15.0+xpu.whl",
        }

    def test_reasons(self) -> None:
        files = find_visibility(self.page, driver=True).files
        assert {file: d.reason for file, d in files.items() if d.action == "yank"} == {
            "torch-2.10.0+cu126.whl": "+cu128 is the build of 2.10.0 for this machine",
            "torch-2.10.0+cu130.whl": "it cannot run",
            "torch-2.10.0+cpu.whl": "+cu128 is the build of 2.10.0 for this machine",
            "torch-2.15.0+cu130.whl": "it cannot run",
            "torch-2.15.0+cpu.whl": (
                "it does not use the GPU; 2.10.0 is the newest release that does"
            ),
        }

    def test_a_label_that_the_user_names_is_shown(self) -> None:
        assert "2.15.0+xpu" in shown(
            find_visibility(self.page, driver=True, named=["xpu"])
        )

    def test_one_backend_asked_for(self) -> None:
        visibility = find_visibility(self.page, driver=True, label="cu126")
        assert taken(visibility) == "2.10.0+cu126"

    def test_other_builds_than_the_one_asked_for_are_hidden(self) -> None:
        """An exact pin would select yanked builds."""
        files = find_visibility(self.page, driver=True, label="cu126").files
        actions = {each.action for each in files.values()}
        assert actions == {"show", "hide"}

    def test_a_backend_asked_for_that_cannot_run(self) -> None:
        visibility = find_visibility(self.page, driver=True, label="CU130")
        assert shown(visibility) == set()
        assert visibility.files["torch-2.15.0+cu130.whl"].reason == "it cannot run"

    def test_a_backend_asked_for_that_is_for_other_hardware(self) -> None:
        assert (
            taken(find_visibility(self.page, driver=True, label="xpu")) == "2.15.0+xpu"
        )

    def test_a_label_named_of_a_build_that_cannot_run(self) -> None:
        """The installer prints the reason, because the exact pin selects the yanked
        build."""
        visibility = find_visibility(self.page, driver=True, named=["cu130"])
        each = visibility.files["torch-2.15.0+cu130.whl"]
        assert (each.action, each.reason) == ("yank", "it cannot run")

    def test_without_a_driver_the_cpu_builds(self) -> None:
        page = tuple(
            build(str(b.version), "cannot")
            if b.backend and b.backend.kind == "cuda"
            else b
            for b in self.page
        )
        assert shown(find_visibility(page, driver=False)) == {
            "2.10.0+cpu",
            "2.15.0+cpu",
        }

    def test_a_companion_follows(self) -> None:
        backend = parse_backend("cu126")
        assert backend is not None
        visibility = find_visibility(
            self.page, driver=True, follow={Version("2.10.0"): backend}
        )
        assert taken(visibility) == "2.10.0+cu126"


def test_the_nearest_cuda_where_none_is_strictly_met() -> None:
    page = [
        build("2.8.0+cu128", "runs", strict=False),
        build("2.8.0+cu126", "runs", strict=False),
        build("2.8.0+cpu", "cpu"),
    ]
    assert shown(find_visibility(page, driver=True)) == {"2.8.0+cu126"}


def test_a_build_with_all_its_code_goes_before_one_with_a_part() -> None:
    page = [build("2.8.0+cu128", "partly"), build("2.8.0+cu126", "runs")]
    assert shown(find_visibility(page, driver=True)) == {"2.8.0+cu126"}


def test_plain_builds_of_pypi() -> None:
    page = [build("2.15.0", "cannot"), build("2.10.0", "runs"), build("2.9.1", "runs")]
    visibility = find_visibility(page, driver=True)
    assert shown(visibility) == {"2.10.0", "2.9.1"}
    assert visibility.files["torch-2.15.0.whl"].reason == "it cannot run"


def test_a_label_index_beside_pypi() -> None:
    page = [
        build("2.10.0", "runs"),
        build("2.10.0+cu126", "runs"),
        build("2.15.0", "cannot"),
        build("2.15.0+cu130", "cannot"),
    ]
    assert taken(find_visibility(page, driver=True)) == "2.10.0+cu126"


def test_nothing_is_yanked_where_nothing_would_remain() -> None:
    page = [build("2.15.0", "cannot"), build("2.14.0", "cannot")]
    visibility = find_visibility(page, driver=True)
    assert shown(visibility) == {"2.15.0", "2.14.0"}
    assert visibility.note == (
        "the GPU will not be used: no release has a build that runs; it cannot run"
    )


def test_cpu_builds_where_no_release_has_a_build_that_runs() -> None:
    page = [build("2.15.0+cu130", "cannot"), build("2.15.0+cpu", "cpu")]
    visibility = find_visibility(page, driver=True)
    assert shown(visibility) == {"2.15.0+cpu"}
    assert visibility.note is not None


def test_the_cpu_build_does_not_displace_a_plain_one_that_runs() -> None:
    page = [build("2.10.0", "runs"), build("2.10.0+cpu", "cpu")]
    assert taken(find_visibility(page, driver=True)) == "2.10.0"


def test_the_cpu_build_does_not_displace_one_that_may_run() -> None:
    page = [build("2.15.0+cu130", "unknown"), build("2.15.0+cpu", "cpu")]
    assert taken(find_visibility(page, driver=True)) == "2.15.0+cu130"


VERSIONS = st.sampled_from(["2.9.0", "2.10.0", "2.15.0"])
LABELS = st.sampled_from(
    ["", "+cu126", "+cu128", "+cu130", "+cpu", "+xpu", "+rocm7.2", "+foo", "+pt28cu126"]
)


@st.composite
def pages(draw: st.DrawFn) -> Mapping[str, Build]:
    page = {}
    for version, label in draw(st.sets(st.tuples(VERSIONS, LABELS), min_size=1)):
        kinds: list[Verdict] = ["runs", "partly", "cannot", "unknown"]
        if label == "+cpu":
            kinds = ["cpu"]
        elif label in ("+xpu", "+rocm7.2", "+foo", "+pt28cu126"):
            kinds = ["unknown"]
        one = build(
            version + label, draw(st.sampled_from(kinds)), strict=draw(st.booleans())
        )
        page[one.file] = one
    return page


@given(page=pages())
def test_what_holds_of_every_page(page: Mapping[str, Build]) -> None:
    visibility = find_visibility(page.values(), driver=True)
    visible = [page[f] for f, d in visibility.files.items() if d.action == "show"]
    hidden = {f for f, d in visibility.files.items() if d.action == "hide"}
    assert visibility.files.keys() == page.keys()
    assert all(
        bool(d.reason) is (d.action != "show") for d in visibility.files.values()
    )
    # Only builds for other hardware are hidden, and all of them if there are others.
    foreign = {b.file for b in page.values() if b.backend and b.backend.is_foreign}
    assert hidden == (foreign if len(foreign) < len(page) else set())
    # These builds are unknown. They are passed over if the newest release cannot run
    # and an older one is known to run.
    newest = max(b.release for b in page.values())
    refused = {b.judgement.verdict for b in page.values() if b.release == newest}
    steps_back = refused == {"cannot"} and visibility.newest is not None
    for one in page.values():
        if one.backend is None and one.judgement.verdict == "unknown":
            is_newer = steps_back and one.release > (visibility.newest or newest)
            assert (one in visible) is not is_newer
    assert visible
    running = [b for b in page.values() if b.judgement.verdict in ("runs", "partly")]
    if any(b.judgement.verdict != "cannot" for b in visible):
        # A build that cannot run is only shown if the page has no other build.
        assert all(b.judgement.verdict != "cannot" for b in visible)
        for release in {b.release for b in visible if b in running and b.backend}:
            backends = {
                b.backend.label for b in visible if b.release == release and b.backend
            }
            assert len(backends) <= 1
    if running:
        # The newest release that runs is never lost.
        best = max(b.release for b in running)
        assert visibility.newest == best
        assert any(b.release == best and b in running for b in visible)


def test_a_build_for_another_python_is_no_alternative() -> None:
    """Behind `serve`, pip took an older release, or found none."""
    own = replace(build("2.1+cu118", "runs"), pythons=frozenset({11}))
    both = replace(build("2.1+cu124", "runs"), pythons=frozenset({10, 11}))
    other = replace(build("2.1+cu126", "runs"), pythons=frozenset({12}))
    old = replace(build("1.0+cu118", "runs"), pythons=frozenset({11}))
    visibility = find_visibility([own, other, old], driver=True)
    assert shown(visibility) == {"2.1+cu118", "2.1+cu126", "1.0+cu118"}
    visibility = find_visibility([own, both, other], driver=True)
    assert shown(visibility) == {"2.1+cu124", "2.1+cu126"}
    assert visibility.backends == {Version("2.1"): parse_backend("cu126")}


def test_a_regular_build_for_another_python_is_no_alternative() -> None:
    cpu = replace(build("2.1+cpu", "cpu"), pythons=frozenset({11}))
    plain = replace(build("2.1", "runs"), pythons=frozenset({12}))
    assert shown(find_visibility([cpu, plain], driver=True)) == {"2.1", "2.1+cpu"}
    plain = replace(plain, pythons=frozenset({11, 12}))
    assert shown(find_visibility([cpu, plain], driver=True)) == {"2.1"}


def test_a_build_that_not_every_client_can_install_withdraws_no_other() -> None:
    """`serve` does not know the client: pip took an older release, or found none."""
    newest, own = build("2.1+cu128", "runs"), build("2.1+cu126", "runs")
    page = [newest, own, build("2.1+cpu", "cpu"), build("1.0+cu128", "runs")]
    assert shown(find_visibility(page, driver=True)) == {"2.1+cu128", "1.0+cu128"}
    page[0] = replace(newest, is_sure=False)
    found = {"2.1+cu128", "2.1+cu126", "1.0+cu128"}
    assert shown(find_visibility(page, driver=True)) == found
    # A build that no client could install is judged beside all others.
    free_threaded = replace(build("3.0", "unknown"), pythons=frozenset())
    page += [build("2.2", "cannot"), free_threaded]
    assert shown(find_visibility(page, driver=True)) == found


def test_a_release_of_another_index_that_cannot_run() -> None:
    """It made pip pass over a release of the user's index for an older one."""
    other = build("9.0+cu130", "cannot")
    page = [build("1.1", "unknown"), build("1.0+cu126", "runs")]
    assert shown(find_visibility([other, *page], driver=True)) == {"1.0+cu126"}
    other = replace(other, file=f"1/{other.file}")  # this page may list such a name
    assert shown(find_visibility([other, *page], driver=True)) == {"1.0+cu126"}
    other = replace(other, index=1)
    found = shown(find_visibility([other, *page], driver=True))
    assert found == {"1.1", "1.0+cu126"}


@given(page=pages(), data=st.data())
def test_each_client_keeps_a_build_that_runs(
    page: Mapping[str, Build], data: st.DataObject
) -> None:
    pythons = st.frozensets(st.integers(10, 12))
    builds = [
        replace(one, pythons=data.draw(pythons), is_sure=data.draw(st.booleans()))
        for one in page.values()
    ]
    files = find_visibility(builds, driver=True).files
    assert files.keys() == page.keys()
    some = [one for one in builds if one.is_sure or data.draw(st.booleans())]
    for python in (10, 11, 12):
        own = [one for one in some if python in one.pythons]
        running = [one for one in own if one.judgement.verdict in ("runs", "partly")]
        if running:
            newest = max(one.release for one in running)
            left = [one for one in own if files[one.file].action == "show"]
            assert any(one in running and one.release == newest for one in left)
