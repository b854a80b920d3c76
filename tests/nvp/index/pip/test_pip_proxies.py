"""``pip`` uses the proxy that pip alone uses for each request, or none."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from typing import NamedTuple

import pytest
from support.authority import HOST
from support.grids import some_of
from support.processes import PIPS, Environment, Pip
from support.proxy import Proxy, serve_proxy
from support.range_server import Answer, serve_answers
from support.wheels import stub_wheel

NEAR = "127.1"
"""A name of this machine that is not one of those without a proxy."""

PATHS = ("/simple/kern/", "/kern-1.0-py3-none-any.whl", "/other-1.0-py3-none-any.whl")
"""What pip reads: the page, the file that it names, and a file by its URL."""

# Each proxy has a number: 0 is of an option, 1 and 2 are of variables, 3 of a file.
OPTIONS = {
    "none": (),
    "URL": ("--proxy", "{0}"),
    "empty": ("--proxy", ""),
    "isolated": ("--isolated", "--proxy", "{0}"),
    "flag": ("--no-proxy-env",),
    "flag and URL": ("--no-proxy-env", "--proxy", "{0}"),
}
# Variables, and a line of a configuration file.
SETTINGS = {
    "none": ("", ""),
    "variable": ("PIP_PROXY={0}", ""),
    "file": ("", "proxy = {3}"),
    "variable and file": ("PIP_PROXY={0}", "proxy = {3}"),
    "flag": ("PIP_NO_PROXY_ENV=1", ""),
    "flag in a file": ("", "no-proxy-env = true"),
}
VARIABLES = {
    "none": "",
    "lower": "http_proxy={1}",
    "upper": "HTTP_PROXY={1}",
    "empty": "http_proxy= HTTP_PROXY={1}",
    "all": "all_proxy={2}",
    "ALL": "ALL_PROXY={2}",
    "both": "http_proxy={1} all_proxy={2}",
    "https": "https_proxy={1}",
}
DIRECT = {
    "none": "",
    "lower": f"no_proxy={NEAR}",
    "upper": f"NO_PROXY={NEAR}",
    "star": "no_proxy=*",
    "STAR": "NO_PROXY=*",
    "network": "NO_PROXY=127.0.0.0/8",
    "port": f"no_proxy={NEAR}:{{port}}",
    "another": f"no_proxy=other.example NO_PROXY={NEAR}",
    "empty": f"no_proxy= NO_PROXY={NEAR}",
}
EDGES = (PIPS[-1], PIPS[0])
FOUND = [
    # NO_PROXY does not matter to --proxy.
    (EDGES[0], "URL", "none", "lower", "lower"),
    (EDGES[1], "URL", "none", "lower", "upper"),
    # From 26.2 on, an empty --proxy hides the variables.
    (EDGES[0], "empty", "none", "both", "none"),
    # A proxy in a file got the requests to the local index, with their secret.
    (EDGES[0], "URL", "file", "none", "none"),
    (EDGES[1], "none", "variable and file", "none", "none"),
    (EDGES[0], "none", "file", "none", "none"),
    (EDGES[0], "flag and URL", "flag in a file", "none", "none"),
    (EDGES[1], "none", "none", "lower", "star"),
    (EDGES[0], "none", "none", "lower", "port"),
    (EDGES[0], "none", "none", "upper", "network"),
    (EDGES[1], "none", "none", "lower", "empty"),
]
GRID = [
    case
    for case in product(EDGES, OPTIONS, SETTINGS, VARIABLES, DIRECT)
    if case not in FOUND and (case[0] == PIPS[-1] or "flag" not in case[1])
]


class Routes(NamedTuple):
    """The ways of the requests for each path; ``-1`` is the way without a proxy."""

    code: int
    ways: tuple[frozenset[int], ...]


@pytest.mark.parametrize(
    "case",
    [
        *FOUND[2:4],
        *(pytest.param(x, marks=pytest.mark.slow) for x in (*FOUND[:2], *FOUND[4:])),
        *some_of(zip(GRID), 4801, slow=401),
    ],
)
def test_routes(
    case: Sequence[str],
    pips: dict[str, Environment],
    pip_of: Callable[[str], Pip],
    tmp_path: Path,
) -> None:
    version, option, setting, variable, direct = case
    pip, python = pip_of(version), pips[version].python

    def alone(words: list[str]) -> int:
        command = [str(python), "-m", "pip", *words]
        done = subprocess.run(
            command, env=pip.environ, capture_output=True, check=False, timeout=120
        )
        return done.returncode

    def through(words: list[str]) -> int:
        return pip(*words).code

    def find_routes(run: Callable[[list[str]], int]) -> Routes:
        wheels = [stub_wheel(tmp_path, name, "1.0") for name in ("kern", "other")]
        answers = {f"/{path.name}": Answer(body=path.read_bytes()) for path in wheels}
        with ExitStack() as stack:
            server = stack.enter_context(serve_answers(answers))
            near = server.url.replace("127.0.0.1", NEAR)
            link = f'<!DOCTYPE html><a href="{near}{PATHS[1]}">{PATHS[1][1:]}</a>'
            answers[PATHS[0]] = Answer(body=link.encode(), kind="text/html")
            proxies = [stack.enter_context(serve_proxy(server.url)) for _ in range(4)]
            urls, port = [each.url for each in proxies], near.rpartition(":")[2]
            words, line = SETTINGS[setting]
            words = f"{words} {VARIABLES[variable]} {DIRECT[direct]}"
            for word in words.format(*urls, port=port).split():
                name, _, value = word.partition("=")
                pip.environ[name] = value
            file.write_text(f"[global]\n{line}\n".format(*urls))
            install = ["install", "--no-cache-dir", "--target", str(tmp_path / "it")]
            install += ["--upgrade", "--index-url", f"{near}/simple/"]
            install += [word.format(*urls) for word in OPTIONS[option]]
            code = run([*install, "--trusted-host", NEAR, "kern", f"{near}{PATHS[2]}"])
        asked = [url for each in proxies for url in each.asked]
        # The local index is never behind a proxy.
        assert [url for url in asked if not url.startswith(near)] == []
        return Routes(code, tuple(ways(p, server.requests, proxies) for p in PATHS))

    file = tmp_path / "pip.conf"
    pip.environ["PIP_CONFIG_FILE"] = str(file)
    del pip.environ["NO_PROXY"]
    outcome = find_routes(alone)
    assert outcome.code == 0
    assert find_routes(through) == outcome


def ways(path: str, received: list[str], proxies: list[Proxy]) -> frozenset[int]:
    """Return the proxies that were asked for a path, and -1 if it was read directly."""
    counts = [sum(url.endswith(path) for url in each.asked) for each in proxies]
    total = sum(request.split()[0] == path for request in received)
    numbers = {number for number, count in enumerate(counts) if count}
    return frozenset(numbers | ({-1} if total > sum(counts) else set()))


@pytest.mark.parametrize(
    "way",
    ["option", *(pytest.param(x, marks=pytest.mark.slow) for x in ("variable", "URL"))],
)
@pytest.mark.parametrize(
    "host", ["127.0.0.1", pytest.param("localhost", marks=pytest.mark.slow)]
)
@pytest.mark.skipif(sys.platform == "darwin", reason="it has no other address")
def test_files_on_this_machine(way: str, host: str, pip: Pip, tmp_path: Path) -> None:
    """Only the local index is read without the proxy, not other local servers."""
    wheel = stub_wheel(tmp_path, "kern", "1.0")
    answers = {f"/{wheel.name}": Answer(body=wheel.read_bytes())}
    with serve_answers(answers) as server, serve_proxy(server.url) as proxy:
        file = f"{server.url.replace('127.0.0.1', host)}/{wheel.name}"
        link = f'<!DOCTYPE html><a href="{file}">{wheel.name}</a>'
        answers["/kern/"] = Answer(body=link.encode(), kind="text/html")
        del pip.environ["NO_PROXY"]
        words = ["--index-url", f"http://{HOST}/", "--trusted-host", HOST]
        if way == "option":
            words += ["--proxy", proxy.url]
        else:
            pip.environ["http_proxy"] = proxy.url
        words += ["--target", str(tmp_path / "it"), file if way == "URL" else "kern"]
        done = pip("install", *words)
    assert done.code == 0, done.text
    assert file in proxy.asked
    assert {url for url in proxy.asked if HOST not in url} == {file}
