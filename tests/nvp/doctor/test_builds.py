"""ND2xx: each code has a trigger, and a near miss that must not be reported."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.containers import library
from support.documents import PROVIDER, document, nvidia
from support.gpu_wheels import binary
from support.stacks import Installed, machine, make_stack, run_checks

from nvp.doctor.model import platform_of_wheel

PLAIN = {"demo/plain.so": binary("plain.so")}
"""Machine code for 7.5, 8.0 and 9.0 with PTX of CUDA 13.5; linked with CUDA 13."""


def gpu_build(*targets: str, isa: tuple[int, int] = (8, 0)) -> Installed:
    return Installed(files={"demo/lib.so": library(*targets, isa=isa)})


def two_libraries(first: str, second: str) -> Installed:
    return Installed(
        files={"demo/a.so": library(first), "demo/b.so": library(second)},
    )


def variant(lower: str) -> Installed:
    return Installed(variant=document({"cu": nvidia(lower)}))


CPU_TORCH = Installed(name="torch", files={"torch/lib/libtorch.so": library()})
GPU_TORCH = Installed(name="torch", files={"torch/lib/libtorch.so": library("90_real")})

TRIGGERS = {
    "ND201": (Installed(files=PLAIN), machine("12.9", "9.0")),
    "ND202": (gpu_build("80_real"), machine("12.9", "9.0")),
    "ND203": (two_libraries("80_real", "90_real"), machine("12.9", "9.0")),
    "ND204": (gpu_build("90_virtual"), machine("12.9", "9.0")),
    "ND205": (gpu_build("90_virtual", isa=(8, 8)), machine("12.8", "9.0")),
    "ND206": (variant("13.0"), machine("12.9", "9.0")),
    "ND207": (CPU_TORCH, machine("12.9", "9.0")),
}

NEAR_MISSES = {
    "ND201": (Installed(files=PLAIN), machine("13.0", "9.0")),
    "ND202": (gpu_build("80_real"), machine("12.9", "8.6")),
    "ND203": (two_libraries("80_real", "86_real"), machine("12.9", "8.6")),
    "ND204": (gpu_build("90_real", "90_virtual"), machine("12.9", "9.0")),
    "ND205": (gpu_build("90_virtual", isa=(8, 7)), machine("12.8", "9.0")),
    "ND206": (variant("12.9"), machine("12.9", "9.0")),
    "ND207": (GPU_TORCH, machine("12.9", "9.0")),
}


@pytest.mark.parametrize("code", TRIGGERS)
def test_a_trigger_is_the_only_finding(code: str, tmp_path: Path) -> None:
    installed, environment = TRIGGERS[code]
    (finding,) = run_checks(make_stack(tmp_path, installed, environment=environment))
    assert finding.code == code
    assert finding.distribution == installed.name
    assert finding.hint
    assert finding.path is not None
    assert Path(finding.path).exists()


@pytest.mark.parametrize("code", NEAR_MISSES)
def test_a_near_miss_is_not_reported(code: str, tmp_path: Path) -> None:
    installed, environment = NEAR_MISSES[code]
    findings = run_checks(make_stack(tmp_path, installed, environment=environment))
    assert code not in [finding.code for finding in findings]


def test_ptx_of_a_library_that_a_program_brings_is_no_finding(tmp_path: Path) -> None:
    own = gpu_build("90_virtual")
    brought = Installed(name="nvidia-cufile", files=own.files)
    user = Installed(name="torch", requires=["nvidia-cufile"])
    environment = machine("12.9", "9.0")
    stack = make_stack(tmp_path, brought, user, environment=environment)
    assert "ND204" not in [finding.code for finding in run_checks(stack)]


@pytest.mark.parametrize(
    ("installer", "tag", "is_found"),
    [
        ("uv", "Tag: cp39-abi3-manylinux_2_28_x86_64\n", False),
        ("conda", "Tag: cp39-abi3-manylinux_2_28_x86_64\n", True),
        ("uv", "", True),
    ],
)
def test_a_wheel_of_the_table_is_what_the_table_says(
    installer: str, tag: str, is_found: bool, tmp_path: Path
) -> None:
    """A library without GPU code may load GPU code from another package."""
    own = Installed(name="xformers", version="0.0.33", files=CPU_TORCH.files)
    stack = make_stack(tmp_path, own, environment=machine("12.9", "9.0"))
    folder = Path(stack.distributions["xformers"].folder)
    (folder / "INSTALLER").write_text(installer)
    (folder / "WHEEL").write_text(tag)
    assert [finding.code for finding in run_checks(stack)] == ["ND207"] * is_found


def test_a_tag_ends_with_its_line(tmp_path: Path) -> None:
    stack = make_stack(tmp_path, CPU_TORCH, environment=machine("12.9", "9.0"))
    torch = stack.distributions["torch"]
    (Path(torch.folder) / "WHEEL").write_text("Tag: py3\n")
    unknown = platform_of_wheel(torch)
    for other in ("win_amd64", "linux_aarch64"):
        (Path(torch.folder) / "WHEEL").write_text(f"Tag: py3\nBuild: a-b-{other}\n")
        assert platform_of_wheel(torch) == unknown


def test_one_of_two_gpus_without_code_is_named(tmp_path: Path) -> None:
    environment = machine("12.9", "9.0", "7.5")
    stack = make_stack(tmp_path, gpu_build("90_real"), environment=environment)
    (finding,) = run_checks(stack)
    assert finding.code == "ND202"
    assert finding.message == (
        "demo 1.0 has no code for compute capability 7.5, only for 90"
    )


def test_code_that_a_jetson_may_run_is_a_warning(tmp_path: Path) -> None:
    def check(driver: str) -> list[str]:
        folder = tmp_path / driver
        environment = machine(driver, "8.7")
        build = gpu_build("80_real")
        stack = make_stack(folder, build, environment=environment)
        return [finding.code for finding in run_checks(stack)]

    assert check("13.2") == ["ND203"]
    assert check("13.1") == check("12.9") == ["ND202"]


def test_a_label_says_that_a_build_is_for_cpus(tmp_path: Path) -> None:
    installed = Installed(version="1.0+cpu")
    environment = machine("12.9", "9.0")
    (finding,) = run_checks(make_stack(tmp_path, installed, environment=environment))
    assert finding.code == "ND207"


def test_a_machine_without_a_gpu_needs_no_gpu_build(tmp_path: Path) -> None:
    assert run_checks(make_stack(tmp_path, CPU_TORCH)) == []


def test_a_damaged_variant_json_is_a_note(tmp_path: Path) -> None:
    installed = Installed(variant={"variants": 3})
    stack = make_stack(tmp_path, installed, environment=machine("12.9", "9.0"))
    assert run_checks(stack) == []
    assert "variant.json" in stack.distributions["demo"].defects[0]


def test_no_plugin_judges_an_installed_variant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plugin may be code of the environment, or hang."""
    site = tmp_path / "site"
    info = site / "other_plugin-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Name: other-plugin\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[variant_plugins]\nother = other_plugin\n")
    code = f"import pathlib; pathlib.Path({str(tmp_path / 'run')!r}).touch()\n"
    (site / "other_plugin.py").write_text(code)
    monkeypatch.syspath_prepend(site)
    properties = {"cu": {"other": {"level": ["1"]}, **nvidia("13.0")}}
    providers = {"nvidia": PROVIDER, "other": {"requires": ["other-plugin"]}}
    installed = Installed(variant=document(properties, providers=providers))
    stack = make_stack(tmp_path, installed, environment=machine("12.9", "9.0"))
    (finding,) = run_checks(stack)
    assert not (tmp_path / "run").exists()
    assert "other" not in finding.message


