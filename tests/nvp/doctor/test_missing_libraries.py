"""ND301: the severity of a missing library, and the message about several."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support.containers import linked
from support.gpu_wheels import binary
from support.stacks import Installed, machine, make_stack, run_checks

H100 = machine("13.4", "9.0")
PLAIN = Installed(files={"demo/plain.so": binary("plain.so")})
CUBLAS = "libcublas.so.13"


def with_libraries(name: str, *needed: str, **more: tuple[str, ...]) -> Installed:
    """Return a distribution with a library that is linked with others, or several."""
    names = {"_C": needed, **more} if needed else more
    files = {f"{name}/{x}.so": linked(*libraries) for x, libraries in names.items()}
    return Installed(name=name, files=files)


def of_torch(version: str) -> Installed:
    files = {"torch/lib/libc10.so": linked("libc.so.6")}
    return Installed(name="torch", version=version, files=files)


OTHERS = {f"libbitsandbytes_cuda12{x}": ("libcublas.so.12",) for x in "68"}


@pytest.mark.parametrize(
    ("installed", "severity"),
    [
        # METADATA of an extension need not name torch.
        (
            (of_torch("2.9.1+cu128"), with_libraries("a", CUBLAS, "libc10.so")),
            "error",
        ),
        ((of_torch("2.9.1+cu130"), with_libraries("a", CUBLAS, "libc10.so")), "note"),
        # An extension for CUDA needs a torch for CUDA.
        ((of_torch("2.9.1+cpu"), with_libraries("a", CUBLAS, "libc10.so")), "error"),
        # The driver runs builds for CUDA 12, but not for CUDA 14.
        ((with_libraries("a", "libcublas.so.14"),), "error"),
        ((with_libraries("a", "libcublas.so.12"),), "warning"),
        # A distribution that can load none of its libraries is another finding.
        ((of_torch("2.9.1+cpu"), with_libraries("bitsandbytes", **OTHERS)), None),
        ((of_torch("2.9.1+cu130"), with_libraries("bitsandbytes", **OTHERS)), None),
        ((of_torch("2.9.1+cu128"), with_libraries("bitsandbytes", **OTHERS)), "note"),
    ],
)
def test_a_library_of_another_machine_that_may_be_missing(
    installed: tuple[Installed, ...], severity: str | None, tmp_path: Path
) -> None:
    *others, own = installed
    own = replace(own, requires=["torch"] if own.name == "bitsandbytes" else ())
    stack = make_stack(tmp_path, *others, own, environment=H100)
    stack = replace(stack, is_here=False)
    found = [
        item.severity
        for item in run_checks(stack)
        if item.code == "ND301" and "libcublas" in item.message
    ]
    assert found == ([severity] if severity else [])


def test_what_a_build_for_another_cuda_lacks_is_one_finding(tmp_path: Path) -> None:
    """The name of cuDNN has no CUDA version, and the library belongs to the same
    finding."""
    own = with_libraries("onnxruntime", "libcublasLt.so.11", "libcudnn.so.8")
    stack = make_stack(tmp_path, own, environment=machine("12.4", "8.0"))
    found = run_checks(replace(stack, is_here=False))
    (finding,) = (item for item in found if item.code == "ND301")
    assert finding.severity == "warning"
    assert "libcublasLt.so.11 and libcudnn.so.8" in finding.message
    # The same build with libraries for an older CUDA is the second way.
    assert finding.hint.startswith("take a build for CUDA 12, as the driver is: ")
    assert "install nvidia-cublas-cu11 'nvidia-cudnn-cu11==8.*'" in finding.hint


@pytest.mark.parametrize("has_function", [True, False])
def test_what_several_wheels_have_is_one_finding(
    has_function: bool, tmp_path: Path
) -> None:
    code = "import os\ndef preload_dlls(cuda=True): ...\n" if has_function else ""
    names = {"cublas": "libcublas.so.12", "cudnn": "libcudnn.so.9"}
    wheels = [
        Installed(
            name=f"nvidia-{folder}-cu12",
            files={f"nvidia/{folder}/lib/{name}": linked("libc.so.6")},
        )
        for folder, name in names.items()
    ]
    own = with_libraries("onnxruntime", *names.values())
    files = {**own.files, "onnxruntime/__init__.py": code.encode()}
    own = replace(own, name="onnxruntime-gpu", files=files)
    stack = make_stack(tmp_path, own, *wheels, environment=H100)
    (finding,) = (item for item in run_checks(stack) if item.code == "ND301")
    assert finding.message.endswith(
        "libcublas.so.12 and libcudnn.so.9, and the loader does not look where "
        "nvidia-cublas-cu12 and nvidia-cudnn-cu12 have them"
    )
    assert ("call onnxruntime.preload_dlls()" in finding.hint) == has_function
    folders = [f"{tmp_path}/lib/python3.11/site-packages/nvidia/{x}/lib" for x in names]
    assert finding.hint.endswith(f"to LD_LIBRARY_PATH: {':'.join(folders)}")


def test_what_the_driver_refuses_needs_no_libraries(tmp_path: Path) -> None:
    stack = make_stack(
        tmp_path, PLAIN, environment=machine("12.8", "9.0"), root=tmp_path / "empty"
    )
    assert [finding.code for finding in run_checks(stack)] == ["ND201"]
