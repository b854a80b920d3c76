"""Asks a pip how it understands its arguments and configuration.

The interpreter that the pip belongs to runs this text. It may be older than this
package requires and does not have its modules, so that nothing but the standard
library and that pip is imported. The text reads a JSON object from stdin and prints
another one.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

# The options of pip that are reported; the values are for a pip without the option.
OPTIONS: Any = {
    "index_url": None,
    "extra_index_urls": [],
    "no_index": False,
    "find_links": [],
    "proxy": None,
    "trusted_hosts": [],
    "cert": None,
    "client_cert": None,
    "timeout": None,
    "no_input": False,
    "keyring_provider": "auto",
    "json_report_file": None,
    "dry_run": False,
    "quiet": 0,
    "force_reinstall": False,
    "target_dir": None,
    "no_proxy_env": False,
    "requirements": [],
    "constraints": [],
    "build_constraints": [],
    "isolated_mode": False,
    "require_hashes": False,
    "output_file": None,
}

SIGN = "pip_probe"
"""The line before the reply; everything that other code prints comes before it."""

NO_PIP = 66
"""The exit status of an interpreter without a pip."""


def describe(arguments: list[str]) -> dict[str, Any]:
    """Return how pip parses its arguments: command, options, and the words again."""
    from pip._internal.cli.main_parser import create_main_parser
    from pip._internal.commands import commands_dict, create_command

    general, rest = create_main_parser().parse_args(list(arguments))
    if not rest or rest[0] not in commands_dict:
        return {"command": None}
    name = rest[0]
    before = arguments[: len(arguments) - len(rest)]
    # pip passes all its words to the command: general options may stand anywhere.
    given = before + rest[1:]
    parser = create_command(name, isolated="--isolated" in given).parser
    if any(word in ("-h", "--help") for word in given) or general.version:
        return {"command": None}
    seen = record(parser)
    options, positional = parser.parse_args(given)
    if not hasattr(options, "index_url"):
        return {
            "command": name,
            "uses_index": False,
            "paths": [path for path in sys.path if path],
        }
    values = {key: getattr(options, key, default) for key, default in OPTIONS.items()}
    return {
        "command": name,
        "uses_index": True,
        "options": values,
        "words": seen,
        "positional": positional,
        "credentials": find_credentials(values),
        "paths": [path for path in sys.path if path],
    }


def record(parser: Any) -> list[list[str]]:
    """Record what ``parser`` parses, in order: ``[option, spelling, value...]``."""
    seen: list[list[str]] = []

    def wrap(option: Any) -> None:
        process: Callable[..., Any] = option.process

        def noted(opt: str, value: Any, values: Any, parser: Any) -> Any:
            taken = () if value is None else value
            taken = taken if isinstance(taken, tuple) else (taken,)
            seen.append([option.dest, option.get_opt_string(), *taken])
            return process(opt, value, values, parser)

        option.process = noted

    for group in [parser, *parser.option_groups]:
        for option in group.option_list:
            wrap(option)
    return seen


def find_credentials(values: dict[str, Any]) -> dict[str, list[str]]:
    """Find user and password for each index, in its URL or a netrc file."""
    auth = make_auth(values)
    urls = [] if values["no_index"] else [values["index_url"]]
    urls += list(values["extra_index_urls"] or []) + list(values["find_links"] or [])
    credentials: dict[str, list[str]] = {}
    for url in urls:
        if url and url.startswith(("http:", "https:")):
            pair = auth._get_url_and_credentials(url)[1:]
            if pair[0] is not None:
                credentials[url] = [pair[0] or "", pair[1] or ""]
    return credentials


def ask_for_credentials(url: str, values: dict[str, Any]) -> list[str] | None:
    """Find user and password for a server that requires them, also in a keyring."""
    auth = make_auth(values)
    # With --no-input, pip uses a keyring only if --keyring-provider names one.
    auth.prompting = not values["no_input"]
    user, password = auth._get_new_credentials(
        url, allow_netrc=True, allow_keyring=auth.use_keyring
    )
    return None if user is None else [user, password or ""]


def make_auth(values: dict[str, Any]) -> Any:
    """Make the object that pip itself asks for credentials."""
    from pip._internal.network.auth import MultiDomainBasicAuth

    urls = [values["index_url"], *(values["extra_index_urls"] or [])]
    auth = MultiDomainBasicAuth(prompting=False, index_urls=[u for u in urls if u])
    auth.keyring_provider = values.get("keyring_provider") or "auto"
    return auth


def converse(questions: int, replies: int) -> None:
    """Reply on descriptors, and then run pip if that is asked for.

    The standard streams are those that pip gets, so nothing is printed before.
    """
    # A terminal sends Ctrl-C to this process too: end without a traceback.
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    if sys.platform != "win32":  # It is held back while Python starts.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    for descriptor in (questions, replies):
        os.set_inheritable(descriptor, False)
    if importlib.util.find_spec("pip") is None:
        sys.exit(NO_PIP)
    with os.fdopen(questions, encoding="utf-8") as lines:
        # The other side may have ended before it asks, such as at a wrong option.
        with (
            contextlib.suppress(BrokenPipeError),
            os.fdopen(replies, "w", encoding="utf-8") as out,
        ):
            out.write(f"{SIGN}\n")
            preload("cli.main_parser", "cli.req_command")
            line = lines.readline()
            if not line:
                return
            json.dump(describe_silently(json.loads(line)["arguments"]), out)
            out.write("\n")
        # What pip imports when it has parsed its command line.
        preload("cli.main", "resolution.resolvelib.resolver")
        order = lines.readline()
    if order:
        run(json.loads(order), handler)


def describe_silently(arguments: list[str]) -> dict[str, Any] | None:
    """Return how pip parses its arguments; ``None`` if it refuses them.

    What pip prints meanwhile is dropped, because it prints it again when it runs.
    """
    # What a sitecustomize has printed comes before.
    flush()
    kept = os.dup(1), os.dup(2)
    with open(os.devnull, "w") as nowhere:
        for stream in (1, 2):
            os.dup2(nowhere.fileno(), stream)
    try:
        return describe(arguments)
    except (Exception, SystemExit):  # noqa: BLE001  # pip reports its own defects
        return None
    finally:
        flush()
        for stream, copy in zip((1, 2), kept, strict=False):
            os.dup2(copy, stream)
            os.close(copy)


def flush() -> None:
    """Write out what Python holds back of the standard streams."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()


