"""``serve``: the index behind ``pip``, for other installers."""

from __future__ import annotations

import argparse
import signal
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ..errors import InputError, UsageError
from ..index.connection import missing_extra
from . import machine
from .narration import Narration
from .parsers import add_examples
from .pip import parse_pins
from .render import render
from .result import Result

if TYPE_CHECKING:
    from ..index.http.client import AskCredentials
    from ..index.pip.command import PipCommand

__all__ = ["configure_parser", "execute"]


def configure_parser(parser: argparse.ArgumentParser) -> None:
    """Add the options of the verb."""
    group = parser.add_argument_group(
        "indexes (default: those that pip is configured for)"
    )
    group.add_argument("-i", "--index-url", metavar="URL", help="the index to serve")
    group.add_argument(
        "--extra-index-url",
        metavar="URL",
        action="append",
        default=[],
        help="another index, which gets a URL of its own",
    )
    group.add_argument(
        "--trusted-host",
        metavar="HOST",
        action="append",
        default=[],
        help="as for pip: do not verify this host, and allow plain HTTP",
    )
    group.add_argument(
        "--python",
        metavar="PATH",
        help="the interpreter or environment whose pip is asked (default: this one)",
    )
    group = parser.add_argument_group("where to listen")
    group.add_argument(
        "--port", type=int, default=0, help="the port (default: a free one)"
    )
    group.add_argument(
        "--host", default="127.0.0.1", help="the address (default: %(default)s)"
    )
    group.add_argument(
        "--allow-remote",
        action="store_true",
        help="let other machines connect; they read the indexes with your credentials",
    )
    parser.add_argument(
        "--label",
        metavar="[PROJECT=]LABEL",
        action="append",
        default=[],
        help="show this variant instead of the best one",
    )
    parser.add_argument(
        "--unchecked",
        action="store_true",
        help="show ordinary wheels as the indexes do, whether or not they run here",
    )
    machine.add_options(parser)
    machine.add_compatibility_option(parser)
    machine.add_every_gpu_option(parser)
    add_examples(
        parser,
        "serve",
        "serve --port 8080 --index-url https://wheels.example/",
    )


def execute(options: argparse.Namespace, environ: Mapping[str, str]) -> Result:
    """Serve until a signal; ``data`` has the ``url`` and ``upstream`` of each index."""
    find_machine = machine.find_later(options, environ)
    environ = machine.with_compatibility(options, environ)
    pins = parse_pins(options.label)
    try:
        from ..index.http.client import Client
        from ..index.http.urls import is_loopback, redacted
        from ..index.pip.settings import make_settings
        from ..index.pip.signals import handling
        from ..index.selection.options import Selection
        from ..index.server.access import ANY_HOST, LOOPBACK_NAMES, Access
        from ..index.server.local_index import LocalIndex
        from ..index.server.server import reachable_url
    except ImportError as error:
        raise missing_extra(error) from None
    remote = not is_loopback(options.host)
    if remote and not options.allow_remote:
        message = f"other machines can connect to {options.host}"
        hint = "give --allow-remote if you want that"
        raise UsageError(message, path="--host", hint=hint)
    command, ask_credentials = _ask_pip(options, environ)
    if not command.indexes:
        raise UsageError("there is no index to serve", hint="give --index-url")
    # Print no blocks: stdout says where the index is.
    narration = Narration(aside=True, quiet=True)
    local_index = LocalIndex(
        Client(make_settings(command, environ), ask_credentials=ask_credentials),
        Selection(
            machine=find_machine,
            pins=pins,
            unchecked=options.unchecked,
            cache=machine.cache_folder(environ),
            every_gpu=options.every_gpu,
            environ=environ,
        ),
        # People type these URLs, so there is no secret in them.
        Access(
            secret=False, hosts=ANY_HOST if options.allow_remote else LOOPBACK_NAMES
        ),
        warn=narration.warn,
        on_pick=narration.pick,
        host=options.host,
        port=options.port,
    )
    urls = {
        url: local_index.add_index(url, command.credentials.get(url))
        for url in command.indexes
    }
    for url, here in urls.items():
        if here == url:
            message = "is neither the URL of an index nor a folder"
            hint = "check it; plain HTTP requires --trusted-host"
            raise UsageError(message, path=redacted(url), hint=hint)
    result = Result(
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
        notes=_notes(remote=remote, private=bool(command.credentials)),
    )
    stopped = threading.Event()
    stops = dict.fromkeys((signal.SIGINT, signal.SIGTERM), lambda *_: stopped.set())
    with handling(stops), local_index.serve():
        # Print the result now, not at the end: people need it while the index runs.
        render(result, command="serve", as_json=options.json)
        stopped.wait()
    return Result(said=True)


def _ask_pip(
    options: argparse.Namespace, environ: Mapping[str, str]
) -> tuple[PipCommand, AskCredentials]:
    """Ask pip for its indexes; without a pip, the options have to be enough.

    Users of uv often have environments without a pip.
    """
    from ..index.pip.command import Pip, PipCommand, find_python
    from ..index.pip.settings import find_netrc_credentials

    pip = Pip(find_python(options.python), environ)
    try:
        command = pip.understand(_pip_arguments(options))
    except InputError:
        if options.index_url is None:
            raise
        given = {
            "index_url": options.index_url,
            "extra_index_urls": options.extra_index_url,
            "trusted_hosts": options.trusted_host,
        }
        command = PipCommand(command=None, options=given)
        return command, lambda url: find_netrc_credentials(url, environ)
    return command, lambda url: pip.ask_credentials(url, command.options)


def _pip_arguments(options: argparse.Namespace) -> list[str]:
    """Return the arguments by which pip would use the same indexes."""
    words = ["download"]
    if options.index_url is not None:
        words += ["--index-url", options.index_url]
    for url in options.extra_index_url:
        words += ["--extra-index-url", url]
    for host in options.trusted_host:
        words += ["--trusted-host", host]
    return words


def _notes(*, remote: bool, private: bool) -> list[str]:
    if remote:
        return [
            "everyone who can connect to this port reads the indexes with your "
            "credentials"
        ]
    if private:
        return ["everyone on this machine reads the indexes with your credentials"]
    return []


def _examples(urls: Sequence[str]) -> list[str]:
    """Return the commands by which installers use all of ``urls``."""
    url, *others = urls
    pip = "".join(f" --extra-index-url {other}" for other in others)
    uv = "".join(f" --index {other}" for other in others)
    docker = f" -e PIP_EXTRA_INDEX_URL='{' '.join(others)}'" if others else ""
    # poetry and pdm have a name for each index.
    names = ["variants", *(f"variants-{n}" for n in range(2, len(urls) + 1))]
    poetry = "poetry source add --priority=primary"
    keys = ["pypi.url", *(f"pypi.{name}.url" for name in names[1:])]
    return [
        f"  pip:        pip install --index-url {url}{pip} torch",
        f"  uv:         uv pip install --default-index {url}{uv} torch",
        *(f"  poetry:     {poetry} {n} {u}" for n, u in zip(names, urls, strict=True)),
        *(f"  pdm:        pdm config {k} {u}" for k, u in zip(keys, urls, strict=True)),
        f"  containers: docker run --network host -e PIP_INDEX_URL={url}{docker} IMAGE",
    ]
