"""The site in a browser."""

from __future__ import annotations

import functools
import http.server
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import browser
from support.paths import ROOT
from support.sessions import blocks

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(browser.PROGRAM is None, reason="there is no Chromium"),
]

SEARCHES = {
    # Texts of errors that people paste into the search.
    "no kernel image is available for execution on the device": "reference/errors",
    "The NVIDIA driver on your system is too old": "reference/errors",
    "driver too old": "reference/errors",
    "Torch not compiled with CUDA enabled": "reference/errors",
    "forward compatibility was attempted on non supported HW": "reference/errors",
    "Failed to initialize NVML": "reference/errors",
    "libcudart.so.12": "reference/errors",
    "torch.cuda.is_available() is False": "reference/errors",
    "undefined symbol": "reference/errors",
    # Codes.
    "ND202": "reference/doctor-checks",
    "NV310": "rules",
    "reason codes": "reference/reason-codes",
    "exit code": "reference/exit-codes",
    # Tasks of people.
    "install torch": "how-to/install-torch",
    "uv": "how-to/serve-other-installers",
    "poetry": "how-to/serve-other-installers",
    "lock file": "how-to/check-lock-files",
    "offline": "how-to/install-with-pip",
    "docker": "how-to/cluster-image",
    "kubernetes": "how-to/cluster-image",
    "slurm cluster": "how-to/fleet",
    "jetson": "explanation/what-a-driver-runs",
    "pre-commit": "how-to/pre-commit-and-ci",
    "systemd": "how-to/always-on",
    "--label": "reference/glossary",
    "CUDA_VISIBLE_DEVICES": "explanation/several-gpus",
    # Terms, and the name of the project.
    "what is a variant": "reference/glossary",
    "glossary": "reference/glossary",
    "changelog": "project/changelog",
    "contribute": "project/contributing",
    "vulnerability": "project/security",
    "who makes this": "about",
}
"""The searches of readers, and the page that they should find first."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocs", reason="needs the extra docs")
    pytest.importorskip("mkdocstrings", reason="needs the extra docs")
    folder = tmp_path_factory.mktemp("site")
    subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", folder],
        cwd=ROOT,
        check=True,
    )
    return folder


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    handler = functools.partial(Handler, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[browser.Browser]:
    with browser.running(str(tmp_path_factory.mktemp("profile"))) as running:
        yield running


def addresses(site: Path) -> list[str]:
    return [
        path.parent.relative_to(site).as_posix().removeprefix(".")
        for path in sorted(site.rglob("index.html"))
    ]


def test_copy_buttons_give_the_commands_alone(
    tab: browser.Browser, address: str
) -> None:
    tab.call("Browser.grantPermissions", permissions=["clipboardReadWrite"])
    for name in ("how-to/cluster-image", "reference/api"):
        page = ROOT / "docs" / f"{name}.md"
        sessions = blocks(page.read_text(encoding="utf-8"))
        tab.open(f"{address}{name}/")
        copied = tab.evaluate("""(async () => {
            const texts = [];
            for (const button of document.querySelectorAll(
                ".language-console, .language-pycon")) {
              button.querySelector("[data-clipboard-target]").click();
              texts.push(await navigator.clipboard.readText());
            }
            return texts;
        })()""")
        expected = ["\n".join(s.command for s in block.steps) for block in sessions]
        assert copied == expected


def test_texts_fit_their_column_and_nothing_is_asked_of_other_servers(
    tab: browser.Browser, address: str, site: Path
) -> None:
    tab.requests.clear()
    wide = []
    for name in addresses(site):
        tab.open(f"{address}{name}")
        wide += [
            (name, text)
            for text in tab.evaluate("""
                [...document.querySelectorAll(
                  "pre, pre > code, .md-typeset__scrollwrap")]
                .filter((code) => code.scrollWidth > code.clientWidth)
                .map((code) => code.textContent.slice(0, 60))""")
        ]
        # A link without space beside its heading adds an empty line below the heading.
        wide += [
            (name, text)
            for text in tab.evaluate("""
                [...document.querySelectorAll(".headerlink")].filter((link) => {
                  const words = document.createRange();
                  words.selectNodeContents(link.parentNode);
                  words.setEndBefore(link);
                  const lines = [...words.getClientRects()];
                  return link.getBoundingClientRect().top >= lines.at(-1).bottom;
                }).map((link) => link.parentNode.textContent)""")
        ]
    assert wide == []
    assert [url for url in tab.requests if not url.startswith((address, "data:"))] == [
        "about:blank"
    ] * tab.requests.count("about:blank")


@pytest.mark.parametrize("place", ["rules/#NV310", "reference/doctor-checks/#ND202"])
def test_anchors_open_at_their_heading(
    tab: browser.Browser, address: str, place: str
) -> None:
    tab.open(address + place)
    code = place.partition("#")[2]
    heading, top, bottom = tab.evaluate(f"""(() => {{
        const heading = document.getElementById("{code}");
        const top = heading.getBoundingClientRect().top;
        const header = document.querySelector(".md-header").getBoundingClientRect();
        return [heading.textContent, top, header.bottom];
    }})()""")
    assert heading.startswith(f"{code}: ")
    assert bottom - 1 <= top < bottom + 60


def test_searches_of_users_find_the_right_page_first(
    tab: browser.Browser, address: str
) -> None:
    wrong = {}
    for words, page in SEARCHES.items():
        tab.open(address)
        found = tab.evaluate(f"""new Promise((resolve) => {{
            const list = document.querySelector(".md-search-result__list");
            const meta = document.querySelector(".md-search-result__meta");
            const look = () => {{
              const first = list.querySelector("a");
              if (first) resolve(first.getAttribute("href"));
              else if (/No match/.test(meta.textContent)) resolve("nothing");
            }};
            new MutationObserver(look).observe(list.parentElement,
              {{ childList: true, subtree: true, characterData: true }});
            const query = document.querySelector("[data-md-component=search-query]");
            query.focus();
            query.value = {words!r};
            query.dispatchEvent(new Event("input", {{ bubbles: true }}));
            query.dispatchEvent(new Event("keyup", {{ bubbles: true }}));
        }})""")
        place = found.partition("?")[0].replace(address, "")
        anchor = found.partition("#")[2]
        if not f"{place}#{anchor}".startswith(page):
            wrong[words] = f"{place}#{anchor}"
    assert wrong == {}
