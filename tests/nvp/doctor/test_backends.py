"""ND208 and ND307: jax, bitsandbytes, TensorFlow and others without their GPU parts."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.containers import library
from support.stacks import Installed, machine, make_stack, run_checks

from nvidia_variant_provider.machine.environment import Environment
from nvp.doctor.model import Finding

GPU = machine("12.8", "8.0")


def found(
    code: str, folder: Path, *installed: Installed, on: Environment = GPU
) -> list[Finding]:
    """Return the findings of one check."""
    stack = make_stack(folder, *installed, environment=on)
    return [finding for finding in run_checks(stack) if finding.code == code]


JAX = Installed(name="jax", version="0.10.2")
JAXLIB = Installed(name="jaxlib", version="0.10.2")


@pytest.mark.parametrize(
    ("driver", "said"),
    [
        ("12.8", "jax[cuda12]==0.10.2"),
        ("13.4", "jax[cuda13]==0.10.2"),
        ("11.8", "install a driver for CUDA 12 or newer"),
    ],
)
def test_jax_without_a_plugin(driver: str, said: str, tmp_path: Path) -> None:
    (finding,) = found("ND208", tmp_path, JAX, JAXLIB, on=machine(driver, "8.0"))
    assert finding.severity == "warning"
    assert said in finding.hint


def test_a_plugin_of_another_release(tmp_path: Path) -> None:
    plugin = Installed(name="jax-cuda12-plugin", version="0.9.2")
    jaxlib = Installed(name="jaxlib", version="0.9.0.1")
    jax = Installed(name="jax", version="0.9.0.1")
    (finding,) = found("ND208", tmp_path, jax, jaxlib, plugin)
    assert finding.severity == "error"
    assert "0.9.2" in finding.message
    assert "0.9.0.1" in finding.message
    assert finding.hint.endswith("'jax[cuda12]==0.9.0.1'")


def part(
    name: str, version: str = "0.10.2", requires: tuple[str, ...] = ()
) -> Installed:
    return Installed(name=f"jax-cuda12-{name}", version=version, requires=requires)


NEEDS_PJRT = ("jax-cuda12-pjrt==0.10.2",)


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ([part("plugin", requires=NEEDS_PJRT)], "without jax-cuda12-pjrt"),
        ([part("plugin"), part("pjrt", "0.10.1")], "jax-cuda12-pjrt 0.10.1 does not"),
        (
            [part("plugin", "0.10.1"), part("pjrt", "0.10.1")],
            "jax-cuda12-pjrt 0.10.1 and jax-cuda12-plugin 0.10.1 do not",
        ),
        ([part("plugin", requires=NEEDS_PJRT), part("pjrt")], None),
    ],
)
def test_the_parts_of_a_plugin(
    parts: list[Installed], said: str | None, tmp_path: Path
) -> None:
    findings = run_checks(make_stack(tmp_path, JAX, JAXLIB, *parts, environment=GPU))
    findings = [item for item in findings if item.code in ("ND208", "ND305")]
    assert len(findings) == (said is not None)
    for finding in findings:
        assert str(said) in finding.message
        assert finding.hint.endswith("'jax[cuda12]==0.10.2'")


@pytest.mark.parametrize(("driver", "other"), [("12.8", 13), ("13.0", 12)])
def test_plugins_for_two_cudas(driver: str, other: int, tmp_path: Path) -> None:
    plugins = [
        Installed(name=f"jax-cuda{cuda}-{name}", version="0.10.2")
        for cuda in (12, 13)
        for name in ("plugin", "pjrt")
    ]
    (finding,) = found(
        "ND208", tmp_path, JAX, JAXLIB, *plugins, on=machine(driver, "9.0")
    )
    assert "plug-ins for CUDA 12 and 13" in finding.message
    assert finding.hint.endswith(f" jax-cuda{other}-pjrt jax-cuda{other}-plugin")


@pytest.mark.parametrize(
    "installed",
    [
        (JAX, JAXLIB, Installed(name="jax-cuda12-plugin", version="0.10.2")),
        (JAX, JAXLIB, Installed(name="jax-rocm7-plugin", version="0.10.2")),
        (JAX, Installed(name="jaxlib", version="0.4.20+cuda12.cudnn89")),
    ],
)
def test_jax_with_its_plugin(installed: tuple[Installed, ...], tmp_path: Path) -> None:
    assert found("ND208", tmp_path, *installed) == []


def test_jax_on_a_machine_without_a_gpu(tmp_path: Path) -> None:
    assert found("ND208", tmp_path, JAX, JAXLIB, on=machine(None)) == []


def bitsandbytes(version: str, *cudas: str, loader: str = "") -> Installed:
    files = {f"bitsandbytes/libbitsandbytes_cuda{x}.so": library() for x in cudas}
    files["bitsandbytes/cextension.py"] = loader.encode()
    return Installed(name="bitsandbytes", version=version, files=files)


NEAR = '"""2. Highest packaged version <= runtime version, same major."""'


@pytest.mark.parametrize(
    ("own", "torch", "is_found"),
    [
        (bitsandbytes("0.45.5", "118", "126", "128"), "2.9.0+cu130", True),
        (bitsandbytes("0.45.5", "118", "126", "128"), "2.9.0+cu129", True),
        (bitsandbytes("0.45.5", "118", "126", "128"), "2.9.0+cu128", False),
        (bitsandbytes("0.50.2", "118", "128", loader=NEAR), "2.9.0+cu129", False),
        (bitsandbytes("0.50.2", "118", "128", loader=NEAR), "2.9.0+cu130", True),
        (bitsandbytes("0.50.2", "118", "128"), "2.9.0+cpu", False),
    ],
)
def test_bitsandbytes_has_a_library_for_the_cuda_of_torch(
    own: Installed, torch: str, is_found: bool, tmp_path: Path
) -> None:
    findings = found("ND208", tmp_path, own, Installed(name="torch", version=torch))
    assert len(findings) == is_found
    for finding in findings:
        assert "only for 11.8" in finding.message
        assert "install --upgrade 'bitsandbytes>=0.4" in finding.hint


@pytest.mark.parametrize(
    ("user", "severity"),
    [
        ((), "note"),
        (("onnxruntime-gpu",), "warning"),
        # No distribution requires the extra.
        (("onnxruntime-gpu; extra == 'gpu'",), "note"),
    ],
)
def test_onnxruntime_where_a_gpu_is(
    user: tuple[str, ...], severity: str, tmp_path: Path
) -> None:
    plain = Installed(name="onnxruntime", version="1.26.0")
    (finding,) = found("ND208", tmp_path, plain, Installed(requires=user))
    assert finding.severity == severity


@pytest.mark.parametrize(
    ("name", "version", "platform", "said"),
    [
        ("paddlepaddle", "3.2.0", "manylinux_2_28_x86_64", " paddlepaddle-gpu"),
        ("tensorflow-cpu", "2.20.0", "win_amd64", " 'tensorflow[and-cuda]'"),
        ("tensorflow", "2.20.0", "win_amd64", "WSL 2"),
        ("jaxlib", "0.10.2", "win_amd64", "WSL 2"),
        ("tensorflow", "2.10.1", "win_amd64", ""),
        ("tensorflow", "99.0", "manylinux_2_17_x86_64", ""),
    ],
)
def test_what_has_another_form_for_gpus(
    name: str, version: str, platform: str, said: str, tmp_path: Path
) -> None:
    files = {f"{name}/_C.so": library()}
    own = Installed(name=name, version=version, files=files)
    stack = make_stack(tmp_path, own, environment=GPU)
    folder = Path(stack.distributions[name].folder)
    (folder / "WHEEL").write_text(f"Wheel-Version: 1.0\nTag: cp311-cp311-{platform}\n")
    found = [item for item in run_checks(stack) if item.code in ("ND207", "ND208")]
    assert [item.code for item in found] == (["ND208"] if said else ["ND207"])
    assert said in found[0].hint


TENSORFLOW = Installed(
    name="tensorflow",
    version="2.20.0",
    requires=[
        "nvidia-cublas-cu12<13.0,>=12.5.3.2; extra == 'and-cuda'",
        "nvidia-cudnn-cu12<10.0,>=9.3.0.75; extra == 'and-cuda'",
        "nvidia-cuda-nvcc-cu12<13.0,>=12.5.82; extra == 'and-cuda'",
    ],
)
CUBLAS = Installed(name="nvidia-cublas-cu12", version="12.9.1.4")
CUDNN = Installed(name="nvidia-cudnn-cu12", version="9.10.2.21")


def test_tensorflow_without_its_libraries(tmp_path: Path) -> None:
    (finding,) = found("ND307", tmp_path, TENSORFLOW)
    assert finding.severity == "warning"
    assert "libcublas.so.12" in finding.message
    assert "libcudnn.so.9" in finding.message
    assert finding.hint.endswith("install 'tensorflow[and-cuda]==2.20.0'")


def test_tensorflow_with_a_part_of_them(tmp_path: Path) -> None:
    (finding,) = found("ND307", tmp_path, TENSORFLOW, CUBLAS)
    assert "libcublas" not in finding.message
    assert "libcudnn.so.9" in finding.message


def test_tensorflow_with_another_release_of_one(tmp_path: Path) -> None:
    old = Installed(name="nvidia-cudnn-cu12", version="8.9.7.29")
    (finding,) = found("ND307", tmp_path, TENSORFLOW, CUBLAS, old)
    assert "which is 8.9.7.29 here" in finding.message


def test_tensorflow_with_the_libraries_of_the_system(tmp_path: Path) -> None:
    folder = tmp_path / "system/usr/lib"
    folder.mkdir(parents=True)
    for name in ("libcublas.so.12", "libcudnn.so.9"):
        (folder / name).write_bytes(library())
    assert found("ND307", tmp_path, TENSORFLOW) == []
    assert found("ND307", tmp_path, TENSORFLOW, CUBLAS, CUDNN) == []


def ctranslate2(*names: str) -> Installed:
    data = library() + b"\0".join(name.encode() for name in names)
    files = {"ctranslate2.libs/libctranslate2-a7a60d30.so.4.8.5": data}
    return Installed(name="ctranslate2", version="4.8.5", files=files)


def test_ctranslate2_looks_where_the_loader_looks(tmp_path: Path) -> None:
    own = ctranslate2("libcublas.so.12", "libcudnn_ops.so.9", "libcuda.so.1")
    (finding,) = found("ND307", tmp_path / "a", own)
    assert finding.message.endswith(
        "libcublas.so.12, which is found nowhere; libcudnn_ops.so.9, which is found "
        "nowhere"
    )
    assert "install nvidia-cublas-cu12 'nvidia-cudnn-cu12==9.*'" in finding.hint
    files = {"nvidia/cublas/lib/libcublas.so.12": library()}
    wheel = Installed(name="nvidia-cublas-cu12", version="12.9.1.4", files=files)
    own = ctranslate2("libcublas.so.12")
    (finding,) = found("ND307", tmp_path / "b", own, wheel)
    assert finding.hint.endswith("nvidia/cublas/lib")
