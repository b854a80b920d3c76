"""``pip``: requirements of the user that exclude all builds for this machine."""

from __future__ import annotations

import hashlib
import platform
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.index_server import serve
from support.processes import PIPS, Pip, installed_labels
from support.wheels import stub_wheel, write_page

pytestmark = pytest.mark.skipif(
    (sys.platform, platform.machine()) != ("linux", "x86_64"),
    reason="the wheels are for Linux on x86_64",
)

TAG = "py3-none-manylinux_2_17_x86_64"
MACHINE = ("--cuda-driver", "12.4", "--sm-arch", "8.0")
CUDA_13 = ["nvidia-cuda-runtime==13.0.96", "bindings-gpu<14,>=13.0.3"]
WHEELS: dict[str, dict[str, list[str]]] = {
    "torch": {"2.14.1": CUDA_13, "2.12.1": CUDA_13, "2.11.0": CUDA_13, "2.10.0": []},
    "torchvision": {
        "0.29.1": ["torch==2.14.1"],
        "0.27.1": ["torch==2.12.1"],
        "0.26.0": ["torch==2.11.0"],
        "0.25.0": ["torch==2.10.0"],
    },
    "vllm": {
        "0.30.9": ["torch==2.14.1", "torchvision==0.29.1"],
        "0.26.9": ["torchvision==0.27.1", "torch==2.12.1"],
        "0.19.9": ["torch==2.10.0", "torchvision==0.25.0"],
    },
    # The build has code for CUDA 13, without the version of torch.
    "torchaudio": {
        "2.11.0": ["nvidia-cuda-runtime==13.0.96"],
        "2.10.0": ["torch==2.10.0"],
    },
    "bindings-gpu": {
        "13.5.0": ['cuda-toolkit==13.*; extra == "all"'],
        "12.9.1": ['cuda-toolkit==12.*; extra == "all"'],
    },
    "nvidia-cuda-runtime": {"13.0.96": []},
    "kernels": {
        "2.0": ["nvidia-cuda-runtime==13.0.96"],
        "1.0": ["nvidia-cuda-runtime-cu12==12.6.77"],
    },
    "nvidia-cuda-runtime-cu12": {"12.6.77": []},
}
PINNED = {
    "torch": "2.12.1 None",
    "torchvision": "0.27.1 None",
    "bindings-gpu": "13.5.0 None",
    "nvidia-cuda-runtime": "13.0.96 None",
}
TORCH = "torch 2.12.1 was installed although it cannot run here: it needs a driver for"


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("index")
    for project, releases in WHEELS.items():
        for version, requires in releases.items():
            stub_wheel(folder / project, project, version, tag=TAG, requires=requires)
        write_page(folder / project)
    return folder


@pytest.fixture(scope="module")
def url(index: Path) -> Iterator[str]:
    with serve(index) as served:
        yield served


@pytest.fixture
def hashes(index: Path) -> str:
    """Return requirements with the hashes of the remaining builds."""
    lines = []
    for project, version in PINNED.items():
        release = version.removesuffix(" None")
        (path,) = (index / project).glob(f"*-{release}-*.whl")
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        lines.append(f"{project}=={release} --hash=sha256:{digest}\n")
    return "".join(lines)


@pytest.mark.parametrize(
    "form",
    [
        *(f"{form} {PIPS[-1]}" for form in ("constraint", "hashes", "range")),
        # pip reads two files.
        f"nested {PIPS[0]}",
        pytest.param(f"nested {PIPS[-1]}", marks=pytest.mark.slow),
        pytest.param(f"constraint {PIPS[0]}", marks=pytest.mark.slow),
    ],
)
def test_a_pin_and_its_companion(
    form: str, hashes: str, url: str, pip_of: Callable[[str], Pip], tmp_path: Path
) -> None:
    """The remaining builds are installed with their requirements, and one warning for
    each."""
    (tmp_path / "c.txt").write_text("torch==2.12.1\n")
    (tmp_path / "r.txt").write_text("-r n.txt\ntorchvision\n")
    (tmp_path / "n.txt").write_text("torch==2.12.1\n")
    (tmp_path / "h.txt").write_text(hashes)
    form, version = form.split()
    words = {
        "constraint": ["torchvision", "-c", "c.txt"],
        "nested": ["-r", "r.txt"],
        "hashes": ["--require-hashes", "-r", "h.txt"],
        "range": ["torch>=2.11", "torchvision", "torch<2.14"],
    }[form]
    done = pip_of(version)(
        *("install", "-i", url, "--target", tmp_path / "it", *MACHINE, *words),
        forced=False,
        cwd=tmp_path,
    )
    assert done.code == 0, done.text
    assert installed_labels(tmp_path / "it") == PINNED
    warned = [line for line in done.err.splitlines() if line.startswith("warning: ")]
    asked = "torchvision 0.27.1 was installed although it cannot run here: it requires"
    if form == "constraint":
        # torchvision requires torch, and the warning has the reason why torch does not
        # run.
        assert [asked in line for line in warned] == [True]
    elif form != "hashes":
        assert [TORCH in line for line in warned] == [True, False], done.err
        assert asked in warned[1]


def test_what_requires_a_companion(pip: Pip, url: str, tmp_path: Path) -> None:
    words = ("install", "-i", url, "--target", tmp_path / "it", *MACHINE)
    done = pip(*words, "torch==2.12.1", "vllm", "torchaudio", forced=False)
    assert done.code == 0, done.text
    more = {"vllm": "0.26.9 None", "torchaudio": "2.11.0 None"}
    assert installed_labels(tmp_path / "it") == PINNED | more
    assert "torchaudio 2.11.0 was installed although it cannot run" in done.err


def test_the_others_still_step_back(pip: Pip, url: str, tmp_path: Path) -> None:
    words = ("install", "-i", url, "--target", tmp_path / "it", *MACHINE)
    done = pip(*words, "torch>=2.12", "kernels", forced=False)
    assert done.code == 0, done.text
    labels = installed_labels(tmp_path / "it")
    assert (labels["torch"], labels["kernels"]) == ("2.14.1 None", "1.0 None")
    assert "you asked for torch>=2.12" in done.err


def test_a_failure_names_what_was_hidden(pip: Pip, url: str) -> None:
    words = ("install", "--dry-run", "-i", url, "--ignore-installed", *MACHINE)
    done = pip(*words, "torch", "torchvision", "bindings-gpu<9", forced=False)
    assert done.code == 1
    assert "warning: pip was not shown what cannot run here: torch 2.14.1" in done.err
    assert "; bindings-gpu 13.5.0 needs a driver for CUDA 13, but" in done.err
    assert done.err.endswith("; with --unchecked, it is shown all\n")
