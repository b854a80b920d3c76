"""Settings of the user's pip and Python: connections, and supported wheels."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.metadata import distributions

from packaging.markers import default_environment
from packaging.tags import Tag, compatible_tags, cpython_tags, sys_tags
from packaging.version import Version

from nvidia_variant_provider.errors import InputError, UsageError

from ..http.blocking import BlockingClient
from ..http.client import Client
from ..http.logins import AskCredentials
from ..http.urls import Settings, is_http, nearest_url, server_of, split_credentials
from ..selection.options import Target, allows_python
from .command import PipCommand, PipOptions, find_python
from .process import Pip

logger = logging.getLogger(__name__)

_FIRST_PIP = Version("26.1")
"""The first version of pip that can install from lock files (experimental)."""


def make_settings(
    command: PipCommand,
    environ: Mapping[str, str],
    *,
    plain_http: bool = False,
    trusts_pages: bool = False,
) -> Settings:
    """Return pip's settings for connections to indexes.

    :param plain_http: allow plain HTTP, as pip does for the URL of a single file.
    :param trusts_pages: follow pages and redirects to any server, as pip does.
    """
    options = command.options
    # requests, the HTTP library of pip, reads these variables.
    bundle = environ.get("REQUESTS_CA_BUNDLE") or environ.get("CURL_CA_BUNDLE")
    trust_env = not options.ignores_environment
    timeout = float(options.timeout or 15.0)
    return Settings(
        timeout=timeout,
        # pip itself has no such limit, so a user who is patient gets a later one.
        deadline=max(Settings().deadline, 2 * timeout),
        trusted_hosts=tuple(options.trusted_hosts),
        plain_http=plain_http,
        trusts_pages=trusts_pages,
        # For requests, these variables have priority over the option.
        cert=(bundle if trust_env else None) or options.cert,
        bundle=options.bundle,
        trusts_system=options.trusts_system,
        client_cert=options.client_cert,
        proxy=options.proxy or None,
        no_proxy=environ.get("no_proxy") or environ.get("NO_PROXY"),
        trust_env=trust_env,
        netrc=_netrc_places(environ),
    )


def _netrc_places(environ: Mapping[str, str]) -> Sequence[str]:
    """Return the paths at which requests looks for a netrc file."""
    if "NETRC" in environ:
        return (os.path.expanduser(environ["NETRC"]),)
    home = environ.get("HOME") or os.path.expanduser("~")
    return tuple(os.path.join(home, name) for name in (".netrc", "_netrc"))


def make_blocking_client(
    environ: Mapping[str, str], *, retries: int = 0
) -> BlockingClient:
    """Create a client that reads the settings of the running Python's pip when needed.

    Without a pip, only environment variables and the netrc file are used.

    :param retries: the number of retries after a temporary failure.
    """

    def make_client() -> Client:
        pip = Pip(sys.executable, environ)
        try:
            # Any command that uses indexes would do: each has the relevant options.
            command = pip.understand(["download"])
        except InputError as error:
            logger.info("pip's settings cannot be read: %s", error)
            command = PipCommand(command=None)
        settings = make_settings(command, environ, plain_http=True)
        return Client(
            replace(settings, retries=retries),
            ask_credentials=_find_credentials(pip, command, environ),
        )

    return BlockingClient(make_client)


@dataclass(frozen=True, kw_only=True, slots=True)
class Indexes:
    """The indexes that the user gives; by default, the indexes that pip uses.

    :param url: the main index (``--index-url``).
    :param extra: other indexes (``--extra-index-url``).
    :param links: directories and pages of links (``--find-links``).
    :param trusted: hosts whose certificates are not verified (``--trusted-host``).
    :param python: the interpreter or environment of the pip; by default, the activated
        environment or, without one, the running interpreter.
    :param platforms: the tags of the target platform (``--platform``).
    """

    url: str | None = None
    extra: Sequence[str] = ()
    links: Sequence[str] = ()
    trusted: Sequence[str] = ()
    python: str | None = None
    platforms: Sequence[str] = ()

    def check(self) -> None:
        """Reject malformed URLs; pip refuses the command line without a reason.

        :raises UsageError: a URL is malformed.
        """
        url = () if self.url is None else (self.url,)
        for place in (*url, *self.extra, *self.links):
            _check_url(place)


def find_indexes(
    environ: Mapping[str, str], indexes: Indexes
) -> tuple[PipCommand, AskCredentials | None]:
    """Let pip list the indexes that it would use.

    Without a pip, as in many environments of uv, only ``indexes`` is used.

    :returns: the indexes and other options, and a function that finds credentials.
    :raises InputError: there is no pip, and ``indexes`` has no main index.
    :raises UsageError: there is no such interpreter, or a URL is malformed.
    """
    indexes.check()
    words = ["download"]
    if indexes.url is not None:
        words += ["--index-url", indexes.url]
    for url in indexes.extra:
        words += ["--extra-index-url", url]
    for place in indexes.links:
        words += ["--find-links", place]
    for host in indexes.trusted:
        words += ["--trusted-host", host]
    for tag in indexes.platforms:
        words += ["--platform", tag]
    pip = Pip(find_python(indexes.python, environ), environ)
    try:
        command = pip.understand(words)
    except InputError:
        if indexes.url is None:
            raise
        command = PipCommand(
            command=None,
            options=PipOptions(trusted_hosts=indexes.trusted),
            indexes=tuple(dict.fromkeys((indexes.url, *indexes.extra))),
            find_links=tuple(dict.fromkeys(indexes.links)),
        )
    for place in (*command.indexes, *command.find_links):
        _check_url(place)
    return command, _find_credentials(pip, command, environ)


def _check_url(place: str) -> None:
    """Reject a URL that Python cannot split."""
    try:
        split_credentials(place)
    except ValueError as error:
        hint = "check the URL, and quote characters such as [ in its password"
        raise UsageError(f"is not a URL: {error}", path=place, hint=hint) from None


def _find_credentials(
    pip: Pip, command: PipCommand, environ: Mapping[str, str]
) -> AskCredentials | None:
    """Return a function that finds credentials as pip does, and then as uv does."""
    has_pip = command.command is not None
    is_of_uv = environ.get("UV_KEYRING_PROVIDER") == "subprocess"

    def ask(url: str) -> tuple[str, str] | None:
        found = pip.ask_credentials(url, command) if has_pip else None
        if is_of_uv and not (found and found[1]):
            found = _ask_keyring(url, command.indexes, environ) or found
        return found

    return ask if has_pip or is_of_uv else None


def _ask_keyring(
    url: str, indexes: Iterable[str], environ: Mapping[str, str]
) -> tuple[str, str] | None:
    """Run ``keyring`` as uv does, for the password of the user in ``url``."""
    from ...doctor.programs import end_family, find_program, started

    url, own = split_credentials(url)
    program = find_program("keyring", environ)
    if own is None or program is None:
        return None
    end = partial(end_family, searches=False)  # the keyring may start its daemon
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    known = [split_credentials(other)[0] for other in filter(is_http, indexes)]
    index = nearest_url(url, known) or url
    server = server_of(index)
    for place in (index, server.partition("://")[2], server):
        try:
            words = [program, "get", place, own[0]]
            with started(words, end, env=environ, mark=None, **streams) as process:
                password = (
                    process.communicate(timeout=_TIMEOUT)[0].decode().rstrip("\r\n")
                )
        except (OSError, ValueError, subprocess.SubprocessError):
            return None
        if password and process.returncode == 0:
            return own[0], password
    return None


def check_locks(paths: Sequence[str], lock: str) -> None:
    """Check that pip supports lock files.

    :param paths: the directories of pip.
    :param lock: the path of the lock file, for the error.
    :raises UsageError: this pip treats lock files as requirements files.
    """
    for pip in distributions(name="pip", path=list(paths)):
        if Version(pip.version) < _FIRST_PIP:
            message = f"pip {pip.version} does not install from lock files"
            hint = f"upgrade it: python -m pip install 'pip>={_FIRST_PIP}'"
            raise UsageError(message, path=lock, hint=hint)
        return


_QUESTION = """
import json, platform, sys, sysconfig
numbers = [str(number) for number in sys.version_info[:3]]
print(json.dumps([
    sys.implementation.name,
    numbers,
    bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
    {
        "implementation_name": sys.implementation.name,
        "implementation_version": ".".join(numbers),
        "platform_machine": platform.machine(),
        "platform_python_implementation": platform.python_implementation(),
        "python_full_version": platform.python_version(),
        "python_version": ".".join(numbers[:2]),
    },
]))
"""

_TIMEOUT = 60.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Interpreter:
    """A Python on this machine.

    :param version: the version, such as ``3.13.9``.
    :param ranks: the supported wheel tags with their ranks; 0 is the best.
    :param platforms: the supported platform tags, including ``any``.
    :param variables: the variables of environment markers; empty if unknown.
    """

    version: str
    ranks: Mapping[Tag, int] = field(repr=False)
    platforms: frozenset[str] = field(repr=False)
    variables: Mapping[str, str] = field(default_factory=dict, repr=False)

    def rank(self, tags: Iterable[Tag]) -> int | None:
        """Return the best rank of a wheel's tags; ``None`` if no tag is supported."""
        return min((self.ranks[tag] for tag in tags if tag in self.ranks), default=None)

    def is_allowed(self, requires_python: str | None) -> bool:
        """Return whether a file supports this version; invalid limits are ignored."""
        return allows_python(requires_python, self.version)

    @property
    def target(self) -> Target:
        """This interpreter as the target of an installation."""
        ranked = sorted(self.ranks, key=self.ranks.__getitem__)
        return Target(version=self.version, tags=dict.fromkeys(map(str, ranked)))


