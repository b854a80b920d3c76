"""``serve``: the index behind ``pip``, for other installers."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from collections.abc import Mapping, Sequence

from nvidia_variant_provider.errors import UsageError

from . import machine
from .indexes import add_index_options
from .labels import add_label_option
from .narration import Narration
from .parsers import add_examples, whole_number
from .render import complain, render
from .result import Result

__all__ = ["configure_parser", "execute"]

_MOST_NAMED = 10
"""The projects that are named at the end."""

_UNIT_PORT, _UNIT_IDLE = 8642, 600
"""The port and the seconds of a service, where the user gives none."""


def configure_parser(parser: argparse.ArgumentParser) -> None:
    """Add the options of the verb."""
    add_index_options(
        parser,
        index="the index to serve",
        extra="another index, which gets a URL of its own",
        python="the interpreter or environment whose pip is asked (default: this one)",
    )
    group = parser.add_argument_group("where to listen")
    group.add_argument(
        "--port",
        type=whole_number,
        help=f"the port (default: a free one; with --unit, {_UNIT_PORT})",
    )
    group.add_argument(
        "--host", default="127.0.0.1", help="the address (default: %(default)s)"
    )
    group.add_argument(
        "--allow-remote",
        action="store_true",
        help="let other machines connect; they read the indexes with your credentials",
    )
    group = parser.add_argument_group("how long to run")
    group.add_argument(
        "--idle",
        type=whole_number,
        metavar="SECONDS",
        help="end after this time without a request (default: never; with --unit, "
        f"{_UNIT_IDLE})",
    )
    group.add_argument(
        "--unit",
        action="store_true",
        help="print a systemd user service that starts this index at its first "
        "request, and the settings by which installers use it; serve nothing now",
    )
    add_label_option(parser, "show this variant instead of the best one")
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
        "serve --unit",
    )


def execute(options: argparse.Namespace, environ: Mapping[str, str]) -> Result:
    """Serve until a signal, or until idle; print units with ``--unit``.

    ``data`` has the ``url`` and ``upstream`` of each index. With ``--unit`` it has the
    ``units``, the ``commands`` that enable them and the ``settings`` of installers.
    """
    find_machine = machine.find_later(options, environ)
    environ = machine.with_compatibility(options, environ)
    from ..index.selection.options import parse_pins

    pins = parse_pins(options.label)
    if options.idle is not None and options.idle < 1:
        raise UsageError(
            f"{options.idle} is not a number of seconds", path="--idle", hint="give 600"
        )
    from ..index.http.client import Client
    from ..index.http.urls import is_loopback, redacted, why_no_index
    from ..index.pip.settings import find_indexes, make_settings
    from ..index.selection.options import Selection
    from ..index.server.access import ANY_HOST, LOOPBACK_NAMES, Access
    from ..index.server.activation import take_socket, without_activation
    from ..index.server.local_index import LocalIndex
    from ..index.server.server import reachable_url
    from ..signals import handling

    listening = None if options.unit else take_socket(environ, os.getpid())
    environ = without_activation(environ)
    host, port = options.host, options.port
    if listening is not None:
        host, port = listening.getsockname()[:2]
    remote = not is_loopback(host)
    if remote and not options.allow_remote:
        message = f"other machines can connect to {host}"
        hint = "give --allow-remote if you want that"
        raise UsageError(message, path="--host", hint=hint)
    if options.unit:
        port = _UNIT_PORT if port is None else port
    command, ask_credentials = find_indexes(
        environ,
        index_url=options.index_url,
        extra_index_urls=options.extra_index_url,
        trusted_hosts=options.trusted_host,
        python=options.python,
    )
    indexes = _without_own(command.indexes, port)
    if options.unit:
        return _describe_unit(options, indexes, port)
    # Print no blocks: stdout says where the index is.
    narration = Narration(aside=True, quiet=True, brief=True)
    local_index = LocalIndex(
        Client(make_settings(command, environ), ask_credentials=ask_credentials),
        Selection(
            machine=find_machine,
            pins=pins,
            unchecked=options.unchecked,
            several_platforms=True,
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
        on_page=narration.page,
        host=host,
        port=port or 0,
        listening=listening,
    )
    urls = {
        url: local_index.add_index(url, command.credentials.get(url)) for url in indexes
    }
    for url, here in urls.items():
        if here == url:
            local_index.close()
            message, hint = why_no_index(url)
            raise UsageError(message, path=redacted(url), hint=hint)
    ends = f"after {options.idle} seconds without a request"
    result = Result(
        data={
            "indexes": [
                {"url": here, "upstream": redacted(url)} for url, here in urls.items()
            ]
        },
        text=[
            *(f"{redacted(url)} is at {here}" for url, here in urls.items()),
            *_examples(list(map(reachable_url, urls.values()))),
            f"It ends {ends}; stop it with Ctrl-C."
            if options.idle
            else "Stop it with Ctrl-C.",
        ],
        notes=_notes(remote=remote, private=bool(command.credentials)),
    )
    stopped = threading.Event()
    stops = dict.fromkeys((signal.SIGINT, signal.SIGTERM), lambda *_: stopped.set())
    with (
        handling(stops),
        local_index.serve(idle=options.idle, on_end=stopped.set),
    ):
        # Print the result now, not at the end: people need it while the index runs.
        render(result, command="serve", as_json=options.json)
        stopped.wait()
    # A server that ended because it was idle starts again at the next request.
    if local_index.passing and not options.idle:
        complain(_passing(local_index.passing))
    return Result(said=True)


def _passing(projects: Mapping[str, str]) -> str:
    """Return the sentence about files whose URLs end with this server."""
    names = [f"{project} ({why})" for project, why in sorted(projects.items())]
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return (
        f"Lock files with URLs of this server need it again, at the same port: "
        f"{', '.join(names[:_MOST_NAMED])}{more}"
    )


def _without_own(urls: Sequence[str], port: int | None) -> list[str]:
    """Leave out the indexes that this server is itself.

    pip is configured for the server where it is always on, and must not make it ask
    itself.

    :raises UsageError: no index is left.
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


