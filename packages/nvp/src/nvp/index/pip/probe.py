"""Let a pip interpret its arguments and configuration.

The interpreter of that pip, from Python 3.7 on, runs this file without the modules of
this package. The program reads a JSON object from stdin and prints another.
"""

# ruff: noqa: E402

from __future__ import annotations

import sys

# Python searches the directory of this file first, where modules may shadow others.
# Like ``python -m pip``, import nothing from there or from the current directory.
if not getattr(sys.flags, "safe_path", False):
    del sys.path[0]
sys.path[:] = [path for path in sys.path if path]

import contextlib
import copy
import glob
import importlib
import importlib.util
import json
import os
import re
import runpy
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

SIGN = "pip_probe"
"""The line before the reply; everything that other code prints comes before it."""

NO_PIP = 66
"""The exit status of an interpreter without a pip."""

HOOKS = "NVP_PIP_HOOKS"  # a copy of HOOKS in hooks.py

LOCK = re.compile(r"(?!(?i:https?:))(?s:.*[/\\])?pylock(\.[^./\\]+)?\.toml(\[.*\])?")
"""The path of a lock file, perhaps with extras, which nvp reads itself."""

LIFELINE = "NVP_LIFELINE"
"""A variable with the descriptor for `end_with_parent`."""


def describe(arguments: list[str], names: list[str]) -> dict[str, Any]:
    """Return the parsed arguments: command, words, and the options in ``names``."""
    import pip
    from pip._internal.cli.main_parser import create_main_parser
    from pip._internal.commands import commands_dict, create_command
    from pip._vendor import certifi

    general, rest = create_main_parser().parse_args(list(arguments))
    if not rest or rest[0] not in commands_dict:
        return {"command": None}
    name = rest[0]
    # Like pip, pass all arguments to the command: general options may be anywhere.
    given = arguments[: len(arguments) - len(rest)] + rest[1:]
    command: Any = create_command(name, isolated="--isolated" in given)
    parser = command.parser
    if any(word in ("-h", "--help") for word in given) or general.version:
        return {"command": None}
    seen = record(parser)
    # pip adds to default lists, which the parser of a later run in this process shares.
    parser.defaults = copy.deepcopy(parser.defaults)
    options, positional = parser.parse_args(given)
    if not hasattr(options, "index_url"):
        return {"command": name, "uses_index": False, "paths": sys.path}
    # pip ignores its variables only if the option is written in full.
    options.isolated_mode = "--isolated" in given
    options.limits_dates = getattr(options, "uploaded_prior_to", None) is not None
    if not options.isolated_mode:
        seen = [[w[0], "--isolate"] if w[0] == "isolated_mode" else w for w in seen]
    # Without the feature legacy-certs, pip also accepts the system's certificates.
    old, option = "legacy-certs", parser.get_option("--use-deprecated")
    is_new = sys.version_info >= (3, 10) and old in option.choices
    is_new = is_new or "truststore" in options.features_enabled  # before 24.2
    options.trusts_system = is_new and old not in options.deprecated_features_enabled
    if os.path.isfile(pip.__file__):  # in a wheel, the path would be temporary
        options.bundle = certifi.where()
    # pip changes this object for each option in a file, and also shared lists.
    finder = command._build_package_finder(copy.deepcopy(options), Offline())
    found = find_requirements(options, positional, finder)
    options.trusted_hosts = [*options.trusted_hosts, *found.pop("trusted_hosts")]
    options.no_index = finder.search_scope.no_index
    return {
        "command": name,
        "uses_index": True,
        "options": {k: getattr(options, k) for k in names if hasattr(options, k)},
        "words": seen,
        "positional": positional,
        "credentials": find_credentials(options, finder.search_scope),
        "indexes": [*dict.fromkeys(filter(None, finder.search_scope.index_urls))],
        "find_links": [*dict.fromkeys(finder.search_scope.find_links)],
        "paths": sys.path,
        "target": find_target(options, finder),
        **found,
    }


