"""Adding tags to wheels of better variants, so that tags do not overrule the order."""

from __future__ import annotations

from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.tags import Tag, mac_platforms, parse_tag
from support.clients import CLIENTS, MINORS

from nvp.index.selection import renaming
from nvp.metadata.requirements import Work

_PLATFORMS = (
    "any",
    "manylinux1_x86_64",
    "manylinux_2_12_x86_64",
    "manylinux2014_x86_64",
    "manylinux_2_17_x86_64.manylinux2014_x86_64",
    "manylinux_2_28_x86_64",
    "manylinux_2_34_x86_64",
    "manylinux_2_28_aarch64",
    "linux_x86_64",
    "musllinux_1_2_x86_64",
    "macosx_11_0_arm64",
    "macosx_11_0_universal2",
    "macosx_10_9_x86_64",
    "win_amd64",
)
_PYTHONS = (
    "py3-none",
    "py2.py3-none",
    "py310-none",
    "cp39-abi3",
    "cp310-abi3",
    "cp312-abi3",
    "cp310-cp310",
    "cp312-cp312",
    "cp313-cp313t",
    "cp314-cp314",
    "cp314-cp314t",
)


def add_tags(groups: list[list[str]]) -> list[list[str]]:
    return renaming.add_tags(groups, Work())


_TAGS = st.builds(
    "{}-{}".format, st.sampled_from(_PYTHONS), st.sampled_from(_PLATFORMS)
)
_FEW = st.lists(_TAGS, min_size=2, max_size=3, unique=True)


@st.composite
def groups(draw: st.DrawFn) -> list[list[str]]:
    """Draw the wheels of a few variants, with few tags, so that they conflict."""
    known = draw(_FEW)
    group = st.lists(st.sampled_from(known), max_size=4, unique=True)
    return draw(st.lists(group, min_size=2, max_size=4))


def best(group: list[str], client: dict[Tag, int]) -> int | None:
    ranks = [client[t] for name in group for t in parse_tag(name) if t in client]
    return min(ranks, default=None)


@given(groups())
def test_every_machine_takes_the_best_group_that_it_can_use(
    found: list[list[str]],
) -> None:
    # For some wheels, no named tag would do; see the cases below.
    hard = ("py310", "universal2", "3t", "4t")
    found = [[x for x in group if not any(h in x for h in hard)] for group in found]
    shown = add_tags(found)
    for client in CLIENTS:
        ranks = [rank for g in shown if (rank := best(g, client)) is not None]
        assert not ranks or ranks[0] == min(ranks)


@given(groups())
def test_the_shown_tags_fit_the_same_machines(found: list[list[str]]) -> None:
    shown = add_tags(found)
    assert list(map(len, shown)) == list(map(len, found))
    for name, own in zip(chain(*shown), chain(*found), strict=True):
        assert parse_tag(name) >= parse_tag(own)
        for client in CLIENTS:
            assert (best([name], client) is None) == (best([own], client) is None)


@pytest.mark.parametrize(
    "found",
    [
        [],
        [[]],
        [["py3-none-any"], ["py3-none-any"]],
        [["cp310-cp310-win_amd64"], ["cp312-cp312-win_amd64"], []],
        [["cp310-cp310-manylinux_2_28_x86_64"], ["py3-none-any"]],
        # No machine can use both wheels.
        [["cp310-cp310-manylinux_2_17_x86_64"], ["cp310-cp310-manylinux_2_28_aarch64"]],
        [["py3-none-win32"], ["cp310-cp310-win_amd64"]],
    ],
)
def test_no_conflict(found: list[list[str]]) -> None:
    assert add_tags(found) == found


@pytest.mark.parametrize(
    ("found", "first"),
    [
        (
            [
                ["cp310-cp310-manylinux_2_28_x86_64"],
                ["cp310-cp310-manylinux_2_34_x86_64"],
            ],
            ["cp310-cp310-manylinux_2_28_x86_64.manylinux_2_34_x86_64"],
        ),
        # Some machines can use only the worse wheel.
        (
            [
                ["py3-none-manylinux_2_34_x86_64"],
                ["cp310-cp310-manylinux_2_17_x86_64", "cp311-cp311-win_amd64"],
            ],
            ["py3.cp310-none.cp310-manylinux_2_34_x86_64"],
        ),
        # The wheels conflict only on a machine that is older than the newest wheel.
        (
            [
                ["py3-none-manylinux_2_34_x86_64", "py3-none-manylinux_2_17_x86_64"],
                ["py3-none-manylinux_2_28_x86_64"],
            ],
            [
                "py3-none-manylinux_2_34_x86_64",
                "py3-none-manylinux_2_17_x86_64.manylinux_2_28_x86_64",
            ],
        ),
        # The wheels conflict only with a Python that no wheel names.
        (
            [
                [
                    "cp314-cp314-win_amd64",
                    "cp312-cp312-win_amd64",
                    "cp39-abi3-win_amd64",
                ],
                ["cp310-abi3-win_amd64"],
            ],
            [
                "cp314-cp314-win_amd64",
                "cp312-cp312-win_amd64",
                "cp39.cp310-abi3-win_amd64",
            ],
        ),
        # The wheels conflict only without the GIL.
        (
            [
                ["cp313-cp313t-manylinux_2_17_x86_64"],
                ["cp313-cp313t-manylinux_2_28_x86_64"],
            ],
            ["cp313-cp313t-manylinux_2_17_x86_64.manylinux_2_28_x86_64"],
        ),
        # The wheels conflict only on a Mac with a processor of Apple.
        (
            [["py3-none-macosx_11_0_universal2"], ["py3-none-macosx_11_0_arm64"]],
            ["py3-none-macosx_11_0_universal2.macosx_11_0_arm64"],
        ),
        # The wheels conflict only if no wheel for a platform fits.
        (
            [["cp310-cp310-win_amd64", "py3-none-any"], ["py310-none-any"]],
            ["cp310-cp310-win_amd64", "py3.py310-none-any"],
        ),
    ],
)
def test_a_conflict(found: list[list[str]], first: list[str]) -> None:
    assert add_tags(found) == [first, *found[1:]]


