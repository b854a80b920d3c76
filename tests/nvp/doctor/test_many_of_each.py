"""Hostile environments with many of each thing: the work grows with their number."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest
from support.containers import linked
from support.stacks import Installed, machine, make_environment, make_stack, run_checks

from nvp.doctor import commands, installation, loader, system
from nvp.doctor.checks import agreement, replacing
from nvp.doctor.commands import Command, merge
from nvp.doctor.model import MOST_FINDINGS, Finding
from nvp.doctor.runner import diagnose

HERE = machine("13.4", "9.0")


def counted(patch: pytest.MonkeyPatch, module: Any, name: str) -> list[None]:
    """Return a list to which each call of a function adds an element."""
    calls: list[None] = []
    function = getattr(module, name)

    def counting(*given: Any, **options: Any) -> Any:
        calls.append(None)
        return function(*given, **options)

    patch.setattr(module, name, counting)
    return calls


def of_code(findings: list[Finding], code: str) -> list[Finding]:
    return [item for item in findings if item.code == code]


def test_commands_for_many_projects(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = counted(monkeypatch, commands, "project_of")
    made = [Command.of_pip(["pip"], "install", f"demo{n}==1") for n in range(1000)]
    (together,) = merge([*made, *made])
    assert together.names == tuple(f"demo{number}==1" for number in range(1000))
    assert len(calls) <= 4 * len(made)


def test_findings_are_bounded(tmp_path: Path) -> None:
    requires = [f"nvidia-demo{number}==1" for number in range(MOST_FINDINGS + 50)]
    demo = Installed(requires=requires)
    diagnosis = diagnose(make_stack(tmp_path, demo, environment=HERE))
    assert len(of_code([*diagnosis.findings], "ND304")) == MOST_FINDINGS
    assert diagnosis.notes[0] == (
        f"only the first {MOST_FINDINGS} findings of ND304 are reported"
    )


def test_a_hint_names_a_bounded_number_of_users(tmp_path: Path) -> None:
    torch = Installed(name="torch", version="2.8.0")
    users = [
        Installed(name=f"demo{number}", requires=["torch==1.0"])
        for number in range(MOST_FINDINGS + 50)
    ]
    found = run_checks(make_stack(tmp_path, torch, *users, environment=HERE))
    hints = {item.hint for item in of_code(found, "ND305")}
    assert [hint.count(" demo") for hint in hints] == [MOST_FINDINGS + 1]


def test_companions_that_pin_each_other(tmp_path: Path) -> None:
    installed = [
        Installed(
            name=f"demo{number}",
            version="1.0+cpu",
            requires=["torch==1.0", f"demo{(number + 1) % 60}==1.0"],
        )
        for number in range(60)
    ]
    found = run_checks(make_stack(tmp_path, *installed, environment=HERE))
    hints = [item.hint for item in of_code(found, "ND207")]
    assert len(hints) == 60
    assert max(hint.count("demo") for hint in hints) <= (
        3 * replacing._MOST_COMPANIONS + 3
    )


def test_a_chain_of_libraries_with_long_rpaths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(20):
        name, following = f"lib{number}.so", f"lib{number + 1}.so"
        data = linked(following, runpath="$ORIGIN" + ":/none" * 200, soname=name)
        rpath = data.replace(struct.pack("<Q", 29), struct.pack("<Q", 15), 1)
        (tmp_path / name).write_bytes(rpath)
    (tmp_path / "lib20.so").write_bytes(linked())
    calls = counted(monkeypatch, loader.Process, "_expand")
    process = loader.Process(system.System(known=False))
    assert process.load(str(tmp_path / "lib0.so")) == []
    assert len(process.loaded) == 21
    assert len(calls) <= 21 * 202


def test_a_directory_that_no_system_opens(tmp_path: Path) -> None:
    (tmp_path / "lib0.so").write_bytes(linked("lib1.so", runpath="$ORIGIN" * 500))
    known = system.System(known=False)
    assert loader.Process(known).load(str(tmp_path / "lib0.so"))
    assert max(map(len, [*known._files, *known._names])) < 4096


def test_libraries_that_are_loaded_again_for_each_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(installation.MOST, installation.SEARCHES, 100_000)
    names = [f"lib{number}.so" for number in range(50)]
    for name in names:
        (tmp_path / name).write_bytes(linked(*names, runpath="$ORIGIN", soname=name))
    user = linked("libcublas.so.12", *names, runpath="$ORIGIN")
    process = loader.Process(system.System(known=False))
    calls = counted(monkeypatch, loader.Process, "_open")
    for number in range(100):
        (tmp_path / f"user{number}.so").write_bytes(user)
        process.load(str(tmp_path / f"user{number}.so"))
    assert len(calls) < 100_000


def test_a_file_of_many_distributions(tmp_path: Path) -> None:
    most = agreement._MOST_SHARING
    installed = [
        Installed(name=f"demo{n:02}", files={"shared/lib.so": b"%d" % n})
        for n in range(most + 9)
    ]
    found = run_checks(make_stack(tmp_path, *installed, environment=HERE))
    (finding,) = of_code(found, "ND306")
    assert finding.message.count("demo") == most
    assert finding.hint.count("demo") == most + 1


def test_libraries_that_are_all_missing(tmp_path: Path) -> None:
    names = [f"libcublas.so.{number}" for number in range(100)]
    demo = Installed(files={"demo/lib.so": linked(*names)})
    found = run_checks(make_stack(tmp_path, demo, environment=HERE))
    assert [x.message.count("libcublas.so.") for x in of_code(found, "ND301")] == [30]


def test_a_project_whose_name_is_not_for_a_release_of_cuda(tmp_path: Path) -> None:
    tensorflow = Installed(
        name="tensorflow",
        version="2.18.0",
        requires=["nvidia-cublas-cu1x; extra == 'and-cuda'"],
    )
    make_environment(tmp_path, tensorflow)
    found = run_checks(make_stack(tmp_path, tensorflow, environment=HERE))
    (opened,) = of_code(found, "ND307")
    assert "libcublas.so.13, which is found nowhere" in opened.message
