"""When a server that ends by itself may end."""

from __future__ import annotations

from nvp.index.server.idleness import (
    PAUSE,
    RENEWED_AFTER,
    IdleWatch,
)


def test_idle_time_counts_from_the_last_request() -> None:
    watch = IdleWatch(600, now=0, renews=False)
    assert watch.seconds_left(now=599.5, requests=0, busy=False) == 0.5
    assert watch.seconds_left(now=599.8, requests=1, busy=False) > 0
    assert watch.seconds_left(now=1199, requests=1, busy=False) > 0
    assert watch.seconds_left(now=1200, requests=1, busy=False) == 0


def test_long_response_is_not_idle() -> None:
    watch = IdleWatch(10, now=0, renews=True)
    assert watch.seconds_left(now=9000, requests=0, busy=True) > 0
    assert watch.seconds_left(now=9001, requests=0, busy=False) > 0


def test_old_server_that_starts_again_uses_the_first_pause() -> None:
    once, renewed = (IdleWatch(600, now=0, renews=renews) for renews in (False, True))
    for watch in (once, renewed):
        before = RENEWED_AFTER - 1
        assert watch.seconds_left(now=before, requests=1, busy=False) > 0
    now = RENEWED_AFTER - 1 + PAUSE
    assert once.seconds_left(now=now, requests=1, busy=False) > 0
    assert renewed.seconds_left(now=now, requests=1, busy=False) == 0
