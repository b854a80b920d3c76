"""Variant wheels have names that installers sort in the order of the variants."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.tags import parse_tag
from packaging.utils import parse_wheel_filename
from support.clients import CLIENTS, choose

from nvp.index.selection.renaming import (
    Release,
    find_highest_builds,
    find_label,
    group,
    make_offers,
    served_name,
)
from nvp.wheels.archive import parse_wheel_name

_TAGS = (
    "py3-none-any",
    "py2.py3-none-any",
    "cp310-cp310-manylinux_2_17_x86_64.manylinux2014_x86_64",
    "cp310-cp310-manylinux_2_28_x86_64",
    "cp312-cp312-manylinux_2_28_x86_64",
    "cp312-cp312-manylinux_2_28_aarch64",
    "cp39-abi3-manylinux_2_34_x86_64",
    "cp313-cp313-manylinux_2_28_x86_64",
    "py3-none-macosx_11_0_arm64",
    "cp312-cp312-win_amd64",
)
_LABELS = st.from_regex(r"[0-9a-z_.]{1,8}", fullmatch=True)
_BUILDS = st.sampled_from(("", "", "", "-0", "-1", "-2post", "-20240131"))
_FEW = st.lists(st.sampled_from(_TAGS), min_size=1, max_size=3, unique=True)
"""The tags of a release: those of more than a hundred combinations are not compared."""


@st.composite
def releases(draw: st.DrawFn) -> tuple[Release, list[str]]:
    """Draw a release, and those of its labels that fit, best first."""
    tags = st.sampled_from(draw(_FEW))
    each = st.lists(st.tuples(_BUILDS, tags), min_size=1, max_size=4, unique=True)
    wheels = draw(st.dictionaries(_LABELS, each, min_size=1, max_size=4))
    plain = draw(st.just([]) | each)
    names = [
        *(
            f"a_b-1.0{b}-{t}-{label}.whl"
            for label, all_ in wheels.items()
            for b, t in all_
        ),
        *(f"a_b-1.0{b}-{t}.whl" for b, t in plain),
        "a_b-1.0.tar.gz",
        "other-1.0-py3-none-any-x.whl",
        "other-1.0-py3-none-any.whl",
    ]
    found = group(draw(st.permutations(names)), "a-b")
    order = draw(st.permutations(sorted(wheels)))
    return found["1.0"], order[: draw(st.integers(0, len(order)))]


def label_in(names: dict[str, str | None], name: str | None) -> str | None:
    return None if name is None else names[name]


@given(releases(), st.sampled_from((0, 1000)))
def test_installers_take_the_best_label(
    given_: tuple[Release, list[str]], base: int
) -> None:
    release, labels = given_
    offers = make_offers(release, labels, base=base)
    plain = [wheel.file_name for wheel in release.plain]
    owners: dict[str, str | None] = {offer.name: offer.label for offer in offers}
    owners.update(dict.fromkeys(plain))
    by_rank = [
        *([o.name for o in offers if o.label == label] for label in labels),
        plain,
    ]
    for client in CLIENTS[::3]:
        chosen = choose(list(owners), client)
        first = next((c for g in by_rank if (c := choose(g, client))), None)
        assert label_in(owners, chosen) == label_in(owners, first)
        assert (chosen is None) == (first is None)


@given(releases())
def test_names_are_unique_and_ordered_like_the_labels(
    given_: tuple[Release, list[str]],
) -> None:
    release, labels = given_
    offers = make_offers(release, labels)
    names = [offer.name for offer in offers]
    assert len(set(names)) == len(names)
    files = {wheel.file_name for wheel in (*release.labelled, *release.plain)}
    assert not files.intersection(names)
    ranks = []
    for offer in offers:
        name, version, build, tags = parse_wheel_filename(offer.name)
        original = parse_wheel_name(offer.wheel.file_name)
        assert (name, str(version)) == ("a-b", "1.0")
        assert tags >= original.tags
        assert offer.label == original.label
        assert build
        assert build[0] > 0
        own = offer.wheel.file_name.split("-")[2] if original.build else ""
        end = f"{offer.label}B{own}" if own else offer.label
        assert str(build[1]).removeprefix("L") == end
        # Tools see no label in the new name.
        assert find_label(offer.name) is None
        ranks.append(build)
    assert ranks == sorted(ranks, reverse=True)
    assert list(dict.fromkeys(offer.label for offer in offers)) == labels
    others = [parse_wheel_filename(w.file_name)[2] for w in release.plain]
    assert not offers or all(ranks[-1] > build for build in others)


@given(releases())
def test_wheels_are_shown_if_their_label_fits(
    given_: tuple[Release, list[str]],
) -> None:
    release, labels = given_
    shown = {offer.wheel.file_name for offer in make_offers(release, labels)}
    for wheel in release.labelled:
        assert (wheel.file_name in shown) == (wheel.parts.label in labels)


def file_names(release: Release) -> list[str]:
    return [wheel.file_name for wheel in (*release.labelled, *release.plain)]


@given(st.lists(releases(), min_size=2, max_size=3))
def test_one_index_goes_before_another(
    indexes: Sequence[tuple[Release, list[str]]],
) -> None:
    pages = [file_names(release) for release, _ in indexes]
    ranks, others = [], []
    for number, (release, labels) in enumerate(indexes):
        base = find_highest_builds(pages[number + 1 :], "a-b").get("1", 0)
        offers = make_offers(release, labels, base=base)
        ranks.append([build_number(offer.name) for offer in offers])
        others.append([build_number(wheel.file_name) for wheel in release.plain])
    for number, own in enumerate(ranks):
        after = slice(number + 1, None)
        later = [n for numbers in (*ranks[after], *others[after]) for n in numbers]
        assert not own or not later or min(own) > max(later)


def build_number(file_name: str) -> int:
    build = parse_wheel_filename(file_name)[2]
    return build[0] if build else 0


def test_ranks_are_as_small_as_the_order_of_indexes_needs() -> None:
    own = ["a-1-py3-none-any-x.whl"]
    assert find_highest_builds([], "a") == {}
    # An index without the release needs no ranks.
    assert find_highest_builds(
        [["a-2-py3-none-any-x.whl", "b-1-3-py3-none-any.whl"]], "a"
    ) == {"2": 1}
    # Three wheels with two ranks, above a build number of 7.
    other = [
        "a-1.0-py3-none-any-x.whl",
        "a-1.0-py3-none-win_amd64-x.whl",
        "a-1.0-py3-none-any-y.whl",
        "a-1.0-7-py3-none-any.whl",
    ]
    assert find_highest_builds([other], "a") == {"1": 9}
    assert find_highest_builds([own, other], "a") == {"1": 10}
    # A release with only non-variant wheels has no ranks.
    assert find_highest_builds([["a-1-20240131-py3-none-any.whl"]], "a") == {
        "1": 20240131
    }


@pytest.mark.parametrize(
    ("file_name", "rank", "expected"),
    [
        (
            "torch-2.8.0-py3-none-any-cu129.whl",
            3,
            "torch-2.8.0-3cu129-py3-none-any.whl",
        ),
        (
            "torch-2.8.0-1-cp312-cp312-win_amd64-cu129.whl",
            12,
            "torch-2.8.0-12cu129B1-cp312-cp312-win_amd64.whl",
        ),
        ("torch-2.8.0-py3-none-any-12.9.whl", 3, "torch-2.8.0-3L12.9-py3-none-any.whl"),
        ("torch-2.8.0-py3-none-any-_1.whl", 3, "torch-2.8.0-3L_1-py3-none-any.whl"),
        ("torch-2.8.0-py3-none-any-null.whl", 1, "torch-2.8.0-1null-py3-none-any.whl"),
        (
            "torch-2.8.0+cu129-py2.py3-none-any-x.whl",
            1,
            "torch-2.8.0+cu129-1x-py2.py3-none-any.whl",
        ),
    ],
)
def test_served_names(file_name: str, rank: int, expected: str) -> None:
    tags = parse_wheel_name(file_name).supports
    assert served_name(file_name, rank, tags) == expected
    parse_wheel_filename(expected)


def test_names_show_the_added_tags() -> None:
    """Older machines, which cannot use the variant, use the regular wheel."""
    regular = "k-1-cp311-cp311-manylinux_2_17_x86_64.whl"
    names = [regular, "k-1-py3-none-manylinux_2_28_x86_64-c.whl"]
    (offer,) = make_offers(group(names, "k")["1"], ["c"])
    assert offer.name == "k-1-1c-py3.cp311-none.cp311-manylinux_2_28_x86_64.whl"
    for client in CLIENTS:
        fits = choose(names[:1], client)
        better = not client.keys().isdisjoint(offer.wheel.parts.tags)
        assert choose([regular, offer.name], client) == (offer.name if better else fits)


def test_long_names_get_no_tags() -> None:
    """Installers write files with the shown name, and with ``.metadata`` after it."""
    tags = {}
    for length in (100, 220):
        name = "k" * length
        names = [f"{name}-1-py3-none-any-c.whl", f"{name}-1-py3-none-win_amd64.whl"]
        (offer,) = make_offers(group(names, name)["1"], ["c"])
        assert len(offer.name) <= 246
        tags[length] = offer.name.removeprefix(f"{name}-1-1c-")
        assert offer.bare == f"{name}-1-1c-py3-none-any.whl"
    assert tags == {100: "py3-none-any.win_amd64.whl", 220: "py3-none-any.whl"}


def test_rank_and_label_of_digits_stay_apart() -> None:
    names = [f"a-1-py3-none-any-{label}.whl" for label in ("9", "0", "11")]
    offers = make_offers(group(names, "a")["1"], ["0", "9", "11"])
    ordered = sorted(
        (o.name for o in offers), key=lambda n: parse_wheel_filename(n)[2], reverse=True
    )
    assert [n.split("L", 1)[1].split("-")[0] for n in ordered] == ["0", "9", "11"]


def test_a_build_number_of_its_own_counts_within_a_label() -> None:
    names = [
        "a-1-py3-none-any-x.whl",
        "a-1-2-py3-none-any-x.whl",
        "a-1-10-py3-none-any-x.whl",
        "a-1-99-py3-none-any-y.whl",
        "a-1-7-py3-none-any.whl",
    ]
    offers = make_offers(group(names, "a")["1"], ["x", "y"])
    assert [offer.wheel.file_name for offer in offers] == [
        "a-1-10-py3-none-any-x.whl",
        "a-1-2-py3-none-any-x.whl",
        "a-1-py3-none-any-x.whl",
        "a-1-99-py3-none-any-y.whl",
    ]
    builds = [offer.name.split("-")[2] for offer in offers]
    assert builds == ["11xB10", "10xB2", "9x", "8yB99"]


@pytest.mark.parametrize(
    "names",
    [
        ["a-1-1-py3-none-any-x.whl", "a-1-2-py3-none-any-x.whl"],
        ["a-1-py3-none-any-_2.whl", "a-1-py3-none-any-2.whl"],
        ["a-1-py3-none-any-x_2.whl", "a-1-2-py3-none-any-x.whl"],
    ],
)
def test_another_build_gets_another_name(names: list[str]) -> None:
    """uv takes a wheel of the same name from its cache, also if it was withdrawn."""
    labels = ["x", "x_2", "2", "_2"]
    shown = {make_offers(group([name], "a")["1"], labels)[0].name for name in names}
    assert len(shown) == 2


def test_build_tags_that_differ_in_zeros_are_different_files() -> None:
    names = ["a-1-1-py3-none-any-x.whl", "a-1-01-py3-none-any-x.whl"]
    offers = make_offers(group(names, "a")["1"], ["x"])
    assert len({offer.name for offer in offers}) == 2


def test_spellings_of_a_version_are_one_release() -> None:
    # For installers 1.0 and 1.0.0 are the same version, and they compare its wheels.
    names = [
        "a-1.0-py3-none-any-x.whl",
        "A-1.0.0-5-py3-none-any.whl",
        "a-1-py3-none-any-y.whl",
        "a-1.0-variants.json",
    ]
    found = group(names, "a")
    assert len(found) == 1
    (release,) = found.values()
    assert release.metadata == "a-1.0-variants.json"
    offers = make_offers(release, ["y", "x"])
    every = [*(offer.name for offer in offers), "A-1.0.0-5-py3-none-any.whl"]
    assert choose(every, dict.fromkeys(parse_tag("py3-none-any"), 0)) == offers[0].name
    assert offers[0].label == "y"


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("a-1-py3-none-any-x.whl", "x"),
        ("a-1-1-py3-none-any-x.whl", "x"),
        ("a-1-1-py3-none-any.whl", None),
        ("a-1-py3-none-any.whl", None),
        ("a-1-py3-none-any-X.whl", None),
        ("a-1-py3-none-any-x y.whl", None),
        ("a-1-py3-none-any-.whl", None),
        ("a-x-py3-none-any-x.whl", None),
        ("a-1-py3-none-any-x.zip", None),
        ("a-1-1-2-py3-none-any-x.whl", None),
        ("-----.whl", None),
        ("-" * 300 + ".whl", None),
        ("a-1-py3-none-any-x.whl.metadata", None),
        ("", None),
    ],
)
def test_labels_in_names(name: str, label: str | None) -> None:
    assert find_label(name) == label


@given(st.lists(st.text(alphabet="a1-_.whl/\n\x00\u00e9", max_size=30), max_size=5))
def test_any_names_can_be_grouped(names: list[str]) -> None:
    for release in group([*names, "a-1-py3-none-any-x.whl"], "a").values():
        make_offers(release, sorted(release.labels))


def test_pages_without_variants_have_no_releases() -> None:
    assert group(["a-1-py3-none-any.whl", "a-1.tar.gz", "a-1-variants.json"], "a") == {}
    assert group([], "a") == {}
    # Wheels of other projects do not count.
    assert group(["b-1-py3-none-any-x.whl", "a-1-py3-none-any.whl"], "a") == {}


def test_metadata_belongs_to_its_release() -> None:
    names = [
        "my_torch-1.0-py3-none-any-x.whl",
        "my_torch-2.0-py3-none-any-x.whl",
        "My.Torch-1.0-variants.json",
        "other-2.0-variants.json",
        "my_torch-x-variants.json",
        "my_torch-3.0-variants.json",
        "variants.json",
    ]
    found = group(names, "my-torch")
    assert {version: release.metadata for version, release in found.items()} == {
        "1.0": "My.Torch-1.0-variants.json",
        "2.0": None,
    }


@pytest.mark.parametrize("build", ["9223372036854775808", "18446744073709551615"])
def test_build_numbers_that_uv_does_not_read_are_not_used(build: str) -> None:
    """A wheel of another index made uv pass over the variants, and the release."""
    names = ["k-1.0-cp311-cp311-linux_x86_64.whl", "k-1.0-py3-none-any-c.whl"]
    base = find_highest_builds([[f"k-1.0-{build}-py3-none-any.whl"]], "k")["1"]
    assert make_offers(group(names, "k")["1.0"], ["c"], base=base) == []