def find_interpreter(python: str, environ: Mapping[str, str]) -> Interpreter:
    """Run an interpreter of this machine to get its version and tags.

    :param python: the path of the interpreter.
    :raises InputError: the interpreter cannot be run.
    """
    own = {key: str(value) for key, value in default_environment().items()}
    if python == sys.executable:
        version = ".".join(map(str, sys.version_info[:3]))
        return _make(version, sys_tags(), own)
    try:
        done = subprocess.run(  # noqa: S603
            [python, "-I", "-c", _QUESTION],
            env=dict(environ),
            capture_output=True,
            timeout=_TIMEOUT,
            check=True,
        )
        name, numbers, free_threaded, variables = json.loads(done.stdout)
        variables = {**own, **variables}
    except (OSError, ValueError, TypeError, subprocess.SubprocessError):
        message = "does not run as an interpreter of Python"
        raise InputError(message, path=python, hint="see --python") from None
    short = (int(numbers[0]), int(numbers[1]))
    plain = f"cp{short[0]}{short[1]}"
    tags: list[Tag] = []
    if name == "cpython":
        tags += cpython_tags(short, abis=[f"{plain}t" if free_threaded else plain])
    tags += compatible_tags(short, plain if name == "cpython" else None)
    return _make(".".join(map(str, numbers)), tags, variables)


def interpreter_of(target: Target) -> Interpreter:
    """Return the target of pip as an interpreter; it need not exist on this machine."""
    return _make(target.version, (Tag(*text.split("-", 2)) for text in target.tags))


def _make(
    version: str, tags: Iterable[Tag], variables: Mapping[str, str] | None = None
) -> Interpreter:
    ranks: dict[Tag, int] = {}
    for rank, tag in enumerate(tags):
        ranks.setdefault(tag, rank)
    platforms = frozenset(tag.platform for tag in ranks)
    return Interpreter(
        version=version, ranks=ranks, platforms=platforms, variables=variables or {}
    )
