"""The rules of SASS, compared to NVIDIA's linker, which has the rules of drivers.

``pytest -m network`` downloads two versions of nvJitLink, and ``ptxas`` of three
toolkits, whose relocatable code the linker is asked to link for each GPU. The linker
refuses all code of newer toolkits, so the tests leave this code out.
"""

from __future__ import annotations

import ctypes
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from support.downloads import download

from nvidia_variant_provider.machine.environment import CudaVersion
from nvp.knowledge.tables import gpu_models, runs_machine_code, toolkits
from tools.ptxas import fetch

pytestmark = [
    pytest.mark.network,
    pytest.mark.skipif(
        sys.platform != "linux", reason="the wheels of the linker are for Linux"
    ),
]

LINKERS = {"13.0": "13.0.88", "13.4": "13.4.92"}
ASSEMBLERS = {
    "12.9": "nvidia-cuda-nvcc-cu12==12.9.86",
    "13.0": "nvidia-cuda-nvcc==13.0.88",
    "13.4": "nvidia-cuda-nvcc==13.4.92",
}

ON_PURPOSE = {
    ("13.0", "100", "10.3"): "documented for Blackwell; nvJitLink 13.1 fixes it",
    ("13.0", "100f", "10.3"): "documented for Blackwell; nvJitLink 13.1 fixes it",
    ("13.0", "70", "7.5"): "nvJitLink 12.4, 12.8 and 13.2 accept it",
    ("13.0", "101", "11.0"): "nvJitLink 13.1 and newer know both names of Thor",
    ("13.0", "101a", "11.0"): "nvJitLink 13.1 and newer know both names of Thor",
    ("13.0", "101f", "11.0"): "nvJitLink 13.1 and newer know both names of Thor",
}
"""The exceptions, which the linker refuses and the rules accept: linker, code, GPU."""

KERNEL = """\
.version {isa}
.target sm_{target}
.address_size 64
.visible .entry kernel() {{ ret; }}
"""


@pytest.fixture(scope="module")
def code(tmp_path_factory: pytest.TempPathFactory) -> Mapping[tuple[str, str], bytes]:
    """Return relocatable SASS by toolkit and target."""
    folder = tmp_path_factory.mktemp("code")
    source, output = folder / "kernel.ptx", folder / "kernel.cubin"
    made = {}
    for version, requirement in ASSEMBLERS.items():
        toolkit = toolkits()[CudaVersion.parse(version)]
        isa = ".".join(map(str, toolkit.ptx_isa))
        program = fetch(requirement).path
        for target in toolkit.targets:
            if int(target.rstrip("af")) >= 70:
                source.write_text(KERNEL.format(isa=isa, target=target))
                command = [str(program), "-c", f"-arch=sm_{target}", str(source)]
                command += ["-o", str(output)]
                subprocess.run(command, check=True, capture_output=True)
                made[version, target] = output.read_bytes()
    return made


def load(version: str, folder: Path) -> ctypes.CDLL:
    """Return the linker, after downloading its wheel into ``folder``."""
    platforms = "manylinux2010_x86_64.manylinux_2_12_x86_64"
    wheel = download(f"nvidia_nvjitlink-{version}-py3-none-{platforms}.whl", folder)
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (n for n in archive.namelist() if n.endswith("libnvJitLink.so.13"))
        return ctypes.CDLL(archive.extract(name, folder))


def links(linker: ctypes.CDLL, code: bytes, target: str) -> bool:
    """Return whether the linker accepts SASS (input type 1) for a target."""
    handle = ctypes.c_void_p()
    option = (ctypes.c_char_p * 1)(f"-arch=sm_{target}".encode())
    assert linker.nvJitLinkCreate(ctypes.byref(handle), 1, option) == 0, target
    size = ctypes.c_size_t(len(code))
    failed = linker.nvJitLinkAddData(handle, 1, code, size, b"kernel")
    failed = failed or linker.nvJitLinkComplete(handle)
    linker.nvJitLinkDestroy(ctypes.byref(handle))
    return not failed


@pytest.mark.parametrize("version", LINKERS)
def test_the_rules_agree_with_the_linker(
    version: str, code: Mapping[tuple[str, str], bytes], tmp_path: Path
) -> None:
    linker, driver = load(LINKERS[version], tmp_path), CudaVersion.parse(version)
    known = toolkits()[driver].targets
    gpus = [gpu for gpu in gpu_models() if gpu.sm in known]
    differing, unknown = set(), set()
    for (made_by, target), content in code.items():
        toolkit = CudaVersion.parse(made_by)
        for gpu in gpus if toolkit <= driver else ():
            # A GPU has two names for linkers, and newer linkers accept code for `90a`
            # only with the second.
            names = [name for name in (gpu.sm, f"{gpu.sm}a") if name in known]
            linked = any(links(linker, content, name) for name in names)
            runs = runs_machine_code(target, gpu, toolkit, driver)
            if runs is None:
                # The linker accepts the code, and PyTorch's tables have only newer
                # code.
                assert linked, (made_by, target, gpu)
                unknown.add((target, str(gpu)))
            elif linked != runs:
                assert runs, (made_by, target, gpu)
                differing.add((version, target, str(gpu)))
    assert differing == {cell for cell in ON_PURPOSE if cell[0] == version}
    crossing = {("80", "8.7"), ("86", "8.7"), ("80", "8.8"), ("86", "8.8")}
    crossing |= {("87", "8.8"), ("87", "8.9"), ("88", "8.9")}
    assert unknown == (crossing if version == "13.4" else set())
