"""The matrix: every form of it shows the pick of every driver with every GPU."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from itertools import cycle, pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.command import Run
from support.documents import TORCH, TORCH_LABELS, document, nvidia
from support.html_page import Page
from support.strategies import documents

from nvidia_variant_provider.machine.environment import ComputeCapability, CudaVersion
from nvidia_variant_provider.metadata import read_metadata
from nvidia_variant_provider.resolution.inputs import Priorities
from nvp import api
from nvp.files import read_resource
from nvp.knowledge.tables import can_exist, driver_versions
from nvp.matrix.cells import (
    Cell,
    all_capabilities,
    every_value,
    find_cells,
    machine,
)
from nvp.matrix.grid import Grid, caption, make_grid
from nvp.matrix.pictures import html_page, svg_drawing
from nvp.matrix.style import TONES, tone_classes
from nvp.matrix.text import WIDTH, markdown, text_blocks

COMMAND = "matrix"

# PTX for several targets, builds that leave GPUs out, and names that are too long for
# all columns to stand next to each other.
KERNELS = document(
    {
        "null": {},
        "cu118": nvidia("11.8", sm=["50_real", "60_real", "80_real", "80_virtual"]),
        "cu121": nvidia("12.1", sm=["70_real", "80_virtual", "90_virtual"]),
        "cu124_for_inference": nvidia("12.4", sm=["75_real", "90_virtual"]),
        "cu128": nvidia("12.8", sm=["90_real", "100_virtual", "120_virtual"]),
        "cu130": nvidia("13.0"),
        "cu132": nvidia("13.2", sm=["80_virtual", "100_real", "110_virtual"]),
    }
)
SAMPLES = {"torch": TORCH, "kernels": KERNELS}

PAIRS = [(cuda, gpu) for cuda in driver_versions() for gpu in all_capabilities()]
EXISTING = sum(can_exist(*pair) for pair in PAIRS)
NEWEST = str(driver_versions()[-1])


Picks = dict[tuple[str, str], str]


@pytest.fixture
def torch(fixtures: Path) -> Path:
    return fixtures / "variants-json" / "torch-2.9.1-variants.json"


def grid_of(sample: dict[str, Any], **options: Any) -> Grid:
    metadata = read_metadata(sample)
    return make_grid(
        [cell for cell in find_cells(metadata, **options) if cell.exists],
        title="torch 2.9.1",
        variants=metadata.variants,
        notes=["a note"],
    )


def picks(grid: Grid) -> Picks:
    """Return the caption of each pair that exists."""
    return {
        (str(cuda), str(gpu)): caption(cell)
        for (cuda, gpu), cell in grid.cells.items()
        if cell.exists
    }


def members(text: str, known: tuple[Any, ...]) -> list[str]:
    """Return the versions among ``known`` that a range such as ``12.6-12.9`` covers."""
    names = [str(item) for item in known]
    first, _, last = text.partition("-")
    return names[names.index(first) : names.index(last or first) + 1]


def spread(rows: str, columns: str, text: str) -> Picks:
    """Return ``text`` as the caption of every pair in a rectangle that exists."""
    return {
        (cuda, gpu): text
        for gpu in members(rows, all_capabilities())
        for cuda in members(columns, driver_versions())
        if can_exist(CudaVersion.parse(cuda), ComputeCapability.parse(gpu))
    }


def all_of(sample: dict[str, Any]) -> Grid:
    """Return a grid that also has the pairs that cannot exist."""
    metadata = read_metadata(sample)
    return make_grid(find_cells(metadata), title="torch 2.9.1")


class TestCells:
    @pytest.mark.parametrize("relaxed", [False, True])
    @pytest.mark.parametrize("sample", SAMPLES.values(), ids=SAMPLES)
    def test_every_cell_equals_the_resolution_for_that_machine(
        self, sample: dict[str, Any], relaxed: bool
    ) -> None:
        metadata = read_metadata(sample)
        cells = find_cells(metadata, minor_version_compatibility=relaxed)
        assert len(cells) == len(driver_versions()) * len(all_capabilities())
        name = "NV_VARIANT_PROVIDER_MINOR_VERSION_COMPATIBILITY"
        for cell in cells:
            resolution = api.resolve(
                metadata,
                environment=machine(cell.cuda, cell.capability),
                supported=every_value(metadata),
                enable_optional=True,
                priorities=Priorities(),
                environ={name: "1"} if relaxed else {},
            )
            assert cell.label == resolution.selected

    def test_how_each_build_runs(self) -> None:
        cells = all_of(KERNELS).cells
        pairs = {
            ("12.2", "7.0"): ("cu121", "native"),
            ("12.2", "8.9"): ("cu121", "ptx"),
            ("12.2", "10.0"): ("null", "cpu"),
            ("13.0", "12.0"): ("cu130", "native"),  # the build names no GPU
        }
        for (cuda, gpu), expected in pairs.items():
            cell = cells[CudaVersion.parse(cuda), ComputeCapability.parse(gpu)]
            assert (cell.label, cell.how) == expected


class TestText:
    @pytest.mark.parametrize("width", [40, 60, 80])
    def test_blocks_are_as_narrow_as_the_terminal(self, width: int) -> None:
        grid = grid_of(TORCH)
        for header, rows in text_blocks(grid, width=width):
            columns = zip(header, *rows, strict=True)
            total = sum(max(map(len, column)) + 2 for column in columns) - 2
            assert total <= width or len(header) == 3

    @pytest.mark.parametrize("sample", SAMPLES.values(), ids=SAMPLES)
    def test_the_printed_tables_show_every_cell(
        self, sample: dict[str, Any], run: Run, tmp_path: Path
    ) -> None:
        path = tmp_path / "torch-2.9.1-variants.json"
        path.write_text(json.dumps(sample))
        outcome = run(path)
        assert (outcome.code, outcome.err) == (0, "")
        lines = outcome.out.splitlines()
        assert lines[0].startswith("torch 2.9.1: ")
        assert max(map(len, lines)) <= WIDTH
        read: Picks = {}
        columns: list[str] = []
        for line in lines[1:]:
            first, *rest = re.split(r"\s{2,}", line)
            if first in ("GPU", ""):
                columns = rest
            elif columns and re.fullmatch(r"[\d.]+(-[\d.]+)?", first):
                for column, text in zip(columns, rest[1:], strict=True):
                    read |= spread(first, column, text)
        assert read == picks(grid_of(sample))

    def test_the_bands_of_torch(self, run: Run, torch: Path) -> None:
        lines = run(torch).out.splitlines()
        rows = [re.split(r"\s{2,}", line) for line in lines[2:9]]
        bands = ["11.0-12.5", "12.6-12.7", "12.8-12.9", f"13.0-{NEWEST}"]
        assert rows[0] == ["GPU", *bands]
        assert rows[1] == ["5.0-6.2", "Maxwell to Pascal", "cpu", *["cu126"] * 3]
        assert rows[3] == ["7.5-10.7", "Turing to Rubin", "cpu", *TORCH_LABELS]
        assert rows[4] == ["11.0", "Blackwell: Jetson Thor", *["-"] * 3, "cpu"]
        rest = " ".join(" ".join(lines[9:]).split())
        assert "-: no driver for this CUDA version supports the GPU" in rest
        total = f"{EXISTING} of {len(PAIRS)} pairs of a driver and a GPU can exist"
        assert total in rest
        older = "needs a driver for CUDA 13.2 on this GPU: drivers 12.6-13.1"
        assert older in rest
        assert f"may not run on this GPU: drivers 13.2-{NEWEST}, GPUs" in rest

    def test_marks_are_explained_where_they_occur(self, run: Run, torch: Path) -> None:
        assert "*" not in run(torch).out
        document = json.loads(torch.read_text())
        del document["variants"]["null"]
        document["variants"]["cu130"]["nvidia"]["sm_arch"] = ["120_virtual"]
        torch = Path("x-1-variants.json")
        torch.write_text(json.dumps(document))
        out = run(torch).out
        assert "[...]" not in out
        assert "*: this build has only PTX" in out
        assert "(none): no label fits" in out
        assert "cpu:" not in out

    @given(documents())
    @settings(max_examples=settings().max_examples // 6)
    def test_blocks_show_every_cell(self, sample: dict[str, Any]) -> None:
        grid = grid_of(sample)
        read: Picks = {}
        for header, rows in text_blocks(grid):
            for row in rows:
                for column, text in zip(header[2:], row[2:], strict=True):
                    read |= spread(row[0], column, text)
        assert read == picks(grid)


class TestPairsThatCannotExist:
    """``--all-pairs`` shows their builds, and every form marks these pairs."""

    def test_text(self, run: Run, torch: Path) -> None:
        out = run(torch, "--all-pairs").out
        assert re.search(r"9\.0 .*Hopper +\[cpu\]", out)
        assert "[...]: no driver for this CUDA version supports the GPU" in out
        assert "can exist; " not in out

    def test_bands_never_mix_both_kinds(self) -> None:
        grid = all_of(TORCH)
        for row in grid.gpu_bands:
            for column in grid.driver_bands:
                kinds = {grid.cells[c, g].exists for c in column for g in row}
                assert len(kinds) == 1

    @given(documents())
    @settings(max_examples=settings().max_examples // 6)
    def test_a_field_of_the_table_has_one_pick(self, sample: dict[str, Any]) -> None:
        grid = grid_of(sample)
        for row in grid.gpu_bands:
            for column in grid.driver_bands:
                picks = {
                    caption(grid.cells[c, g])
                    for c in column
                    for g in row
                    if (c, g) in grid.cells
                }
                assert picks == ({caption(grid.at(column, row))} - {"-"})

    def test_markdown(self) -> None:
        lines = "\n".join(markdown(all_of(TORCH)))
        assert r"\[`cu130`\]" in lines
        assert r"| cpu | cpu | cpu | \[cpu\] |" in lines.replace("\\\\[", "\\[")

    @pytest.mark.parametrize("render", [html_page, svg_drawing])
    def test_pages(self, render: Callable[[Grid], list[str]]) -> None:
        text = "\n".join(render(all_of(TORCH)))
        assert text.count('class="gone"') > 100
        assert "[cu130]" in text
        assert "cu130; no driver for this CUDA version supports the GPU" in text

    def test_report(self, run: Run, torch: Path) -> None:
        pairs = {}
        for options in ([], ["--all-pairs"]):
            cells = json.loads(run(torch, *options, "--json").out)["data"]["cells"]
            pairs[len(options)] = cells
        assert (len(pairs[0]), len(pairs[1])) == (EXISTING, len(PAIRS))
        assert [cell for cell in pairs[1] if cell["exists"]] == pairs[0]


class TestMarkdown:
    @pytest.mark.parametrize("sample", SAMPLES.values(), ids=SAMPLES)
    def test_there_is_a_row_for_each_driver(self, sample: dict[str, Any]) -> None:
        grid = grid_of(sample)
        table = [line for line in markdown(grid) if line.startswith("|")]
        head, rule, *rows = [line.strip("| ").split(" | ") for line in table]
        assert rule == ["---"] * len(head)
        assert [row[0].split()[0] for row in rows] == [str(c) for c in grid.drivers]
        assert rows[-1][0] == NEWEST
        bands = [text.split()[1] for text in head[1:]]
        read: Picks = {}
        for row in rows:
            for band, text in zip(bands, row[1:], strict=True):
                plain = text.replace(" (PTX)", "*").replace("`", "")
                read |= spread(band, row[0].split()[0], plain)
        assert read == picks(grid)


HOSTILE = (
    '<script>alert(1)</script>"><img src=http://x.invalid/>&`|\n\x1b]8;;\udc80\u2028'
)


def hostile_grid() -> Grid:
    """Return a grid with a label and a title that must be escaped."""
    cells = [
        Cell(cuda=cuda, capability=gpu, label=HOSTILE, how=how)
        for cuda, how in zip(driver_versions(), cycle(("native", "ptx", "cpu")))
        for gpu in all_capabilities()
    ]
    variants = {HOSTILE: {"nvidia": {"sm_arch": (HOSTILE, "90_real")}}}
    return make_grid(cells, title=HOSTILE, variants=variants, notes=[HOSTILE])


def external(text: str) -> list[str]:
    """Return all texts in the form of an address, except the name of SVG's
    namespace."""
    return re.findall(
        r"https?:|url\(|@import", text.replace('xmlns="http://www.w3.org/2000/svg"', "")
    )


class TestHtml:
    @pytest.mark.parametrize("sample", SAMPLES.values(), ids=SAMPLES)
    def test_both_tables_show_every_cell(self, sample: dict[str, Any]) -> None:
        grid = grid_of(sample)
        page = Page("\n".join(html_page(grid)))
        assert page.open == []
        for name in ("merged", "whole"):
            head, *rows = page.tables[name]
            read: Picks = {}
            for row in rows:
                gpus = re.match(r"[\d.]+(-[\d.]+)?", row[0])
                assert gpus
                for column, text in zip(head[1:], row[1:], strict=True):
                    read |= spread(gpus.group(), column, text)
            assert read == picks(grid)

    def test_the_page_needs_no_other_file(self) -> None:
        text = "\n".join(html_page(grid_of(KERNELS)))
        page = Page(text)
        assert external(text) == []
        assert page.tags.isdisjoint({"script", "link", "img", "iframe", "object"})
        assert not any(name in ("src", "href") for name, _ in page.attributes)
        assert ("name", "viewport") in page.attributes
        for wanted in ("prefers-color-scheme: dark", "@media print", "sticky"):
            assert wanted in text

    def test_hostile_text_is_escaped(self) -> None:
        text = "\n".join(html_page(hostile_grid()))
        page = Page(text)
        assert page.open == []
        assert text.isascii()
        assert page.tags.isdisjoint({"script", "img"})
        assert not any(name.startswith(("on", "src")) for name, _ in page.attributes)
        assert "<script>alert(1)</script>" in page.text


class TestSvg:
    @pytest.mark.parametrize("sample", SAMPLES.values(), ids=SAMPLES)
    def test_every_cell_has_a_title(self, sample: dict[str, Any]) -> None:
        grid = grid_of(sample)
        root = ET.fromstring("\n".join(svg_drawing(grid)))
        space = "{http://www.w3.org/2000/svg}"
        assert root.findtext(f"{space}title") == (
            "torch 2.9.1: the build for each driver and GPU"
        )
        read: Picks = {}
        for tile in root.iter(f"{space}g"):
            place = re.match(r"CUDA (\S+), GPU (\S+): ", tile[0].text or "")
            if place:
                read |= spread(place[2], place[1], tile[-1].text or "")
        assert read == picks(grid)

    def test_every_shape_is_inside_the_drawing(self) -> None:
        root = ET.fromstring("\n".join(svg_drawing(grid_of(KERNELS))))
        _, _, width, height = map(float, root.attrib["viewBox"].split())
        for shape in root.iter("{http://www.w3.org/2000/svg}rect"):
            x, y = (float(shape.get(name, "0")) for name in "xy")
            assert 0 <= x <= x + float(shape.attrib["width"]) <= width
            assert 0 <= y <= y + float(shape.attrib["height"]) <= height
        for text in root.iter("{http://www.w3.org/2000/svg}text"):
            assert 0 < float(text.attrib["y"]) < height

    def test_hostile_text_is_escaped(self) -> None:
        text = "\n".join(svg_drawing(hostile_grid()))
        tags = {item.tag.rpartition("}")[2] for item in ET.fromstring(text).iter()}
        assert text.isascii()
        assert external("\n".join(svg_drawing(grid_of(KERNELS)))) == []
        assert tags == {"svg", "title", "style", "rect", "text", "g"}


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [
        c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(first: str, second: str) -> float:
    low, high = sorted((luminance(first), luminance(second)))
    return (high + 0.05) / (low + 0.05)


class TestColours:
    @pytest.mark.parametrize("theme", ["light", "dark"])
    def test_text_has_enough_contrast(self, theme: str) -> None:
        text = read_resource("matrix", f"{theme}.css")
        colours = dict(re.findall(r"--([a-z0-9-]+): (#[0-9a-f]{6});", text))
        assert len(colours) == 7 + TONES
        tones = [colours[f"t{number}"] for number in range(TONES)]
        # WCAG 2 requires 7:1 for level AAA and 4.5:1 for level AA.
        background = [*tones, colours["page"]]
        assert all(contrast(colours["ink"], tile) >= 7 for tile in background)
        assert contrast(colours["soft"], colours["page"]) >= 4.5
        assert contrast(colours["cpu-ink"], colours["cpu"]) >= 4.5

    @given(st.integers(1, 40))
    def test_neighbouring_labels_have_different_colours(self, count: int) -> None:
        labels = [f"cu{number}" for number in range(count)]
        tones = list(tone_classes(labels).values())
        assert len(set(tones)) == min(count, TONES)
        assert all(a != b for a, b in pairwise(tones))
