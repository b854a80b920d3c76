"""ND305 and ND306: builds for another release, and paths of two distributions."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from support.containers import library
from support.stacks import Installed, machine, make_stack, run_checks

from nvidia_variant_provider.machine.environment import Environment
from nvp.doctor.checks.replacing import replace_builds
from nvp.doctor.model import Finding

GPU = machine("13.0", "9.0")

TORCH = Installed(name="torch", version="2.8.0+cu128")


def compiled(name: str, version: str, *requires: str) -> Installed:
    package = name.replace("-", "_")
    files = {f"{package}/_C.so": library()}
    return Installed(name=name, version=version, files=files, requires=requires)


def of(code: str, findings: list[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.code == code]


@pytest.mark.parametrize(
    ("user", "others", "severity"),
    [
        (compiled("torchvision", "0.21.0", "torch==2.6.0"), [TORCH], "error"),
        (compiled("xformers", "0.0.33", "torch==2.9.0"), [TORCH], "error"),
        (
            compiled("vllm", "0.10.1", "numpy<2.3", "torch==2.8.0"),
            [TORCH, Installed(name="numpy", version="2.4.1")],
            "error",
        ),
        (
            Installed(
                name="jax", version="0.10.2", requires=["jaxlib<=0.10.2,>=0.10.2"]
            ),
            [Installed(name="jaxlib", version="0.10.1")],
            "error",
        ),
        (
            compiled("cuml-cu12", "25.10.0", "rmm-cu12==25.10.*"),
            [Installed(name="rmm-cu12", version="25.8.0")],
            "error",
        ),
        (
            Installed(
                name="tensorrt-cu12",
                version="10.9",
                requires=["tensorrt-cu12-libs==10.9"],
            ),
            [Installed(name="tensorrt-cu12-libs", version="10.8")],
            "error",
        ),
        (
            Installed(name="accelerate", version="2.0", requires=["torch>=2.9"]),
            [TORCH],
            "warning",
        ),
    ],
)
def test_what_was_built_for_another_release(
    user: Installed, others: list[Installed], severity: str, tmp_path: Path
) -> None:
    stack = make_stack(tmp_path, user, *others)
    (finding,) = of("ND305", run_checks(stack))
    assert finding.severity == severity
    assert finding.distribution == user.name
    required = next(r for r in user.requires if not r.startswith("torch==2.8"))
    assert required.partition("<")[0].partition("=")[0] in finding.message
    (other,) = others[-1:]
    assert f"is {other.version}" in finding.message


@pytest.mark.parametrize(
    "installed",
    [
        (compiled("torchvision", "0.23.0", "torch==2.8.0"), TORCH),
        # `doctor` does not judge projects without GPU code.
        (
            compiled("scipy", "1.16", "numpy<2.3"),
            Installed(name="numpy", version="2.4.1"),
        ),
        (compiled("torchvision", "0.23.0", "torch==2.6.0; extra == 'old'"), TORCH),
    ],
)
def test_what_agrees(installed: tuple[Installed, ...], tmp_path: Path) -> None:
    assert of("ND305", run_checks(make_stack(tmp_path, *installed))) == []


def test_companions_are_replaced_together(tmp_path: Path) -> None:
    stack = make_stack(
        tmp_path,
        TORCH,
        compiled("torchvision", "0.21.0", "torch==2.6.0"),
        compiled("torchaudio", "2.6.0", "torch==2.6.0"),
    )
    first, second = of("ND305", run_checks(stack))
    assert first.hint == second.hint
    keep, _, move = first.hint.partition(", which keeps torch, or ")
    assert keep.endswith(
        "install --upgrade --only-binary torchaudio,torchvision torchaudio torchvision "
        "torch==2.8.0"
    )
    assert move.endswith("install torch==2.6.0")


def test_a_companion_from_source_is_not_replaced(tmp_path: Path) -> None:
    vision = compiled("torchvision", "0.23.0", "torch==2.8.0")
    origin = {"url": "file:///src/vision", "dir_info": {"editable": True}}
    record = "torchvision-0.23.0.dist-info/direct_url.json"
    vision = replace(
        vision, files={**vision.files, record: json.dumps(origin).encode()}
    )
    stack = make_stack(tmp_path, TORCH, vision, environment=GPU)
    advice = replace_builds(stack, "torch")
    assert "torchvision" in advice.text
    assert all("torchvision" not in str(command) for command in advice.commands)


def test_those_of_different_releases_cannot_move_torch(tmp_path: Path) -> None:
    stack = make_stack(
        tmp_path,
        TORCH,
        compiled("torchvision", "0.21.0", "torch==2.6.0"),
        compiled("xformers", "0.0.33", "torch==2.9.0"),
    )
    for finding in of("ND305", run_checks(stack)):
        assert finding.hint.endswith("torch==2.8.0, which keeps torch")


ONNX = "onnxruntime/capi/onnxruntime_pybind11_state.so"


def shared(path: str, *pairs: tuple[str, str, bytes]) -> list[Installed]:
    return [
        Installed(name=name, version=version, files={path: data})
        for name, version, data in pairs
    ]


@pytest.mark.parametrize(
    ("path", "names", "kept"),
    [
        (ONNX, ("onnxruntime", "onnxruntime-gpu"), "onnxruntime-gpu"),
        ("cupy/_core.so", ("cupy-cuda13x", "cupy-cuda12x"), "cupy-cuda13x"),
        (
            "nvidia/cudnn/lib/libcudnn.so.9",
            ("nvidia-cudnn-cu12", "nvidia-cudnn-cu13"),
            "nvidia-cudnn-cu13",
        ),
    ],
)
def test_one_path_of_two(
    path: str, names: tuple[str, str], kept: str, tmp_path: Path
) -> None:
    first, last = names
    pairs = [(first, "1.0", library()), (last, "1.1", library("90_real"))]
    stack = make_stack(tmp_path, *shared(path, *pairs), environment=GPU)
    (finding,) = of("ND306", run_checks(stack))
    assert finding.severity == "warning"
    assert f"the files left are from {last}" in finding.message
    both = " ".join(sorted(names))
    remove, _, install = finding.hint.partition(" && ")
    assert remove.endswith(f"uninstall --yes {both}")
    assert f"install {kept}" in install


def test_files_of_both_do_not_work_together(tmp_path: Path) -> None:
    """Installers write several wheels at the same time."""
    names = [f"onnxruntime/{name}.so" for name in "ab"]
    first = Installed(name="onnxruntime", files=dict.fromkeys(names, library()))
    gpu = dict.fromkeys(names, library("90_real"))
    last = Installed(name="onnxruntime-gpu", files=gpu)
    stack = make_stack(tmp_path, first, last, environment=GPU)
    Path(stack.distributions["onnxruntime"].locate(names[1])).write_bytes(library())
    (finding,) = of("ND306", run_checks(stack))
    assert finding.severity == "error"
    assert finding.message.endswith(
        "the files left are from onnxruntime and onnxruntime-gpu"
    )


@pytest.mark.parametrize(
    ("environment", "severity"), [(GPU, "error"), (machine(None), "warning")]
)
def test_the_one_for_cpus_was_installed_last(
    environment: Environment, severity: str, tmp_path: Path
) -> None:
    pairs = [("onnxruntime-gpu", "1", library("90_real")), ("onnxruntime", "1", b"x")]
    stack = make_stack(tmp_path, *shared(ONNX, *pairs), environment=environment)
    (finding,) = of("ND306", run_checks(stack))
    assert finding.message.endswith("the files left are from onnxruntime")
    assert finding.severity == severity


def test_the_driver_and_the_gpu_say_which_one_is_meant(tmp_path: Path) -> None:
    pairs = [
        ("cupy-cuda13x", "14", library()),
        ("cupy-cuda12x", "14", library("90_real")),
    ]
    stack = make_stack(
        tmp_path, *shared("cupy/a.so", *pairs), environment=machine("12.8", "9.0")
    )
    (finding,) = of("ND306", run_checks(stack))
    assert finding.hint.endswith("install cupy-cuda12x")


def test_the_same_file_is_no_conflict(tmp_path: Path) -> None:
    pairs = [("onnxruntime", "1", library()), ("onnxruntime-gpu", "1", library())]
    assert of("ND306", run_checks(make_stack(tmp_path, *shared(ONNX, *pairs)))) == []


def test_texts_of_one_name_are_no_conflict(tmp_path: Path) -> None:
    pairs = [("a", "1", b"import a"), ("b", "1", b"import b")]
    stack = make_stack(tmp_path, *shared("tests/__init__.py", *pairs))
    assert of("ND306", run_checks(stack)) == []


def test_a_record_that_lists_a_file_twice(tmp_path: Path) -> None:
    installed = Installed(name="triton", version="3.0", files={"triton/a.so": b"x"})
    stack = make_stack(tmp_path, installed)
    record = Path(stack.distributions["triton"].folder) / "RECORD"
    record.write_text(record.read_text() + "triton/a.so,sha256=other,1\n")
    assert of("ND306", run_checks(stack)) == []
