"""The builds of an index are judged by that index, if it has what they require."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from simple_repository import model
from support.required_projects import (
    CU13,
    LINUX,
    OTHER_PYTHON,
    RUNS,
    Wheels,
    find_shown,
    index_of,
    wheel,
)

from nvp.index.http.kept_keys import check_distinct

ANYWHERE = wheel(None, "py3-none-any")

KERNELS = {
    "torch-99.0": wheel(CU13),
    "kern-0.7+cu126": wheel("torch==99.0"),
    "kern-0.9+cpu": wheel(),
}
"""Only the CPU build runs, because this machine's driver is for CUDA 12."""


@pytest.mark.parametrize(
    "other",
    [
        {"torch-100.0+cu126": wheel(tag="cp311-cp311-macosx_11_0_arm64")},
        {"torch-100.0+cu126": wheel(tag="cp311-cp311-musllinux_1_2_x86_64")},
        {"torch-100.0+cu126": wheel(tag="cp311-cp311-manylinux_2_99_x86_64")},
        {"torch-100.0+cu126": wheel()},
        {"torch-100.0": wheel(None)},
        {"torch-99.0": wheel(None, tag=OTHER_PYTHON)},
        {"torch-99.0+cu126": wheel(tag=OTHER_PYTHON)},
        {"torch-200.0+cu130": wheel(tag=OTHER_PYTHON)},
        {f"torch-{100 + x}.0": wheel(CU13, tag=OTHER_PYTHON) for x in range(70)},
    ],
)
def test_another_index_has_the_required_project(other: Wheels) -> None:
    """With its torch, kern 0.7 seemed to run, and withdrew 0.9."""
    shown = find_shown("kern", index_of(0, KERNELS), index_of(1, other))
    assert "0.9+cpu" in shown


@pytest.mark.parametrize("page", ["{", '{"meta": {"api-version": "2.0"}}', "please"])
def test_another_index_has_an_unreadable_page_of_the_project(page: str) -> None:
    """Then, nothing was known of the user's own torch either."""
    broken = index_of(1, {}, broken=page)
    assert "0.9+cpu" in find_shown("kern", index_of(0, KERNELS), broken)


def test_a_build_of_another_index_may_meet_a_requirement() -> None:
    """The build is shown, but it withdraws no other."""
    other = index_of(1, {"torch-99.0+cu126": wheel()})
    shown = find_shown("kern", index_of(0, KERNELS), other)
    assert shown == ["0.7+cu126", "0.9+cpu"]


@pytest.mark.parametrize("other", [CU13, RUNS])
def test_only_another_index_has_the_required_release(other: str) -> None:
    own = {"torch-9.0+cu126": wheel(), "kern-2.0": wheel("torch==99.0")}
    own["kern-1.0"] = wheel("torch==9.0")
    shown = find_shown(
        "kern", index_of(0, own), index_of(1, {"torch-99.0": wheel(other)})
    )
    assert shown == (["1.0"] if other == CU13 else ["2.0", "1.0"])


LACKING = {
    "torch-98.0": wheel(RUNS),
    "kern-0.9": wheel("torch==99.0"),
    "kern-0.9+cpu": wheel("torch==98.0"),
}


@pytest.mark.parametrize("tag", [LINUX, OTHER_PYTHON])
def test_a_release_of_another_index_withdraws_no_build(tag: str) -> None:
    """uv uses the torch of the first index, and found no solution with kern 0.9."""
    other = index_of(1, {"torch-99.0": wheel(RUNS, tag)})
    assert "0.9+cpu" in find_shown("kern", index_of(0, LACKING), other)


def test_a_further_requirement_that_is_met() -> None:
    """It made the build run, although another index alone had the required torch."""
    own = {**LACKING, "torch-99.0": wheel(CU13), "torchvision-1.0": wheel()}
    own["kern-0.9"] = wheel("torchvision==1.0\nRequires-Dist: torch==99.0")
    other = index_of(1, {"torch-99.0": wheel(RUNS)})
    assert "0.9+cpu" in find_shown("kern", index_of(0, own), other)


