"""Let pip use the local index, although its options name the user's indexes.

pip keeps its command line, variables and files, and reads each page from the user's
index with its own session. Certificates, proxies, credentials, cookies, redirects,
retries and errors are therefore those of pip alone. Only a page that pip has read goes
to the local index, which returns the page for this machine. By the same rule, pip
downloads files from their own servers.

The interpreter of pip, from Python 3.7 on, runs this file without the modules of this
package. As a program, it runs the pip that another pip starts for a build, or for the
interpreter of ``--python``.
"""

from __future__ import annotations

import sys

if __name__ == "__main__" and not getattr(sys.flags, "safe_path", False):
    # Import nothing from the directory of this file.
    del sys.path[0]

import contextlib
import http.client
import importlib
import json
import os
import posixpath
import runpy
import time
from importlib.machinery import PathFinder
from itertools import chain
from typing import Any
from urllib.parse import urljoin, urlsplit

PLACES = "NVP_REPLACED_PLACES"
"""A variable with the path of a JSON object, because builds print their variables.
``local`` is the prefix of all local URLs; ``pages`` has the user's URL behind each
local URL whose pages pip reads itself.

``indexes`` and ``files`` have the replacement for each index and for each lock file,
``links`` a list for each value of ``--find-links``. ``joined`` are the values whose
first replacement is the page with the files of all of them. ``more`` are further
indexes. Verdicts depend on all files of the places that are ``known``. ``lock`` is the
path for a lock file, and ``headers`` are for requests to the local index only.
"""

RUNNER = "NVP_RUNNABLE_PIP"
"""A variable with the path of pip, as a pip passes it to the interpreter of another."""

HOOKS = "NVP_PIP_HOOKS"
"""A variable with the path of this file."""

_DIRECT, _HAS_READ = "Nvp-Direct", "Nvp-Has-Read"  # copies of those in responses.py
_OWN = {_DIRECT: "1"}  # the headers of requests for the local index only
_LARGE = 64 * 1024 * 1024  # a copy of LARGE_BYTES in strict_json.py
_TOO_MANY = 429  # the status of a server that limits requests
_PAUSES = (1, 2, 4, 8, 0)  # the seconds before pip reads such a page again
_ACCEPT = "application/vnd.pypi.simple.v1+json, text/html; q=0.1"


def install() -> None:
    """Change the imported pip.

    :raises ImportError, AttributeError: this pip differs from all known versions.
    :raises SystemExit: this process is not of the user who runs nvp.
    """
    try:
        with open(os.environ[PLACES], encoding="utf-8") as file:
            told = json.load(file)
    except OSError as error:
        sys.exit(f"ERROR: {error}; run this pip as the user of nvp, and during nvp pip")
    _OWN.update(told["headers"])
    collector: Any = importlib.import_module("pip._internal.index.collector")
    session: Any = importlib.import_module("pip._internal.network.session")
    command: Any = importlib.import_module("pip._internal.cli.req_command")
    replace_places(collector, told)
    replace_files(command.RequirementCommand, told["files"])
    download_files(session.PipSession, told["local"])
    replace_child()
    if told["lock"]:
        keep_lock(told["lock"])


def replace_places(collector: Any, told: dict[str, Any]) -> None:
    """Let pip collect the links of a project from the local index."""
    names: Any = importlib.import_module("pip._vendor.packaging.utils")
    canonical = names.canonicalize_name
    collect, known = collector.LinkCollector.collect_sources, told["indexes"]
    message = "nvp selects no builds, because it does not know the files of %s"
    groups: dict[str, list[str]] = {}
    unread = dict.fromkeys(map(tuple, told["known"]), False)
    read_pages(collector, told["pages"], groups)

    def collect_sources(self: Any, project_name: str, *args: Any, **more: Any) -> Any:
        scope = self.search_scope
        # Only pip can read, for example, a place that a requirements file on a server
        # names. Verdicts on builds of a known index might lead pip to yanked files and
        # pre-releases of an unknown index.
        asked = [(x, False) for x in scope.index_urls]
        asked += [(x, True) for x in scope.find_links]
        for place in asked:
            if place not in unread:
                unread[place] = is_read(place[0], self.session, collector.Link)
                if unread[place]:
                    collector.logger.warning(message, _shown(place[0]))
        if any(unread[place] for place in asked):
            return collect(self, project_name, *args, **more)
        # For pip, the same index with and without a slash is one.
        same: dict[str, str] = {}
        pairs = [(x.rstrip("/"), known.get(x, x)) for x in scope.index_urls]
        indexes = [same.setdefault(index, here) for index, here in pairs]
        # pip prefers the files of all pages to those of directories: the last counts.
        places = scope.find_links
        files = [told["links"][x][:1] for x in places if x in told["joined"]]
        pages = [told["links"].get(x, [x]) for x in places]
        links = list(dict.fromkeys(chain(*files, *pages)))
        # Ask for the links of this project only: verdicts on the builds of others would
        # tell the other indexes which projects these links have.
        local, own = f"{told['local']}/", f"{canonical(project_name)}/"
        self.search_scope = type(scope)(
            find_links=[x + own if x.startswith(local) else x for x in links],
            index_urls=[*indexes, *([] if scope.no_index else told["more"])],
            no_index=scope.no_index,
        )
        urls = self.search_scope.get_index_urls_locations(project_name)
        urls = [*self.search_scope.find_links, *urls]
        groups.update(dict.fromkeys(urls, urls))
        try:
            return collect(self, project_name, *args, **more)
        finally:
            self.search_scope = scope

    collector.LinkCollector.collect_sources = collect_sources