def test_libraries_are_not_reported_next_to_the_program_that_needs_them(
    tmp_path: Path,
) -> None:
    program = Installed(files=PLAIN, requires=["toolkit"])
    toolkit = Installed(name="toolkit", requires=["nvidia-math"])
    cuda = binary("plain.so")
    libraries = Installed(name="nvidia-math", files={"nvidia/lib/libmath.so": cuda})
    other = Installed(name="nvidia-other", files={"nvidia/lib/libother.so": cuda})
    installed = (program, toolkit, libraries, other)
    stack = make_stack(tmp_path, *installed, environment=machine("12.9", "9.0"))
    names = [finding.distribution for finding in run_checks(stack)]
    assert names == ["demo", "nvidia-other"]


def test_one_file_of_a_library_of_nvidia_is_enough(tmp_path: Path) -> None:
    files = {"nvidia/a.so": library("80_real"), "nvidia/b.so": library("90_real")}
    stack = make_stack(
        tmp_path,
        Installed(name="nvidia-math", files=files),
        environment=machine("12.9", "9.0"),
    )
    assert run_checks(stack) == []


def test_newer_ptx_of_one_library_stands_for_another_without_code(
    tmp_path: Path,
) -> None:
    files = {
        "demo/a.so": library("80_real"),
        "demo/b.so": library("90_virtual", isa=(8, 8)),
    }
    stack = make_stack(
        tmp_path, Installed(files=files), environment=machine("12.8", "9.0")
    )
    assert [finding.code for finding in run_checks(stack)] == ["ND205"]
