"""Environments are found without running their code."""

from __future__ import annotations

import os
import sys
import sysconfig
import venv
from pathlib import Path

import pytest
from support.stacks import Installed, make_environment

from nvidia_variant_provider.errors import InputError, UsageError
from nvp.doctor.distributions import (
    find_distributions,
    find_leftovers,
)
from nvp.doctor.installation import find_installation
from nvp.doctor.receipts.document import check_target


def test_a_real_environment(tmp_path: Path) -> None:
    venv.create(tmp_path / "env", with_pip=False)
    installation = find_installation(str(tmp_path / "env"), {})
    program = Path(str(installation.python))
    assert program.parent.parent == tmp_path / "env"
    assert installation == find_installation(str(program), {})
    expected = sysconfig.get_path(
        "purelib", vars={"base": str(tmp_path / "env")}, scheme="venv"
    )
    assert installation.folders == (expected,)


@pytest.mark.parametrize(
    ("line", "full"),
    [
        ("version = 3.11.7", "3.11.7"),
        ("version_info = 3.11.7.final.0", "3.11.7"),
        ("version = 3.11", "3.11.0"),
    ],
)
def test_the_patch_release_counts_for_markers(
    line: str, full: str, tmp_path: Path
) -> None:
    make_environment(tmp_path)
    (tmp_path / "pyvenv.cfg").write_text(f"{line}\n")
    found = find_installation(str(tmp_path), {}).marker_variables()
    assert found == {"python_version": "3.11", "python_full_version": full}


def test_an_environment_that_sees_the_packages_of_the_system(tmp_path: Path) -> None:
    venv.create(tmp_path / "env", with_pip=False, system_site_packages=True)
    folders = find_installation(str(tmp_path / "env"), {}).folders
    base = sysconfig.get_path("purelib", vars={"base": sys.base_prefix})
    assert Path(base).resolve() in [Path(folder).resolve() for folder in folders[1:]]


def test_the_activated_environment_is_the_default(tmp_path: Path) -> None:
    make_environment(tmp_path)
    found = find_installation(None, {"VIRTUAL_ENV": str(tmp_path)})
    assert found.prefix == str(tmp_path)
    assert found.python is None


def test_the_running_interpreter_is_the_last_resort() -> None:
    found = find_installation(None, {})
    assert found.python == sys.executable
    assert "pytest" in find_distributions(found.folders)


def test_an_interpreter_is_looked_for_on_the_path(tmp_path: Path) -> None:
    venv.create(tmp_path / "env", with_pip=False)
    folder = find_installation(str(tmp_path / "env"), {}).python
    found = find_installation("python", {"PATH": str(Path(str(folder)).parent)})
    assert found.prefix == str(tmp_path / "env")


@pytest.mark.parametrize("path", ["", "missing", "no\0path", "/dev", "/dev/null"])
def test_what_is_not_an_environment(path: str) -> None:
    with pytest.raises(UsageError) as caught:
        find_installation(path, {"PATH": ""})
    assert "environment" in caught.value.message or "packages" in caught.value.message
    assert caught.value.hint


def test_the_first_distribution_of_a_name_counts(tmp_path: Path) -> None:
    first = make_environment(tmp_path / "a", Installed(version="2.0"))
    second = make_environment(tmp_path / "b", Installed(version="1.0"))
    found = find_distributions([str(first), str(second), str(tmp_path / "none")])
    assert [item.version for item in found.values()] == ["2.0"]


def test_names_are_normalized(tmp_path: Path) -> None:
    packages = make_environment(tmp_path)
    for name in ("Foo.Bar-1.0.dist-info", "not-a-distribution", "x.dist-info"):
        (packages / name).mkdir()
    assert list(find_distributions([str(packages)])) == ["foo-bar"]


@pytest.mark.parametrize("name", ["~emo", "ev\x1b[31mil", "`x`|y", "a;b", "-x", ".x"])
def test_a_folder_whose_name_is_no_name_is_no_distribution(
    name: str, tmp_path: Path
) -> None:
    packages = make_environment(tmp_path, Installed(name="demo"))
    (packages / f"{name}-1.0.dist-info").mkdir()
    assert list(find_distributions([str(packages)])) == ["demo"]


def test_what_pip_has_left_and_what_lists_no_files_is_named(tmp_path: Path) -> None:
    packages = make_environment(tmp_path)
    for name in ("~orch-2.8.0.dist-info", "torch-2.5.1-py3.11.egg-info"):
        (packages / name).mkdir()
    (packages / "six-1.16.0.egg-info").touch()
    old, left = find_leftovers([str(packages), str(tmp_path / "none")])
    assert old == (
        f"{packages}/torch-2.5.1-py3.11.egg-info does not list the files of torch: "
        "they are not looked at"
    )
    assert left == (
        f"{packages}/~orch-2.8.0.dist-info is what pip has left of an old release: "
        "remove it"
    )


@pytest.mark.skipif(sys.platform == "win32", reason="needs named pipes")
def test_settings_that_are_a_named_pipe(tmp_path: Path) -> None:
    make_environment(tmp_path)
    (tmp_path / "pyvenv.cfg").unlink()
    os.mkfifo(tmp_path / "pyvenv.cfg")
    assert find_installation(str(tmp_path), {}).version == "3.11"


@pytest.mark.parametrize("variable", ["VIRTUAL_ENV", "CONDA_PREFIX"])
@pytest.mark.parametrize("exists", [False, True])
def test_the_variable_that_names_an_old_environment_is_told(
    variable: str, exists: bool, tmp_path: Path
) -> None:
    path = tmp_path if exists else tmp_path / "gone"
    with pytest.raises(UsageError, match=f"which {variable} names, ") as caught:
        find_installation(None, {variable: str(path)})
    assert f"unset {variable}" in str(caught.value.hint)


@pytest.mark.skipif(sys.platform == "win32", reason="needs scripts with #!")
def test_a_script_that_starts_an_interpreter(tmp_path: Path) -> None:
    (tmp_path / "python").write_text("#!/bin/sh\nexec python3\n")
    with pytest.raises(UsageError, match="no directory of packages") as caught:
        find_installation(str(tmp_path / "python"), {})
    assert "sys.executable" in str(caught.value.hint)


def test_a_folder_of_packages_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "site-packages").touch()
    (note,) = find_leftovers([str(tmp_path / "site-packages")])
    assert note.startswith(f"{tmp_path / 'site-packages'} cannot be read: ")


@pytest.mark.skipif(sys.platform == "win32", reason="Windows keeps a directory in use")
def test_a_working_folder_that_was_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(UsageError, match="current directory"):
        find_installation("env", {})
    make_environment(tmp_path / "env")
    assert find_installation(str(tmp_path / "env"), {}).version == "3.11"
    with pytest.raises(InputError, match="no such directory"):
        check_target("r.json")


def test_a_home_with_a_zero_byte(tmp_path: Path) -> None:
    packages = make_environment(tmp_path)
    text = "include-system-site-packages = true\nhome = /x\0y/bin\n"
    (tmp_path / "pyvenv.cfg").write_text(text)
    assert find_installation(str(tmp_path), {}).folders == (str(packages),)