def preload(*names: str) -> None:
    """Load modules of pip while the other side is busy."""
    with contextlib.suppress(ImportError):  # Another pip may have them elsewhere.
        for name in names:
            importlib.import_module(f"pip._internal.{name}")


def run(order: dict[str, Any], handler: Any) -> None:
    """Run pip as ``python -m pip`` does, and end with its exit status.

    :param handler: what Python does at an interrupt.
    """
    import pip
    from pip._internal.cli.main import main as run_pip

    os.environ.clear()
    os.environ.update(order["environ"])
    sys.argv = [os.path.join(os.path.dirname(pip.__file__), "__main__.py")]
    sys.argv += order["run"]
    signal.signal(signal.SIGINT, handler)
    sys.exit(run_pip(order["run"]))


def main() -> None:
    """Reply to the question on stdin."""
    sys.stdout.write(SIGN + "\n")
    sys.stdout.flush()
    if importlib.util.find_spec("pip") is None:
        sys.exit(NO_PIP)
    question = json.load(sys.stdin)
    # pip may print warnings and usage: send that to stderr.
    reply_to = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    if "url" in question:
        reply: Any = ask_for_credentials(question["url"], question["options"])
    else:
        reply = describe(question["arguments"])
    json.dump(reply, reply_to)
    reply_to.flush()


if len(sys.argv) == 3:
    converse(*map(int, sys.argv[1:]))
else:
    main()
