"""Extensions of PyPI, with the results of the real loader.

``pytest -m network`` downloads them. ``NVP_TEST_TORCH`` names an environment with a
torch of the new C++ ABI, 2.7 or newer.
"""

from __future__ import annotations

import os
import subprocess
import zipfile
from pathlib import Path

import pytest
from support.downloads import download

from nvp import api
from nvp.doctor.runner import Diagnosis

# Read the variable at import, because a fixture removes it before each test.
TORCH = os.environ.get("NVP_TEST_TORCH")

pytestmark = [
    pytest.mark.network,
    pytest.mark.skipif(TORCH is None, reason="NVP_TEST_TORCH names no environment"),
]

_LOAD = "import ctypes, sys, torch; ctypes.CDLL(sys.argv[1])"


def with_wheel(prefix: Path, wheel: Path) -> Path:
    """Make an environment with a wheel and the packages of TORCH."""
    (folder,) = Path(str(TORCH)).glob("lib/python3*/site-packages")
    packages = prefix / folder.relative_to(str(TORCH))
    packages.mkdir(parents=True)
    (prefix / "pyvenv.cfg").write_text((Path(str(TORCH)) / "pyvenv.cfg").read_text())
    for item in folder.iterdir():
        if not item.name.startswith(("torchvision", "torchaudio")):
            (packages / item.name).symlink_to(item)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(packages)
    return packages


def check(prefix: Path) -> Diagnosis:
    machine = api.Environment.from_dict(
        {
            "cuda_driver_version": "13.4",
            "gpus": [{"index": 0, "compute_capability": "9.0"}],
        }
    )
    return api.doctor(str(prefix), environment=machine, is_here=False)


def codes(diagnosis: Diagnosis) -> set[str]:
    found = {finding.code for finding in diagnosis.findings}
    return {code for code in found if code.startswith("ND5")}


def test_what_is_installed_fits() -> None:
    assert codes(check(Path(str(TORCH)))) == set()


@pytest.mark.parametrize(
    ("name", "library", "expected"),
    [
        (
            "torchvision-0.20.1-cp311-cp311-manylinux1_x86_64.whl",
            "torchvision/image.so",
            {"ND501", "ND503"},
        ),
        (
            "torchvision-0.28.0-cp311-cp311-manylinux_2_28_x86_64.whl",
            "torchvision/image.so",
            {"ND503"},
        ),
    ],
)
def test_an_extension_of_another_torch(
    name: str, library: str, expected: set[str], tmp_path: Path
) -> None:
    packages = with_wheel(tmp_path / "env", download(name, tmp_path))
    diagnosis = check(tmp_path / "env")
    assert codes(diagnosis) == expected
    (extension,) = (
        item
        for item in diagnosis.stack.extensions
        if item.path == str(packages / library)
    )
    done = subprocess.run(
        [f"{TORCH}/bin/python", "-B", "-c", _LOAD, str(packages / library)],
        capture_output=True,
        check=False,
    )
    assert done.returncode != 0
    symbol = done.stderr.strip().rpartition(b"undefined symbol: ")[2]
    assert symbol in extension.other_abi + extension.missing
