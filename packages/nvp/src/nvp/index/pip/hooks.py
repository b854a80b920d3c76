"""Let pip read the pages of the user's indexes itself, and have them judged.

pip reads each page from the user's index with its own session. Certificates, proxies,
credentials, cookies, redirects, retries and errors are therefore those of pip alone.
Only a page that pip has read goes to the local index, which returns the page for this
machine. By the same rule, pip downloads files from their own servers.

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
from importlib.machinery import PathFinder
from typing import Any
from urllib.parse import urljoin, urlsplit

PLACES = "NVP_REPLACED_INDEXES"
"""A variable with a JSON list: the prefix of all local URLs, and an object with the
user's URL behind each local URL."""

RUNNER = "NVP_RUNNABLE_PIP"
"""A variable with the path of pip, as a pip passes it to the interpreter of another."""

HOOKS = "NVP_PIP_HOOKS"
"""A variable with the path of this file."""

_DIRECT = "Nvp-Direct"  # a copy of DIRECT in responses.py
_LARGE = 64 * 1024 * 1024  # a copy of LARGE_BYTES in strict_json.py
_ACCEPT = "application/vnd.pypi.simple.v1+json, text/html; q=0.1"


def install() -> None:
    """Change the imported pip; older versions than 22.3 read the local pages."""
    local, places = json.loads(os.environ[PLACES])
    with contextlib.suppress(ImportError):
        auth: Any = importlib.import_module("pip._internal.network.auth")
        urls = [url for here, url in places.items() if here.endswith("/simple/")]
        keep_credentials(auth.MultiDomainBasicAuth, urls)
    with contextlib.suppress(ImportError, AttributeError):
        collector: Any = importlib.import_module("pip._internal.index.collector")
        session: Any = importlib.import_module("pip._internal.network.session")
        read_pages(collector, places)
        download_files(session.PipSession, local)
        replace_child()


def keep_credentials(auth: Any, urls: list[str]) -> None:
    """Let pip find the credentials in the URLs of the replaced indexes."""
    auth.index_urls = property(
        lambda self: [*vars(self)["index_urls"], *urls],
        lambda self, value: vars(self).update(index_urls=value or []),
    )


def read_pages(collector: Any, places: dict[str, str]) -> None:
    """Let pip read the user's page, and then use the page that `judge` returns."""
    read = collector._get_index_content

    def read_page(link: Any, **options: Any) -> Any:
        place = next((url for url in places if link.url.startswith(url)), None)
        if place is None:
            return read(link, **options)
        url, rest = places[place], link.url[len(place) :]
        # pip joins the URL of an index and the name of a project by this rule.
        url = posixpath.join(url, rest) if rest else url
        own = type(link)(url, cache_link_parsing=link.cache_link_parsing)
        page = read(own, **options)
        if page is not None and len(page.content) > _LARGE:
            collector.logger.warning("%s is too large: its builds are not judged", page)
            return page
        return page and judge(link, page, options["session"])

    skip = collector._handle_get_simple_fail

    def skip_page(link: Any, reason: Any, meth: Any = None) -> None:
        # pip mentions a missing project, and an index that is down, only in its log.
        status = getattr(getattr(reason, "response", None), "status_code", None)
        is_missing = status in (403, 404)
        skip(link, reason, meth if is_missing else collector.logger.warning)

    collector._get_index_content = read_page
    collector._handle_get_simple_fail = skip_page


def judge(link: Any, page: Any, session: Any) -> Any:
    """Return the page for this machine; ``page`` itself if it cannot be judged.

    :param link: the local URL of the page.
    :param page: the page as pip has read it.
    """
    # The user may have typed the password, which the files of the page need too.
    pair = session.auth.passwords.get(urlsplit(page.url).netloc)
    where = urlsplit(link.url)
    local = http.client.HTTPConnection(where.hostname or "", where.port)
    with contextlib.closing(local):
        body = (
            json.dumps([page.url, page.content_type, pair]).encode()
            + b"\n"
            + page.content
        )
        headers = {"User-Agent": session.headers["User-Agent"], "Accept": _ACCEPT}
        local.request("POST", where.path, body, headers)
        reply = local.getresponse()
        content, kind = reply.read(), reply.headers["Content-Type"]
    if reply.status == 204:
        return page
    if reply.status != 200:
        errors: Any = importlib.import_module("pip._internal.exceptions")
        raise errors.InstallationError(content.decode("utf-8", "replace").strip())
    return type(page)(content, kind, None, link.url, page.cache_link_parsing)


def download_files(session: Any, local: str) -> None:
    """Let pip request the target of a redirect of the local index like its own URL."""
    send = session.request

    def request(self: Any, method: str, url: str, *args: Any, **options: Any) -> Any:
        while url.startswith(f"{local}/"):
            headers = {**(options.get("headers") or {}), _DIRECT: "1"}
            once = {**options, "headers": headers, "allow_redirects": False}
            # An empty URL of a proxy overrides options and variables of the user.
            response = send(self, method, url, *args, **once, proxies={"http": ""})
            if not response.is_redirect:
                return response
            response.close()
            url = urljoin(url, response.headers["location"])
        return send(self, method, url, *args, **options)

    session.request = request


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
    # If this pip does not support this Python, the pip reports that.
    with contextlib.suppress(Exception):
        install()
    sys.argv[0] = runner
    runpy.run_path(runner, run_name="__main__")


if __name__ == "__main__":
    main()
