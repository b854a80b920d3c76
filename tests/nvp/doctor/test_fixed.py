"""pip follows the hints of ``doctor`` on a small index, and the finding disappears."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import uv
from support.containers import library, linked
from support.documents import document, nvidia
from support.gpu_wheels import binary
from support.processes import clean_environ, make_environment, provider
from support.stacks import Installed, machine, run_checks
from support.toolchains import banner, program, triton
from support.wheels import stub_wheel, write_page

from nvp.doctor.distributions import find_distributions
from nvp.doctor.installation import find_installation
from nvp.doctor.model import Finding, Stack, commands_of
from nvp.doctor.software import CodeReader
from nvp.findings import ERROR, NOTE

TAG = "py3-none-manylinux_2_17_x86_64"


def build(
    name: str,
    version: str,
    *requires: str,
    code: bytes = b"\x7fELF",
    path: str = "_C.so",
    others: dict[str, bytes] | None = None,
) -> Installed:
    """Return a release with one library."""
    files = {f"{name.replace('-', '_')}/{path}" if path == "_C.so" else path: code}
    return Installed(
        name=name, version=version, requires=requires, files={**files, **(others or {})}
    )


def torch(version: str, cuda: str | None, *requires: str) -> Installed:
    files = {
        "torch/version.py": f"cuda = {cuda!r}\n".encode(),
        "torch/lib/libtorch.so": library(*["80_real"] * bool(cuda)),
    }
    return Installed(name="torch", version=version, requires=requires, files=files)


def bitsandbytes(version: str, *cudas: str) -> Installed:
    files = {f"bitsandbytes/libbitsandbytes_cuda{x}.so": library() for x in cudas}
    return Installed(name="bitsandbytes", version=version, files=files)


def needing(*names: str) -> bytes:
    folders = ("cublas", "cudnn", "cuda_runtime")
    return linked(
        *names, runpath=":".join(f"$ORIGIN/../nvidia/{x}/lib" for x in folders)
    )


def cuda(project: str, version: str, folder: str, name: str) -> Installed:
    path = f"nvidia/{folder}/{name}"
    return build(project, version, path=path, code=linked(soname=Path(name).name))


ORT = "onnxruntime/capi/onnxruntime_pybind11_state.so"
CUDA_13 = linked("libcudart.so.13")
GPU = library("80_real")
NEW_GPU = library("100_real")

INDEX: list[Installed] = [
    torch("2.6.0", "12.4"),
    torch("2.8.0", "12.8", "triton==3.4.0"),
    build("triton", "3.3.0"),
    build("triton", "3.4.0"),
    build("torchvision", "0.21.0", "torch==2.6.0"),
    build("torchvision", "0.23.0", "torch==2.8.0"),
    build("torchaudio", "2.6.0", "torch==2.6.0"),
    build("torchaudio", "2.8.0", "torch==2.8.0"),
    build("vllm", "0.11.0", "torch==2.8.0", code=GPU),
    build("vllm", "0.21.0", code=CUDA_13),
    Installed(
        name="jax",
        version="0.10.2",
        requires=[
            "jaxlib==0.10.2",
            "jax-cuda12-plugin[with-cuda]==0.10.2; extra == 'cuda12'",
        ],
    ),
    build("jaxlib", "0.10.1"),
    build("jaxlib", "0.10.2"),
    build("jax-cuda12-plugin", "0.10.1"),
    build("jax-cuda12-plugin", "0.10.2"),
    build("tensorflow", "2.20.0", "nvidia-cudnn-cu12>=9.3; extra == 'and-cuda'"),
    build("onnxruntime", "1.26.0", path=ORT),
    build("onnxruntime-gpu", "1.26.0", path=ORT, code=b"\x7fELF of a GPU"),
    bitsandbytes("0.45.5", "126", "128"),
    bitsandbytes("0.48.2", "128", "130"),
    build("cupy-cuda12x", "13.6.0", code=GPU),
    build("cupy-cuda13x", "13.6.0", code=binary("plain.so")),
    Installed(
        name="numba-cuda",
        version="0.30.0",
        requires=[
            "cuda-pathfinder",
            "nvidia-cuda-nvcc-cu12; extra == 'cu12'",
            "nvidia-cuda-nvrtc-cu12; extra == 'cu12'",
        ],
    ),
    Installed(name="cuda-pathfinder", version="1.9.0"),
    build("newer", "1.0", code=GPU),
    build("newer", "2.0", code=binary("plain.so")),
    build("other-gpu", "1.0", code=GPU),
    build("other-gpu", "2.0", code=NEW_GPU),
    build("partial", "1.0", code=GPU),
    build("partial", "2.0", code=GPU, others={"partial/_D.so": NEW_GPU}),
    build("newer-ptx", "1.0", code=GPU),
    build("newer-ptx", "2.0", code=library("80_virtual", isa=(8, 8))),
    build("varied", "1.0", code=GPU),
    build("linked-one", "1.0", code=needing("libcublas.so.12")),
    build("linked-two", "1.0", code=needing("libcudnn.so.9")),
    build("linked-three", "1.0", "nvidia-cublas-cu12==12.9.1.4"),
    build("extension", "1.0+cu12torch2.6", "torch"),
    build("extension", "1.1+cu12torch2.8", "torch"),
    cuda("nvidia-cublas-cu12", "12.6.4.1", "cublas", "lib/libcublas.so.12"),
    cuda("nvidia-cublas-cu12", "12.9.1.4", "cublas", "lib/libcublas.so.12"),
    cuda("nvidia-cublas", "13.0.0.19", "cu13", "lib/libcublas.so.13"),
    cuda("nvidia-cudnn-cu12", "8.9.7.29", "cudnn", "lib/libcudnn.so.8"),
    cuda("nvidia-cudnn-cu12", "9.10.2.21", "cudnn", "lib/libcudnn.so.9"),
    cuda("nvidia-cudnn-cu12", "10.1.0.1", "cudnn", "lib/libcudnn.so.10"),
    cuda("nvidia-cuda-nvrtc-cu12", "12.9.86", "cuda_nvrtc", "lib/libnvrtc.so.12"),
    cuda("nvidia-cuda-nvrtc", "13.0.88", "cu13", "lib/libnvrtc.so.13"),
    build(
        "nvidia-cuda-nvcc-cu12",
        "12.9.86",
        path="nvidia/cuda_nvcc/bin/ptxas",
        code=program(banner("12.9")),
        others={"nvidia/cuda_nvcc/nvvm/lib64/libnvvm.so.4": library()},
    ),
]
_BY_TITLE = {f"{item.name}=={item.version}": item for item in INDEX}
_EXTRAS = {
    "jax": ["cuda12"],
    "tensorflow": ["and-cuda"],
    "jax-cuda12-plugin": ["with-cuda"],
    "numba-cuda": ["cu12"],
}


@dataclass(frozen=True)
class Case:
    """A finding, and the installed releases that cause it.

    :param installed: titles of releases, which the index may lack.
    """

    code: str
    installed: Sequence[str | Installed]
    driver: str = "12.8"
    gpu: str = "8.0"


VISION = ["torch==2.8.0", "triton==3.4.0", "torchvision==0.23.0", "torchaudio==2.8.0"]
CASES = {
    "a newer CUDA": Case("ND201", ["newer==2.0"]),
    "a project for a newer CUDA": Case("ND201", ["cupy-cuda13x==13.6.0"]),
    "another GPU": Case("ND202", ["other-gpu==2.0"]),
    "another GPU in a part": Case("ND203", ["partial==2.0"]),
    "newer PTX": Case("ND205", ["newer-ptx==2.0"]),
    "another variant": Case(
        "ND206",
        [Installed(name="varied", variant=document({"cu": nvidia("13.0")}))],
    ),
    "torch for CPUs": Case("ND207", [torch("2.8.0+cpu", None), *VISION[1:]]),
    "a companion for CPUs": Case(
        "ND207", [*VISION[:2], build("torchvision", "0.23.0+cpu", "torch==2.8.0")]
    ),
    "jax without a plug-in": Case("ND208", ["jax==0.10.2", "jaxlib==0.10.2"]),
    "jax and an older plug-in": Case(
        "ND208", ["jax==0.10.2", "jaxlib==0.10.2", "jax-cuda12-plugin==0.10.1"]
    ),
    "onnxruntime": Case("ND208", ["onnxruntime==1.26.0"]),
    "bitsandbytes": Case(
        "ND208", ["bitsandbytes==0.45.5", torch("2.9.0+cu130", "13.0")], "13.0"
    ),
    "a library": Case("ND301", ["linked-one==1.0"]),
    "an older library": Case(
        "ND301", ["linked-two==1.0", "nvidia-cudnn-cu12==8.9.7.29"]
    ),
    "another CUDA than torch": Case(
        "ND301", ["torch==2.8.0", "triton==3.4.0", "vllm==0.21.0"]
    ),
    "two CUDAs": Case(
        "ND302",
        [
            "linked-three==1.0",
            "nvidia-cublas==13.0.0.19",
            "nvidia-cublas-cu12==12.9.1.4",
        ],
    ),
    "an older cuBLAS": Case(
        "ND304", ["linked-three==1.0", "nvidia-cublas-cu12==12.6.4.1"]
    ),
    "a companion": Case(
        "ND305", ["torch==2.8.0", "triton==3.4.0", "torchvision==0.21.0"]
    ),
    "two companions": Case(
        "ND305", [*VISION[:2], "torchvision==0.21.0", "torchaudio==2.6.0"]
    ),
    "one companion of two": Case(
        "ND305", [*VISION[:2], VISION[3], "torchvision==0.21.0"]
    ),
    "jax and an older jaxlib": Case("ND305", ["jax==0.10.2", "jaxlib==0.10.1"]),
    "two onnxruntimes": Case(
        "ND306", ["onnxruntime==1.26.0", "onnxruntime-gpu==1.26.0"]
    ),
    "tensorflow alone": Case("ND307", ["tensorflow==2.20.0"]),
    "tensorflow with an old cuDNN": Case(
        "ND307", ["tensorflow==2.20.0", "nvidia-cudnn-cu12==8.9.7.29"]
    ),
    "numba alone": Case("ND307", ["numba-cuda==0.30.0", "cuda-pathfinder==1.9.0"]),
    "an old ptxas": Case("ND401", [triton(banner("12.8"))], "12.9", "12.1"),
    "another triton": Case("ND403", ["torch==2.8.0", "triton==3.3.0"]),
    "the NVRTC of another CUDA": Case(
        "ND404", [torch("2.8.0+cu128", "12.8"), "nvidia-cuda-nvrtc==13.0.88"]
    ),
    "an extension": Case("ND502", [*VISION[:2], "extension==1.0+cu12torch2.6"]),
}


def write_wheel(folder: Path, item: Installed) -> Path:
    return stub_wheel(
        folder,
        item.name,
        item.version,
        tag=TAG,
        requires=item.requires,
        extras=_EXTRAS.get(item.name, []),
        members=item.files,
        variant_json=item.variant,
    )


def install(folder: Path, items: Sequence[str | Installed]) -> Path:
    """Make an environment with exactly these releases."""
    made = make_environment(folder)
    own = [_BY_TITLE[item] if isinstance(item, str) else item for item in items]
    wheels = [str(write_wheel(folder.parent / "own", item)) for item in own]
    command = [uv.find_uv_bin(), "pip", "install", "--quiet", "--no-deps", "--offline"]
    subprocess.run([*command, "--python", str(made.python), *wheels], check=True)
    return made.folder


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("index")
    for item in INDEX:
        write_wheel(folder / item.name, item)
    for project in folder.iterdir():
        write_page(project)
    return folder


def check(folder: Path, case: Case, environ: dict[str, str]) -> list[Finding]:
    """Check an environment; the system has no library of CUDA and no compiler."""
    installation = find_installation(str(folder), {})
    for path in folder.rglob("bin/ptxas"):
        path.chmod(0o755)
    root = folder.parent / "root"
    root.mkdir(exist_ok=True)
    stack = Stack(
        environment=machine(case.driver, case.gpu),
        installation=replace(installation, python=None),
        distributions=find_distributions(installation.folders),
        reader=CodeReader(None),
        environ=environ,
        machine_options=["--cuda-driver", case.driver, "--sm-arch", case.gpu],
        is_here=bool(environ),
        root=str(root),
    )
    return run_checks(stack)


_QUICK = ("two companions",)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(x, marks=[pytest.mark.slow] if x not in _QUICK else [])
        for x in CASES
    ],
)
def test_the_commands_fix(name: str, index: Path, tmp_path: Path) -> None:
    case = CASES[name]
    folder = install(tmp_path / "env", case.installed)
    (packages,) = folder.glob("lib/python3*/site-packages")
    environ = clean_environ(tmp_path, {"PIP_INDEX_URL": index.as_uri()})
    before = check(folder, case, {})
    findings = [finding for finding in before if finding.code == case.code]
    assert findings
    commands = commands_of(findings)
    if all(finding.severity == NOTE for finding in findings):
        commands = [str(item) for finding in findings for item in finding.commands]
    assert commands
    installed = sorted(path.name for path in packages.glob("*.dist-info"))
    variables: dict[str, str] = {}
    for command in commands:
        assert any(command.split()[0] in finding.hint for finding in findings)
        words = shlex.split(command)
        if words[0] == "export":
            variable, _, value = words[1].partition("=")
            variables[variable] = value
            continue
        assert words[:4] == ["nvp", "pip", "--python", str(folder)]
        done = provider("pip", "--python", folder, *words[4:], environ=environ)
        assert done.code == 0, done.err
    assert sorted(path.name for path in packages.glob("*.dist-info")) != installed or (
        case.code in ("ND206", "ND207")
    )
    after = check(folder, case, variables)
    assert [finding.message for finding in after if finding.code == case.code] == []
    known = {finding.code for finding in before}
    new = [x.message for x in after if x.severity == ERROR and x.code not in known]
    assert new == []


def test_a_file_that_is_gone_is_put_back(index: Path, tmp_path: Path) -> None:
    """Only this finding makes pip install the same release again."""
    case = CASES["a library"]
    own = replace(_BY_TITLE["linked-one==1.0"], requires=["nvidia-cublas-cu12"])
    folder = install(tmp_path / "env", [own, "nvidia-cublas-cu12==12.9.1.4"])
    (path,) = folder.rglob("libcublas.so.12")
    path.unlink()
    findings = [x for x in check(folder, case, {}) if x.code == "ND301"]
    (command,) = commands_of(findings)
    assert command.split(" install ")[1].split(" --cuda")[0] == (
        "--force-reinstall --no-deps nvidia-cublas-cu12==12.9.1.4"
    )
    environ = clean_environ(tmp_path, {"PIP_INDEX_URL": index.as_uri()})
    words = shlex.split(command)[4:]
    assert provider("pip", "--python", folder, *words, environ=environ).code == 0
    assert [x for x in check(folder, case, {}) if x.code == "ND301"] == []
