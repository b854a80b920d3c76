"""The properties that a wheel could truthfully declare, and the GPUs it runs on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.containers import BINARIES, binaries
from support.reports import lib, wheel

from nvidia_variant_provider.machine.environment import ComputeCapability, CudaVersion
from nvidia_variant_provider.machine.supported import all_features, supported_sm_arch
from nvp import api
from nvp.gpu_code.bounds import required_runtimes
from nvp.gpu_code.claims import (
    TrueClaim,
    find_claim,
    find_gpus,
    gpus_of,
)
from nvp.gpu_code.describe import legend, suggest
from nvp.gpu_code.report import LibraryReport, WheelReport
from nvp.gpu_code.units import ptx_toolkit, split_units
from nvp.knowledge.tables import gpu_models, toolkits
from nvp.matrix.cells import all_capabilities, machine

CATALOG = next(f.values for f in all_features() if f.name == "sm_arch")


def both(one: Sequence[str], other: Sequence[str]) -> TrueClaim:
    return find_claim(wheel(lib(*one, path="a.so"), lib(*other, path="b.so")))


def how(report: WheelReport) -> Mapping[str, tuple[str, str | None]]:
    return {
        str(gpu.capability): (gpu.how, None if gpu.driver is None else str(gpu.driver))
        for gpu in find_gpus(report)
    }


@pytest.mark.parametrize(
    ("name", "sm_arch", "exact", "unnamed"),
    [
        ("plain.so", "75_real 80_real 90_real 90_virtual", "", ""),
        ("arch-specific.so", "", "90_real", "90a_real 100a_real 90a_virtual"),
        ("family-specific.so", "100_real 120_real", "", "100f_virtual"),
        ("ptx-only.so", "80_virtual", "", ""),
        ("host-only.so", "", "", ""),
        ("lto.so", "90_real", "", ""),
        ("relocatable.so", "80_real 90_real 90_virtual", "", ""),
        ("new-90a.cubin", "", "90_real", "90a_real"),
        ("old-100a.cubin", "", "", "100a_real"),
        ("new-100f.cubin", "100_real", "", ""),
        ("family-100f.ptx", "", "", "100f_virtual"),
        ("static.a", "80_real 120_real 120_virtual", "", ""),
        (
            "concatenated.so",
            "75_real 80_real 100_real 120_virtual",
            "90_real",
            "90a_real",
        ),
    ],
)
def test_binary(name: str, sm_arch: str, exact: str, unnamed: str) -> None:
    claim = find_claim(api.inspect(BINARIES / name))
    assert claim.sm_arch == tuple(sm_arch.split())
    assert claim.exact == tuple(exact.split())
    assert claim.unnamed == tuple(unnamed.split())


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        # A value must be true for both libraries.
        ("80_real 90_real", "80_real", "80_real"),
        ("80_real 86_real", "80_real", "80_real"),
        # 8.6 runs the code of both.
        ("80_real", "86_real", "86_real"),
        # The driver compiles the PTX of the other library.
        ("80_real 90_real", "80_virtual", "80_real 90_real"),
        ("80_real", "90_real", ""),
        ("90_real 90_virtual", "90_real", "90_real"),
        ("80_virtual", "70_virtual", "80_virtual"),
        ("100f_real", "100_real", "100_real"),
        ("100a_real", "100_real", ""),
        # A system on a chip runs no machine code for other GPUs.
        ("87_real", "80_real", ""),
    ],
)
def test_values_that_are_true_of_both_libraries(
    one: str, other: str, expected: str
) -> None:
    claim = both(one.split(), other.split())
    assert claim.sm_arch == tuple(expected.split())


def test_libraries_that_lack_a_target_are_named() -> None:
    assert both(["80_real", "90_real"], ["80_real"]).lacking == {"b.so": ("90_real",)}
    assert both(["80_real", "86_real"], ["80_real"]).lacking == {}


def test_values_for_gpus_where_the_driver_compiles_the_ptx() -> None:
    assert find_claim(wheel(lib("80_real", "90_virtual"))).compiled == (
        "100_virtual",
        "110_virtual",
        "120_virtual",
    )
    assert find_claim(wheel(lib("80_real"))).compiled == ()
    assert both(["80_real", "80_virtual"], ["80_real"]).compiled == ()
    family = find_claim(wheel(lib("100f_virtual")))
    assert (family.sm_arch, family.compiled) == ((), ("100_virtual",))


def test_vendored_libraries_do_not_count() -> None:
    report = wheel(lib("80_real"), lib("90_real", path="x.libs/y.so", vendored=True))
    assert find_claim(report).sm_arch == ("80_real",)
    assert how(report)["9.0"] == ("no", None)


def test_stubs_do_not_count() -> None:
    report = wheel(lib("80_real", "52_real", stubs={"52_real": 1}))
    assert find_claim(report).sm_arch == ("80_real",)
    assert find_claim(wheel(lib("52_real", stubs={"52_real": 1}))).sm_arch == ()


def test_ptx_next_to_a_stub_is_one_as_well() -> None:
    """vllm 0.6.3 to 0.19.1 have one entry of each kind for 5.2, without kernels."""
    targets = ("52_real", "52_virtual", "80_real", "80_virtual")
    stub = lib(*targets, stubs={"52_real": 1, "80_real": 1})
    stub = replace(stub, targets={**stub.targets, "80_real": 2, "80_virtual": 2})
    assert set(stub.kernels) == {"80_real", "80_virtual"}
    more = replace(stub, targets={**stub.targets, "52_virtual": 2})
    assert set(more.kernels) == {"52_virtual", "80_real", "80_virtual"}


@pytest.mark.parametrize(
    ("one", "other", "units"),
    [
        ("x/lib_cuda126.so", "x/lib_cuda130.so", ["x/lib_*.so"]),
        ("x/sm90/ops.so", "x/sm100/ops.so", ["x/*/ops.so"]),
        ("x/lib-cu12.so", "x/lib-cu13.so", ["x/lib-*.so"]),
        ("x/a_sm90.so", "x/b_sm90.so", ["x/a_sm90.so", "x/b_sm90.so"]),
        ("x/cuda12345.so", "x/cuda12346.so", ["x/cuda12345.so", "x/cuda12346.so"]),
        ("x/discus12.so", "x/discus13.so", ["x/discus12.so", "x/discus13.so"]),
    ],
)
def test_alternatives_are_one_unit(one: str, other: str, units: list[str]) -> None:
    report = wheel(lib("80_real", path=one), lib("90_real", path=other))
    assert [unit.name for unit in split_units(report)] == units


def test_the_oldest_of_alternatives_by_cuda_sets_the_bound() -> None:
    report = wheel(
        lib("80_real", path="l_cuda126.so", needed=["libcudart.so.12"]),
        lib("80_real", path="l_cuda130.so", needed=["libcudart.so.13"]),
    )
    claim = find_claim(report)
    assert claim.strict.version == claim.relaxed.version == CudaVersion(12, 6)
    assert "l_cuda126.so" in claim.strict.reason


# Bounds


@pytest.mark.parametrize(
    ("isa", "cuda"),
    [
        ((6, 4), "11.0"),
        ((7, 0), "11.0"),
        ((7, 8), "11.8"),
        ((8, 0), "12.0"),
        ((8, 5), "12.5"),
        ((8, 6), "12.7"),
        ((8, 7), "12.8"),
        ((9, 0), "13.0"),
        ((99, 0), None),
    ],
)
def test_toolkit_of_ptx(isa: tuple[int, int], cuda: str | None) -> None:
    toolkit = ptx_toolkit(isa)
    assert (None if toolkit is None else str(toolkit)) == cuda


def test_no_toolkit_is_older_than_the_first_with_its_ptx() -> None:
    for version, toolkit in toolkits().items():
        first = ptx_toolkit(toolkit.ptx_isa)
        assert first is not None
        # Properties cannot name versions older than 11.0.
        assert first <= max(version, CudaVersion(11))


@pytest.mark.parametrize(
    "text",
    ["", "???", "nvidia-cuda-runtime-cu12==abc", "x (", "nvidia-cu12 @ http://x"],
)
def test_requirements_that_tell_no_minor_version(text: str) -> None:
    runtimes = required_runtimes([text])
    assert all(item.version == CudaVersion(12, 0) for item in runtimes)


# GPUs


@pytest.mark.parametrize(
    ("targets", "needed", "listed"),
    [
        (["35_real"], "libcudart.so.11.0", {"3.5": "11.0", "3.7": "11.0"}),
        (["37_real"], "libcudart.so.11.0", {"3.7": "11.0"}),
        # Drivers for Kepler end with CUDA 11.4, and those for Fermi with 9.1.
        (["35_virtual"], "libcudart.so.12", {}),
        (["20_real"], "libc.so.6", {}),
        (["50_real"], "libcudart.so.11.0", {}),
    ],
)
def test_gpus_that_properties_cannot_name_count_where_it_runs(
    targets: list[str], needed: str, listed: Mapping[str, str]
) -> None:
    gpus = find_gpus(wheel(lib(*targets, isa="7.0", needed=[needed])))
    old = [gpu for gpu in gpus if gpu.capability < ComputeCapability(5, 0)]
    assert {str(gpu.capability): str(gpu.driver) for gpu in old} == listed


def test_gpus_of_a_plain_library() -> None:
    gpus = how(api.inspect(BINARIES / "plain.so"))
    assert gpus["7.0"] == ("no", None)
    assert gpus["8.9"] == ("native", "13.0")
    assert gpus["12.0"] == ("ptx", "13.5")
    # The library is for x86_64, unlike every Jetson.
    models = gpu_models()
    assert list(gpus) == [str(c) for c in all_capabilities() if not models[c].tegra]


@pytest.mark.parametrize(
    ("path", "form", "machine", "listed"),
    [
        ("demo-1.0-cp311-cp311-manylinux_2_28_x86_64.whl", "elf", "", False),
        ("demo-1.0-cp311-cp311-win_amd64.whl", "pe", "x86_64", False),
        ("demo-1.0-cp311-cp311-win_arm64.whl", "pe", "aarch64", False),
        ("demo-1.0-cp311-cp311-manylinux_2_34_aarch64.whl", "elf", "aarch64", True),
        ("https://x/demo-1.0-cp311-cp311-linux_aarch64-cu130.whl?k=1", "elf", "", True),
        ("demo-1.0-py3-none-manylinux1_x86_64.manylinux2014_aarch64.whl", "", "", True),
        # These wheels are for any platform, or their name has no platform.
        ("demo-1.0-py3-none-any.whl", "cubin", "cuda", True),
        ("demo-1.0-py3-none-any.whl", "elf", "x86_64", False),
        ("demo.whl", "elf", "aarch64", True),
        ("demo.whl", "elf", "x86_64", False),
    ],
)
def test_jetson_is_listed_for_what_can_be_on_one(
    path: str, form: str, machine: str, *, listed: bool
) -> None:
    library = lib("87_real", path="demo/a", format=form or "elf", machine=machine)
    gpus = how(report := wheel(library, path=path))
    assert ("8.7" in gpus) == listed
    assert any(x.startswith("native") for x in legend(find_gpus(report))) == listed
    # Drivers for CUDA 13.2 take newer code for Orin on desktop GPUs.
    assert (gpus["8.6"], gpus["8.9"]) == (("no", None), ("unknown", None))


@pytest.mark.parametrize(
    ("cuda", "orin"), [("13.2", ("native", "13.2")), ("13.0", ("unknown", None))]
)
def test_code_for_desktop_gpus_on_a_jetson(
    cuda: str, orin: tuple[str, str | None]
) -> None:
    isa = ".".join(map(str, toolkits()[CudaVersion.parse(cuda)].ptx_isa))
    library = lib("80_real", "90_virtual", ptx_isa={"90_virtual": (isa,)})
    gpus = how(wheel(library, path="demo-1.0-cp311-cp311-linux_aarch64.whl"))
    assert (gpus["8.7"], gpus["8.6"]) == (orin, ("native", "13.0"))


def test_code_of_the_tests_of_a_project_is_no_claim() -> None:
    """numba-cuda 0.30.4 has two PTX files in the directories of its tests."""
    code = [
        lib("20_virtual", path="numba_cuda/numba/cuda/tests/cudapy/jitlink.ptx"),
        lib("50_virtual", path="numba_cuda/Test/data/jitlink.ptx"),
    ]
    report = wheel(*code)
    assert report.tests == tuple(code)
    assert (find_claim(report).sm_arch, find_gpus(report)) == ((), ())
    own = lib("80_real", path="numba_cuda/testing.so")
    assert find_claim(wheel(*code, own)) == find_claim(wheel(own))


def test_gpu_that_is_newer_than_the_build() -> None:
    gpus = how(wheel(lib("100_real", needed=["libcudart.so.12"])))
    # The driver must support the GPU, which is newer than the build.
    assert gpus["10.3"] == ("native", "12.9")


def test_without_gpu_code_no_gpu_is_judged() -> None:
    assert find_gpus(wheel(lib())) == ()


TARGETS = st.lists(
    st.builds(
        "{}_{}".format,
        # Code for one GPU (a) exists since 9.0, and code for a family (f) since 10.0.
        st.sampled_from(
            [
                *(50, 75, 80, 86, 87, 90, 100, 101, 103, 110, 120, 121, 999),
                *("90a", "100a", "103a", "110a", "120a", "100f", "101f", "103f"),
            ]
        ),
        st.sampled_from(["real", "virtual"]),
    ),
    max_size=5,
    unique=True,
)


@given(st.lists(TARGETS, min_size=1, max_size=3))
def test_every_value_is_true_of_every_gpu_that_gets_it(
    libraries: list[list[str]],
) -> None:
    report = wheel(*(lib(*t, path=f"{i}.so") for i, t in enumerate(libraries)))
    claim = find_claim(report)
    support = {gpu.capability: gpu.how for gpu in find_gpus(report)}
    for value in (*claim.sm_arch, *claim.exact, *claim.compiled):
        assert value in CATALOG
        for gpu in gpus_of(value):
            assert support.get(gpu, "native") != "no", (value, gpu)
    assert not set(claim.sm_arch) & set(claim.exact)


@given(st.lists(TARGETS, min_size=1, max_size=3), st.data())
def test_a_wheel_with_fewer_libraries_runs_on_no_fewer_gpus(
    targets: list[list[str]], data: st.DataObject
) -> None:
    libraries = [lib(*t, path=f"{i}.so") for i, t in enumerate(targets)]
    fewer = [item for item in libraries if data.draw(st.booleans())]
    better = {gpu.capability for gpu in find_gpus(wheel(*fewer)) if gpu.how != "no"}
    worse = {gpu.capability for gpu in find_gpus(wheel(*libraries)) if gpu.how != "no"}
    kernels = any(unit.targets for unit in split_units(wheel(*fewer)))
    assert not kernels or worse <= better
    shuffled = wheel(*data.draw(st.permutations(libraries)))
    assert find_claim(shuffled) == find_claim(wheel(*libraries))


@given(
    st.lists(
        st.builds(
            "{}_{}".format,
            st.integers(0, 9999),
            st.sampled_from(["", "a", "f"]),
            st.sampled_from(["real", "virtual"]),
        ),
        max_size=4,
    ),
    st.builds("{}.{}".format, st.integers(0, 999), st.integers(0, 999)),
    st.lists(st.text(max_size=8) | st.sampled_from(["libcudart.so.999", "\n"])),
    st.text(max_size=20),
)
def test_hostile_names_and_numbers_raise_nothing(
    targets: list[str], isa: str, needed: list[str], path: str
) -> None:
    library = lib(*targets, isa=isa, needed=needed, path=path or "x")
    report = wheel(library, lib("80_real"), requires=needed)
    claim = find_claim(report)
    assert claim.to_dict()
    assert len(find_gpus(report)) in (0, len(all_capabilities()))
    assert set(claim.sm_arch) <= set(CATALOG)
    suggest(claim, path, "wheel")


def test_work_grows_linearly_with_the_number_of_cubins() -> None:
    """In quadratic time, this test would take minutes."""
    cubins = (
        lib(f"{sm}_real", path=f"c/{sm}-{i}.cubin", format="cubin")
        for sm in (80, 90, 100)
        for i in range(6000)
    )
    copies = (lib(path=f"x.libs/{i}.so", vendored=True) for i in range(2000))
    report = wheel(*cubins, *copies)
    assert find_claim(report).sm_arch == ("80_real", "90_real", "100_real")
    assert len(find_gpus(report)) == len(all_capabilities())


def test_gpus_of_a_value_are_those_that_the_provider_gives_it() -> None:
    """Systems on a chip are the exception: the provider does not single them out."""
    models = gpu_models()
    for value in CATALOG:
        number = int(value.partition("_")[0])
        lowest = ComputeCapability(number // 10, number % 10)
        tegra = lowest in models and models[lowest].tegra
        expected = {
            capability
            for capability, model in models.items()
            if value in supported_sm_arch(capability) and not (model.tegra or tegra)
        }
        assert set(gpus_of(value)) - {lowest} == expected - {lowest}


@pytest.mark.parametrize("relaxed", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_every_machine_that_gets_a_suggested_build_runs_it(*, relaxed: bool) -> None:
    """Inspect, declare and resolve: no machine gets a build that it cannot run."""
    suggested = 0
    for path in binaries():
        report = api.inspect(path)
        claim = find_claim(report)
        suggestion = suggest(claim, report.path, report.kind, relaxed=relaxed)
        if suggestion is None:
            continue
        suggested += 1
        support = {gpu.capability: gpu for gpu in find_gpus(report)}
        for cuda in toolkits():
            for capability, model in gpu_models().items():
                if model.tegra or cuda < model.first_toolkit:
                    continue
                choice = api.resolve(
                    suggestion.metadata, environment=machine(cuda, capability)
                )
                if choice.selected is None:
                    continue
                gpu = support[capability]
                assert gpu.how != "no", (path.name, capability)
                assert gpu.driver is not None
                assert gpu.driver <= cuda, (path.name, capability)
    assert suggested > 10


def relaxed(*libraries: LibraryReport) -> tuple[str, tuple[str, ...]]:
    claim = find_claim(wheel(*libraries))
    return str(claim.relaxed.version), claim.relaxed_sm_arch


def test_the_relaxed_bound_leaves_out_newer_ptx() -> None:
    code = ("80_real", "90a_real", "80_virtual")
    runtime = ["libcudart.so.12"]
    assert relaxed(lib(*code, isa="8.7", needed=runtime)) == (
        "12.0",
        ("80_real", "90_real"),
    )
    # Each driver for CUDA 12 compiles this PTX.
    assert relaxed(lib(*code, isa="7.8", needed=runtime)) == (
        "12.0",
        ("80_real", "80_virtual", "90_real"),
    )
    # Each of these drivers also compiles PTX of exactly that version.
    assert relaxed(lib("80_real", "80_virtual", isa="8.0", needed=runtime)) == (
        "12.0",
        ("80_real", "80_virtual"),
    )
    assert relaxed(lib("80_virtual", isa="8.7", needed=runtime)) == ("None", ())