def find_target(options: Any, finder: Any) -> dict[str, Any]:
    """Return the target of the installation, whose keys `Target` explains.

    :param finder: has the options in requirements files.
    """
    from pip._internal.cli.cmdoptions import make_target_python
    from pip._internal.models.target_python import TargetPython

    try:
        target: Any = make_target_python(options)
    except AttributeError:  # the command has no such options
        target = TargetPython()
    find_tags = getattr(target, "get_sorted_tags", None) or target.get_tags
    control = getattr(finder, "release_control", None)  # since pip 26.0
    releases = getattr(control, "all_releases", ())
    pre = getattr(finder, "allow_all_prereleases", False) or ":all:" in releases
    return {
        "version": ".".join(map(str, target.py_version_info)),
        "tags": [str(tag) for tag in find_tags()],
        "pre": bool(pre or getattr(options, "pre", False)),
        "no_binary": sorted(finder.format_control.no_binary),
        "only_binary": sorted(finder.format_control.only_binary),
    }


def record(parser: Any) -> list[list[str]]:
    """Return a list to which ``parser`` adds ``[option, spelling, value...]``."""
    seen: list[list[str]] = []

    def wrap(option: Any) -> None:
        process: Callable[..., Any] = option.process

        def noted(opt: str, value: Any, values: Any, parser: Any) -> Any:
            parts = () if value is None else value
            parts = parts if isinstance(parts, tuple) else (parts,)
            seen.append([option.dest, option.get_opt_string(), *parts])
            return process(opt, value, values, parser)

        option.process = noted

    for option in parser.option_list_all:
        wrap(option)
    return seen


def find_requirements(
    options: Any, positional: list[str], finder: Any
) -> dict[str, Any]:
    """Return the requirements whose markers hold, parsed by pip.

    The result includes the requirements of groups, of files, and of files that these
    include. Like pip, read constraints first: files change ``finder`` in this order.

    :returns: ``lines``, each ``{"text", "hashes", "is_constraint"}`` with the hashes
        keyed by algorithm; ``requires_hashes``: whether pip requires these hashes;
        ``limits_hashes``: whether there are or may be hashes; and ``trusted_hosts``:
        the hosts that files trust.
    """
    texts = filter(counts, [*positional, *read_groups(options)])
    lines = [{"text": text, "hashes": {}, "is_constraint": False} for text in texts]
    given = False
    local = Offline()
    files = [(name, True) for name in getattr(options, "constraints", None) or ()]
    files += [(name, False) for name in getattr(options, "requirements", None) or ()]
    # Copy the options, because files may add to lists that all parsers share.
    options = copy.deepcopy(options) if files else options
    for name, is_constraint in files:
        for item in read_file(name, is_constraint, options, finder, local):
            hashes = (item.options or {}).get("hashes") or {}
            given = given or bool(hashes)
            if not item.is_editable and counts(item.requirement):
                line = {"text": item.requirement, "hashes": hashes}
                lines.append({**line, "is_constraint": item.constraint})
    required = bool(getattr(options, "require_hashes", False))
    # --no-require-hashes makes the hashes of files optional.
    optional = getattr(options, "no_require_hashes", False)
    return {
        "lines": lines,
        "requires_hashes": required or (given and not optional),
        "limits_hashes": required or given or local.missed,
        "trusted_hosts": local.trusted,
    }


def read_groups(options: Any) -> list[str]:
    """Return the requirements of ``--group``; empty if pip reports an error."""
    groups = getattr(options, "dependency_groups", None) or ()
    # A lock file has groups too.
    groups = [x for x in groups if os.path.basename(x[0]) == "pyproject.toml"]
    try:
        module = importlib.import_module("pip._internal.req.req_dependency_group")
        return list(module.parse_dependency_groups(groups))
    except Exception:  # noqa: BLE001
        return []


