"""Other provider plugins, installed with real entry points."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

import pytest

from nvidia_variant_provider.resolution.inputs import ask_plugins


def install(folder: Path, name: str, body: str, endpoint: str) -> None:
    """Install a distribution with a plugin for the namespace ``cpu``, as pip does."""
    (folder / f"{name}.py").write_text(textwrap.dedent(body))
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"
    )
    (info / "entry_points.txt").write_text(f"[variant_plugins]\ncpu = {endpoint}\n")


CONFIG = """
    class Config:
        def __init__(self, name, values):
            self.name, self.values, self.multi_value = name, values, False
"""
AS_CLASS = (
    CONFIG
    + """
    class Plugin:
        def get_supported_configs(self):
            print("noise")
            return [Config("level", ["v3", "v2"])]
"""
)
AS_MODULE = (
    CONFIG
    + """
    def get_supported_configs():
        return [Config("level", ["v1"])]
"""
)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


@pytest.fixture(autouse=True)
def forget_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("first", "second"):
        monkeypatch.delitem(sys.modules, name, raising=False)


def test_class_endpoint(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    install(site, "first", AS_CLASS, "first:Plugin")
    answer = ask_plugins(["cpu"])["cpu"]
    assert answer.features == {"level": ("v3", "v2")}
    # The output of a plugin must not be part of a report on stdout.
    assert capsys.readouterr() == ("", "noise\n")


def test_module_endpoint(site: Path) -> None:
    install(site, "first", AS_MODULE, "first")
    assert ask_plugins(["cpu"])["cpu"].features == {"level": ("v1",)}


def test_our_own_plugin_answers_through_its_entry_point() -> None:
    answer = ask_plugins(["nvidia"])["nvidia"]
    assert answer.why_not is None
    assert answer.features == {}


def test_a_namespace_without_a_plugin() -> None:
    assert "no provider plugin" in (ask_plugins(["cpu"])["cpu"].why_not or "")


def test_two_plugins_for_one_namespace(site: Path) -> None:
    install(site, "first", AS_MODULE, "first")
    install(site, "second", AS_MODULE, "second")
    why_not = ask_plugins(["cpu"])["cpu"].why_not
    assert why_not == "several installed plugins claim it: first, second"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("import no_such_module", "ModuleNotFoundError"),
        ("def get_supported_configs(): raise OSError('x')", "OSError: x"),
        ("def get_supported_configs(): raise SystemExit(3)", "SystemExit: 3"),
        ("def get_supported_configs(): return 5", "TypeError"),
        (f"{CONFIG}    def get_supported_configs(): return [Config('l', [5])]", "not"),
        ("", "AttributeError"),
    ],
)
def test_the_failure_of_a_plugin_is_the_reason(
    site: Path, body: str, message: str
) -> None:
    install(site, "first", body, "first")
    answer = ask_plugins(["cpu"])["cpu"]
    assert answer.features == {}
    assert "its plugin first failed with" in (answer.why_not or "")
    assert message in (answer.why_not or "")


@pytest.mark.parametrize("content", [b"\xff", b"[variant_plugins]\ncpu\n"])
def test_broken_entry_points_of_a_project_are_the_reason(
    site: Path, content: bytes
) -> None:
    install(site, "first", AS_MODULE, "first")
    site.joinpath("first-1.0.dist-info", "entry_points.txt").write_bytes(content)
    why_not = ask_plugins(["cpu"])["cpu"].why_not or ""
    assert "in the entry points of the installed projects: " in why_not