def is_read(place: str, session: Any, link: Any) -> bool:
    """Return whether pip reads an index or links, as pip itself decides it."""
    urls: Any = importlib.import_module("pip._internal.utils.urls")
    vcs: Any = importlib.import_module("pip._internal.vcs")
    try:
        if os.path.exists(place or os.curdir):  # pip adds the name of the project
            return True
        if place.startswith("file:"):
            return os.path.exists(urls.url_to_path(place))
        return vcs.is_url(place) and bool(session.is_secure_origin(link(place)))
    except (AssertionError, ValueError):
        return True  # pip reports a malformed URL


def replace_files(command: Any, files: dict[str, str]) -> None:
    """Let pip read copies of lock files."""
    get = command.get_requirements

    def get_requirements(self: Any, args: Any, options: Any, *more: Any) -> Any:
        options.requirements = [files.get(x, x) for x in options.requirements or ()]
        groups = getattr(options, "dependency_groups", None) or ()
        options.dependency_groups = [(files.get(path, path), x) for path, x in groups]
        return get(self, args, options, *more)

    command.get_requirements = get_requirements


def _shown(url: str) -> str:
    """Return a URL without user, password and query, which pip alone may not print."""
    scheme, colon, rest = url.partition("://")
    bare = rest.partition("#")[0].partition("?")[0]
    return f"{scheme}{colon}{bare.rpartition('@')[2]}"


def read_pages(
    collector: Any, places: dict[str, str], groups: dict[str, list[str]]
) -> None:
    """Let pip read the user's page, and then use the page for this machine.

    The pages of links, and those of a project on all indexes, are judged together. So
    pip reads all of them before the first one is judged.

    :param groups: the local URLs of these pages, keyed by each of them.
    """
    read = collector._get_index_content
    kept: dict[str, tuple[Any, bool]] = {}
    failed: dict[str, int] = {}

    def read_own(local: str, link: Any, options: dict[str, Any]) -> tuple[Any, bool]:
        """Return a page, and whether the local index can judge it."""
        place = next(url for url in places if local.startswith(url))
        url, rest = places[place], local[len(place) :]
        # pip joins the URL of an index and the name of a project by this rule.
        url = url if place.endswith("/links/") else posixpath.join(url, rest)
        own = type(link)(url, cache_link_parsing=link.cache_link_parsing)
        session = options["session"]
        for seconds in _PAUSES:
            # pip has checked the local URL only.
            page = read(own, **options) if session.is_secure_origin(own) else None
            if page is not None and len(page.content) > _LARGE:
                message = "%s is too large: its builds are not judged"
                collector.logger.warning(message, _shown(page.url))
                send(local, None, session, is_missing=False)
                return page, False
            status = send(local, page, session, failed=failed.pop(own.url, None))
            if status != _TOO_MANY:
                return page, status == 200
            time.sleep(seconds)
        message = (
            f"{_shown(own.url)} is refused, perhaps because of the requests of nvp"
        )
        errors: Any = importlib.import_module("pip._internal.exceptions")
        raise errors.InstallationError(f"{message}; try again later")

    def read_page(link: Any, **options: Any) -> Any:
        prefixes = tuple(places)
        if not link.url.startswith(prefixes):
            return read(link, **options)
        if link.url not in kept:
            for url in groups.get(link.url, [link.url]):
                if url.startswith(prefixes):
                    kept[url] = read_own(url, link, options)
        page, is_sent = kept.pop(link.url)
        return judge(link, page, options["session"]) if is_sent else page

    skip = collector._handle_get_simple_fail

    def skip_page(link: Any, reason: Any, meth: Any = None) -> None:
        skip(link, reason, meth)
        # pip mentions an index that is down only in its log. The reason may have
        # secrets, and texts of the server.
        status = getattr(getattr(reason, "response", None), "status_code", None)
        if status is not None:
            failed[link.url] = status
        if status not in (403, 404):
            what = f"HTTP {status}" if status else "it cannot be read"
            collector.logger.warning("pip skips %s: %s", _shown(link.url), what)

    collector._get_index_content = read_page
    collector._handle_get_simple_fail = skip_page