def read_file(
    name: str, is_constraint: bool, options: Any, finder: Any, local: Offline
) -> Iterator[Any]:
    """Yield the requirements in a file, up to the first invalid line.

    pip reports the invalid line when it runs.

    :param finder, local: receive the options of the file.
    """
    from pip._internal.utils.urls import url_to_path

    known: Any = importlib.import_module("pip._internal.req.req_file")
    read = known.get_file_content
    if LOCK.fullmatch(name) and not is_constraint:
        return

    def read_once(name: str, *args: Any, **more: Any) -> Any:
        path = url_to_path(name) if name.lower().startswith("file:") else name
        if os.path.isfile(path) or not os.path.exists(path):
            return read(path, *args, **more)
        local.missed = True  # a pipe can be read only once
        return name, ""

    known.get_file_content = read_once
    try:
        parser = known.RequirementsFileParser(local, known.get_line_parser(finder))
        for line in parser.parse(name, is_constraint):
            item = known.handle_line(line, options, finder)
            if item is not None:
                yield item
            else:
                local.trusted += line.opts.trusted_hosts or ()
    except Exception:  # noqa: BLE001
        local.missed = True
    finally:
        known.get_file_content = read


class Offline:
    """A replacement for pip's session that reads nothing."""

    def __init__(self) -> None:
        self.trusted: list[str] = []  # the hosts that files trust
        self.missed = False  # whether only pip reads some requirements

    def get(self, url: str) -> Any:
        """Return an empty response."""
        self.missed = True
        return SimpleNamespace(url=url, text="", status_code=200, reason="")


def counts(text: str) -> bool:
    """Return whether the marker of a requirement, if any, fits this interpreter."""
    from pip._vendor.packaging.requirements import Requirement

    try:
        marker = Requirement(text).marker
        return marker is None or marker.evaluate({"extra": ""})
    except Exception:  # noqa: BLE001  # a path or a URL, or an error that pip reports
        return True


def find_credentials(options: Any, scope: Any) -> dict[str, list[str]]:
    """Map each index to the user and password in its URL, or in that of another one.

    Those in the netrc file are read later, for each request.
    """
    auth = make_auth(scope.index_urls, getattr(options, "keyring_provider", None))
    urls = [*scope.index_urls, *scope.find_links]
    credentials: dict[str, list[str]] = {}
    for url in urls:
        if url and url.lower().startswith(("http:", "https:")):
            pair = auth._get_new_credentials(url, allow_netrc=False)
            if pair[0] is not None:
                credentials[url] = [pair[0] or "", pair[1] or ""]
    return credentials


def ask_for_credentials(
    url: str, indexes: list[str | None], keyring_provider: str | None, *, no_input: bool
) -> list[str] | None:
    """Look up a server's user and password after a response 401, as pip does."""
    auth = make_auth(indexes, keyring_provider)
    # With --no-input, pip uses a keyring only if --keyring-provider names one.
    auth.prompting = not no_input
    # pip kills the program of the keyring when an exception ends its wait.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    # On Windows, a stranger may have put a keyring program into the current directory.
    os.chdir(os.path.dirname(os.path.abspath(__file__)))
    find = auth._get_new_credentials
    user, password = find(url, allow_netrc=False, allow_keyring=auth.use_keyring)
    return None if user is None else [user, password or ""]


def end_with_parent(lifeline: int) -> None:
    """End this process, and on Linux its descendants, as soon as the parent has ended.

    :param lifeline: a pipe to which only the parent can write, and never does.
    """
    if sys.platform == "win32":
        return
    main_thread = threading.get_ident()

    def watch() -> None:
        os.read(lifeline, 1)
        found = [os.getpid()]
        for pid in found:
            for path in glob.glob(f"/proc/{pid}/task/*/children"):
                with contextlib.suppress(OSError), open(path) as file:
                    found += map(int, file.read().split())
        for pid in found[1:]:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        signal.pthread_kill(main_thread, signal.SIGTERM)
        time.sleep(1)  # the signal may be ignored
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def make_auth(indexes: list[str | None], keyring_provider: str | None) -> Any:
    """Create the object with which pip looks up credentials."""
    from pip._internal.network.auth import MultiDomainBasicAuth

    auth = MultiDomainBasicAuth(prompting=False, index_urls=[*filter(None, indexes)])
    auth.keyring_provider = keyring_provider or "auto"
    return auth


