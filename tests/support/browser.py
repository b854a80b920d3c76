"""A page of the site in Chromium, which is driven through its DevTools protocol."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

PROGRAM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)


class Browser:
    """One tab.

    :param requests: the URLs that the pages of the tab have requested.
    """

    def __init__(self, commands: int, events: int) -> None:
        self._commands = os.fdopen(commands, "wb")
        self._events = os.fdopen(events, "rb")
        self._numbers = itertools.count(1)
        self._session: str | None = None
        self._seen: set[str] = set()
        self.requests: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call(
            "Target.attachToTarget", targetId=target, flatten=True
        )["sessionId"]
        self.call("Page.enable")
        self.call("Network.enable")

    def close(self) -> None:
        """Close the pipes to the browser."""
        self._commands.close()
        self._events.close()

    def call(self, method: str, **parameters: Any) -> Any:
        """Return the result of a command of the protocol."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        self._commands.write(json.dumps(message).encode() + b"\0")
        self._commands.flush()
        while (reply := self._receive()).get("id") != number:
            pass
        assert "error" not in reply, reply
        return reply["result"]

    def _receive(self) -> dict[str, Any]:
        raw = bytearray()
        while (byte := self._events.read(1)) != b"\0":
            assert byte, "the browser has ended"
            raw += byte
        message: dict[str, Any] = json.loads(raw)
        if message.get("method") == "Network.requestWillBeSent":
            self.requests.append(message["params"]["request"]["url"])
        self._seen.add(message.get("method", ""))
        return message

    def open(self, url: str, *, width: int = 1280) -> None:
        """Load a page completely, in a window of a width in pixels."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=900,
            deviceScaleFactor=1,
            mobile=False,
        )
        # A change of the anchor alone would not load the page again.
        for address in ("about:blank", url):
            self._seen.discard("Page.loadEventFired")
            self.call("Page.navigate", url=address)
            while "Page.loadEventFired" not in self._seen:
                self._receive()

    def evaluate(self, expression: str) -> Any:
        """Return the value of an expression; a promise is awaited."""
        outcome = self.call(
            "Runtime.evaluate",
            expression=expression,
            awaitPromise=True,
            returnByValue=True,
            userGesture=True,
        )
        assert "exceptionDetails" not in outcome, outcome
        return outcome["result"].get("value")


@contextmanager
def running(profile: str) -> Iterator[Browser]:
    """Run headless Chromium; ``profile`` is an empty directory for its files."""
    assert PROGRAM
    from_us, commands = os.pipe()
    events, to_us = os.pipe()
    # Chromium reads commands from descriptor 3, and writes results to descriptor 4.
    script = f'exec "$@" 3<&{from_us} 4>&{to_us}'
    with subprocess.Popen(
        [
            *("bash", "-c", script, "bash", PROGRAM, "--headless=new", "--no-sandbox"),
            *("--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-pipe"),
            *("--hide-scrollbars", "--no-first-run", f"--user-data-dir={profile}"),
        ],
        pass_fds=(from_us, to_us),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        os.close(from_us)
        os.close(to_us)
        browser = Browser(commands, events)
        try:
            yield browser
        finally:
            process.terminate()
            browser.close()
