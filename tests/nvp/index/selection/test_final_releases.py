"""Final releases that stay, because installers would otherwise take a pre-release."""

from __future__ import annotations

import pytest
from support.exposed import (
    OTHER_TAGS,
    TAGS,
    Item,
    Page,
    anywhere,
    compare,
    index_of,
    pick,
    show,
    source,
    wheel,
)

from nvp.index.selection.options import Target

RUNS = wheel("1.0+cu118")
NEWER = TAGS[0].replace("311", "312")


def test_a_final_release_is_left_for_each_python_of_an_abi() -> None:
    abi = "cp310-abi3-manylinux_2_28_x86_64"
    page = [wheel("1.0+cu130", tag=abi), wheel("1.5+cu126", tag=NEWER)]
    page += [wheel("2.1a1+cu126", tag=abi)]
    found = show([index_of(0, page)], None, {})
    assert not any(file.yanked for file in found)


def test_no_final_release_is_lost_to_an_index_that_only_the_installer_knows() -> None:
    """It may have a pre-release, for example in a directory of links."""
    page = [wheel("1.0+rocm6.3"), wheel("0.9+xpu")]
    assert compare([page], "", known=True)[1] == page[0]
    early = [wheel("2.0a1+cu118"), wheel("2.0a1+cu118", tag=OTHER_TAGS[0])]
    final = wheel("1.0+cu130")
    for page in ([final, *early], [final, source("1.0"), *early]):
        for known in (True, False):
            assert compare([page], "", known=known)[1] == final
    # A small wheel beside others, and one for an old Python, count as well.
    for final in (anywhere("1.0+cu130"), wheel("1.0+xpu", tag=OTHER_TAGS[1])):
        tags = (OTHER_TAGS[1], *TAGS)
        assert compare([[final, *early]], "", known=False, tags=tags)[1] == final


@pytest.mark.parametrize("other", [source("1.0"), anywhere("1.0")])
def test_other_hardware_is_no_last_resort_beside_other_files(other: Item) -> None:
    for first in (wheel("1.0+rocm6.3"), wheel("1.0+cu130")):
        for pages in ([[first, other, RUNS]], [[first, RUNS], [other]]):
            assert compare(pages, "")[1] != first
    page = [wheel("1.0+rocm6.3"), other]
    assert compare([page], "") == (page[0], other)
    # A stranger may have registered the name on another index.
    assert compare([page[:1], page[1:]], "") == (page[0], page[0])
    yanked = source("1.0", yanked=True)
    assert compare([[page[0], yanked]], "")[1] == page[0]


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize(
    "other",
    [
        source("1.0"),
        source("1.0")._replace(python="<3"),
        anywhere("1.0")._replace(python=">=3.12"),
        wheel("1.0", tag="py2-none-any"),
    ],
)
def test_other_hardware_is_a_last_resort_beside_files_that_do_not_fit(
    other: Item, known: bool
) -> None:
    sources = other.python is not None
    page = [wheel("1.1+rocm6.3"), other, wheel("2.0a1+cu118")]
    for pages in ([page], [page[:1], page[1:]]):
        found = compare(pages, "", sources=sources, known=known)
        assert found == (page[0], page[0])


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("start", ["kern-1.0-abc", "kern-1.0-1-2", "other-1.0"])
def test_other_hardware_is_a_last_resort_beside_files_of_no_release(
    start: str, known: bool
) -> None:
    page = [wheel("1.1+rocm6.3"), Item(f"{start}-py3-none-any.whl"), wheel("2.0a1")]
    target = Target(version="3.11.7", tags=dict.fromkeys(TAGS)) if known else None
    files = show([index_of(0, page)], target, {})
    assert page[0].name in {file.filename for file in files if not file.yanked}


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize(
    "page",
    [
        [source("1.0"), wheel("1.0+cu130", tag=OTHER_TAGS[1]), wheel("2.1a1+cu126")],
        [source("1.0"), anywhere("1.0+cu130"), wheel("2.1a1+cu126")],
        [source("2.0"), wheel("2.1a1+cu126"), wheel("2.1a1+cu130")],
        [source("2.0"), wheel("2.1a1+cu126"), anywhere("2.1a1+cpu")],
    ],
)
def test_a_source_stays_if_no_other_final_release_does(page: Page, known: bool) -> None:
    alone, judged = compare([page], known=known)
    assert alone is not None
    assert judged is not None
    assert alone.version.release == judged.version.release
    assert not judged.version.is_prerelease


