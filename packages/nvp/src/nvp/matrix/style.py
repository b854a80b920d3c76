"""Colours and style sheets of the HTML page and the drawing.

Colour only repeats what the text of a cell says. In both themes text on the tiles of
GPU builds has a contrast of at least 7:1 (WCAG 2, level AAA), and all other text of at
least 4.5:1 (level AA). The tests compute these contrasts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["DARK", "LIGHT", "Theme", "page_css", "svg_css", "tone_classes"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Theme:
    """Colours as ``#rrggbb``.

    :param page: the background.
    :param ink: text on the page and on the tiles.
    :param soft: less important text on the page.
    :param line: borders.
    :param tones: tiles of GPU builds, those for the oldest drivers first.
    :param cpu: tiles of builds that do not use the GPU.
    :param cpu_ink: text on those tiles.
    :param hatch: the mark of builds with only PTX.
    """

    page: str
    ink: str
    soft: str
    line: str
    tones: Sequence[str]
    cpu: str
    cpu_ink: str
    hatch: str


LIGHT = Theme(
    page="#ffffff",
    ink="#12181f",
    soft="#4a5561",
    line="#c5cdd6",
    tones=(
        "#c9dfff",
        "#a9e4e3",
        "#b5e6ae",
        "#e6e88a",
        "#ffd27d",
        "#ffbfa0",
        "#f7b9d7",
    ),
    cpu="#f1f3f5",
    cpu_ink="#4a5561",
    hatch="#12181f",
)

DARK = Theme(
    page="#0f141a",
    ink="#f4f7fa",
    soft="#a9b4c0",
    line="#3a4652",
    tones=(
        "#1d4377",
        "#0f5157",
        "#245527",
        "#4f4d08",
        "#664106",
        "#76341a",
        "#6f2450",
    ),
    cpu="#1a2129",
    cpu_ink="#a9b4c0",
    hatch="#f4f7fa",
)


def tone_classes(labels: Sequence[str]) -> dict[str, str]:
    """Return the CSS class of each label.

    A few labels are spread over the whole scale, so that their colours differ more.
    """
    count = len(LIGHT.tones)
    step = max(1, count // max(1, len(labels)))
    return {label: f"t{index * step % count}" for index, label in enumerate(labels)}


def _variables(theme: Theme) -> str:
    tones = "".join(f"--t{i}:{tone};" for i, tone in enumerate(theme.tones))
    return (
        f"--page:{theme.page};--ink:{theme.ink};--soft:{theme.soft};"
        f"--line:{theme.line};--cpu:{theme.cpu};--cpu-ink:{theme.cpu_ink};"
        f"--hatch:{theme.hatch};{tones}"
    )


def _tones(declaration: str) -> str:
    return "\n".join(
        f".t{i} {{ {declaration}: var(--t{i}); }}" for i in range(len(LIGHT.tones))
    )


def page_css() -> list[str]:
    """Return the style sheet of the page, which has only the themes' colours."""
    themes = f"""
:root {{ color-scheme: light dark; {_variables(LIGHT)} }}
@media (prefers-color-scheme: dark) {{ :root {{ {_variables(DARK)} }} }}
@media print {{ :root {{ color-scheme: light; {_variables(LIGHT)} }} }}
{_tones("background-color")}
"""
    return f"{themes}{_PAGE}".strip().splitlines()


def svg_css() -> list[str]:
    """Return the style sheet of the drawing."""
    return f"""
svg {{ {_variables(LIGHT)} }}
@media (prefers-color-scheme: dark) {{ svg {{ {_variables(DARK)} }} }}
{_tones("fill")}
{_DRAWING}""".strip().splitlines()


