"""``serve``: serve the local index of ``nvp pip`` to other installers."""

from __future__ import annotations

import argparse
import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence

from nvidia_variant_provider.errors import UsageError

from .arguments import INDEXES, add_machine_options, add_options, find_later
from .narration import Narration
from .parsers import add_examples, whole_number
from .render import Result, complain, render

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvidia_variant_provider.machine.environment import Environment

    from ..index.http.client import Client
    from ..index.selection.options import Selection
    from ..index.server.local_index import LocalIndex

_MOST_NAMED = 10
"""The maximum number of projects that are named when the server stops."""


_INDEXES = """
-i, --index-url URL
  index to serve (default: pip's)
--extra-index-url URL...
  another index, served at a URL of its own
--trusted-host
--fresh
  query the indexes for every page, without a cache
--python PATH
  interpreter or environment whose pip configuration applies (default: the activated
  one, or nvp's own)
"""

_PLACE = """
--port
  port (default: a free one)
--host
  address (default: %(default)s)
--allow-remote
  let other machines connect; they read the indexes with your credentials
"""

_SHOWN = """
--label
--unchecked
--vendor-indexes
--no-range-metadata
"""

_RULES = """
--minor-version-compatibility
--every-gpu
"""


def configure_parser(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    add_options(parser.add_argument_group(INDEXES), _INDEXES)
    add_options(
        parser.add_argument_group("where to listen"),
        _PLACE,
        port={"type": whole_number},
        host={"default": "127.0.0.1"},
    )
    add_options(parser, _SHOWN)
    add_machine_options(parser)
    add_options(parser, _RULES)
    add_examples(
        parser, "serve", "serve --port 8080 --index-url https://wheels.example/"
    )


def execute(options: argparse.Namespace, environ: Mapping[str, str]) -> Result:
    """Serve until a signal arrives.

    ``data`` has the ``url`` and ``upstream`` of each index.
    """
    find_machine = find_later(options, environ)
    selection = _make_selection(options, environ, find_machine)
    remote = _is_remote(options)
    client, indexes = _find_indexes(options, environ)
    local_index = _make_local_index(options, client, selection)
    urls = _add_indexes(local_index, indexes)
    _warn_of_other_index(local_index.url, [*urls], selection.cache)
    result = _describe(urls, remote=remote, private=any(indexes.values()))
    # Print the result now, because users need it while the index runs.
    _serve(local_index, lambda: render(result, command="serve", as_json=options.json))
    for sentence in _what_lasts([*urls.values()], local_index.passing):
        complain(sentence)
    return Result(said=True)


def _warn_of_other_index(here: str, indexes: list[str], cache: str | None) -> None:
    """Warn if the last indexes at the port of the URL ``here`` were others.

    uv caches wheels by the URL of the index and the name, even if a page gives another
    hash, so it would install the wheels of the other indexes.
    """
    import hashlib

    from ..files import load, store

    port = here.rpartition(":")[2]
    path = None if cache is None else os.path.join(cache, "serve", port)
    own = hashlib.sha256("\n".join(indexes).encode("utf-8", "surrogatepass")).digest()
    if load(path, len(own)) not in (None, own):
        what = f"port {port} had another index before, and uv caches wheels by this URL"
        complain(f"warning: {what}; run uv cache clean, or choose another --port")
    store(path, own)


def _make_selection(
    options: argparse.Namespace,
    environ: Mapping[str, str],
    find_machine: Callable[[], Environment],
) -> Selection:
    from ..files import cache_folder
    from ..index.selection.options import Selection, parse_pins

    return Selection(
        machine=find_machine,
        pins=parse_pins(options.label),
        unchecked=options.unchecked,
        vendor_indexes=options.vendor_indexes,
        range_metadata=options.range_metadata,
        several_platforms=True,
        cache=cache_folder(environ),
        every_gpu=options.every_gpu,
        minor_version_compatibility=options.minor_version_compatibility,
        environ=environ,
    )


def _is_remote(options: argparse.Namespace) -> bool:
    """Return whether other machines can connect, which needs ``--allow-remote``."""
    from ..index.http.urls import is_loopback

    remote = not is_loopback(options.host)
    if remote and not options.allow_remote:
        message = f"other machines can connect to {options.host}"
        hint = "give --allow-remote if you want that"
        raise UsageError(message, path="--host", hint=hint)
    return remote


def _find_indexes(
    options: argparse.Namespace, environ: Mapping[str, str]
) -> tuple[Client, dict[str, tuple[str, str] | None]]:
    """Return the client, and ``{index: credentials}`` from pip's configuration.

    :raises UsageError: there is no index.
    """
    from ..index.http.client import Client
    from ..index.pip.settings import Indexes, find_indexes, make_settings

    named = Indexes(
        url=options.index_url,
        extra=options.extra_index_url,
        trusted=options.trusted_host,
        python=options.python,
    )
    command, ask_credentials = find_indexes(environ, named)
    # Other machines must not reach this machine's servers through an index page.
    settings = make_settings(command, environ, trusts_pages=not options.allow_remote)
    # By default, installers use no keyring for a user name that the index accepts.
    providers = {command.options.keyring_provider, environ.get("UV_KEYRING_PROVIDER")}
    asks_first = not providers.isdisjoint({"import", "subprocess"})
    client = Client(settings, ask_credentials=ask_credentials, asks_first=asks_first)
    return client, {
        url: command.credentials.get(url)
        for url in _without_own(command.indexes, options.port)
    }


def _make_local_index(
    options: argparse.Namespace, client: Client, selection: Selection
) -> LocalIndex:
    from ..index.server.kept_pages import KeptPages
    from ..index.server.local_index import LocalIndex
    from ..index.server.responses import ANY_HOST, LOOPBACK_NAMES, Access

    # Print no blocks, because stdout has the URL of the index.
    narration = Narration(aside=True, quiet=True, brief=True)
    hosts = ANY_HOST if _is_remote(options) else LOOPBACK_NAMES
    return LocalIndex(
        client,
        selection,
        # Users type these URLs, so they contain no secret.
        Access(secret=False, hosts=hosts),
        warn=narration.warn,
        on_pick=narration.pick,
        on_page=narration.page,
        host=options.host,
        port=options.port or 0,
        kept=KeptPages(narration.warn, fresh=options.fresh),
    )


def _add_indexes(
    local_index: LocalIndex, indexes: Mapping[str, tuple[str, str] | None]
) -> dict[str, str]:
    """Add the indexes to the server, and return ``{index: local URL}``."""
    from ..index.http.urls import why_no_index
    from ..index.server.vendors import NAME

    urls = {url: local_index.add_index(url, pair) for url, pair in indexes.items()}
    for url, here in urls.items():
        if here == url:
            local_index.close()
            message, hint = why_no_index(url)
            raise UsageError(message, path=url, hint=hint)
    for here in local_index.add_vendors():
        urls[NAME] = here
    return urls


def _describe(urls: Mapping[str, str], *, remote: bool, private: bool) -> Result:
    from nvidia_variant_provider.errors import redacted

    from ..index.server.server import reachable_url

    who = "who can connect to this port" if remote else "on this machine"
    return Result(
        data={
            "indexes": [
                {"url": here, "upstream": redacted(url)} for url, here in urls.items()
            ]
        },
        text=[
            *(f"{redacted(url)} is at {here}" for url, here in urls.items()),
            *_examples(list(map(reachable_url, urls.values()))),
            "Stop it with Ctrl-C.",
        ],
        notes=[f"everyone {who} reads the indexes with your credentials"]
        if remote or private
        else [],
    )


def _serve(local_index: LocalIndex, on_start: Callable[[], None]) -> None:
    from contextlib import suppress
    from queue import Empty, SimpleQueue

    from ..signals import ENDING, handling

    # Do not use an event: its lock is held for a moment while this thread waits, and a
    # signal handler would then wait for that lock forever.
    told: SimpleQueue[None] = SimpleQueue()
    stops = dict.fromkeys((signal.SIGINT, *ENDING), lambda *_: told.put(None))
    with handling(stops), local_index.serve():
        on_start()
        while True:
            # A signal may arrive just before a wait, which then does not notice it.
            with suppress(Empty):
                return told.get(timeout=0.5)


def _what_lasts(urls: Sequence[str], passing: Mapping[str, str]) -> Iterator[str]:
    """Yield a sentence for each file in the current directory that needs the server.

    If the directory has no lock file, one sentence is about lock files elsewhere.

    :param passing: for each project, why its files have URLs of this server.
    """
    from pathlib import Path

    from nvidia_variant_provider.errors import listed, printable

    from ..index.server.kept_urls import find_kept_urls, has_lock

    folder = Path()  # `Path.cwd` fails for a directory that was removed
    for kept in find_kept_urls(folder, urls):
        name = printable(str(kept.path))
        yield (
            f"{name}, line {kept.line}, names this server, which "
            f"other machines do not reach: {kept.advice}"
        )
    if passing and not has_lock(folder):
        names = [f"{project} ({why})" for project, why in sorted(passing.items())]
        yield (
            "A lock file with URLs of this server needs it again, at the same port; it "
            f"may have them of {listed(names, _MOST_NAMED)}"
        )


def _without_own(urls: Sequence[str], port: int | None) -> list[str]:
    """Leave out indexes that are this server itself.

    If a service runs the server, pip may be configured for it, and the server must not
    query itself.
    """
    from urllib.parse import urlsplit

    from ..index.http.urls import is_http, is_loopback

    def is_own(url: str) -> bool:
        if not port or not is_http(url):
            return False
        parts = urlsplit(url)
        return parts.port == port and is_loopback(parts.hostname or "")

    if not urls:
        raise UsageError("there is no index to serve", hint="give --index-url")
    kept = [url for url in urls if not is_own(url)]
    if not kept:
        message = "pip is configured for this server itself"
        raise UsageError(message, hint="give --index-url with the index to serve")
    return kept


def _examples(urls: Sequence[str]) -> list[str]:
    url, *others = urls
    pip = "".join(f" --extra-index-url {other}" for other in others)
    # uv reads the default index last, and takes a project only from the first index
    # that has it, unless a strategy is given. pip compares all indexes.
    uv = "".join(f"--index {one} " for one in urls[:-1])
    uv += f"--default-index {urls[-1]}"
    uv += " --index-strategy unsafe-best-match" if others else ""
    docker = f" -e PIP_EXTRA_INDEX_URL='{' '.join(others)}'" if others else ""
    # Poetry and PDM need a name for each index.
    names = ["variants", *(f"variants-{n}" for n in range(2, len(urls) + 1))]
    poetry = "poetry source add --priority=primary"
    keys = ["pypi.url", *(f"pypi.{name}.url" for name in names[1:])]
    return [
        f"  pip:        pip install --index-url {url}{pip} torch",
        f"  uv:         uv pip install {uv} torch",
        *(f"  poetry:     {poetry} {n} {u}" for n, u in zip(names, urls, strict=True)),
        *(f"  pdm:        pdm config {k} {u}" for k, u in zip(keys, urls, strict=True)),
        f"  containers: docker run --network host -e PIP_INDEX_URL={url}{docker} IMAGE",
    ]
