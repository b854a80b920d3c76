"""Make the pictures of the home page, light and dark.

``python -m tools.pictures`` runs ``nvp pip install torch`` on an index of stub wheels,
and writes its output as a recording in SVG, whose lines appear one after the other. The
program also writes the matrix of a release, and the page of ``nvp fleet``, which needs
Chromium.
"""

from __future__ import annotations

import base64
import html
import re
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from support import browser, sessions, wheels  # noqa: E402  # found by the line above

IMAGES = ROOT / "docs" / "images"

COLOURS = {
    "light": {"page": "#ffffff", "ink": "#12181f", "soft": "#4a5561", "bar": "#eef1f4"},
    "dark": {"page": "#0f141a", "ink": "#f4f7fa", "soft": "#a9b4c0", "bar": "#1a2129"},
}

_COMMAND = "nvp pip install torch"
_MACHINE = "--cuda-driver 12.8 --sm-arch 8.0 --target site --index-url index"
_RELEASES = ("2.10.0+cu128", "2.14.0+cu130", "2.15.0+cu130")
_WIDTH = 86


def main() -> int:
    """Write the pictures."""
    for name, text in recordings().items():
        (IMAGES / name).write_text(text, encoding="utf-8")
    if browser.PROGRAM:
        _write_fleet()
    return 0


def recordings() -> dict[str, str]:
    """Return the pictures that do not need a browser, by their file names."""
    with tempfile.TemporaryDirectory() as name:
        work = Path(name).resolve()
        _write_stubs(work / "index" / "torch")
        lines = list(_printed(work))
        matrix = _run(work, f"nvp matrix --format svg {_fixture('torch-2.9.1')}")
    pictures = {}
    for scheme, colours in COLOURS.items():
        pictures[f"install-torch-{scheme}.svg"] = _terminal(lines, colours)
        pictures[f"matrix-{scheme}.svg"] = _in_scheme(matrix, scheme)
    return pictures


def _write_stubs(folder: Path) -> None:
    for version in _RELEASES:
        wheels.stub_wheel(folder, "torch", version)
    wheels.write_page(folder)


def _fixture(name: str) -> str:
    return str(ROOT / "fixtures" / "variants-json" / f"{name}-variants.json")


def _printed(work: Path) -> Iterator[str]:
    """Yield the output of the installation, without the lines that name indexes."""
    output = _run(work, f"{_COMMAND} {_MACHINE}")
    for line in output.splitlines():
        if "index" not in line and "127.0.0.1" not in line:
            yield line


def _run(work: Path, command: str) -> str:
    done = subprocess.run(
        ["bash", "-c", f"{command} 2>&1"],
        cwd=work,
        env=sessions.environ_of(work),
        capture_output=True,
        encoding="utf-8",
        check=True,
    )
    return done.stdout


def _terminal(lines: Sequence[str], colours: dict[str, str]) -> str:
    """Return a terminal in which the lines of a command appear, as SVG."""
    rows = [f"$ {_COMMAND}"]
    for line in lines:
        rows += textwrap.wrap(line, _WIDTH, subsequent_indent="    ") or [""]
    height = 56 + 20 * len(rows)
    texts = "\n".join(
        f'<text class="{"typed" if n == 0 else "row"}" x="16" y="{56 + 20 * n}" '
        f'style="animation-delay:{0.5 * n + 0.4 * (n > 0):.1f}s" xml:space="preserve">'
        f"{html.escape(row)}</text>"
        for n, row in enumerate(rows)
    )
    return f"""\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 720 {height}" role="img" \
aria-labelledby="title">
<title id="title">{_COMMAND}, on a machine with an A100 and a driver for CUDA \
12.8</title>
<style>
text {{ font: 13px ui-monospace, "Cascadia Mono", Menlo, "DejaVu Sans Mono", monospace;
  fill: {colours["soft"]}; animation: appear 0.1s both; }}
.typed {{ fill: {colours["ink"]}; font-weight: 600; }}
@keyframes appear {{ from {{ opacity: 0; }} to {{ opacity: 1; }} }}
@media (prefers-reduced-motion: reduce) {{ text {{ animation: none; }} }}
</style>
<rect width="720" height="{height}" rx="8" fill="{colours["page"]}" \
stroke="{colours["bar"]}"/>
<rect width="720" height="28" rx="8" fill="{colours["bar"]}"/>
{texts}
</svg>
"""


def _in_scheme(picture: str, scheme: str) -> str:
    """Return one color scheme of a picture that has both."""
    both = r"(svg \{) (--[^}]+)(\})\n@media \(prefers-color-scheme: dark\) "
    both += r"\{ svg \{ (--[^}]+)\} \}"
    chosen = r"\1 \4\3" if scheme == "dark" else r"\1 \2\3"
    return re.sub(both, chosen, picture)


def _write_fleet() -> None:
    """Write pictures of the page of ``fleet``."""
    with tempfile.TemporaryDirectory() as name:
        work = Path(name).resolve()
        command = (
            f"nvp fleet {ROOT}/fixtures/inventories/kubernetes-nodes.json --release "
            f"{ROOT}/fixtures/published/torch-2.8.0-variants.json --format html"
        )
        page = work / "fleet.html"
        page.write_text(_run(work, f"({command} 2>/dev/null)"), encoding="utf-8")
        with browser.running(str(work / "profile")) as tab:
            for scheme in COLOURS:
                feature = {"name": "prefers-color-scheme", "value": scheme}
                tab.call("Emulation.setEmulatedMedia", features=[feature])
                tab.open(page.as_uri(), width=720)
                clip = {"x": 0, "y": 0, "width": 720, "height": 540, "scale": 1}
                shot = tab.call("Page.captureScreenshot", format="png", clip=clip)
                path = IMAGES / f"fleet-{scheme}.png"
                path.write_bytes(base64.b64decode(shot["data"]))


if __name__ == "__main__":
    sys.exit(main())