_PAGE = """
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--page); color: var(--ink);
  font: 1rem/1.5 system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif;
}
main { max-width: 72rem; margin: 0 auto; padding: 2rem 1.5rem 3rem; }
h1 { margin: 0; font-size: 1.75rem; line-height: 1.2; overflow-wrap: anywhere; }
.lead { margin: .35rem 0 1.5rem; color: var(--soft); max-width: 42rem; }
h2 { margin: 2rem 0 .5rem; font-size: 1.05rem; }
.scroll { overflow-x: auto; padding-bottom: .5rem; }
.scroll:focus-visible { outline: 2px solid var(--soft); outline-offset: 2px; }
table { border-collapse: separate; border-spacing: 3px; }
.merged { width: 100%; }
caption {
  position: absolute; width: 1px; height: 1px; overflow: hidden;
  clip-path: inset(50%); white-space: nowrap;
}
th { font-weight: 600; line-height: 1.25; }
th small { display: block; font-size: .75rem; font-weight: 400; color: var(--soft); }
th b { font-weight: inherit; white-space: nowrap; }
thead th { padding: .3rem .4rem; vertical-align: bottom; }
thead th small { white-space: nowrap; }
tbody th, thead th:first-child {
  position: sticky; left: 0; z-index: 1; background: var(--page); text-align: left;
}
tbody th, thead th:first-child { padding: .3rem .6rem .3rem 0; }
tbody th { min-width: 7.5rem; max-width: 15rem; }
td {
  min-width: 4.75rem; padding: .7rem .4rem; text-align: center; white-space: nowrap;
  border: 1px solid transparent; border-radius: 5px;
  font: 600 .9rem/1.2 ui-monospace, Menlo, "DejaVu Sans Mono", monospace;
}
.whole td { min-width: 3.9rem; padding: .4rem .25rem; font-size: .78rem; }
.whole th { font-size: .82rem; }
.whole tbody th { min-width: 8.5rem; font-weight: 600; }
.groups tbody th { min-width: 12rem; max-width: 34rem; padding-right: 2rem; }
.groups th b { white-space: normal; }
.groups th small { overflow-wrap: anywhere; }
.groups thead th:nth-child(3) { text-align: center; }
.groups td { min-width: 7rem; padding: .5rem .7rem; }
.groups .count {
  min-width: 3rem; text-align: right; font: inherit; font-variant-numeric: tabular-nums;
}
.cpu {
  background-color: var(--cpu); color: var(--cpu-ink); font-weight: 400;
  border: 1px dashed var(--line);
}
.gone { color: var(--soft); font-weight: 400; }
.ptx {
  border: 2px solid var(--hatch);
  border-left-width: 7px; border-left-style: double;
}
ul { margin: 0; padding: 0; list-style: none; }
.legend li {
  display: flex; align-items: baseline; gap: .7rem; margin: .4rem 0;
  font-size: .9rem; line-height: 1.4;
}
.key {
  flex: none; min-width: 4rem; padding: .1rem .4rem; border: 1px solid transparent;
  border-radius: 4px; text-align: center;
  font: 600 .8rem/1.4 ui-monospace, Menlo, "DejaVu Sans Mono", monospace;
}
.key.cpu { border: 1px dashed var(--line); }
.notes { max-width: 48rem; font-size: .9rem; color: var(--soft); }
.notes li { margin: .4rem 0; }
details { margin-top: 2rem; }
summary { padding: .5rem 0; font-weight: 600; cursor: pointer; }
@media (max-width: 40rem) {
  main { padding: 1.25rem .9rem 2rem; }
  h1 { font-size: 1.4rem; }
  .lead { margin-bottom: 1rem; font-size: .95rem; }
  tbody th { min-width: 5.2rem; max-width: 7rem; font-size: .9rem; }
  tbody th, thead th:first-child { padding-right: .3rem; }
  th small { font-size: .7rem; }
  thead th { padding: .25rem .1rem; font-size: .82rem; }
  thead th b, thead th small { white-space: normal; }
  .groups tbody th { min-width: 7rem; max-width: none; padding-right: .3rem; }
  .groups td { min-width: 4rem; padding: .5rem .3rem; font-size: .82rem; }
  .groups td:nth-child(3) {
    min-width: 5rem; white-space: normal; overflow-wrap: anywhere;
  }
  .merged td { min-width: 3.55rem; padding: .6rem .2rem; font-size: .82rem; }
}
@media print {
  main { max-width: none; padding: 0; }
  .scroll { overflow: visible; }
  td, .key { border: 1px solid var(--line); print-color-adjust: exact; }
  tr { break-inside: avoid; }
}
"""

_DRAWING = """
.page { fill: var(--page); }
text { font: 14px system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
text, .tile text { fill: var(--ink); }
.head { font-size: 20px; font-weight: 700; }
.name { font-weight: 600; }
.small { font-size: 11px; fill: var(--soft); }
.tile text {
  font: 600 13px ui-monospace, "Cascadia Mono", Menlo, "DejaVu Sans Mono", monospace;
  text-anchor: middle;
}
.mid { text-anchor: middle; }
rect.cpu { fill: var(--cpu); stroke: var(--line); stroke-dasharray: 4 3; }
rect.gone { fill: var(--page); }
.tile text.gone { fill: var(--soft); font-weight: 400; }
.tile text.cpu { fill: var(--cpu-ink); font-weight: 400; }
.ptx { stroke: var(--hatch); stroke-width: 2; }
.bar { fill: var(--hatch); }
"""
