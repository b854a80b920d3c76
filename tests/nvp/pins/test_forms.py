"""The pins of each form: packages, wheels, choices and lines, in files of real
tools."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import uv
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.tags import Tag
from support.paths import FIXTURES

from nvidia_variant_provider.errors import InputError, UsageError
from nvp.pins.model import Choice, Pin, PinnedFile, PinnedWheel
from nvp.pins.reading import read_pins
from nvp.pins.targets import PinTarget, find_target

PINS = FIXTURES / "pins"

LINUX = find_target(platforms=["manylinux_2_28_x86_64"], python_version="3.11")
WINDOWS = find_target(platforms=["win_amd64"], python_version="3.12")
ARM = find_target(platforms=["manylinux_2_28_aarch64"], python_version="3.12")


def read(name: str) -> PinnedFile:
    return read_pins(str(PINS / name))


def versions(
    pinned: PinnedFile,
    target: PinTarget = LINUX,
    chosen: frozenset[Choice] = frozenset(),
) -> dict[str, str]:
    return {
        pin.name: str(pin.version)
        for pin, _ in pinned.select(chosen | pinned.defaults, target)
    }


# The pins of projects with GPU code in each file, the number of packages on Linux, and
# the form.
TORCH = {"torch": "2.15.0", "torchvision": "0.29.2", "xformers": "0.0.35"}
ORT = {"onnxruntime-gpu": "1.31.1"}
EXPECTED: dict[str, tuple[str, int, dict[str, str]]] = {
    "torch-xformers/uv.lock": ("uv.lock", 33, TORCH),
    "torch-xformers/poetry.lock": ("poetry.lock", 35, TORCH),
    "torch-xformers/pylock.toml": ("pylock.toml", 33, TORCH),
    "torch-xformers/requirements.txt": ("requirements.txt", 33, TORCH),
    "torch-xformers/freeze.txt": ("requirements.txt", 32, TORCH),
    "torch-xformers/inspect.json": ("pip inspect", 33, TORCH),
    "vllm/uv.lock": ("uv.lock", 197, {"vllm": "0.32.0", "torch": "2.13.0"}),
    "jax-cuda12/uv.lock": (
        "uv.lock",
        21,
        {"jax": "0.10.2", "jaxlib": "0.10.2", "jax-cuda12-plugin": "0.10.2"},
    ),
    "tensorflow-cuda/uv.lock": ("uv.lock", 44, {"tensorflow": "2.21.0"}),
    "tensorflow-cuda/requirements.txt": (
        "requirements.txt",
        44,
        {"tensorflow": "2.21.0"},
    ),
    "cupy-numba/uv.lock": (
        "uv.lock",
        5,
        {"cupy-cuda12x": "14.2.0", "numba": "0.68.1"},
    ),
    "onnxruntime-gpu/uv.lock": ("uv.lock", 5, ORT),
    "onnxruntime-gpu/poetry.lock": ("poetry.lock", 5, ORT),
    "onnxruntime-gpu/pdm.lock": ("pdm.lock", 5, ORT),
    "onnxruntime-gpu/pylock.toml": ("pylock.toml", 1, ORT),
    "onnxruntime-gpu/requirements.txt": ("requirements.txt", 5, ORT),
    "onnxruntime-gpu/Pipfile.lock": ("Pipfile.lock", 5, ORT),
    "script/infer.py": ("script", 3, {"onnxruntime-gpu": "1.23.2"}),
    "script/locked.py": ("uv.lock", 13, {"onnxruntime-gpu": "1.23.2"}),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_what_a_file_pins(name: str) -> None:
    form, count, expected = EXPECTED[name]
    pinned = read(name)
    selected = pinned.select(pinned.defaults, LINUX)
    assert pinned.form == form
    # Poetry locks two versions of some packages for one platform.
    assert len(selected) == count
    assert expected.items() <= versions(pinned).items()
    # Each pin is in its file, at its line.
    for pin, _ in selected:
        assert pin.line is not None
        lines = Path(pin.path).read_text(encoding="utf-8").splitlines()
        written = lines[pin.line - 1].lower().replace("_", "-").replace(".", "-")
        assert pin.name in written


@pytest.mark.parametrize("form", ["uv.lock", "poetry.lock", "pylock.toml"])
def test_one_wheel_of_a_package_is_for_a_target(form: str) -> None:
    pinned = read(f"torch-xformers/{form}")
    wheels = {pin.name: wheel for pin, wheel in pinned.select(frozenset(), LINUX)}
    torch = wheels["torch"]
    assert torch is not None
    assert torch.filename == "torch-2.15.0-cp311-cp311-manylinux_2_28_x86_64.whl"
    assert torch.sha256 is not None
    other = "https://files.example/packages/" if form != "poetry.lock" else None
    assert torch.url == (other and other + torch.filename)


def test_a_wheel_for_another_platform_and_python() -> None:
    pinned = read("torch-xformers/uv.lock")
    on_arm = {pin.name: wheel for pin, wheel in pinned.select(frozenset(), ARM)}
    assert on_arm["torch"] is not None
    assert on_arm["torch"].filename.endswith("cp312-cp312-manylinux_2_28_aarch64.whl")
    on_windows = versions(pinned, WINDOWS)
    assert "torch" in on_windows
    assert not [name for name in on_windows if name.startswith("nvidia-")]
    assert [name for name in versions(pinned) if name.startswith("nvidia-")]


def test_what_a_package_requires_where_the_form_says_it() -> None:
    for name in ("poetry.lock", "inspect.json"):
        (torch,) = (
            pin for pin in read(f"torch-xformers/{name}").pins if pin.name == "torch"
        )
        assert torch.requires is not None
        parsed = {r.name: r for r in map(Requirement, torch.requires)}
        assert str(parsed["nvidia-nccl-cu13"].specifier) == "==2.30.7"
        assert parsed["cuda-toolkit"].marker == Marker('platform_system == "Linux"')
    (torch,) = (p for p in read("torch-xformers/uv.lock").pins if p.name == "torch")
    assert torch.requires is not None
    assert "nvidia-nccl-cu13" in {Requirement(x).name for x in torch.requires}
    (torch,) = (p for p in read("torch-xformers/freeze.txt").pins if p.name == "torch")
    assert torch.requires is None


def test_hashes_of_requirements_are_kept() -> None:
    for name in ("requirements.txt", "Pipfile.lock"):
        (pin,) = (
            pin
            for pin in read(f"onnxruntime-gpu/{name}").pins
            if pin.name == "onnxruntime-gpu"
        )
        assert len(pin.hashes) == 4
        assert not pin.wheels


@pytest.mark.parametrize(
    ("extra", "torch"),
    [
        ("cpu", "2.9.1+cpu"),
        ("torch-cu12", "2.9.1+cu126"),
        ("torch-cu13", "2.9.1+cu130"),
    ],
)
def test_conflicting_extras(extra: str, torch: str) -> None:
    pinned = read("conflicting-extras/uv.lock")
    choice = Choice("extra", extra)
    found = versions(pinned, LINUX, frozenset({choice}))
    assert found["torch"] == torch
    assert "torch" not in versions(pinned)
    assert {choice} | pinned.defaults in pinned.alternatives()
    (conflict,) = pinned.conflicts
    assert choice in conflict
    with pytest.raises(UsageError, match="conflict"):
        pinned.choose([x.name for x in conflict])


def test_choices_are_named_by_what_the_tool_calls_them() -> None:
    for form in ("poetry.lock", "pdm.lock", "pylock.toml"):
        pinned = read(f"extras-and-groups/{form}")
        chosen = pinned.choose(["CU12"])
        assert Choice("extra", "cu12") in chosen
        assert pinned.choose(groups=["cu12"]) == chosen
        found = versions(pinned, LINUX, chosen)
        assert "cupy-cuda12x" in found
        assert "cupy-cuda13x" not in found
        assert "cupy-cuda13x" in versions(pinned, LINUX, pinned.choose(["cu13"]))
        assert "numba" in versions(pinned, LINUX, pinned.choose(groups=["bench"]))
        with pytest.raises(UsageError, match=r"no extra 'cu11'; choose from: --"):
            pinned.choose(["cu11"])


def test_a_workspace_asks_for_an_extra_of_its_member() -> None:
    pinned = read("workspace/uv.lock")
    found = versions(pinned)
    assert "onnxruntime-gpu" in found
    assert "onnxruntime" not in found
    assert "core" not in found
    # The choice excludes the extra cpu of that member.
    assert not any(Choice("extra", "cpu") in x for x in pinned.alternatives())
    legacy = pinned.choose(groups=["legacy"])
    assert Choice("group", "gpu-tests") not in legacy
    assert versions(pinned)["numba"] != versions_of(pinned, legacy)["numba"]
    assert pinned.why_not(LINUX) is None
    assert "other platforms: sys_platform == 'linux'" in str(pinned.why_not(WINDOWS))


def versions_of(pinned: PinnedFile, chosen: frozenset[Choice]) -> dict[str, str]:
    return {p.name: str(p.version) for p, _ in pinned.select(chosen, LINUX)}


def test_a_file_for_another_python_says_so() -> None:
    pinned = read("onnxruntime-gpu/poetry.lock")
    old = pinned.target(python_version="3.9")
    assert "it is for Python" in str(pinned.why_not(old))
    assert pinned.target().variables["python_version"] in ("3.11", "3.12", "3.13")


def test_a_lock_of_pip_is_for_the_python_of_its_wheels() -> None:
    pinned = read("onnxruntime-gpu/pylock.toml")
    ((_, wheel),) = pinned.select(frozenset(), pinned.target(["linux_x86_64"]))
    assert pinned.requires_python is None
    assert wheel is not None
    other = replace(pinned, pins=(renamed(pinned.pins[0], "cp311", "cp39"),))
    assert other.target().python == "3.9"


def renamed(pin: Pin, old: str, new: str) -> Pin:
    names = (wheel.filename.replace(old, new) for wheel in pin.wheels)
    return replace(pin, wheels=tuple(PinnedWheel(filename=name) for name in names))


# The tools themselves list the packages that they install.
CHOICES = [(), ("--extra", "cpu"), ("--extra", "torch-cu12"), ("--no-group", "dev")]


@pytest.mark.parametrize("words", CHOICES, ids=" ".join)
def test_uv_installs_what_is_selected(words: tuple[str, ...], tmp_path: Path) -> None:
    folder = tmp_path / "project"
    shutil.copytree(PINS / "conflicting-extras", folder)
    pinned = read_pins(str(folder / "uv.lock"))
    extras = [words[1]] if "--extra" in words else []
    chosen = pinned.choose(extras)
    if "--no-group" in words:
        chosen -= {Choice("group", "dev")}
    assert versions_of(pinned, chosen) == exported(folder, *words)


@pytest.mark.parametrize(
    "words", [(), ("--group", "legacy", "--no-group", "gpu-tests")], ids=" ".join
)
def test_uv_installs_what_is_selected_of_a_workspace(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    folder = tmp_path / "project"
    shutil.copytree(PINS / "workspace", folder)
    pinned = read_pins(str(folder / "uv.lock"))
    chosen = pinned.choose(groups=["legacy"] if words else [])
    assert versions_of(pinned, chosen) == exported(folder, *words)


def exported(folder: Path, *words: str) -> dict[str, str]:
    """Return the packages that uv installs on Linux, by its own reading of the lock
    file."""
    command = [uv.find_uv_bin(), "export", "--frozen", "--no-hashes", "--offline"]
    command += ["--no-emit-workspace", "--no-header", "--no-annotate", "-q"]
    environ = {**os.environ, "UV_PYTHON": sys.executable, "UV_NO_CONFIG": "1"}
    environ["UV_CACHE_DIR"] = str(folder / "cache")
    done = subprocess.run(
        [*command, *words],
        cwd=folder,
        env=environ,
        capture_output=True,
        text=True,
        check=True,
    )
    lines = map(Requirement, filter(None, done.stdout.splitlines()))
    variables = dict(LINUX.variables)
    return {
        line.name: str(line.specifier)[2:]
        for line in lines
        if line.marker is None or line.marker.evaluate(variables)
    }


@pytest.mark.parametrize("extras", [[], ["cu12"], ["cu13", "jit"]], ids="-".join)
def test_packaging_installs_what_is_selected(extras: list[str]) -> None:
    pylock = pytest.importorskip("packaging.pylock")
    path = PINS / "extras-and-groups" / "pylock.toml"
    from nvp.pins.documents import parse_toml

    lock = pylock.Pylock.from_dict(parse_toml(path.read_text(encoding="utf-8")))
    tags = [Tag(*tag.split("-")) for tag in LINUX.ranks]
    expected = {
        str(package.name): file.filename
        for package, file in lock.select(
            environment=dict(LINUX.variables), tags=tags, extras=extras
        )
    }
    pinned = read_pins(str(path))
    found = {
        pin.name: wheel and wheel.filename
        for pin, wheel in pinned.select(pinned.choose(extras), LINUX)
    }
    assert found == expected


def test_a_project_pins_nothing() -> None:
    with pytest.raises(InputError, match=r"is a project.*name its lock file"):
        read("workspace/pyproject.toml")