@pytest.mark.parametrize("early", ["2.1a1", "2.1.post.dev1", "2.1r.dev", "2.1_c"])
@pytest.mark.parametrize("end", ["", "-abc-py3-none-any", "-x", "-"])
def test_pre_releases_of_all_forms(early: str, end: str) -> None:
    """Beside them, a final release is left for each Python that can use them."""
    page = [wheel("1.0+cu130"), wheel("0.9+cu118", tag=NEWER)]
    other = Item(f"kern-{early}{end}.whl") if end else wheel(f"{early}+cu126")
    found = show([index_of(0, [*page, other])], None, {})
    assert bool(found[0].yanked) is bool(end)


@pytest.mark.parametrize(
    ("early", "tag", "stays"),
    [
        ("0.1", NEWER, False),  # no pre-release
        ("3.0a1+cu118", NEWER, True),
        ("3.0a1+cu118", "cp310-abi3-manylinux_2_28_x86_64", True),
        ("3.0a1", TAGS[1], False),  # it is not known to run
        ("3.0a1+cu130", NEWER, False),
        ("3.0a1+cu118", TAGS[0], False),
        ("3.0a1+cu118-1", NEWER, True),
    ],
)
def test_a_release_with_files_for_another_python_stays_beside_a_pre_release(
    early: str, tag: str, stays: bool
) -> None:
    """uv and Poetry lock one release for each version of Python."""
    page = [wheel("2.0+cu130"), wheel("2.0+cu130", tag=NEWER), RUNS]
    found = show([index_of(0, [*page, wheel(early, tag=tag)])], None, {})
    assert [bool(file.yanked) for file in found[:3]] == [True, not stays, False]
    nightly = [x._replace(name=x.name.replace(".0", ".0.dev1")) for x in page[:3]]
    found = show([index_of(0, nightly)], None, {})
    assert [bool(file.yanked) for file in found] == [True, True, False]


def test_other_hardware_is_hidden_without_a_pre_release() -> None:
    page = [wheel("2.0+rocm6.3"), wheel("2.0+cu126"), RUNS]
    (file,) = {file.filename for file in show([index_of(0, page)], None, {})} ^ {
        item.name for item in page
    }
    assert file == page[0].name


def test_a_build_with_an_empty_reason_does_not_replace_others() -> None:
    """uv counts it as yanked, and got neither this build nor the newest release."""
    page = [wheel("2.5+cpu"), wheel("2.0+cu126", yanked=True), wheel("0.5")]
    index = index_of(0, page)
    index.pages = {"kern": index.pages["kern"].replace("CVE", "")}
    shown = [file.filename for file in show([index], None, {}) if not file.yanked]
    assert page[0].name in shown


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("early", [[], [wheel("2.1rc1+cu126")]])
@pytest.mark.parametrize("size", ["900", "0", "2000000"])
def test_a_wheel_without_gpu_code_on_another_index_replaces_nothing(
    early: list[Item], known: bool, size: str
) -> None:
    """A stranger's wheel of 800 bytes was installed in place of the user's own one."""
    own, placeholder = wheel("2.0+cu130"), anywhere("0.0.1")
    target = Target(version="3.11.7", tags=dict.fromkeys(TAGS)) if known else None
    other = index_of(1, [placeholder])
    text = other.pages["kern"]
    assert '"size": 900' in text
    other.pages = {"kern": text.replace('"size": 900', f'"size": {size}')}
    files = show([index_of(0, [own, *early]), other], target, {})
    found = pick(files, "", pre=False, sources=False)
    assert found == f"https://files.example/0/{own.name}"


@pytest.mark.parametrize("version", ["2.0", "1.0", "1.0+cu126"])
def test_a_wheel_for_musl_replaces_nothing(version: str) -> None:
    """pip found no wheel that it can install, because NVIDIA's libraries need glibc."""
    own, musl = (
        wheel("2.0+cu130"),
        wheel(version, tag="cp311-cp311-musllinux_1_2_x86_64"),
    )
    for pages in ([[own, musl]], [[own], [musl]]):
        assert compare(pages, "", known=False) == (own, own)
