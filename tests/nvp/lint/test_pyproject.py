"""``validate pyproject.toml``: the section that variantlib reads, and its positions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from hypothesis import given
from hypothesis import strategies as st
from support.gpu_wheels import PLAIN_SO, Wheel
from support.memory import MIB, peak_of_reading

from nvidia_variant_provider.errors import join
from nvp import api
from nvp.cli import main
from nvp.lint.pyproject import find_places

GOOD = """\
[project]
name = "demo"  # no [variant]

[variant.default-priorities]
namespace = ["nvidia", "x86_64"]

[variant.providers.nvidia]
requires = ["nvidia-variant-provider>=0.0.1,<1.0.0"]
plugin-api = "nvidia_variant_provider.plugin:NvidiaVariantPlugin"

[variant.providers.x86_64]
static-properties = { level = ["v3", "v2"] }
"""


def found(path: Path, text: str) -> list[tuple[str, str, int | None, int | None]]:
    path.write_text(text, encoding="utf-8")
    return [(f.code, f.place, f.line, f.column) for f in api.validate([path])]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("", "", []),
        # The key for providers at build time is only valid in this file.
        ("requires = [", "build-requires = [", []),
        ("static-properties", "'static-properties'", []),
        (
            '"x86_64"]',
            '\n  "x86_64",\n  "Intel", # a comment, ]\n]',
            [
                ("NV111", "variant.default-priorities.namespace", 5, 13),
                ("NV203", "variant.default-priorities.namespace[2]", 7, 3),
            ],
        ),
        (
            "requires = [",
            "optional = 1\nrequires = [",
            [("NV108", "variant.providers.nvidia.optional", 8, 12)],
        ),
        (
            "plugin-api",
            "static-properties = {a = ['b']}\nplugin-api",
            [("NV110", "variant.providers.nvidia", 7, 1)],
        ),
        (
            "plugin-api",
            "build-requires = ['b']\nplugin-api",
            [("NV110", "variant.providers.nvidia", 7, 1)],
        ),
        (
            '["v3", "v2"] }',
            '["V3"] }',
            [("NV205", "variant.providers.x86_64.static-properties.level[0]", 12, 32)],
        ),
        (
            "requires = [",
            "requirements = [",
            [
                ("NV109", "variant.providers.nvidia.requirements", 8, 1),
                ("NV110", "variant.providers.nvidia", 7, 1),
                ("NV117", "variant.providers.nvidia.plugin-api", 9, 14),
            ],
        ),
        ("0.0.1,<1", "1,<2", [("NV314", "variant.providers.nvidia.requires", 8, 12)]),
        (
            "[variant.providers.nvidia]",
            "[variant.variants.cu12]\n[variant.providers.nvidia]",
            [("NV109", "variant.variants", 7, 1)],
        ),
        (
            "[variant.default-priorities]\nnamespace",
            "[variant.default]\nnamespace",
            [("NV109", "variant.default", 4, 1), ("NV107", "variant", 4, 1)],
        ),
        ("[variant", "[tool.variant", [("NV107", "", 1, 1)]),
        ('"demo"', "demo", [("NV100", "", 2, 8)]),
    ],
)
def test_findings_have_line_and_column(
    old: str, new: str, expected: list[tuple[str, str, int, int]], tmp_path: Path
) -> None:
    text = GOOD.replace(old, new) if old else GOOD
    assert sorted(found(tmp_path / "pyproject.toml", text)) == sorted(expected)


HOSTILE = {
    "digits": b"a = " + b"9" * 900_000,
    "digits of ff": b"[variant]\nrequires = 0x" + b"f" * 20_000,
    "parts of a key": b"a" + b".a" * 30_000 + b" = 1",
}


def test_many_comments_take_little_memory(tmp_path: Path) -> None:
    """A pattern that repeats a group takes memory for each repetition."""
    path = tmp_path / "pyproject.toml"
    path.write_text("[variant]\nx = [\n" + "#\n" * 500_000 + "]\n")
    prepare = """
from nvp import api
def read(path):
    return api.validate([path])[-1].code
"""
    peak, code = peak_of_reading(path, prepare)
    assert code == "NV109"
    assert peak < 60 * MIB


def test_a_limit_is_not_called_a_syntax_error(tmp_path: Path) -> None:
    path = tmp_path / "pyproject.toml"
    path.write_bytes(HOSTILE["parts of a key"])
    (finding,) = api.validate([path])
    assert finding.message == "has keys of too many parts"


@pytest.mark.parametrize(
    "data",
    [b"\xff", b"a = ", b"[" * 5000, b"", b"variant = 1", *HOSTILE.values()],
    ids=lambda data: data[:20],
)
def test_other_files_are_one_finding(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "pyproject.toml"
    path.write_bytes(data)
    (finding,) = api.validate([path])
    assert finding.code in ("NV100", "NV107")


def test_what_inspect_suggests_is_right(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wheel = str(Wheel(libraries=PLAIN_SO, label=None).write(tmp_path))
    assert main(["inspect", wheel, "--suggest", "--pyproject"]) == 0
    suggested = capsys.readouterr().out
    assert "[variant.default-priorities]" in suggested
    assert found(tmp_path / "pyproject.toml", suggested) == []
    assert main(["validate", str(tmp_path / "pyproject.toml")]) == 0
    assert main(["inspect", wheel, "--pyproject"]) == 2


KEYS = st.text("ab-_.\" '#é\n]", min_size=1, max_size=4)
SCALARS = st.integers() | st.booleans() | st.text("a'\"\n]},#=\\", max_size=8)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3)
    ),
    max_leaves=12,
)


def walk(value: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    if place:
        yield place, value
    if isinstance(value, dict):
        for key, item in value.items():
            yield from walk(item, join(place, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from walk(item, join(place, index))


@given(
    document=st.dictionaries(KEYS, VALUES, max_size=4),
    multiline=st.booleans(),
)
def test_every_place_of_a_document_is_found(
    document: dict[str, Any], multiline: bool
) -> None:
    text = tomli_w.dumps(document, multiline_strings=multiline)
    places = dict(walk(document))
    positions = find_places(text, [*places, "no.such"])
    lines = text.split("\n")
    assert positions["no.such"].key == (1, 1)
    for place, value in places.items():
        line, column = positions[place].value
        rest = lines[line - 1][column - 1 :]
        assert rest
        if isinstance(value, bool):
            assert rest.startswith(str(value).lower())
        elif isinstance(value, int):
            assert rest.startswith(str(value))
        elif isinstance(value, str):
            assert rest[0] in "\"'"
        else:
            # A table has a header, or is in braces.
            assert rest[0] in "[{"
