"""Readers of tables over streams: `RangeFeeder` against a whole file in memory."""

from __future__ import annotations

import doctest
from collections.abc import Sequence

from hypothesis import example, given
from hypothesis import strategies as st
from support.containers import in_pieces

from nvp.gpu_code import ranges
from nvp.gpu_code.ranges import RangeFeeder, Reader, read_all

DATA = bytes(range(64))


def test_the_worked_example_of_the_module() -> None:
    results = doctest.testmod(ranges)
    assert results.attempted > 8
    assert results.failed == 0


def read_in_turn(
    requests: Sequence[Sequence[tuple[int, int]]],
) -> Reader[list[tuple[bytes, ...]]]:
    """Make these requests one after the other, and return the bytes."""
    received: list[tuple[bytes, ...]] = []
    for request in requests:
        data = yield tuple(request)
        received.append(data)
    return received


requests = st.lists(
    st.lists(st.tuples(st.integers(0, 80), st.integers(-5, 80)), max_size=3),
    max_size=4,
)


@given(
    requests,
    st.lists(st.integers(0, 64), max_size=12),
    st.integers(0, 70),
    st.integers(0, 70),
)
@example([[(0, -1)]], [], 0, 0)
def test_a_stream_gives_what_the_whole_file_gives(
    asked: list[list[tuple[int, int]]], borders: list[int], head: int, tail: int
) -> None:
    # No bytes have a negative length; the feeder takes such a request from a file.
    whole = read_all(
        read_in_turn([[(start, max(0, size)) for start, size in x] for x in asked]),
        DATA,
    )
    feeder = RangeFeeder(read_in_turn(asked), len(DATA), head=head, tail=tail)
    for _ in range(len(asked) + 1):
        for piece in in_pieces(DATA, borders):
            feeder.feed(piece)
        assert feeder.done or 0 < feeder.end <= len(DATA)
        feeder.restart()
    assert feeder.done
    assert feeder.result == whole


@given(requests, st.integers(0, 64))
def test_a_stream_that_ends_early_gives_no_other_bytes(
    asked: list[list[tuple[int, int]]], kept: int
) -> None:
    feeder = RangeFeeder(read_in_turn(asked), len(DATA))
    feeder.feed(DATA[:kept])
    feeder.finish()
    assert feeder.done
    for request, received in zip(asked, feeder.result or [], strict=True):
        for (start, size), data in zip(request, received, strict=True):
            assert DATA[:kept][start : start + max(0, size)].startswith(data)


def test_an_error_of_the_reader_ends_the_work() -> None:
    def refuse() -> Reader[None]:
        yield ((0, 4),)
        raise ValueError("not such a file")

    feeder = RangeFeeder(refuse(), len(DATA))
    feeder.feed(DATA)
    assert (feeder.done, str(feeder.error)) == (True, "not such a file")
    feeder.feed(DATA)