def test_each_variant_goes_before_all_that_are_worse() -> None:
    found = [
        ["py3-none-win_amd64"],
        ["cp310-abi3-win_amd64"],
        ["cp312-cp312-win_amd64"],
    ]
    assert add_tags(found) == [
        ["py3.cp310.cp312-none.abi3.cp312-win_amd64"],
        ["cp310.cp312-abi3.cp312-win_amd64"],
        ["cp312-cp312-win_amd64"],
    ]


@pytest.mark.parametrize(
    "found",
    [
        # Only Python 3.12 has the tag py312 without newer ones.
        [["py312-none-any"], ["py3-none-any"]],
        # The tag for Macs since 11.0 would also fit those without such a processor.
        [["py3-none-macosx_10_9_x86_64"], ["py3-none-macosx_11_0_universal2"]],
        # Interpreters other than CPython are not compared.
        [["py3.pp310-none-any"], ["cp310-cp310-win_amd64"]],
        # PyPy of that version cannot use the better wheel.
        [["cp310.py311-none-any"], ["py310-none-any", "py310-none-linux_x86_64"]],
        # Macs with other processors cannot use the better wheel.
        [["cp310-cp310-macosx_10_9_x86_64"], ["cp310-cp310-macosx_10_12_intel"]],
        [
            ["py3-none-any"],
            [f"cp3{n}-cp3{n}-manylinux_2_{n}_x86_64" for n in range(40, 90)],
        ],
    ],
)
def test_wheels_that_get_not_all_tags(found: list[list[str]]) -> None:
    shown = add_tags(found)
    assert shown[1:] == found[1:]
    for name, own in zip(chain(*shown), chain(*found), strict=True):
        assert len(parse_tag(name)) <= 100
        for client in CLIENTS:
            assert (best([name], client) is None) == (best([own], client) is None)


def test_the_machines_to_compare_are_many() -> None:
    assert len(CLIENTS) > 100
    assert MINORS[-1] >= 14


def test_too_many_kinds_of_machines_are_not_compared() -> None:
    """A page of a few kilobytes must not take gigabytes, and minutes per release."""
    names = [f"cp3{n}-cp3{n}-manylinux_2_{n}_x86_64" for n in range(5, 85)]
    found = [[name] for name in names]
    assert add_tags(found) == found
    # Real releases stay below the limit: no project builds for more platforms.
    real = [
        f"cp3{n}-cp3{n}-manylinux_2_28_{m}"
        for n in range(9, 15)
        for m in ("x86_64", "aarch64")
    ]
    real += [
        f"cp3{n}-cp3{n}-{p}"
        for n in range(9, 15)
        for p in ("win_amd64", "macosx_11_0_arm64")
    ]
    worse = ["cp39-cp39-manylinux_2_34_x86_64", *real[1:]]
    changed = "cp39-cp39-manylinux_2_28_x86_64.manylinux_2_34_x86_64"
    assert add_tags([real, worse]) == [[changed, *real[1:]], worse]


@pytest.mark.parametrize(
    "names",
    [
        [f"py3-none-manylinux_2_{n}_x86_64" for n in range(10_000)],
        [
            f"{python}-{'.'.join(f'p{n}' for n in range(60))}"
            for python in ("py3-none", *["cp314-cp314"] * 3000)
        ],
        ["py3-none-macosx_1000000_0_arm64", "py3-none-any"],
    ],
    ids=["platforms", "wheels", "versions"],
)
def test_the_comparison_of_a_page_is_bounded(
    names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tags of a page of some hundred kilobytes took minutes, and gigabytes."""
    machines = renaming._find_machines

    def few(platforms: set[str]) -> set[tuple[str, ...]]:
        assert len(platforms) < 2000
        return machines(platforms)

    def real(version: tuple[int, int], arch: str) -> list[str]:
        assert version < (100, 0)
        return list(mac_platforms(version, arch))

    monkeypatch.setattr(renaming, "_find_machines", few)
    monkeypatch.setattr(renaming, "mac_platforms", real)
    found = [[name] for name in names]
    assert add_tags(found) == found