def _describe_unit(
    options: argparse.Namespace, indexes: Sequence[str], port: int
) -> Result:
    from ..index.http.urls import is_http, redacted, split_credentials
    from . import service_unit

    if not 0 < port < 65536:
        message = f"{port} is not a fixed port"
        raise UsageError(message, path="--port", hint=f"give one such as {_UNIT_PORT}")
    notes = []
    plain = []
    for url in indexes:
        bare, pair = split_credentials(url) if is_http(url) else (url, None)
        # The service runs in another folder.
        plain.append(bare if is_http(bare) else os.path.abspath(bare))
        if pair is not None:
            notes.append(
                f"{redacted(url)}: the units do not have its credentials; put them "
                "into a netrc file or a keyring, where pip finds them"
            )
    host = f"[{options.host}]" if ":" in options.host else options.host
    units = [
        service_unit.socket_unit(f"{host}:{port}"),
        service_unit.service_unit(_service_command(options, plain)),
    ]
    root = f"http://{host}:{port}"
    urls = [
        f"{root}/{n}/simple/" if n else f"{root}/simple/" for n in range(len(plain))
    ]
    settings = service_unit.settings(urls)
    return Result(
        data={
            "indexes": [
                {"url": here, "upstream": redacted(url)}
                for here, url in zip(urls, plain, strict=True)
            ],
            "units": [
                {"path": path, "text": "".join(f"{line}\n" for line in lines)}
                for path, lines in units
            ],
            "commands": list(service_unit.COMMANDS),
            "settings": settings,
        },
        text=service_unit.text(units, settings),
        verbatim=True,
        notes=notes,
    )


def _service_command(options: argparse.Namespace, indexes: Sequence[str]) -> list[str]:
    """Return the command line of the service, with the options that the user gave."""
    first, *others = indexes
    words = [sys.executable, "-m", "nvp", "serve"]
    words += ["--idle", str(options.idle or _UNIT_IDLE), "--index-url", first]
    given = {
        "--extra-index-url": others,
        "--trusted-host": options.trusted_host,
        "--label": options.label,
        "--python": [options.python and os.path.abspath(options.python)],
        "--cuda-driver": [options.cuda_driver],
        "--sm-arch": [options.sm_arch],
        "--environment": [options.environment and os.path.abspath(options.environment)],
        "--node": [options.node],
    }
    for option, values in given.items():
        for value in values:
            words += [] if value is None else [option, value]
    for option in (
        *("--allow-remote", "--unchecked", "--every-gpu"),
        "--minor-version-compatibility",
    ):
        if getattr(options, option.strip("-").replace("-", "_")):
            words.append(option)
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
    # For uv the default index comes last, and it asks no further index for a project
    # that one has; pip compares the releases of all.
    uv = "".join(f"--index {one} " for one in urls[:-1])
    uv += f"--default-index {urls[-1]}"
    uv += " --index-strategy unsafe-best-match" if others else ""
    docker = f" -e PIP_EXTRA_INDEX_URL='{' '.join(others)}'" if others else ""
    # poetry and pdm have a name for each index.
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