def converse(questions: int, replies: int) -> None:
    """Reply to a question through two descriptors, and then run pip if requested.

    The standard streams belong to pip, so this function never prints.
    """
    # A terminal also sends Ctrl-C to this process, so end without a traceback.
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    if sys.platform != "win32":  # The parent has blocked SIGINT.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    for descriptor in (questions, replies):
        os.set_inheritable(descriptor, False)
    with os.fdopen(questions, encoding="utf-8", closefd=False) as lines:
        # The parent may end without a question, for example after an invalid option.
        out = os.fdopen(replies, "w", encoding="utf-8")
        with contextlib.suppress(BrokenPipeError), out:
            out.write(f"{SIGN}\n")
            preload("cli.main_parser", "cli.req_command")
            line = lines.readline()
            if not line:
                return
            json.dump(describe_silently(json.loads(line)), out)
            out.write("\n")
        preload("cli.main", "resolution.resolvelib.resolver")
        order = lines.readline()
    if order:
        end_with_parent(questions)
        told = json.loads(order)
        os.environ.clear()
        os.environ.update(told["environ"])
        signal.signal(signal.SIGINT, handler)
        run(told["run"])


def describe_silently(question: dict[str, Any]) -> dict[str, Any] | None:
    """Return the arguments as parsed by pip; ``None`` if it rejects them.

    The output of pip is discarded, because pip prints it again when it runs.
    """
    streams = [stream for stream in (sys.stdout, sys.stderr) if stream is not None]
    for stream in streams:  # flush earlier output, such as that of a sitecustomize
        stream.flush()
    copies = os.dup(1), os.dup(2)
    with open(os.devnull, "w") as nowhere:
        for number in (1, 2):
            os.dup2(nowhere.fileno(), number)
    try:
        return describe(**question)
    except (Exception, SystemExit):  # noqa: BLE001  # pip reports its own defects
        return None
    finally:
        for stream in streams:
            stream.flush()
        for number, kept in zip((1, 2), copies):  # noqa: B905  # new in Python 3.10
            os.dup2(kept, number)
            os.close(kept)


def preload(*names: str) -> None:
    """Load modules of pip, which may lack them, while the parent is busy."""
    for name in names:
        with contextlib.suppress(ImportError):
            importlib.import_module(f"pip._internal.{name}")


def install_hooks(path: str) -> None:
    """Let pip use the local index."""
    import pip

    try:
        runpy.run_path(path)["install"]()
    except (ImportError, AttributeError) as error:
        end = f"so nvp selects no builds for it: use another version ({error})"
        sys.exit(f"ERROR: nvp does not know pip {pip.__version__}, {end}")


def run(arguments: list[str]) -> None:
    """Run pip as ``python -m pip`` does, but never that of the current directory."""
    try:
        import pip
        from pip._internal.cli.main import main as run_pip

        hooks = os.environ.get(HOOKS)
        if hooks is not None:
            install_hooks(hooks)
        program = os.path.join(os.path.dirname(pip.__file__), "__main__.py")
        sys.argv = [program, *arguments]
        status = run_pip(arguments)
    except KeyboardInterrupt:  # pip catches it, but not while it removes its files
        status = 130
    sys.exit(status)


def main() -> None:
    """Read a question from stdin, and print the reply."""
    sys.stdout.write(SIGN + "\n")
    sys.stdout.flush()
    question = json.load(sys.stdin)
    # pip may print warnings and usage: send these to stderr.
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as reply_to:
        os.dup2(2, 1)
        reply: Any = ask_for_credentials if "url" in question else describe
        json.dump(reply(**question), reply_to)


if LIFELINE in os.environ:
    end_with_parent(int(os.environ.pop(LIFELINE)))
folder, program = os.path.split(sys.argv[1] if len(sys.argv) > 1 else "")
if program == "pip":
    sys.path[:0] = filter(None, [folder])  # the path of a wheel
    run(sys.argv[2:])
elif sys.argv[1:] == ["paths"]:
    sys.stdout.write(json.dumps(sys.path))
elif importlib.util.find_spec("pip") is None:
    sys.exit(NO_PIP)
elif len(sys.argv) == 3:
    converse(*map(int, sys.argv[1:]))
else:
    main()
