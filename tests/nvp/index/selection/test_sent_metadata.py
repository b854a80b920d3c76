"""METADATA that was read by ranges and sent is compared with the wheel sent later."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from simple_repository import model

from nvp.index.http.ranges import ChangedFileError, Parts
from nvp.index.http.urls import UpstreamError
from nvp.index.selection import kept as keeping
from nvp.index.selection.core_metadata import compare
from nvp.index.selection.kept import (
    FRESH,
    MARK,
    Kept,
    MetadataStore,
    SentMetadata,
    mark_of,
    request_of,
)
from nvp.index.selection.pieces import ComparedWheel

REQUEST = ("torch", "mark")
DIFFERS = ChangedFileError("another")


def wheel_of(**hashes: str) -> model.File:
    name = "torch-1.0-cp311-cp311-manylinux_2_28_x86_64.whl"
    own = hashes or {"sha256": "a" * 64}
    return model.File(name, f"https://wheels.example/{name}", own)


def parts(number: int = 0) -> Parts:
    return Parts(9, {(0, number + 1, "0")})


def lie(number: int = 0) -> Kept:
    return Kept(b"a lie", parts(number))


def make(
    folder: Path | None = None, clock: Callable[[], float] = time.monotonic
) -> tuple[MetadataStore, SentMetadata]:
    store = MetadataStore(folder, clock)
    return store, SentMetadata(store, clock)


def test_a_request_is_named_by_its_mark() -> None:
    """The next page may hide the wheel, or give other hashes, names or servers."""
    wheel, other = wheel_of(), wheel_of(sha256="b" * 64)
    marks = [model.RequestContext({MARK: mark_of(each)}) for each in (wheel, other)]
    first, second = (request_of("torch", "a.whl", mark) for mark in marks)
    assert first == request_of("torch", "renamed.whl", marks[0])
    assert first != second
    assert first != request_of("other", "a.whl", marks[0])
    # A request by this program has no mark.
    names = [request_of("torch", name, None) for name in ("a.whl", "a.whl", "b.whl")]
    assert names[0] == names[1] != names[2]


def test_what_another_client_got_does_not_count() -> None:
    """A server may run for weeks, and forgets METADATA of the wheels read first."""
    store, sent = make()
    wheel, one, other = wheel_of(), lie(), lie(1)
    for kept in (one, other, other):
        store.keep(wheel, kept)
        sent.add(REQUEST, wheel, kept)
    # The second reader of METADATA may get the whole wheel.
    sent.add(REQUEST, wheel, Kept(b"the truth"))
    assert sent.find(REQUEST, wheel) == (parts(), parts(1))
    sent.settle(REQUEST, wheel, [parts(1)], None)
    assert sent.find(REQUEST, wheel) == (parts(), parts(1))
    sent.settle(REQUEST, wheel, [parts(), parts(1)], None)
    assert sent.find(REQUEST, wheel) == ()
    # A file without a hash may have changed.
    changing = replace(wheel, hashes={})
    for kept in (one, other):
        sent.add(REQUEST, changing, kept)
    assert sent.find(REQUEST, changing) == (parts(1),)
    # An earlier page may have given the hash.
    sent.add(REQUEST, wheel, one)
    sent.add(REQUEST, changing, one)
    sent.add(REQUEST, changing, lie(2))
    assert sent.find(REQUEST, changing) == (parts(), parts(2))


@pytest.mark.parametrize("minutes", [0, 11, 23 * 60])
def test_a_refusal_of_one_client_protects_another_one(minutes: int) -> None:
    """The other one may have METADATA, and come later than ten minutes."""
    now = [0.0]
    _, sent = make(clock=lambda: now[0])
    wheel = wheel_of()
    sent.add(REQUEST, wheel, lie())
    sent.settle(REQUEST, wheel, [parts()], DIFFERS)
    now[0] = minutes * 60
    if minutes * 60 < FRESH:
        with pytest.raises(UpstreamError, match="another") as caught:
            sent.find(REQUEST, wheel)
        assert caught.value.status == 403
    else:
        assert sent.find(REQUEST, wheel) == (parts(),)


@pytest.mark.parametrize(
    "later",
    [
        wheel_of(sha512="b" * 128),
        wheel_of(sha256="b" * 64),
        replace(wheel_of(), filename="torch-1.0-cp311-cp311-linux_x86_64.whl"),
        replace(wheel_of(), dist_info_metadata=True),
    ],
)
def test_a_page_that_changes(later: model.File) -> None:
    """What was sent for a URL stays, whatever the next page says of the file."""
    _, sent = make()
    sent.add(REQUEST, wheel_of(), lie())
    sent.add(REQUEST, later, lie(1))
    found = sent.find(REQUEST, wheel_of())
    assert found == sent.find(REQUEST, later) == (parts(), parts(1))


def test_no_record_is_lost_for_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A project of many releases must not make the server forget the others."""
    monkeypatch.setattr(keeping, "_NOTED", 3)
    now = [0.0]
    store, sent = make(clock=lambda: now[0])
    wheel = wheel_of()
    for number in range(3):
        assert not sent.is_full
        sent.add(("evil", str(number)), wheel, lie())
    assert sent.is_full
    with pytest.raises(UpstreamError, match="too many wheels"):
        sent.add(REQUEST, wheel, lie())
    sent.add(REQUEST, wheel, Kept(b"verified"))
    sent.add(("evil", "0"), wheel, lie(1))
    assert sent.find(("evil", "0"), wheel) == (parts(), parts(1))
    # Another index, and the next day, have their own limits.
    other = SentMetadata(store, lambda: now[0])
    other.add(REQUEST, wheel, lie())
    assert other.find(REQUEST, wheel) == (parts(),)
    now[0] = 25 * 3600
    sent.add(REQUEST, wheel, lie())
    assert sent.find(REQUEST, wheel) == (parts(),)