def test_an_uncertain_build_takes_no_place() -> None:
    """It was the build for the backend of another index's torch."""
    own = {
        "torch-99.0": wheel(CU13),
        "torch-98.0+cu126": wheel(),
        "kern-0.9+cu126": wheel("torch==99.0"),
        "kern-0.9+cu128": wheel("torch==98.0"),
    }
    other = index_of(1, {"torch-99.0+foo": wheel(None, OTHER_PYTHON)})
    assert "0.9+cu128" in find_shown("kern", index_of(0, own), other)


@pytest.mark.parametrize("keys", [{"tag": "py3-none-any"}, {"yanked": "CVE"}])
def test_what_an_index_has_is_not_judged_by_another_one(
    keys: Mapping[str, str],
) -> None:
    own = {"torch-99.0": wheel("", **keys), "torch-98.0": wheel()}
    own |= {"kern-0.9": wheel("torch==99.0"), "kern-0.8": wheel("torch==98.0")}
    other = index_of(1, {"torch-99.0": wheel(CU13), "torch-98.0": wheel()})
    assert "0.9" in find_shown("kern", index_of(0, own), other)


def test_an_unreadable_page_of_the_own_index() -> None:
    """Another index decided what the user's own torch, which pip can read, needs."""
    own = {"kern-0.9": wheel("torch==99.0"), "kern-0.8": wheel("torch==98.0")}
    other = index_of(1, {"torch-99.0": wheel(CU13), "torch-98.0": wheel()})
    assert "0.9" in find_shown("kern", index_of(0, own, broken="{"), other)


def test_another_index_lists_a_file_for_no_python() -> None:
    """The requirement was compared with that file, which has the same name."""
    own = {
        "torch-99.0+cpu": wheel(),
        "torch-98.0+cu126": wheel(tag="cp312-cp312-manylinux_2_17_x86_64"),
        "kern-0.9": wheel("torch==99.0"),
        "kern-0.8": wheel("torch==98.0"),
    }
    other = {"torch-99.0+cpu": wheel(**{"requires-python": "<3"})}
    assert "0.9" in find_shown("kern", index_of(0, own), index_of(1, other))


@pytest.mark.parametrize("number", [0, 1])
def test_a_release_with_a_yanked_file(number: int) -> None:
    """kern 0.8 took the place of 0.9, with a torch 98.0 that cannot run: its index
    yanked a file, so all of its builds are shown.
    """
    wheels = {
        "torch-99.0+cpu": wheel(),
        "torch-98.0+cu126": wheel(),
        "torch-98.0+cu130": wheel(),
        "kern-0.9": wheel("torch==99.0"),
        "kern-0.8": wheel("torch==98.0"),
    }
    yanked = {"torch-98.0": wheel("", OTHER_PYTHON, yanked="CVE")}
    own = {**wheels, **yanked} if number == 0 else wheels
    other = {} if number == 0 else yanked
    shown = find_shown("kern", index_of(0, own), index_of(1, other))
    assert shown == ["0.9", "0.8"]


@pytest.mark.parametrize(
    ("wheels", "expected"),
    [
        (
            {
                "torch-99.0": wheel(RUNS, OTHER_PYTHON),
                "torch-98.0": wheel(RUNS),
                "kern-0.9": wheel("torch==99.0"),
                "kern-0.9+cpu": wheel("torch==98.0"),
            },
            "0.9+cpu",
        ),
        (
            {
                "torch-99.0": wheel(RUNS, OTHER_PYTHON),
                "torch-98.0": wheel(RUNS),
                "kern-0.9": wheel("torch==99.0", "cp310-abi3-manylinux_2_17_x86_64"),
                "kern-0.9+cpu": wheel("torch==98.0"),
            },
            "0.9+cpu",
        ),
        (
            {
                "torch-2.8.0+cu126": wheel("", OTHER_PYTHON),
                "torch-2.7.0+cu126": wheel(),
                "kern-0.9+cu126torch2.8": wheel("torch==2.8.*"),
                "kern-0.9+cu126torch2.7": wheel("torch==2.7.*"),
            },
            "0.9+cu126torch2.7",
        ),
        (
            {
                "torchvision-1.0": wheel("torch==99.0"),
                "torchvision-0.9": wheel("torch==98.0"),
                "torch-99.0": wheel(RUNS, OTHER_PYTHON),
                "torch-98.0": wheel(RUNS),
                "kern-0.9": wheel("torchvision==1.0"),
                "kern-0.9+cpu": wheel("torchvision==0.9"),
            },
            "0.9+cpu",
        ),
    ],
)
def test_a_required_release_has_no_build_for_a_python(
    wheels: Wheels, expected: str
) -> None:
    """The build seemed to run, and took the place of the only one that installers can
    take with Python 3.11.
    """
    assert expected in find_shown("kern", index_of(0, wheels))