def send(
    url: str,
    page: Any,
    session: Any,
    *,
    is_missing: bool = True,
    failed: int | None = None,
) -> int:
    """Send a page to the local index, and return the status of its reply.

    :param page: the page as pip has read it; ``None`` if the local index has to do
        without the page.
    :param is_missing: whether pip, too, does without it.
    :param failed: the status of the page, if it is an error.
    :returns: 200 if the local index can judge the page; 429 if pip must read the page
        again, because nvp has sent requests, too.
    """
    about: list[Any] = [None if is_missing else "", None, None, failed]
    if page is not None:
        # The user may have typed the password, which the files of the page need too.
        pair = session.auth.passwords.get(urlsplit(page.url).netloc)
        about = [page.url, page.content_type, pair, None]
    content = b"" if page is None else page.content
    status, _, _ = ask(
        "POST", url, session, json.dumps(about).encode() + b"\n" + content
    )
    return status


def judge(link: Any, page: Any, session: Any) -> Any:
    """Return the page for this machine.

    :param link: the local URL of the page.
    :param page: the page as pip has read it.
    """
    status, kind, content = ask("GET", link.url, session)
    if status != 200:
        errors: Any = importlib.import_module("pip._internal.exceptions")
        raise errors.InstallationError(content.decode("utf-8", "replace").strip())
    return type(page)(content, kind, None, link.url, page.cache_link_parsing)


def ask(
    method: str, url: str, session: Any, body: bytes | None = None
) -> tuple[int, str | None, bytes]:
    """Request a page of the local index; return its status, type and content."""
    where = urlsplit(url)
    agent = session.headers["User-Agent"]
    headers = {"User-Agent": agent, "Accept": _ACCEPT, _HAS_READ: "1", **_OWN}
    local = http.client.HTTPConnection(where.hostname or "", where.port)
    with contextlib.closing(local):
        local.request(method, where.path, body, headers)
        reply = local.getresponse()
        return reply.status, reply.headers["Content-Type"], reply.read()


def download_files(session: Any, local: str) -> None:
    """Let pip request the target of a redirect of the local index like its own URL."""
    ask_server = session.request

    def request(self: Any, method: str, url: str, *args: Any, **options: Any) -> Any:
        while url.startswith(f"{local}/"):
            headers = {**(options.get("headers") or {}), **_OWN}
            once = {**options, "headers": headers, "allow_redirects": False}
            # An empty URL of a proxy overrides options and variables of the user.
            response = ask_server(
                self, method, url, *args, **once, proxies={"http": ""}
            )
            if not response.is_redirect:
                return response
            response.close()
            url = urljoin(url, response.headers["location"])
        return ask_server(self, method, url, *args, **options)

    session.request = request


def keep_lock(path: str) -> None:
    """Let pip write its lock file to ``path``; nvp writes that of the user.

    pip also takes other things from the user's path, such as a warning.
    """
    lock: Any = importlib.import_module("pip._internal.commands.lock")
    write, kind = lock.Path(path).write_text, type(lock.Path())
    own = {"write_text": lambda _, *args, **options: write(*args, **options)}
    lock.Path = type("Path", (kind,), own)


def replace_child() -> None:
    """Let pip start this program instead of another pip.

    The modules of pip have the function from their imports, so each is changed.
    """
    for name in ("build_env", "build_env.installer", "cli.main_parser", "utils.misc"):
        with contextlib.suppress(ImportError):
            module: Any = importlib.import_module(f"pip._internal.{name}")
            if hasattr(module, "get_runnable_pip"):
                os.environ[RUNNER] = module.get_runnable_pip()
                module.get_runnable_pip = lambda: __file__


class PipFinder:
    """Finds pip in one directory, and no other module there."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def find_spec(self, name: str, _: Any = None, target: Any = None) -> Any:
        """Return the spec of pip; ``None`` for other modules."""
        found = name == "pip"
        return PathFinder.find_spec(name, [self._folder], target) if found else None


def main() -> None:
    """Run the pip of `RUNNER` with the arguments of this program."""
    runner = os.environ[RUNNER]
    folder = os.path.dirname(runner)  # of a wheel, or of pip's own __pip-runner__.py
    folder = os.path.dirname(folder) if os.path.isfile(runner) else folder
    sys.meta_path.insert(0, PipFinder(folder))
    # A pip that does not support this Python reports that itself.
    with contextlib.suppress(Exception):
        install()
    sys.argv[0] = runner
    runpy.run_path(runner, run_name="__main__")


if __name__ == "__main__":
    main()
