"""``serve``: the index behind ``pip``, for other installers."""

from __future__ import annotations

import argparse
import signal
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ..errors import InputError, UsageError
from . import machine
from .narration import Talk
from .parsers import add_examples
from .pip import missing_extra, parse_pins
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
    machine.add_options(parser)
    machine.add_compatibility_option(parser)
    machine.add_every_gpu_option(parser)
    add_examples(
        parser,
        "serve",
        "serve --port 8080 --index-url https://pypi.org/simple",
    )


def execute(options: argparse.Namespace, environ: Mapping[str, str]) -> Result:
    """``data``: the ``url`` of each index, and what it stands for (``upstream``)."""
    find_machine = machine.find_later(options, environ)
    environ = machine.with_compatibility(options, environ)
    pins = parse_pins(options.label)
    try:
        from ..index.http.byte_ranges import redacted
        from ..index.http.client import is_loopback
        from ..index.pip.session import make_settings
        from ..index.pip.signals import handling
        from ..index.server.local_index import Loopback
        from ..index.server.server import HOSTS, reachable
    except ImportError as error:
        raise missing_extra(error) from None
    remote = not is_loopback(options.host)
    if remote and not options.allow_remote:
        message = f"{options.host} can be reached from other machines"
        hint = "give --allow-remote if that is what you want"
        raise UsageError(message, path="--host", hint=hint)
    command, ask_credentials = _ask_pip(options, environ)
    if not command.indexes:
        raise UsageError("there is no index to stand for", hint="give --index-url")
    # No blocks: stdout says where the index is.
    talk = Talk(aside=True, quiet=True)
    loopback = Loopback(
        make_settings(command, environ),
        machine=find_machine,
        environ=environ,
        warn=talk.warn,
        pins=pins,
        on_pick=talk.pick,
        every_gpu=options.every_gpu,
        ask_credentials=ask_credentials,
        host=options.host,
        port=options.port,
        secret=False,
        hosts=None if options.allow_remote else HOSTS,
    )
    urls = {
        url: loopback.add_index(url, command.credentials.get(url))
        for url in command.indexes
    }
    for url, here in urls.items():
        if here == url:
            message = "neither the URL of an index nor a folder"
            hint = "check it; plain HTTP needs --trusted-host"
            raise UsageError(message, path=redacted(url), hint=hint)
    result = Result(
        data={
            "indexes": [
                {"url": here, "upstream": redacted(url)} for url, here in urls.items()
            ]
        },
        text=[
            *(f"{redacted(url)} is at {here}" for url, here in urls.items()),
            *_examples(list(map(reachable, urls.values()))),
            "Stop it with Ctrl-C.",
        ],
        notes=_notes(remote=remote, private=bool(command.credentials)),
    )
    stopped = threading.Event()
    stops = dict.fromkeys((signal.SIGINT, signal.SIGTERM), lambda *_: stopped.set())
    with handling(stops), loopback.serve():
        # Now, not when it ends: what it says is needed while it runs.
        render(result, command="serve", as_json=options.json)
        stopped.wait()
    return Result(said=True)


def _ask_pip(
    options: argparse.Namespace, environ: Mapping[str, str]
) -> tuple[PipCommand, AskCredentials | None]:
    """What pip says of indexes; without one, as users of uv may be, the options."""
    from ..index.pip.command import Pip, PipCommand, find_python

    pip = Pip(find_python(options.python), environ)
    try:
        command = pip.understand(_pip_arguments(options))
    except InputError:
        if options.index_url is None:
            raise
        said = {
            "index_url": options.index_url,
            "extra_index_urls": options.extra_index_url,
            "trusted_hosts": options.trusted_host,
        }
        return PipCommand(command=None, options=said), None
    return command, lambda url: pip.ask_credentials(url, command.options)


def _pip_arguments(options: argparse.Namespace) -> list[str]:
    """What pip would be told to look at the same indexes."""
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
            "whoever can connect to this port reads the indexes with your credentials"
        ]
    if private:
        return ["everybody on this machine reads the indexes with your credentials"]
    return []


def _examples(urls: Sequence[str]) -> Sequence[str]:
    url, *others = urls
    extra = "".join(f" --extra-index-url {other}" for other in others)
    more = "".join(f" --index {other}" for other in others)
    return (
        f"  pip:        pip install --index-url {url}{extra} torch",
        f"  uv:         uv pip install --default-index {url}{more} torch",
        f"  poetry:     poetry source add --priority=primary variants {url}",
        f"  pdm:        pdm config pypi.url {url}",
        f"  containers: docker run --network host -e PIP_INDEX_URL={url} IMAGE",
    )