def test_a_label_beside_an_unreadable_page_of_the_own_index() -> None:
    """kern 0.8 took the place of 0.9, but pip takes a torch 98.0 that cannot run."""
    own = {
        "kern-0.9+cpu": wheel("torch==99.0"),
        "kern-0.8+cu126": wheel("torch==98.0"),
    }
    assert "0.9+cpu" in find_shown("kern", index_of(0, own, broken="{"))


@pytest.mark.parametrize(
    "nobody", [{"requires-python": "<3"}, {"tag": "cp27-cp27m-manylinux_2_17_x86_64"}]
)
def test_a_build_that_nobody_can_install_takes_no_place(
    nobody: Mapping[str, str],
) -> None:
    """No wheel for Python 3.11 was left."""
    abi3 = "cp311-abi3-manylinux_2_17_x86_64"
    own = {"torch-97.0+cpu": wheel(tag=abi3), "torch-99.0": wheel(tag=OTHER_PYTHON)}
    other = {"torch-97.0+cu126": wheel("", **nobody)}
    assert "97.0+cpu" in find_shown("torch", index_of(0, own), index_of(1, other))


NOBODY = wheel("", "cp37-cp37m-manylinux_2_17_x86_64", **{"requires-python": "<3"})


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"torch-1.0+cu130": wheel(tag=OTHER_PYTHON)},
        {"torch-0.0.1+cu126": NOBODY},
    ],
)
def test_a_small_wheel_that_reserves_a_name_takes_no_place(more: Wheels) -> None:
    """pip took torch 0.0.1 of the other index."""
    own = index_of(0, {"torch-99.0+rocm6.2": wheel()})
    dummy = {"torch-0.0.1": wheel(tag="py3-none-any", size=2000)}
    assert find_shown("torch", own, index_of(1, {**dummy, **more})) == ["99.0+rocm6.2"]


@pytest.mark.parametrize(("number", "length"), [(100, 20), (200, 20), (1, 11_000)])
def test_many_requirements_on_python(number: int, length: int) -> None:
    """Comparing 20,000 short ones, or a long one, took seconds."""
    files: Sequence[model.File] = [
        model.File(
            *(f"p-{x}.zip", f"https://a.example/{x}", {}),
            requires_python=f"{x:0{length}}",
        )
        for x in range(number)
    ]
    if number == 100:
        check_distinct(files)
    else:
        with pytest.raises(ValueError, match="too many requirements on Python"):
            check_distinct(files)


def test_a_project_that_is_shown_without_verdicts() -> None:
    """kern 0.8 withdrew 0.9+cpu, and uv took 0.9 with a torch that cannot run."""
    own = {
        "torch-99.0": wheel(CU13),
        "torch-98.0": wheel(RUNS),
        "kern-0.9": wheel("torch==99.0"),
        "kern-0.9+cpu": wheel("torch==98.0"),
        "kern-0.8": wheel("torch==98.0"),
    }
    broken = index_of(1, {}, broken="{")
    assert "0.9+cpu" in find_shown("kern", index_of(0, own), broken)


def test_the_last_resort_beside_an_uncertain_build() -> None:
    """kern 0.9 took its place, and uv found nothing: this torch 99.0 is yanked."""
    own = {
        "torch-99.0": wheel(CU13),
        "torch-98.0": wheel(RUNS),
        "kern-0.9": wheel("torch==99.0"),
        "kern-0.8+cu130": wheel("torch==98.0"),
    }
    other = index_of(1, {"torch-99.0+foo": wheel(None)})
    assert find_shown("kern", index_of(0, own), other) == ["0.9", "0.8+cu130"]


