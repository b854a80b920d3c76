"""What uv and pip do about the hashes of a page, which NV417 and NV418 report."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.client_outcomes import ON_PAGES
from support.documents import TORCH, forced
from support.uv_installer import InstallError, uv_index
from support.wheels import wheel_name

from nvp.lint.runner import check_paths

H100 = forced("13.0", "9.0")


def link(folder: Path, changed: str, given: str | None) -> None:
    """Write the page of a project again, with another hash for one file."""
    page = folder / "index.html"
    text = page.read_text(encoding="utf-8")
    start = text.index(f"{changed}#sha256=") + len(changed)
    end = text.index('"', start)
    fragment = "" if given is None else f"#sha256={given}"
    page.write_text(text[:start] + fragment + text[end:], encoding="utf-8")


@pytest.mark.parametrize("code", ON_PAGES)
def test_uv_compares_hashes_where_there_are_any(code: str, tmp_path: Path) -> None:
    given, accepted = ON_PAGES[code]
    with uv_index(tmp_path) as index:
        project = index.publish(TORCH)
        wheel = wheel_name(project, "1.0", "cu130")
        link(tmp_path / "index" / project, wheel, given)
        assert code in {f.code for f in check_paths([f"{index.url}{project}/"])}
        if accepted:
            assert index.install([project], H100) == ["cu130"]
        else:
            with pytest.raises(InstallError, match=r"[Hh]ash"):
                index.install([project], H100)


@pytest.mark.parametrize("code", ON_PAGES)
def test_pip_compares_hashes_where_there_are_any(code: str, tmp_path: Path) -> None:
    given, accepted = ON_PAGES[code]
    with uv_index(tmp_path) as index:
        project = index.publish(TORCH)
        folder = tmp_path / "index" / project
        link(folder, wheel_name(project, "1.0"), given)
        command = [sys.executable, "-m", "pip", "--isolated", "download", "--no-deps"]
        command += ["--index-url", index.url, "--dest", str(tmp_path), project]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode == 0) == accepted, done.stderr
