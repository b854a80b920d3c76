"""Programs are found on ``PATH``, and never in the current directory."""

from __future__ import annotations

import ntpath
import os
import shutil
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvp.doctor.programs import find_program, places_of_program

FOLDERS = [r"C:\CUDA\bin", r"C:\Windows", "", ".", "bin", r"\CUDA", "D:", r"D:bin"]
ABSOLUTE = FOLDERS[:2]


@given(
    st.lists(st.sampled_from([*FOLDERS, r'"C:\With Space"'])),
    st.sampled_from(["nvcc", "nvcc.exe", "NVCC.EXE", "nvcc.5", "taskkill"]),
    st.sampled_from(["", ".EXE", ".COM;.EXE;.PY", ";"]),
)
def test_on_windows_a_program_is_looked_for_on_path_alone(
    folders: list[str], name: str, endings: str
) -> None:
    environ = {"PATH": ";".join(folders), "PATHEXT": endings}
    places = list(places_of_program(name, environ, windows=True))
    expected = [x.strip('"') for x in folders if x.strip('"')[1:3] == ":\\"]
    assert [*dict.fromkeys(map(ntpath.dirname, places))] == [*dict.fromkeys(expected)]
    assert all(place.lower().endswith(name.lower()) for place in places) == (
        not places or name.lower().endswith(".exe")
    )


@pytest.mark.parametrize(
    ("endings", "expected"),
    [
        ("", ["nvcc.com", "nvcc.exe", "nvcc.bat", "nvcc.cmd"]),
        (".EXE;.PY", ["nvcc.exe", "nvcc.py"]),
    ],
)
def test_the_endings_of_programs_on_windows(endings: str, expected: list[str]) -> None:
    environ = {"PATH": ABSOLUTE[0], "PATHEXT": endings}
    places = places_of_program("nvcc", environ, windows=True)
    assert list(map(ntpath.basename, places)) == expected
    named = places_of_program(r"tools\nvcc.exe", environ, windows=True)
    assert list(named) == [r"tools\nvcc.exe"]


@pytest.mark.parametrize("path", ["{0}/a:{0}/b", ":{0}/b", ".:{0}/b", "a:{0}/b", ""])
@pytest.mark.skipif(os.name == "nt", reason="files have no mode on Windows")
def test_the_first_program_of_path_is_taken(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("a", "b", "."):
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / "nvcc").touch(0o755 if folder != "a" else 0o644)
    monkeypatch.chdir(tmp_path)
    found = find_program("nvcc", {"PATH": path.format(tmp_path)})
    assert found == (str(tmp_path / "b/nvcc") if path else None)
    assert find_program("./nvcc", {}) == "./nvcc"
    assert find_program("nvcc\0", {"PATH": str(tmp_path)}) is None


@pytest.mark.skipif(sys.platform != "win32", reason="only Windows looks there")
@pytest.mark.parametrize("name", ["nvcc", "nvcc.exe", "taskkill", "taskkill.exe"])
def test_windows_starts_nothing_of_the_working_folder(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / f"{name.removesuffix('.exe')}.exe"
    shutil.copy(sys.executable, program)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("NoDefaultCurrentDirectoryInExePath", raising=False)
    system = os.path.join(os.environ["SYSTEMROOT"], "System32")
    monkeypatch.setenv("PATH", system)
    # Python itself finds the program of the current directory.
    assert os.path.samefile(str(shutil.which(name)), program)
    found = find_program(name, os.environ)
    if name.startswith("nvcc"):
        assert found is None
    else:
        assert os.path.samefile(str(found), os.path.join(system, "taskkill.exe"))