@pytest.mark.parametrize("broken", ["", "{"])
def test_what_is_open_is_so_for_what_requires_it(broken: str) -> None:
    """kern 0.9 took the place of 1.0, though another index decides on torchvision."""
    own = {
        "kern-1.0+cpu": wheel("torch==97.0"),
        "kern-0.9+cu126": wheel("torchvision==0.8"),
        "torchvision-0.8+cu126": wheel("torch>=98.0"),
        "torch-98.0+cu130": wheel(),
        "torch-97.0+cpu": wheel(),
    }
    other = index_of(1, {"torch-98.0+cu128": wheel()}, broken=broken)
    assert "1.0+cpu" in find_shown("kern", index_of(0, own), other)


@pytest.mark.parametrize("torch", [LINUX, OTHER_PYTHON])
def test_a_refusal_by_another_index_is_none_of_what_requires_the_build(
    torch: str,
) -> None:
    """kern 1.9 gave way to 1.8: 2.0 seemed to be refused by its own index."""
    own = {
        "kern-2.0": wheel("torchvision==0.9"),
        "kern-1.9": wheel("torchvision>=0.8"),
        "kern-1.8": wheel(RUNS),
        "torchvision-0.9": wheel("torch==99.0"),
        "torchvision-0.8": wheel(RUNS),
        "torch-98.0": wheel(),
    }
    other = index_of(1, {"torch-99.0+cu130": wheel("", torch)})
    assert "1.9" in find_shown("kern", index_of(0, own), other)


def test_a_wheel_for_any_platform_of_the_required_release() -> None:
    """The requirement seemed to allow only a build that cannot run."""
    own = {
        "kern-0.9": wheel("torch>=98.0"),
        "kern-0.8": wheel(RUNS),
        "torch-98.0+cu130": wheel(),
        "torch-98.0": ANYWHERE,
    }
    assert "0.9" in find_shown("kern", index_of(0, own))
    more = {name: own[name] for name in ("kern-0.9", "kern-0.8")}
    two = (
        index_of(1, {"torch-98.0": ANYWHERE}),
        index_of(2, {"torch-98.0": wheel(CU13)}),
    )
    assert "0.9" in find_shown("kern", index_of(0, more), *two)


def test_what_a_requirement_names_by_its_url() -> None:
    own = {
        "kern-0.9": wheel("torch @ https://files.example/torch-99.0-py3-none-any.whl"),
        "kern-0.8": wheel(RUNS),
        "torch-98.0+cu130": wheel(),
    }
    assert "0.9" in find_shown("kern", index_of(0, own))


@pytest.mark.parametrize(
    ("own", "other"),
    [
        # Another wheel of the required release is for any platform.
        (
            {"torch-98.0+cu126": wheel(tag=OTHER_PYTHON), "torch-98.0": ANYWHERE},
            {},
        ),
        ({"torch-98.0+cu126": wheel(tag=OTHER_PYTHON)}, {"torch-98.0+cu126": wheel()}),
    ],
)
def test_a_required_release_for_another_python_withdraws_no_build(
    own: Wheels, other: Wheels
) -> None:
    """The build for Python 3.10 took the place of that for 3.11."""
    kern = {
        "kern-0.9+cu126": wheel("torch==98.0"),
        "kern-0.9+cu128": wheel("torch==98.0", OTHER_PYTHON),
    }
    shown = find_shown("kern", index_of(0, {**own, **kern}), index_of(1, other))
    assert "0.9+cu126" in shown


def test_what_is_open_gives_way_to_no_other_build() -> None:
    """uv found nothing that it could install: only the other index has torch 99.0."""
    own = {
        "kern-0.9+cu126": wheel("torch==99.0"),
        "kern-0.9+cu128": wheel("torch==98.0", OTHER_PYTHON),
        "kern-0.9+cu118": wheel("torch==97.0"),
        "torch-98.0": wheel(RUNS),
    }
    other = index_of(1, {"torch-99.0": wheel(RUNS)})
    assert "0.9+cu126" in find_shown("kern", index_of(0, own), other)


def test_a_refusal_by_another_index_is_no_step_back() -> None:
    """kern 0.9 was not known to run, as 0.8 is, and gave way."""
    own = {
        "kern-1.0": wheel("torch==99.0"),
        "kern-0.9": wheel(),
        "kern-0.8+cu126": wheel(),
        "torch-98.0": wheel(RUNS),
    }
    other = index_of(1, {"torch-99.0+cu130": wheel()})
    assert find_shown("kern", index_of(0, own), other) == ["0.9", "0.8+cu126"]
