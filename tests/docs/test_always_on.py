"""systemd and ``serve`` accept the unit on the page about a service."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from support.paths import ROOT

from nvp.cli.parsers import make_command_parser

PAGE = ROOT / "docs" / "how-to" / "always-on.md"


@pytest.fixture
def unit() -> str:
    """Return the text of the unit file."""
    (text,) = re.findall(
        r"```ini\n(.+?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL
    )
    return str(text)


def test_serve_accepts_the_command_of_the_unit(unit: str) -> None:
    (line,) = re.findall(r"^ExecStart=(.+)$", unit, re.MULTILINE)
    program, command, *words = line.split()
    assert (program.rpartition("/")[2], command) == ("nvp", "serve")
    options = make_command_parser("serve").parse(words)
    root = f"http://{options.host}:{options.port}/simple/"
    assert PAGE.read_text(encoding="utf-8").count(root) == 4


@pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="there is no systemd"
)
def test_systemd_accepts_the_unit(unit: str, tmp_path: Path) -> None:
    program = shutil.which("true")
    path = tmp_path / "nvp.service"
    path.write_text(re.sub(r"ExecStart=\S+", f"ExecStart={program}", unit))
    checked = subprocess.run(
        ["systemd-analyze", "verify", "--user", "--recursive-errors=no", str(path)],
        env={"XDG_RUNTIME_DIR": str(tmp_path)},
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert "nvp.service" not in checked.stderr, checked.stderr
