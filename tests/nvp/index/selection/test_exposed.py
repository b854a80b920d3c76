"""Files that an installer would take only because others are hidden or yanked.

pip takes a file that its index yanked only for a pin that fits no other file, and a
pre-release only if no final release fits. The verdicts on builds must not change that.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simple_repository import model
from simple_repository.errors import PackageNotFoundError
from support.builds import gpu_build, metadata
from support.exposed import (
    OTHER_TAGS,
    TAGS,
    Item,
    Page,
    anywhere,
    compare,
    index_of,
    selection_for,
    show,
    source,
    wheel,
)
from support.label_index import Pages
from support.loopback import JSON

from nvp.index.http.client import Client
from nvp.index.http.urls import CompleteResponse, PassingError, UpstreamError
from nvp.index.selection.component import select
from nvp.index.selection.options import parse_pins
from nvp.index.selection.reader import Reader
from nvp.wheels.archive import release_of


class Failing(Pages):
    """An index that has no page."""

    def __init__(self, error: Exception) -> None:
        super().__init__({})
        self.error = error

    async def get_project_page(self, *_: object, **__: object) -> NoReturn:
        raise self.error


RUNS = wheel("1.0+cu118")
CANNOT = wheel("2.0+cu130")


@pytest.mark.parametrize(
    ("pages", "pin"),
    [
        ([[CANNOT, wheel("2.0+cu131", yanked=True), RUNS]], "==2.0"),
        ([[CANNOT, wheel("2.0+cu126", yanked=True), RUNS]], "==2.0"),
        ([[CANNOT, anywhere("2.0+zz", yanked=True), RUNS]], "==2.0"),
        ([[CANNOT, RUNS], [wheel("2.0+cu131", yanked=True)]], "==2.0"),
        # No file of this second index says anything about a GPU.
        ([[wheel("2.0+cu130"), RUNS], [anywhere("2.0.0", yanked=True)]], "==2.0"),
        ([[wheel("2.0"), RUNS], [anywhere("2.0", yanked=True)]], "===2.0"),
        ([[source("2.0"), wheel("2.0+cu130", yanked=True), RUNS]], "==2.0"),
        ([[wheel("2.0+cu130"), source("2.0", yanked=True), RUNS]], "==2.0"),
    ],
)
def test_a_pin_finds_nothing_that_the_index_yanked(
    pages: Sequence[Page], pin: str
) -> None:
    for known in (True, False):
        alone, judged = compare(pages, pin, known=known)
        assert alone is not None
        assert not alone.yanked
        assert judged == alone


@pytest.mark.parametrize("other", ["2.0+cu126", "2.0"])
def test_a_file_that_its_index_yanked_does_not_replace_a_hidden_one(other: str) -> None:
    page = [wheel("2.0+rocm6.3"), wheel(other, yanked=True), RUNS]
    assert compare([page], "==2.0") == (page[0], page[0])


def test_a_pin_may_name_a_file_that_its_index_yanked() -> None:
    yanked = wheel("2.0+cu126", yanked=True)
    for page in ([CANNOT, yanked, RUNS], [wheel("2.0+cu118"), yanked], [yanked]):
        for user in (True, False):
            assert compare([page], "==2.0+cu126", user=user) == (yanked, yanked)


def test_a_pin_of_a_label_finds_nothing_that_the_index_yanked() -> None:
    """The user names it, but another file of the same version is not yanked."""
    left = wheel("2.0+cu130", tag=TAGS[1])
    yanked = wheel("2.0+cu130", yanked=True)
    for pages in ([[left, yanked, RUNS]], [[left, RUNS], [yanked]]):
        for order in (pages, pages[::-1]):
            assert compare(order, "==2.0+cu130") == (left, left)


def test_a_name_that_is_yanked_and_is_not() -> None:
    """Both are of one release, and pip takes the last one that is not yanked."""
    page = json.loads(index_of(0, [CANNOT, RUNS]).pages["kern"])
    page["files"].append({**page["files"][0], "url": "/other", "yanked": "CVE"})
    index = Pages({"kern": json.dumps(page)}, kind=JSON)
    first, _, last = show([index], None, {})
    assert (first.filename, first.yanked) == (CANNOT.name, False)
    assert (last.filename, last.yanked) == (CANNOT.name, "CVE")


def test_without_builds_a_yanked_file_stays_as_it_is() -> None:
    """A pin must find it, as without verdicts."""
    yanked = anywhere("2.0", yanked=True)
    pages = [[yanked, anywhere("1.0")], [wheel("2.0", tag="cp39-cp39-win_amd64")]]
    for order in (pages, pages[::-1]):
        assert compare(order, "==2.0", known=False) == (yanked, yanked)
    labelled = [*pages[1], wheel("1.0+cu118", tag="cp39-cp39-win_amd64")]
    assert compare([pages[0], labelled], "==2.0", known=False) == (yanked, yanked)


def test_a_file_that_its_index_yanked_is_not_the_build_of_a_release() -> None:
    page = [wheel("2.0+cu118"), wheel("2.0+cu126", yanked=True), RUNS]
    for pin in ("", "==2.0"):
        assert compare([page], pin) == (page[0], page[0])


@pytest.mark.parametrize(
    "pages",
    [
        [[wheel("1.0+rocm6.3"), anywhere("2.0a1")]],
        [[wheel("1.0+rocm6.3")], [anywhere("2.0a1")]],
        [[wheel("1.0+xpu"), wheel("2.0.dev1+cu126")]],
    ],
)
def test_no_pre_release_replaces_a_final_release(pages: Sequence[Page]) -> None:
    for known in (True, False):
        for pin in ("", "<3"):
            assert compare(pages, pin, known=known) == (pages[0][0], pages[0][0])
        # The user may still ask for it.
        assert compare(pages, pin, known=known, pre=True)[1] == pages[-1][-1]


def test_no_pre_release_replaces_what_the_index_yanked() -> None:
    """The other file of the release is hidden, but it is for another Python."""
    page = [wheel("2.0", yanked=True), anywhere("2.1a1")]
    page += [wheel("2.0+rocm6.3", tag=OTHER_TAGS[0])]
    other = [[anywhere("2.1a1")], [wheel("2.0", yanked=True), source("2.0")]]
    for known in (True, False):
        assert compare([page], "", known=known) == (None, None)
        assert compare(other, "", known=known, sources=False) == (None, None)


@pytest.mark.parametrize("other", OTHER_TAGS)
@pytest.mark.parametrize("here", ["1.0+xpu", "1.0+cu130"])
def test_no_pre_release_replaces_a_final_release_elsewhere(
    here: str, other: str
) -> None:
    """``serve`` hides builds for other hardware also on machines other than its own."""
    final = wheel("1.0+xpu", tag=other)
    page = [wheel(here), final, anywhere("2.0a1")]
    alone, judged = compare([page], "", known=False, tags=(other, TAGS[1]))
    assert alone == final
    assert judged in (final, None)
    assert compare([page], "==1.0", known=False, tags=(other,))[1] == final


@pytest.mark.parametrize("other", OTHER_TAGS)
@pytest.mark.parametrize("left", [(), (anywhere("2.0a1"),)])
def test_no_yanked_file_replaces_another_elsewhere(
    left: Sequence[Item], other: str
) -> None:
    """The verdict on a build is also that on its builds for other machines."""
    page = [RUNS, *left, *(wheel("2.0+cu130", tag=tag) for tag in (TAGS[0], other))]
    page += [wheel("2.0+cu132", tag=tag, yanked=True) for tag in (TAGS[0], other)]
    alone, judged = compare([page], "==2.0", known=False, tags=(other,))
    assert alone == judged == wheel("2.0+cu130", tag=other)


WIN, NEW_GLIBC = OTHER_TAGS[3], "cp311-cp311-manylinux_2_39_x86_64"


@pytest.mark.parametrize(
    ("pages", "pin", "tags"),
    [
        # The other index hides its wheel for another platform.
        (
            [[wheel("1.0+cu132", tag=WIN, yanked=True)], [wheel("1.0+xpu", tag=WIN)]],
            "==1.0",
            (WIN,),
        ),
        # The other index yanks its source distribution beside its wheel.
        (
            [
                [anywhere("0.9", yanked=True)],
                [source("0.9"), wheel("0.9+cu130"), wheel("0.8+cu118")],
            ],
            "==0.9",
            TAGS,
        ),
        # The only final file that is not hidden is for a newer glibc.
        (
            [[wheel("1.0+cu130", tag=NEW_GLIBC), wheel("1.0+xpu"), wheel("1.1a1")]],
            "",
            TAGS,
        ),
        # All pre-releases are for another platform than that of ``serve``.
        ([[anywhere("1.0+xpu"), wheel("1.1a1", tag=WIN)]], "", (WIN, TAGS[1])),
        ([[wheel("1.0+xpu", tag=WIN)], [wheel("1.1a1", tag=WIN)]], "", (WIN,)),
    ],
)
def test_what_another_page_or_machine_knows(
    pages: Sequence[Page], pin: str, tags: Sequence[str]
) -> None:
    for order in (pages, pages[::-1]):
        alone, judged = compare(order, pin, known=False, tags=tags)
        assert alone is not None
        assert judged in (alone, None)


def test_a_pre_release_that_is_a_variant() -> None:
    """Installers get it under another name."""
    final, variant = wheel("1.0+xpu"), Item(f"kern-1.1a1-{TAGS[0]}-cu126.whl")
    for added, yanked in (((), []), ((variant,), [True])):
        files = show([index_of(0, [final, RUNS, *added])], None, {})
        assert [bool(f.yanked) for f in files if f.filename == final.name] == yanked


def test_a_label_that_the_user_requested_excludes_all_others() -> None:
    page = [wheel(f"2.0+{label}") for label in ("cu130", "cu126")]
    index = index_of(0, [*page, wheel("2.0+cu118", yanked=True)])
    chosen = replace(selection_for(None, {}), pins=parse_pins(["cu126"]))
    for others in ([], [Failing(UpstreamError("is not a page"))]):
        reader = Reader(Client())
        indexes = [index, *others]
        component, *_ = select(indexes, selection=chosen, reader=reader, warn=print)
        files = asyncio.run(component.get_project_page("kern")).files
        assert [file.filename for file in files] == [page[1].name]


def replied(status: int, **keys: Any) -> UpstreamError:
    url = "https://index.example/"
    keys = {"headers": {}, "body": b"", **keys}
    reply = CompleteResponse(status=status, url=url, **keys)
    return UpstreamError(f"HTTP {status}", url, reply=reply)


def unread(text: str) -> UpstreamError:
    """Return the error for a page that only some installers can read."""
    error = replied(200, headers={"content-type": "text/html"}, body=text.encode())
    error.page = error.reply
    return error


@pytest.mark.parametrize(
    ("error", "is_sure"),
    [
        (PassingError("no response"), True),
        (PackageNotFoundError("kern"), True),
        *((replied(status), True) for status in (400, 403, 404, 503, 520)),
        # An installer may read what this program cannot read.
        (UpstreamError("is not a page"), False),
        (replied(200), False),
        (replied(302), False),
        # An installer follows the redirect itself, except to say that nothing is there.
        (replied(404, away="https://b.example/"), True),
        *((replied(x, away="https://b.example/"), False) for x in (401, 403, 500)),
        (unread("<svg>other-1.whl"), True),
        (unread("<svg>kern-1.whl"), False),
        (replied(200, body=b"<svg>"), False),
    ],
)
def test_an_index_without_a_page(error: Exception, is_sure: bool) -> None:
    """An installer may find files where this program finds none."""
    foreign = wheel("1.0+rocm6.3")
    first, failing = index_of(0, [CANNOT, foreign, RUNS]), Failing(error)
    selection, reader = selection_for(None, {}), Reader(Client())
    for others in ([], [failing]):
        indexes = [first, *others]
        component, *_ = select(indexes, selection=selection, reader=reader, warn=print)
        page = asyncio.run(component.get_project_page("kern"))
        found = {file.filename: file for file in page.files}
        is_doubtful = bool(others) and not is_sure
        assert bool(found[CANNOT.name].yanked) is not is_doubtful
        assert (foreign.name in found) is is_doubtful


def test_what_the_user_excludes_replaces_nothing() -> None:
    """Hashes, or a date, exclude files as this does."""
    page = [CANNOT, wheel("2.0+cu131", yanked=True), wheel("2.0+cu118")]
    for pages in ([page], [page[:2], page[2:]]):
        found = compare(pages, "==2.0,!=2.0+cu118", user=False)
        assert found == (CANNOT, CANNOT)
    pages = [[wheel("1.0+rocm6.3"), RUNS], [anywhere("2.0a1")]]
    assert compare(pages, "")[1] == RUNS
    assert compare(pages, "!=1.0+cu118", user=False) == (pages[0][0], None)


def test_a_variant_that_its_index_yanked_does_not_replace_a_regular_wheel() -> None:
    plain = f"torch-2.15.0-{TAGS[0]}.whl"
    variant = f"torch-2.15.0-{TAGS[0]}-cu126.whl"
    older = plain.replace("2.15.0", "2.10.0")
    names = [plain, variant, older, "torch-2.15.0-variants.json"]
    files = [
        {
            "filename": name,
            "url": f"https://files.example/{name}",
            "hashes": {},
            "yanked": name == variant,
        }
        for name in names
    ]
    document = {"meta": {"api-version": "1.0"}, "name": "torch", "files": files}
    variants = json.dumps(metadata({"cu126": gpu_build("12.6")}))
    pages = {"torch": json.dumps(document)}
    index = Pages(pages, {names[-1]: variants}, kind=JSON)
    found = {f.filename: f for f in show([index], None, {}, "torch")}
    assert found.keys() == {plain, older, names[-1]}
    assert found[plain].yanked
    files[1]["yanked"] = False
    pages["torch"] = json.dumps(document)
    found = {f.filename: f for f in show([index], None, {}, "torch")}
    assert any("cu126" in name for name in found)


LABELS = ("", "+cu118", "+cu130", "+rocm6.3")
VERSIONS = st.sampled_from(("2.0", "2.0", "1.0", "2.1a1"))
ITEMS = st.builds(
    lambda item, yanked, python: item._replace(yanked=yanked, python=python),
    st.one_of(
        st.builds(
            lambda version, label, tag: wheel(version + label, tag=tag),
            VERSIONS,
            st.sampled_from((*LABELS, *LABELS[2:])),
            st.sampled_from((*TAGS, TAGS[0], *OTHER_TAGS)),
        ),
        st.builds(source, VERSIONS),
    ),
    st.booleans(),
    st.sampled_from((None, None, None, "<3", ">=3.12")),
)
PAGES = st.lists(
    st.lists(ITEMS, min_size=1, max_size=4, unique_by=lambda item: item.name),
    min_size=1,
    max_size=2,
)
PINS = st.one_of(
    st.sampled_from(("==2.0", "", "<2", ">=2.1a0")),
    st.builds(
        "{}2.0{}".format, st.sampled_from(("==", "===")), st.sampled_from(LABELS)
    ),
)
OPTIONS = st.fixed_dictionaries(
    dict.fromkeys(("pre", "sources", "known", "user"), st.booleans())
)


@settings(max_examples=3 * settings().max_examples)
@given(
    pages=PAGES,
    pin=PINS,
    options=OPTIONS,
    other=st.sampled_from((TAGS[0], *OTHER_TAGS)),
)
def test_what_pip_ranks_last_stays_last(
    pages: Sequence[Page], pin: str, options: Mapping[str, bool], other: str
) -> None:
    tags = TAGS if options["known"] else (other, TAGS[1])
    alone, judged = compare(pages, pin, tags=tags, **options)
    if judged is not None:
        assert alone is not None
        assert alone.yanked or not judged.yanked
        assert alone.version.is_prerelease or not judged.version.is_prerelease


@given(pages=PAGES)
def test_a_final_release_is_left_on_some_index(pages: Sequence[Page]) -> None:
    """Otherwise, uv and Poetry would take a pre-release."""

    def has_final(files: Iterable[model.File]) -> bool:
        found = (release_of(file.filename, "kern") for file in files if not file.yanked)
        return any(release and not release.is_prerelease for release in found)

    indexes = [index_of(number, page) for number, page in enumerate(pages)]
    alone = [asyncio.run(index.get_project_page("kern")).files for index in indexes]
    shown = show(indexes, None, {})
    if any(map(has_final, alone)):
        assert has_final(shown)


@pytest.mark.parametrize("newest", ["3.0+cpu", "3.0+cu130"])
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("withdrawn", ["2.0+cpu", "2.0+cu126"])
def test_an_index_withdraws_a_file_of_an_old_release(
    newest: str, known: bool, withdrawn: str
) -> None:
    """pip took the other file of that release, which cannot run, but no newer one."""
    page = [wheel(newest), wheel("2.0+cu130"), wheel("1.0+cu126")]
    page += [wheel(withdrawn, yanked=True)]
    assert compare([page], known=known) == (page[0], page[0])


@pytest.mark.parametrize("newest", ["3.0+cu130", "3.0+cu126"])
@pytest.mark.parametrize("known", [True, False])
def test_another_index_withdraws_a_file_of_an_old_release(
    newest: str, known: bool
) -> None:
    """It chose the release: neither the newest one nor the newest one that runs."""
    own = [wheel(newest), wheel("2.0+cu130"), wheel("1.0+cu126")]
    other = [wheel("2.0", yanked=True, tag="cp311-cp311-win_amd64")]
    for pages in ([own, other], [other, own]):
        alone, behind = compare(pages, known=known)
        assert alone == behind == own[0]
    _, behind = compare([own], known=known)
    assert behind == (own[0] if newest == "3.0+cu126" else own[2])
    # A build of the same release that runs is no other case.
    own[1:1] = [wheel("2.0")]
    alone, behind = compare([own, other], known=known)
    assert alone == behind == own[0]
