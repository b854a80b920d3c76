"""The index of the modules that tests share, `tests/support/README.md`."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from support.paths import ROOT

FOLDER = ROOT / "tests" / "support"


def first_line(module: Path) -> str:
    docstring = ast.get_docstring(ast.parse(module.read_text(encoding="utf-8")))
    assert docstring, module.name
    return docstring.splitlines()[0]


def test_each_module_is_listed_once_with_the_first_line_of_its_docstring() -> None:
    index = (FOLDER / "README.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `(\w+)` \| (.+) \|$", index, re.MULTILINE)
    assert sorted(listed) == sorted(
        (module.stem, first_line(module)) for module in FOLDER.glob("*.py")
    )