def test_a_server_that_sends_other_parts_each_time() -> None:
    """Those of a lie must not be forgotten after enough other ones."""
    store, sent = make()
    wheel = wheel_of()
    for number in [*range(8), *range(8)]:
        sent.add(REQUEST, wheel, lie(number))
    assert len(sent.find(REQUEST, wheel)) == 8
    with pytest.raises(UpstreamError, match="other parts of it each time"):
        sent.add(REQUEST, wheel, lie(8))
    assert store.is_refused(wheel)


def test_only_what_was_compared_is_verified(tmp_path: Path) -> None:
    """METADATA may be read again while the wheel passes through the server."""
    store, sent = make(tmp_path)
    wheel, one, other = wheel_of(), lie(), lie(1)
    store.keep(wheel, one)
    sent.add(REQUEST, wheel, one)
    store.keep(wheel, other)
    sent.settle(REQUEST, wheel, [parts()], None)
    assert store.find(wheel) == other
    # The next process must also compare the wheel.
    store, sent = make(tmp_path)
    assert store.find(wheel) is None
    assert store.read(wheel) == other
    sent.add(REQUEST, wheel, other)
    assert sent.find(REQUEST, wheel) == (parts(1),)
    sent.settle(REQUEST, wheel, [parts(1)], None)
    assert make(tmp_path)[0].read(wheel) == Kept(other.content)


def test_a_wheel_without_a_hash_is_compared_each_time() -> None:
    """Its owner may replace it in place: uv then took a dependency of the old one."""
    now = [0.0]
    store, sent = make(clock=lambda: now[0])
    wheel = replace(wheel_of(), hashes={})
    store.keep(wheel, lie())
    sent.add(REQUEST, wheel, lie())
    sent.settle(REQUEST, wheel, [parts()], None)
    # One client may have this METADATA already, and the next client gets it.
    assert sent.find(REQUEST, wheel) == (parts(),)
    assert store.find(wheel) == lie()
    sent.settle(REQUEST, wheel, [parts()], DIFFERS)
    assert store.is_refused(wheel)
    # An installer that requests no METADATA gets the new wheel after ten minutes.
    now[0] = 601
    assert sent.find(REQUEST, wheel) == ()


@pytest.mark.parametrize("later", [False, True])
def test_refused_metadata_is_deleted_whatever_its_signature(
    later: bool, tmp_path: Path
) -> None:
    """The page may have another signature when the wheel is compared."""
    store, sent = make(tmp_path)
    first, second = (
        replace(wheel_of(), url=f"{wheel_of().url}?signature={n}") for n in "12"
    )
    store.keep(first, lie())
    if later:
        store, sent = make(tmp_path)
        assert store.read(first) == lie()
    sent.add(REQUEST, first, lie())
    assert store.find(first) == lie()
    sent.settle(REQUEST, second, [parts()], DIFFERS)
    assert store.is_refused(first)
    assert store.refusals == [f"{first.filename}: another, so it was not sent"]
    # An installer that resumes the download lets it be read again.
    store.keep(first, lie())
    assert store.find(first) is None
    assert not [*tmp_path.iterdir()]
    store.keep(first, Kept(b""))
    assert store.find(first) == Kept(b"")


@pytest.mark.parametrize(
    "changes",
    [
        {"hashes": {}},
        {"hashes": {"sha256": "b" * 64}},
        {"hashes": {"sha512": "a" * 128}},
        {"url": "https://files.example/get?file=b.whl"},
    ],
)
def test_one_index_refuses_no_wheel_of_another(changes: dict[str, object]) -> None:
    """A page can list any wheel of another index."""
    store, sent = make()
    honest = replace(wheel_of(), url="https://files.example/get?file=a.whl")
    hostile = replace(honest, **changes)  # type: ignore[arg-type]
    sent.settle(REQUEST, hostile, [], DIFFERS)
    assert store.is_refused(hostile)
    assert not store.is_refused(honest)


@pytest.mark.parametrize("always", [False, True])
@pytest.mark.parametrize("notes", [False, True])
def test_the_wheel_to_send(always: bool, notes: bool) -> None:
    """A wheel is compared with its hashes, and with METADATA of any kind of wheel."""
    _, sent = make()
    wheel, resource = wheel_of(), model.HttpResource(url=wheel_of().url)
    if notes:
        sent.add(REQUEST, wheel, lie())
    found = compare(resource, wheel, sent, REQUEST, always=always)
    if not (always or notes):
        assert found is resource
        return
    assert isinstance(found, ComparedWheel)
    assert (found.original, found.hashes) == (resource, wheel.hashes)
    assert found.parts == ((parts(),) if notes else ())
    # A wheel to rewrite is also compared with the parts that its plan was made from.
    again = compare(
        replace(found, parts=(parts(1),)), wheel, sent, REQUEST, always=False
    )
    assert isinstance(again, ComparedWheel)
    assert again.parts == ((parts(),) if notes else ()) + (parts(1),)
    again.settle(DIFFERS)
    with pytest.raises(UpstreamError, match="another"):
        compare(resource, wheel, sent, REQUEST, always=always)
