"""ND301 to ND303: triggers, near misses, and the result of the real loader for each."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from support.gpu_wheels import binary
from support.shared_objects import SharedObject, dlopen, needs_compiler
from support.stacks import Installed, machine, make_stack, run_checks

from nvp.doctor.model import Finding, Stack
from nvp.doctor.runner import diagnose

H100 = machine("13.4", "9.0")
PLAIN = Installed(files={"demo/plain.so": binary("plain.so")})
"""Linked with libcudart.so.13, without RPATH or RUNPATH."""

CUBLAS = "libcublas.so.13"
LAYOUT = "$ORIGIN/../nvidia/cu13/lib"


@functools.cache
def compiled(
    soname: str,
    needed: tuple[str, ...] = (),
    rpath: str | None = None,
    new_tags: bool = False,
) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        item = SharedObject(
            soname=soname, needed=needed, rpath=rpath, new_tags=new_tags
        )
        return item.compile(Path(folder)).read_bytes()


def program(
    rpath: str | None = None, *, new_tags: bool = False, requires: Sequence[str] = ()
) -> Installed:
    """Return a distribution with a library that is linked with cuBLAS."""
    data = compiled("math.so", (CUBLAS,), rpath, new_tags)
    return Installed(files={"demo/math.so": data}, requires=requires)


def cublas() -> Installed:
    return Installed(
        name="nvidia-cublas",
        version="13.4.1",
        files={f"nvidia/cu13/lib/{CUBLAS}": compiled(CUBLAS)},
    )


def stack_with(tmp_path: Path, *installed: Installed, library_path: str = "") -> Stack:
    return make_stack(
        tmp_path / "env",
        *installed,
        environment=H100,
        environ={"LD_LIBRARY_PATH": library_path} if library_path else {},
    )


def loads(stack: Stack, path: str = "demo/math.so") -> tuple[list[str], str | None]:
    """Load a library of a stack, with the real loader."""
    file = Path(stack.installation.folders[0]) / path
    return dlopen(file, environ=stack.environ)


def only(stack: Stack) -> Finding:
    (finding,) = run_checks(stack)
    return finding


def other_copy(tmp_path: Path) -> str:
    folder = tmp_path / "toolkit"
    folder.mkdir()
    (folder / CUBLAS).write_bytes(compiled(CUBLAS))
    return str(folder)


def test_a_library_that_is_nowhere(tmp_path: Path) -> None:
    stack = make_stack(tmp_path, PLAIN, environment=H100, root=tmp_path / "empty")
    finding = only(stack)
    assert (finding.code, finding.severity) == ("ND301", "error")
    assert finding.message == (
        "demo 1.0 is linked with libcudart.so.13, which the loader finds nowhere"
    )
    assert str(finding.path).endswith("demo/plain.so")
    assert " install nvidia-cuda-runtime, and add its directory to" in finding.hint
    assert finding.hint.endswith("/nvidia/cu13/lib")


def test_a_library_of_the_system_is_no_finding(tmp_path: Path) -> None:
    findings = run_checks(make_stack(tmp_path, PLAIN, environment=H100))
    assert "ND301" not in [finding.code for finding in findings]


@pytest.mark.parametrize("requires", [[], ["nvidia-cuda-runtime==13.0.*"]])
def test_the_system_of_another_machine_is_not_known(
    requires: list[str], tmp_path: Path
) -> None:
    installed = replace(PLAIN, requires=requires)
    stack = replace(make_stack(tmp_path, installed, environment=H100), is_here=False)
    finding = run_checks(stack)[0]
    assert finding.code == "ND301"
    assert finding.severity == ("error" if requires else "note")


@needs_compiler
@pytest.mark.parametrize("new_tags", [False, True])
def test_what_an_rpath_leads_to_is_no_finding(new_tags: bool, tmp_path: Path) -> None:
    stack = stack_with(tmp_path, program(LAYOUT, new_tags=new_tags), cublas())
    files, failure = loads(stack)
    assert failure is None
    assert any(file.endswith(CUBLAS) for file in files)
    assert run_checks(stack) == []


@needs_compiler
def test_a_distribution_that_is_missing_is_the_hint(tmp_path: Path) -> None:
    requires = ["nvidia-cublas==13.4.*"]
    stack = stack_with(tmp_path, program(LAYOUT, requires=requires))
    _, failure = loads(stack)
    assert failure is not None
    assert CUBLAS in failure
    first, second = run_checks(stack)
    assert (first.code, second.code) == ("ND301", "ND304")
    assert first.hint.endswith("install 'nvidia-cublas==13.4.*'")


@needs_compiler
def test_a_file_that_is_missing_is_installed_again(tmp_path: Path) -> None:
    requires = ["nvidia-cublas==13.4.*"]
    stack = stack_with(tmp_path, program(LAYOUT, requires=requires), cublas())
    distribution = stack.distributions["nvidia-cublas"]
    Path(distribution.locate(f"nvidia/cu13/lib/{CUBLAS}")).unlink()
    finding = only(stack)
    assert finding.code == "ND301"
    assert finding.hint.endswith(
        "install --force-reinstall --no-deps nvidia-cublas==13.4.1"
    )


@needs_compiler
def test_a_library_that_is_installed_where_nobody_looks(tmp_path: Path) -> None:
    stack = stack_with(tmp_path, program(), cublas())
    _, failure = loads(stack)
    assert failure is not None
    finding = only(stack)
    assert (finding.code, finding.severity) == ("ND301", "warning")
    assert finding.message == (
        f"demo 1.0 is linked with {CUBLAS}, and the loader does not look where "
        "nvidia-cublas has it"
    )


@needs_compiler
@pytest.mark.parametrize("extra", ["", "; extra == 'cuda'"])
def test_extras_that_nobody_has_asked_for_do_not_count(
    extra: str, tmp_path: Path
) -> None:
    """onnxruntime-gpu finds cuBLAS when torch has been imported before."""
    solver = Installed(name="nvidia-cusolver", requires=["nvidia-cublas"])
    user = program(requires=[f"nvidia-cusolver{extra}"])
    finding = only(stack_with(tmp_path, user, solver, cublas()))
    assert finding.severity == ("warning" if extra else "error")


@needs_compiler
def test_a_part_that_is_not_required_is_a_warning(tmp_path: Path) -> None:
    extra = compiled("extra.so", ("libcufft.so.12",))
    installed = program(LAYOUT)
    installed = replace(installed, files={**installed.files, "demo/extra.so": extra})
    finding = only(stack_with(tmp_path, installed, cublas()))
    assert (finding.code, finding.severity) == ("ND301", "warning")
    assert "libcufft.so.12" in finding.message


@needs_compiler
def test_of_libraries_by_cuda_one_is_enough(tmp_path: Path) -> None:
    old = compiled("old.so", ("libcublas.so.12",))
    new = compiled("new.so", (CUBLAS,), LAYOUT)
    gpu_code = binary("plain.so")
    with_code = {
        "demo/libdemo_cuda128.so": old + gpu_code,
        "demo/libdemo_cuda130.so": new + gpu_code,
    }
    stack = stack_with(tmp_path, Installed(files=with_code), cublas())
    assert "ND301" not in [finding.code for finding in run_checks(stack)]


@needs_compiler
def test_a_damaged_library_is_named(tmp_path: Path) -> None:
    broken = replace(cublas(), files={f"nvidia/cu13/lib/{CUBLAS}": b"\x7fELF, cut"})
    stack = stack_with(tmp_path, program(LAYOUT), broken)
    _, failure = loads(stack)
    assert failure is not None
    finding = only(stack)
    assert (finding.code, finding.severity) == ("ND301", "error")
    assert "cannot be loaded: not an ELF file" in finding.message
    assert finding.hint.endswith(
        "install --force-reinstall --no-deps nvidia-cublas==13.4.1"
    )


@needs_compiler
def test_links_in_a_circle_are_a_finding(tmp_path: Path) -> None:
    stack = stack_with(tmp_path, program(LAYOUT), cublas())
    path = Path(
        stack.distributions["nvidia-cublas"].locate(f"nvidia/cu13/lib/{CUBLAS}")
    )
    path.unlink()
    path.symlink_to(path.name)
    _, failure = loads(stack)
    assert failure is not None
    finding = only(stack)
    assert finding.code == "ND301"


@needs_compiler
def test_plug_ins_of_nvidia_for_networks_do_not_count(tmp_path: Path) -> None:
    data = compiled("transport.so", ("libmlx5-of-nobody.so.1", "libcudart.so.13"))
    plug_in = Installed(
        name="nvidia-nvshmem-cu13", files={"nvidia/nvshmem/lib/transport.so": data}
    )
    user = Installed(requires=["nvidia-nvshmem-cu13"])
    assert run_checks(stack_with(tmp_path, plug_in, user)) == []


@needs_compiler
def test_projects_with_cuda_pathfinder_look_for_libraries(tmp_path: Path) -> None:
    requires = ["cuda-pathfinder"]
    finder = Installed(name="cuda-pathfinder")
    stack = stack_with(tmp_path, program(requires=requires), cublas(), finder)
    assert run_checks(stack) == []


TWO_CUDAS = (
    Installed(name="nvidia-cublas-cu12", version="12.9.1"),
    Installed(
        name="nvidia-cublas",
        version="13.4.1",
        files={"nvidia/cu13/include/cublas.h": b""},
    ),
)


def test_two_cudas_of_one_library(tmp_path: Path) -> None:
    user = Installed(requires=["nvidia-cublas>=13"])
    finding = only(stack_with(tmp_path, *TWO_CUDAS, user))
    assert (finding.code, finding.severity) == ("ND302", "warning")
    assert finding.message == (
        "cublas is installed for CUDA 12 and 13: nvidia-cublas-cu12 12.9.1 (which "
        "nothing requires) and nvidia-cublas 13.4.1 (for demo)"
    )
    assert finding.hint.endswith("uninstall --yes nvidia-cublas-cu12")


def test_two_libraries_of_two_cudas_are_none_of_one_purpose(tmp_path: Path) -> None:
    other = Installed(name="nvidia-cudnn-cu13", version="9.26")
    findings = run_checks(stack_with(tmp_path, TWO_CUDAS[0], other))
    assert "ND302" not in [finding.code for finding in findings]


@needs_compiler
@pytest.mark.parametrize("is_linked", [False, True])
def test_two_cudas_in_one_process(is_linked: bool, tmp_path: Path) -> None:
    """torch has loaded one runtime when its extension loads the other one."""
    runtimes = {12: "nvidia/cuda_runtime/lib", 13: "nvidia/cu13/lib"}
    installed = [
        Installed(
            name="nvidia-cuda-runtime-cu12" if cuda == 12 else "nvidia-cuda-runtime",
            files={f"{folder}/libcudart.so.{cuda}": compiled(f"libcudart.so.{cuda}")},
        )
        for cuda, folder in runtimes.items()
    ]
    torch = compiled(
        "libtorch_cuda.so", ("libcudart.so.13",), "$ORIGIN/../../nvidia/cu13/lib"
    )
    wanted = 12 if is_linked else 13
    extension = compiled(
        "ext.so", (f"libcudart.so.{wanted}",), f"$ORIGIN/../{runtimes[wanted]}"
    )
    stack = stack_with(
        tmp_path,
        Installed(name="torch", files={"torch/lib/libtorch_cuda.so": torch}),
        Installed(name="zext", files={"zext/_C.so": extension}, requires=["torch"]),
        *installed,
    )
    (finding,) = (f for f in run_checks(stack) if f.code == "ND302")
    together = (
        "; a program that imports all of it loads libcudart.so.12 (for zext) and "
        "libcudart.so.13 (for torch) together"
    )
    assert finding.message.endswith(together) == is_linked
    assert ("together" in finding.message) == is_linked


@needs_compiler
def test_a_copy_in_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(other_copy(tmp_path))
    runpath = program(LAYOUT, new_tags=True)
    stack = stack_with(tmp_path, runpath, cublas(), library_path=":/nowhere")
    finding = only(stack)
    assert finding.code == "ND303"
    assert finding.hint.startswith("remove the empty entry, which means the current ")


@needs_compiler
def test_the_libraries_of_an_interpreter_of_musl_are_not_checked(
    tmp_path: Path,
) -> None:
    stack = stack_with(tmp_path, program())
    path = Path(stack.installation.prefix, "bin/python")
    path.parent.mkdir()
    path.write_bytes(compiled("python", ("libc.musl-x86_64.so.1",)))
    installation = replace(stack.installation, python=str(path))
    diagnosis = diagnose(replace(stack, installation=installation))
    assert "ND301" not in [finding.code for finding in diagnosis.findings]
    assert diagnosis.notes == (
        "which libraries programs load was not checked: the interpreter is of musl, "
        "and NVIDIA's libraries are made for glibc",
    )


@needs_compiler
def test_what_is_preloaded_is_no_finding(tmp_path: Path) -> None:
    path = Path(other_copy(tmp_path), CUBLAS)
    stack = stack_with(tmp_path, program())
    assert only(stack).code == "ND301"
    stack = replace(stack, environ={"LD_PRELOAD": str(path)})
    assert run_checks(stack) == []


@needs_compiler
def test_a_copy_of_the_toolkit_comes_first(tmp_path: Path) -> None:
    folder = other_copy(tmp_path)
    installed = program(LAYOUT, new_tags=True), cublas()
    stack = stack_with(tmp_path, *installed, library_path=folder)
    files, _ = loads(stack)
    assert f"{folder}/{CUBLAS}" in files
    finding = only(stack)
    assert (finding.code, finding.severity) == ("ND303", "warning")
    assert finding.distribution == "nvidia-cublas"
    assert finding.path == f"{folder}/{CUBLAS}"
    assert finding.message == (
        f"LD_LIBRARY_PATH puts the {CUBLAS} of {folder} before that of nvidia-cublas "
        "13.4.1"
    )


@needs_compiler
def test_an_rpath_comes_before_the_variable(tmp_path: Path) -> None:
    folder = other_copy(tmp_path)
    stack = stack_with(tmp_path, program(LAYOUT), cublas(), library_path=folder)
    files, _ = loads(stack)
    assert f"{folder}/{CUBLAS}" not in files
    assert "ND303" not in [finding.code for finding in run_checks(stack)]


@needs_compiler
def test_the_variable_may_lead_to_the_installed_one(tmp_path: Path) -> None:
    folder = tmp_path / "env/lib/python3.11/site-packages/nvidia/cu13/lib"
    stack = stack_with(tmp_path, program(), cublas(), library_path=str(folder))
    _, failure = loads(stack)
    assert failure is None
    assert run_checks(stack) == []


@needs_compiler
def test_the_variable_says_nothing_about_another_machine(tmp_path: Path) -> None:
    folder = other_copy(tmp_path)
    installed = program(LAYOUT, new_tags=True), cublas()
    stack = stack_with(tmp_path, *installed, library_path=folder)
    assert run_checks(replace(stack, is_here=False)) == []
