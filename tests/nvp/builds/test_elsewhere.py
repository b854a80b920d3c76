"""Wheels for other platforms, for installers that lock for several platforms."""

from __future__ import annotations

from packaging.version import Version

from nvp.builds.needs import parse_backend
from nvp.builds.page import Build, find_visibility, find_visibility_elsewhere
from nvp.builds.verdicts import UNKNOWN, Judgement, Verdict

HERE, THERE = "linux_x86_64", "win_amd64"


def build(version: str, verdict: Verdict, platform: str = HERE) -> Build:
    parsed = Version(version)
    backend = parse_backend(parsed.local)
    reasons = ("it cannot run",) if verdict == "cannot" else ()
    return Build(
        file=f"torch-{version}-cp311-cp311-{platform}.whl",
        version=parsed,
        backend=backend,
        judgement=Judgement(
            verdict=verdict, reasons=reasons, cuda=backend.cuda if backend else None
        ),
        platform=platform,
    )


def elsewhere(
    here: list[Build], *versions: str, driver: bool = True
) -> dict[str, tuple[str, str]]:
    """Return the verdicts on wheels for Windows, by version."""
    visibilities = find_visibility(here, driver=driver).files
    there = [build(version, "unknown", THERE) for version in versions]
    found = find_visibility_elsewhere(here, visibilities, there, driver=driver)
    return {
        str(item.version): (found[item.file].action, found[item.file].reason)
        for item in there
    }


def test_a_release_that_does_not_run_here_is_yanked_everywhere() -> None:
    here = [build("2.0", "cannot"), build("1.0", "runs")]
    assert elsewhere(here, "3.0", "2.0", "1.0") == {
        "3.0": ("show", ""),  # The release has no wheel for this platform.
        "2.0": ("yank", "it cannot run"),
        "1.0": ("show", ""),
    }


def test_labels_are_those_of_this_machine() -> None:
    labels = ("1.0+cu126", "1.0+cu130", "1.0+cpu", "1.0+xpu")
    here = [build(labels[0], "runs"), build(labels[1], "cannot"), build("2.0", "cpu")]
    here += [build(labels[2], "cpu"), build(labels[3], "unknown")]
    found = elsewhere(here, *labels, "1.0", "2.0")
    assert {version: action for version, (action, _) in found.items()} == {
        "1.0+cu126": "show",
        "1.0+cu130": "yank",
        "1.0+cpu": "yank",
        "1.0+xpu": "hide",
        "1.0": "show",
        "2.0": "show",
    }


def test_other_hardware_that_has_no_wheel_for_this_platform() -> None:
    here = [build("1.0+cu126", "runs")]
    assert elsewhere(here, "1.0+xpu")["1.0+xpu"][0] == "hide"
    assert elsewhere(here, "1.0+xpu", driver=False)["1.0+xpu"][0] == "show"


def test_what_is_shown_in_spite_of_its_verdict() -> None:
    here = [build("2.0", "cannot"), build("1.0", "cannot")]
    assert elsewhere(here, "2.0", "1.0") == {"2.0": ("show", ""), "1.0": ("show", "")}


def test_the_python_of_a_machine_on_which_nothing_runs() -> None:
    """The remaining wheels are for another Python, so this Python's installers ignore
    them."""
    old = Build(
        file=f"torch-0.4-cp36-cp36m-{HERE}.whl",
        version=Version("0.4"),
        backend=None,
        judgement=UNKNOWN,
        platform=HERE,
        pythons=frozenset({6}),
    )
    here = [build("2.0", "cannot"), build("1.0", "cannot"), old]
    assert {d.action for d in find_visibility(here, driver=True).files.values()} == {
        "show"
    }
    # If a release runs, a release that does not run is hidden from every Python.
    runs = [build("2.0", "cannot"), build("1.0", "runs"), old]
    assert find_visibility(runs, driver=True).files[runs[0].file].action == "yank"
