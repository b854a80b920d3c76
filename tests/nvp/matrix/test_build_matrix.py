"""The builds of a project for each GPU and processor, and which machine gets which.

The file describes the builds of PyTorch 2.8.0 with CUDA 12.8 that
barstoolbluz/build-pytorch lists, one label each: the package name without its
``pytorch-python313-``, dashes as dots. That project counts 62. Four of them are
companions, torchvision and torchaudio, which are releases of their own; 58 remain.

The tests follow its selection guide, except where the hardware differs from the guide:

- L40S is listed under SM90, but is of compute capability 8.9.
- SM103, SM110 and SM121 (B300, Thor, DGX Spark) have no build with CUDA 12.8. Code
  for 10.0 and 12.0 runs on B300 and DGX Spark; Thor is left with a CPU build.
- Graviton3 has SVE, but not SVE2: code for Armv9 would not run there. A Core
  i9-12900K has no AVX-512, Skylake no VNNI instructions.
- The builds for BF16 training and INT8 inference are "not for general workloads".
  Hence they need a second namespace, ``workload``, whose provider is optional. People
  who enable it get BF16 first, as in the guide; ``variants.toml`` can change that.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import pytest
from support.paths import FIXTURES

from nvidia_variant_provider.machine.environment import (
    ComputeCapability,
    CudaVersion,
    Environment,
)
from nvidia_variant_provider.metadata import read_metadata
from nvidia_variant_provider.resolution.inputs import Priorities
from nvidia_variant_provider.resolution.resolver import resolve_metadata
from nvp import api
from nvp.knowledge.tables import (
    driver_versions,
    gpu_models,
    runs_machine_code,
    toolkits,
)
from nvp.matrix.cells import (
    all_capabilities,
    find_cells,
    machine,
)

FOLDER = FIXTURES / "variants-json" / "build-matrix"
FILE = FOLDER / "pytorch-2.8.0-variants.json"
METADATA = read_metadata(FILE)
CUDA = CudaVersion(12, 8)

# The table of builds: architecture, instruction sets.
EVERY = "avx avx2 avx512 avx512bf16 avx512vnni armv8_2 armv9"
BUILDS = {
    "cpu": "avx2 avx512 avx512bf16 avx512vnni armv8_2 armv9",
    "sm61": "avx avx2",
    **dict.fromkeys(("sm75", "sm80", "sm86", "sm89", "sm90", "sm100", "sm120"), EVERY),
}
COMPANIONS = 4
"""torchvision and torchaudio, each for sm61 and sm75 with AVX."""

# The table of GPUs: compute capability, and the architecture of the build.
GPUS = {
    "DGX Spark": ("12.1", "sm120"),
    "RTX 5090": ("12.0", "sm120"),
    "DRIVE Thor": ("11.0", None),
    "B300": ("10.3", "sm100"),
    **dict.fromkeys(("B100", "B200"), ("10.0", "sm100")),
    **dict.fromkeys(("H100", "H200"), ("9.0", "sm90")),
    **dict.fromkeys(("RTX 4090", "RTX 4080", "RTX 4070 Ti"), ("8.9", "sm89")),
    **dict.fromkeys(("L4", "L40", "L40S"), ("8.9", "sm89")),
    **dict.fromkeys(("RTX 3090", "RTX 3090 Ti", "RTX 3080 Ti"), ("8.6", "sm86")),
    **dict.fromkeys(("A5000", "A40"), ("8.6", "sm86")),
    **dict.fromkeys(("A100", "A30"), ("8.0", "sm80")),
    **dict.fromkeys(("T4", "RTX 2080 Ti", "Quadro RTX 8000"), ("7.5", "sm75")),
    **dict.fromkeys(("GTX 1070", "GTX 1080", "GTX 1080 Ti"), ("6.1", "sm61")),
    "no GPU": (None, None),
}

Answers = Mapping[str, Mapping[str, Sequence[str]]]


def x86_64(level: int, *features: str) -> Answers:
    """Return the answer of a provider for x86_64, level first as in the real one."""
    levels = [f"v{number}" for number in range(level, 0, -1)]
    answer = {"level": levels, **{name: ["on"] for name in features}}
    return {"x86_64": answer, "aarch64": {}, "apple": {}}


def aarch64(versions: str, *features: str) -> Answers:
    answer = {"version": versions.split(), **{name: ["on"] for name in features}}
    return {"x86_64": {}, "aarch64": answer, "apple": {}}


BF16, VNNI, AVX = "avx512_bf16", "avx512_vnni", ("avx2", "avx")
V8_2 = "8.2a 8.1a"
V9_0 = "9.0a 8.5a 8.4a 8.3a 8.2a 8.1a"

# The table of processors: the answer, and the instruction sets whose builds run there,
# those for a workload before the others, and the best first.
CPUS: dict[str, tuple[Answers, str]] = {
    "Sandy Bridge": (x86_64(2, "avx"), "avx"),
    "Bulldozer": (x86_64(2, "avx"), "avx"),
    "Haswell": (x86_64(3, *AVX), "avx2 avx"),
    "Zen 1": (x86_64(3, *AVX), "avx2 avx"),
    "Core i9-12900K": (x86_64(3, "avx_vnni", *AVX), "avx2 avx"),
    "Skylake-X": (x86_64(4, *AVX), "avx512 avx2 avx"),
    "Cascade Lake": (x86_64(4, VNNI, *AVX), "avx512vnni avx512 avx2 avx"),
    "Cooper Lake": (
        x86_64(4, BF16, VNNI, *AVX),
        "avx512bf16 avx512vnni avx512 avx2 avx",
    ),
    "Zen 4": (
        x86_64(4, BF16, VNNI, *AVX),
        "avx512bf16 avx512vnni avx512 avx2 avx",
    ),
    "Graviton2": (aarch64(V8_2), "armv8_2"),
    "Neoverse N1": (aarch64(V8_2), "armv8_2"),
    "Graviton3": (aarch64(f"8.4a 8.3a {V8_2}", "sve"), "armv8_2"),
    "Graviton4": (aarch64(V9_0, "sve2", "sve"), "armv9 armv8_2"),
    "Grace": (aarch64(V9_0, "sve2", "sve"), "armv9 armv8_2"),
    "Nehalem": (x86_64(2), ""),
    "Cortex-A72": (aarch64(""), ""),
}
FOR_WORKLOADS = {"avx512bf16", "avx512vnni"}
MAC: Answers = {
    **aarch64(f"8.6a 8.5a 8.4a 8.3a {V8_2}"),
    "apple": {
        "gpu": ["mps"],
        "macos_version_lower_bound": ["14.0", "13.0", "12.3"],
    },
}


def decide(architecture: str | None, runs: str, *, workloads: bool) -> str | None:
    """Decide as the guide does: first by the GPU, then by the instruction set."""
    for group in (architecture, "cpu"):
        for isa in runs.split():
            if group is None or isa not in BUILDS[group].split():
                continue
            if workloads or isa not in FOR_WORKLOADS:
                return f"cpu.{isa}" if group == "cpu" else f"cuda12_8.{group}.{isa}"
    return None


def environment(capability: str | None, cuda: CudaVersion) -> Environment:
    if capability is None:
        return Environment()
    return machine(cuda, ComputeCapability.parse(capability))


def select(
    where: Environment,
    answers: Answers,
    *,
    workloads: bool = False,
    prefer: str | None = None,
    relaxed: bool = False,
) -> str | None:
    properties = {"workload": {"cpu": [prefer]}} if prefer else {}
    return resolve_metadata(
        METADATA,
        where,
        supported=answers,
        enable_optional=["workload"] if workloads else False,
        minor_version_compatibility=relaxed,
        priorities=Priorities(properties=properties),
    ).selected


def test_labels_equal_the_table_of_builds() -> None:
    labels = {
        f"cpu.{isa}" if group == "cpu" else f"cuda12_8.{group}.{isa}"
        for group, names in BUILDS.items()
        for isa in names.split()
    }
    assert set(METADATA.variants) == {*labels, "darwin.mps"}
    assert len(METADATA.variants) + COMPANIONS == 62


def test_no_two_labels_have_equal_properties() -> None:
    texts = [json.dumps(item, sort_keys=True) for item in METADATA.variants.values()]
    assert len(set(texts)) == len(texts)


def test_cuda_builds_declare_their_toolkit_and_target() -> None:
    for label, properties in METADATA.variants.items():
        if label.startswith("cuda12_8."):
            target = label.split(".")[1].removeprefix("sm")
            assert properties["nvidia"] == {
                "cuda_version_lower_bound": ("12.8",),
                "sm_arch": (f"{target}_real",),
            }
            assert target in toolkits()[CUDA].targets
        else:
            assert "nvidia" not in properties


@pytest.mark.parametrize("gpu", [name for name in GPUS if name != "no GPU"])
def test_the_guide_agrees_with_our_table_of_gpus(gpu: str) -> None:
    """The capability is that of our table, and the code of the build runs there."""
    capability, architecture = GPUS[gpu]
    assert capability is not None
    for model in gpu_models().values():
        if gpu in model.products.replace("/", ", ").split(", "):
            assert str(model.compute_capability) == capability
    if architecture is not None:
        target = architecture.removeprefix("sm")
        assert runs_machine_code(target, ComputeCapability.parse(capability))


@pytest.mark.parametrize("gpu", GPUS)
class TestGuide:
    def test_resolve(self, gpu: str) -> None:
        capability, architecture = GPUS[gpu]
        where = environment(capability, CUDA)
        for cpu, (answers, runs) in CPUS.items():
            for workloads in (False, True):
                expected = decide(architecture, runs, workloads=workloads)
                label = select(where, answers, workloads=workloads)
                assert label == expected, cpu

    def test_old_driver(self, gpu: str) -> None:
        """An old driver gets a CPU build, and with the opt-in the one for the GPU."""
        capability, architecture = GPUS[gpu]
        where = environment(capability, CudaVersion(12, 4))
        for cpu, (answers, runs) in CPUS.items():
            expected = decide(None, runs, workloads=False)
            assert select(where, answers) == expected, cpu
            expected = decide(architecture, runs, workloads=False)
            assert select(where, answers, relaxed=True) == expected, cpu


@pytest.mark.parametrize("cpu", CPUS)
def test_cells_of_the_matrix_follow_the_guide(cpu: str) -> None:
    """In these cells all optional providers are enabled."""
    answers, runs = CPUS[cpu]
    cells = find_cells(METADATA, supported=answers)
    by_machine = {(cell.cuda, str(cell.capability)): cell for cell in cells}
    for capability, architecture in GPUS.values():
        if capability is None:
            continue
        for cuda in driver_versions():
            cell = by_machine[cuda, capability]
            fits = architecture if cuda >= CUDA else None
            assert cell.label == decide(fits, runs, workloads=True)
            on_gpu = cell.label is not None and cell.label.startswith("cuda")
            assert cell.how == ("native" if on_gpu else "cpu")


@pytest.mark.parametrize(
    ("gpu", "cpu", "prefer", "label"),
    [
        # The examples of the guide. The first one has no AVX-512 (see above).
        ("RTX 3090", "Core i9-12900K", None, "cuda12_8.sm86.avx2"),
        ("RTX 3090", "Skylake-X", None, "cuda12_8.sm86.avx512"),
        ("H100", "Zen 4", None, "cuda12_8.sm90.avx512"),
        ("H100", "Zen 4", "int8_inference", "cuda12_8.sm90.avx512vnni"),
        ("H100", "Zen 4", "bf16_training", "cuda12_8.sm90.avx512bf16"),
        ("no GPU", "Haswell", None, "cpu.avx2"),
        ("H100", "Grace", None, "cuda12_8.sm90.armv9"),
        ("H100", "Graviton3", None, "cuda12_8.sm90.armv8_2"),
        ("RTX 5090", "Zen 4", None, "cuda12_8.sm120.avx512"),
        ("RTX 5090", "Core i9-12900K", None, "cuda12_8.sm120.avx2"),
        ("RTX 3090", "Cascade Lake", "int8_inference", "cuda12_8.sm86.avx512vnni"),
    ],
)
def test_examples_of_the_guide(
    gpu: str, cpu: str, prefer: str | None, label: str
) -> None:
    where = environment(GPUS[gpu][0], CUDA)
    answers, _ = CPUS[cpu]
    workloads = prefer is not None
    assert select(where, answers, workloads=workloads, prefer=prefer) == label


def test_a_mac_gets_its_own_build() -> None:
    assert select(Environment(), MAC) == "darwin.mps"


def test_no_label_is_shadowed() -> None:
    """For each label there is a machine that gets it."""
    # All builds have the same bound, so that two drivers are enough here; the test of
    # the matrix tries every driver.
    selected = {select(Environment(), MAC)}
    for answers, _ in CPUS.values():
        for prefer in (None, "bf16_training", "int8_inference"):
            for capability in (None, *map(str, all_capabilities())):
                for cuda in (driver_versions()[0], driver_versions()[-1]):
                    where = environment(capability, cuda)
                    on = prefer is not None
                    selected.add(select(where, answers, workloads=on, prefer=prefer))
    assert selected - {None} == set(METADATA.variants)


def test_the_python_api_selects_the_same() -> None:
    answers, _ = CPUS["Zen 4"]
    resolution = api.resolve(
        FILE,
        environment=environment("8.6", CUDA),
        supported=answers,
        priorities=Priorities(),
        environ={},
    )
    assert resolution.selected == "cuda12_8.sm86.avx512"
    metadata = resolution.metadata
    assert (metadata.name, metadata.version) == ("pytorch", "2.8.0")
