"""The commands in hints: users can paste them, and they remove the finding."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from support.containers import library, linked
from support.gpu_wheels import binary
from support.shared_objects import SharedObject, needs_compiler
from support.stacks import Installed, machine, make_stack, run_checks

from nvp import api
from nvp.cli import arguments as options
from nvp.cli.parsers import make_command_parser
from nvp.doctor.model import Stack
from nvp.doctor.runner import diagnose

FILES = {"demo/plain.so": binary("plain.so")}


def hints(stack: Stack, code: str) -> list[str]:
    return [item.hint for item in run_checks(stack) if item.code == code]


def test_a_command_names_the_machine_that_the_checks_are_about(tmp_path: Path) -> None:
    options = ["--cuda-driver", "12.8", "--sm-arch", "9.0"]
    stack = make_stack(
        tmp_path / "my env", Installed(files=FILES), environment=machine("12.8", "9.0")
    )
    (hint,) = hints(replace(stack, machine_options=options), "ND201")
    assert shlex.split(hint) == [
        *("nvp", "pip", "--python", str(tmp_path / "my env")),
        *("install", "--upgrade", "--force-reinstall", "--only-binary", "demo"),
        *("demo!=1.0", *options),
    ]


def test_programs_that_are_wrong_together_are_replaced_together(tmp_path: Path) -> None:
    """Replacing only one of the programs would leave it with an incompatible torch."""
    library = Installed(
        name="nvidia-demo", files={"nvidia/a.so": FILES["demo/plain.so"]}
    )
    stack = make_stack(
        tmp_path,
        library,
        Installed(files=FILES, requires=["nvidia-demo"]),
        Installed(name="torch", files={"torch/plain.so": FILES["demo/plain.so"]}),
        environment=machine("12.8", "5.0"),
    )
    found = [item for item in run_checks(stack) if item.code.startswith("ND2")]
    assert [(item.code, item.distribution) for item in found] == [
        ("ND201", "demo"),
        ("ND201", "torch"),
    ]
    command = (
        " install --upgrade --force-reinstall --only-binary demo 'demo!=1.0' "
        "'torch!=1.0'"
    )
    assert all(item.hint.endswith(command) for item in found)


def torch_that_needs_cuda_13(prefix: Path, **environ: str) -> Stack:
    torch = Installed(name="torch", files={"torch/plain.so": FILES["demo/plain.so"]})
    return make_stack(
        prefix, torch, environment=machine("12.8", "7.0"), environ=environ
    )


def test_a_newer_build_from_the_index_of_the_maker(tmp_path: Path) -> None:
    stack = torch_that_needs_cuda_13(tmp_path)
    url = "https://download.pytorch.org/whl/cu126"
    again = ("install", "--upgrade", "--force-reinstall")
    command = stack.pip(*again, "--index-url", url, "torch")
    assert hints(stack, "ND201") == [
        f"torch 2.14.1+cu126 runs here, from PyTorch's index: {command}; or from your "
        f"own index: {stack.pip(*again, 'torch!=1.0')}"
    ]
    configured = torch_that_needs_cuda_13(tmp_path, PIP_EXTRA_INDEX_URL=f"x {url}/")
    assert hints(configured, "ND201") == [str(stack.pip(*again, "torch!=1.0"))]


def test_one_of_several_gpus_without_code(tmp_path: Path) -> None:
    """The command would install the same build again without ``--every-gpu``."""
    code = {"torch/lib.so": library("75_real", "100_real")}
    torch = Installed(name="torch", files=code)
    environment = machine("13.0", "7.0", "10.0")
    stack = make_stack(tmp_path, torch, environment=environment)
    again = ("install", "--upgrade", "--force-reinstall")
    (finding,) = (item for item in run_checks(stack) if item.code == "ND202")
    assert finding.severity == "warning"
    assert finding.hint == (
        "torch 2.10.0 is the newest release that runs on each GPU: "
        f"{stack.pip(*again, '--every-gpu', 'torch!=1.0')}; or leave the others out: "
        "CUDA_VISIBLE_DEVICES=1"
    )


def test_torch_of_pypi_for_windows_is_replaced_from_another_index(
    tmp_path: Path,
) -> None:
    torch = Installed(name="torch", version="2.15.0+cpu")
    stack = make_stack(tmp_path, torch, environment=machine("13.0", "12.0"))
    folder = Path(stack.distributions["torch"].folder)
    (folder / "WHEEL").write_text("Wheel-Version: 1.0\nTag: cp313-cp313-win_amd64\n")
    (hint,) = hints(stack, "ND207")
    assert hint.startswith("torch 2.15.0+cu130 runs here, from PyTorch's index: ")


@pytest.mark.parametrize(
    ("version", "files", "is_found"),
    [
        ("2.10.0", {}, True),  # by the table of builds
        ("9.9", {"torch/version.py": b"cuda = None\n"}, True),
        ("9.9", {"torch/version.py": b"cuda = '12.8'\n"}, False),
        ("9.9", {}, False),
    ],
)
def test_torch_without_a_label_is_for_cpus(
    version: str, files: dict[str, bytes], is_found: bool, tmp_path: Path
) -> None:
    torch = Installed(name="torch", version=version, files=files)
    stack = make_stack(tmp_path, torch, environment=machine("12.8", "8.9"))
    folder = Path(stack.distributions["torch"].folder)
    (folder / "WHEEL").write_text("Wheel-Version: 1.0\nTag: cp313-cp313-win_amd64\n")
    assert len(hints(stack, "ND207")) == is_found


def test_where_a_wheel_of_an_extension_for_this_torch_is(tmp_path: Path) -> None:
    stack = make_stack(
        tmp_path,
        Installed(name="torch", version="2.7.1+cu126"),
        Installed(name="flash-attn", version="2.8.3+cu.12.8.torch.2.11"),
        Installed(name="torch-sparse", version="0.6.18+pt28cu126"),
        environment=machine("12.8", "8.0"),
    )
    found = {
        item.distribution: item for item in run_checks(stack) if item.code == "ND502"
    }
    assert found["flash-attn"].message == (
        "flash-attn 2.8.3+cu.12.8.torch.2.11 is for torch 2.11 (2.7.1+cu126 is "
        "installed)"
    )
    astral = "https://wheels.astral.sh/simple/cu126/"
    assert f"Astral publishes builds of flash-attn for CUDA 12.6 at {astral}" in (
        found["flash-attn"].hint
    )
    wheel = "flash_attn-2.8.3+cu12torch2.7cxx11abiTRUE-cp311-cp311-linux_x86_64.whl"
    assert found["flash-attn"].hint.startswith(
        "Dao-AILab has a wheel for torch 2.7.1: "
    )
    (command,) = found["flash-attn"].commands
    assert command.names[0].endswith(wheel)
    assert "https://data.pyg.org/whl/torch-2.7.0+cu126.html" in (
        found["torch-sparse"].hint
    )
    assert all("torch==2.7.1" in item.hint for item in found.values())


def test_an_extension_that_has_no_wheel_for_this_torch(tmp_path: Path) -> None:
    """An index such as PyPI has only its source, which needs a compiler."""
    stack = make_stack(
        tmp_path,
        Installed(name="torch", version="2.3.1+cu118"),
        Installed(name="flash-attn", version="2.8.3+cu12torch2.8cxx11abiTRUE"),
        Installed(name="torch-cluster", version="1.6.3+pt28cu128"),
        environment=machine("11.8", "8.0"),
    )
    names = {f.distribution: f for f in run_checks(stack) if f.code == "ND502"}
    (command,) = names["flash-attn"].commands
    assert "flash_attn-2.7.3+cu11torch2.3cxx11abiFALSE-cp311" in str(command)
    assert "torch-2.3.0+cu118.html" in names["torch-cluster"].hint
    newer = Installed(name="torch", version="2.12.0+cu130")
    stack = make_stack(
        tmp_path / "b",
        newer,
        Installed(name="mmcv-full", version="1.0+torch2.8"),
        Installed(name="torch-sparse", version="0.6.18+pt28cu128"),
        Installed(name="flash-attn", version="2.8.3+cu12torch2.8cxx11abiTRUE"),
        environment=machine("12.8", "8.0"),
    )
    names = {f.distribution: f for f in run_checks(stack) if f.code == "ND502"}
    assert "github.com" not in names["flash-attn"].hint
    for finding in names.values():
        for command in finding.commands:
            assert "--only-binary" in str(command)


def test_an_extension_for_cpus_stays_with_the_torch_that_is_there(
    tmp_path: Path,
) -> None:
    files = {"torch_scatter/_scatter_cpu.so": linked("libc10.so")}
    stack = make_stack(
        tmp_path,
        Installed(name="torch", version="2.8.0+cu128"),
        Installed(name="torch-scatter", version="2.1.2+pt28cpu", files=files),
        environment=machine("12.8", "8.0"),
    )
    (hint,) = hints(stack, "ND207")
    assert "https://data.pyg.org/whl/torch-2.8.0+cu128.html" in hint
    assert "torch-2.10" not in hint
    assert "torch==2.8.0" in hint


def test_a_command_does_not_grow_with_the_findings(tmp_path: Path) -> None:
    programs = [Installed(name=f"demo{n}", files=FILES) for n in range(30)]
    stack = make_stack(tmp_path, *programs, environment=machine("12.8", "5.0"))
    commands = hints(stack, "ND201")
    assert len(commands) == 30
    assert all(command.count("!=1.0") == 1 for command in commands)


def test_a_command_that_removes_something_names_no_machine(tmp_path: Path) -> None:
    stack = make_stack(tmp_path)
    stack = replace(stack, machine_options=["--sm-arch", "9.0"])
    assert str(stack.pip("uninstall", "demo")).endswith(" uninstall demo")


def test_what_conda_has_installed_is_replaced_by_conda(tmp_path: Path) -> None:
    torch = Installed(name="torch", version="2.8.0+cpu", files={"torch.py": b""})
    stack = make_stack(tmp_path, torch, environment=machine("12.8", "9.0"))
    folder = Path(stack.distributions["torch"].folder)
    (folder / "INSTALLER").write_text("conda\n")
    (hint,) = hints(stack, "ND207")
    place = shlex.quote(str(tmp_path))
    assert hint == f"conda install --prefix {place} 'pytorch=*=cuda*'"
    assert str(stack.reinstall("demo")).startswith("nvp pip ")


def test_a_version_is_quoted(tmp_path: Path) -> None:
    stack = make_stack(tmp_path)
    words = str(stack.pip("install", "triton==3.0;touch x"))
    assert words.endswith(" install 'triton==3.0;touch x'")


@pytest.mark.parametrize(
    "given",
    [
        ["--cuda-driver", "12.8", "--sm-arch", "9.0"],
        ["--environment", "node.json", "--node", "a"],
        [],
    ],
)
def test_the_options_of_the_command_line_go_into_the_hints(
    given: list[str], tmp_path: Path
) -> None:
    parser = make_command_parser("doctor")
    assert options.words_of(parser.parse_args(given)) == given
    diagnosis = api.doctor(
        str(make_stack(tmp_path).installation.prefix),
        environment=machine("12.8", "9.0"),
        machine_options=given,
    )
    assert diagnosis.stack.machine_options == given


@needs_compiler
@pytest.mark.parametrize(
    ("needed", "torch", "requires", "names"),
    [
        ("libcublas.so.13", "2.9.1+cu129", ["torch==2.9.1"], "torch vllm!=1.0"),
        ("libcudart.so.12", "2.9.1+cu130", ["torch==2.9.1"], "torch vllm!=1.0"),
        ("libcudart.so.11.0", "2.9.1+cu128", ["torch"], "vllm!=1.0"),
        ("libcublasLt.so.11", None, [], "vllm!=1.0"),
    ],
)
def test_a_build_for_another_cuda_is_replaced(
    needed: str, torch: str | None, requires: list[str], names: str, tmp_path: Path
) -> None:
    """Installing the libraries of its CUDA does not help, because torch has others."""
    linked = SharedObject(soname="_C.so", needed=[needed])
    own = Installed(
        name="vllm",
        requires=requires,
        files={"vllm/_C.so": linked.compile(tmp_path / "c").read_bytes()},
    )
    others = [] if torch is None else [Installed(name="torch", version=torch)]
    stack = make_stack(tmp_path, own, *others, environment=machine("12.8", "8.0"))
    (finding,) = (item for item in run_checks(stack) if item.code == "ND301")
    hint, (command,) = finding.hint, map(str, finding.commands)
    assert command in hint
    assert "nvidia-cuda-runtime" not in hint
    assert " install --upgrade --force-reinstall " in command
    assert sorted(shlex.split(command)[-len(names.split()) :]) == names.split()


def test_the_command_for_another_provider_is_quoted(tmp_path: Path) -> None:
    installed = [
        Installed(name="nvp", version="1.0;$(id)"),
        Installed(name="nvidia-variant-provider", version="2.0"),
    ]
    notes = diagnose(make_stack(tmp_path, *installed)).notes
    (command,) = [x.partition("; pip ")[2] for x in notes if "does not run" in x]
    wanted = "nvidia-variant-provider==1.0;$(id)"
    assert shlex.split(command) == ["install", "--force-reinstall", wanted]


class _Hostile(dict[str, str]):
    """Variables of the image of a container: each is set, also one of a later check."""

    def __missing__(self, name: str) -> str:
        return "/x,y;touch PWN;"

    def __contains__(self, name: object) -> bool:
        return True

    def get(self, name: str, _: object = None) -> str:
        return self[name]


@pytest.mark.parametrize("gpus", [["8.0"], []])
def test_no_variable_gives_a_hint_a_command(gpus: list[str], tmp_path: Path) -> None:
    torch = Installed(name="torch", files={"torch/plain.so": FILES["demo/plain.so"]})
    stack = make_stack(tmp_path, torch, environment=machine("12.8", *gpus))
    found = [item.hint for item in run_checks(replace(stack, environ=_Hostile()))]
    assert any("NVIDIA_DRIVER_CAPABILITIES" in hint for hint in found)
    for hint in found:
        assert ";touch" not in re.sub(r"'[^']*'", "", hint)
