"""Rules that all records of the GPU and toolkit tables obey.

A wrong or missing entry for the next toolkit breaks one of these rules.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvidia_variant_provider.machine import supported
from nvidia_variant_provider.machine.environment import (
    ComputeCapability,
    CudaVersion,
    Environment,
)
from nvidia_variant_provider.machine.supported import (
    LOWER_BOUND,
    supported_features,
    supported_sm_arch,
)
from nvp.knowledge import tables
from nvp.knowledge.tables import (
    driver_branches,
    gpu_models,
    ptx_targets,
    runs_machine_code,
    runs_ptx,
    toolkits,
)

DATA = Path(tables.__file__).parent
# tests/nvp/builds/test_table.py has the invariants of the table of builds.
TABLES = sorted(path for path in DATA.glob("*.json") if path.stem != "builds")

TOOLKITS = list(toolkits().values())
GPUS = list(gpu_models().values())
CAPABILITIES = list(gpu_models())

NAMED = [gpu for gpu in GPUS if supported_sm_arch(gpu.compute_capability)]
"""The GPUs that properties can name."""

OLDEST_TOOLKIT = CudaVersion(9, 0)
OLDEST_MEASURED = CudaVersion(11, 7)
"""The oldest toolkit on PyPI; the records of older toolkits are from documents."""

SPANS: dict[str, tuple[str, str | None]] = {
    target: (first, last)
    for targets, first, last in [
        ("30 32", "9.0", "10.2"),
        ("35 37", "9.0", "11.8"),
        ("50 52 53 60 61 62 70", "9.0", "12.9"),
        ("72", "9.1", "12.9"),
        ("75", "10.0", None),
        ("80", "11.0", None),
        ("86", "11.1", None),
        ("87", "11.4", None),
        ("88", "13.0", None),
        ("89 90", "11.8", None),
        ("90a", "12.0", None),
        ("100 100a 120 120a", "12.8", None),
        ("100f 120f", "12.9", None),
        # Thor has one name in CUDA 12 and another one in CUDA 13.
        ("101 101a", "12.8", "12.9"),
        ("101f", "12.9", "12.9"),
        ("110 110a 110f", "13.0", None),
        ("103 103a 103f 121 121a 121f", "12.9", None),
        ("107 107a 107f", "13.4", None),
    ]
    for target in targets.split()
}
"""The first and the last toolkit of each target; ``None``: the newest one has it."""


def cuda(text: str) -> CudaVersion:
    return CudaVersion.parse(text)


def capability(sm: str) -> ComputeCapability:
    """Return 9.0 for ``90``, ``90a`` and ``90f``, and 12.1 for ``121``."""
    number = sm.rstrip("af")
    return ComputeCapability(int(number[:-1]), int(number[-1]))


def release(ptxas: str) -> tuple[int, ...]:
    return tuple(int(part) for part in ptxas.split("."))


NEWEST_RELEASE = max(ptx_targets(), key=release)
NEWEST_PTXAS = ptx_targets()[NEWEST_RELEASE]
NEWEST_TARGETS = toolkits()[cuda(NEWEST_RELEASE.rpartition(".")[0])].targets


def having(target: str) -> list[CudaVersion]:
    return [item.version for item in TOOLKITS if target in item.targets]


def newest_isa(driver: CudaVersion) -> tuple[int, int]:
    """Return the newest PTX version that a driver for a CUDA version compiles."""
    return max(item.ptx_isa for item in TOOLKITS if item.version <= driver)


def relaxed_bounds(driver: CudaVersion) -> list[str]:
    """Return the lower bounds of an answer with minor-version compatibility."""
    machine = Environment(cuda_driver_version=driver)
    features, _ = supported_features(machine, minor_version_compatibility=True)
    (bounds,) = (f.values for f in features if f.name == LOWER_BOUND)
    return bounds


SOURCES = ("ptxas", "https://", "METADATA of cuda-toolkit==", "not known")


def records(value: Any) -> Iterator[dict[str, Any]]:
    """Yield the records of a table, or of each of its sections."""
    if isinstance(value, dict):
        for section in value.values():
            yield from records(section)
    else:
        yield from value


class TestRecords:
    @pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
    def test_each_has_a_source_and_a_date(self, path: Path) -> None:
        rows = list(records(json.loads(path.read_bytes())))
        assert rows
        for row in rows:
            assert row["source"].strip()
            # Python 3.11 reads more forms of a date than this one.
            assert re.fullmatch(r"\d{4}-\d{2}-\d{2}", row["date"])
            assert date.fromisoformat(row["date"]) <= date.today()  # noqa: DTZ011

    @pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
    def test_each_source_can_be_looked_up(self, path: Path) -> None:
        """A source is a measurement, a URL, or a statement that the value is
        unknown."""
        for row in records(json.loads(path.read_bytes())):
            source = row["source"]
            assert "recalled" not in source
            assert "UNCONFIRMED" not in source
            assert any(word in source for word in SOURCES), source

    @pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
    def test_no_key_is_given_twice(self, path: Path) -> None:
        """A mapping by version or capability would keep the last record silently."""
        document = json.loads(path.read_bytes())
        for section in document.values() if isinstance(document, dict) else [document]:
            # The first key identifies a record; for GPUs and URLs, both keys do.
            count = 1 + any({"gpu", "url"} & {*row} for row in section)
            keys = [str(list(row.items())[:count]) for row in section]
            assert len(set(keys)) == len(keys)

    def test_mappings_ascend(self) -> None:
        assert sorted(CAPABILITIES) == CAPABILITIES
        assert list(toolkits()) == sorted(toolkits())
        assert next(iter(toolkits())) == OLDEST_TOOLKIT


class TestTargets:
    @pytest.mark.parametrize("item", TOOLKITS, ids=lambda item: str(item.version))
    def test_grammar_and_order(self, item: tables.Toolkit) -> None:
        assert all(re.fullmatch(r"[1-9]\d{1,2}[af]?", text) for text in item.targets)
        assert len(set(item.targets)) == len(item.targets)
        assert list(item.targets) == sorted(
            item.targets, key=lambda text: (capability(text), text)
        )

    @pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.compute_capability.sm)
    def test_gpu_has_its_toolkits_without_a_gap(self, gpu: tables.GpuModel) -> None:
        assert gpu.last_toolkit is None or gpu.first_toolkit <= gpu.last_toolkit
        assert having(gpu.compute_capability.sm) == [
            version
            for version in toolkits()
            if version >= gpu.first_toolkit
            and (gpu.last_toolkit is None or version <= gpu.last_toolkit)
        ]

    def test_every_target_has_a_gpu(self) -> None:
        known = {gpu.compute_capability.sm for gpu in GPUS}
        for item in TOOLKITS:
            assert {text for text in item.targets if text.isdecimal()} <= known

    def test_gpus_that_properties_cannot_name_are_fermi_and_kepler(self) -> None:
        """``sm_arch`` starts at 50."""
        unnamed = [gpu for gpu in GPUS if gpu not in NAMED]
        assert {gpu.architecture.split()[0] for gpu in unnamed} == {"Fermi", "Kepler"}

    def test_documents_agree_with_the_oldest_measured_toolkit(self) -> None:
        """CUDA 11.7 introduced no target, and has the documented targets of 11.6."""
        measured = toolkits()[OLDEST_MEASURED]
        assert "ptxas" in measured.source
        assert measured.targets == toolkits()[cuda("11.6")].targets

    @pytest.mark.parametrize("target", SPANS)
    def test_first_and_last_toolkit_of_a_target(self, target: str) -> None:
        first, last = SPANS[target]
        newest = TOOLKITS[-1].version if last is None else cuda(last)
        versions = having(target)
        assert (versions[0], versions[-1]) == (cuda(first), newest)

    def test_every_target_has_a_span(self) -> None:
        """A target of a new toolkit belongs in ``SPANS`` above."""
        assert set(SPANS) == {target for item in TOOLKITS for target in item.targets}

    @pytest.mark.parametrize("item", TOOLKITS, ids=lambda item: str(item.version))
    def test_suffixes(self, item: tables.Toolkit) -> None:
        """Every plain target from 9.0 on has ``a`` since CUDA 12.0.

        Every plain target from 10.0 on has ``f`` since CUDA 12.9.
        """
        plain = [text for text in item.targets if text.isdecimal()]
        for suffix, oldest, since in (("a", (9, 0), "12.0"), ("f", (10, 0), "12.9")):
            assert [text for text in item.targets if text.endswith(suffix)] == [
                f"{text}{suffix}"
                for text in plain
                if capability(text) >= oldest and item.version >= cuda(since)
            ]


class TestCatalog:
    """The values of variant properties, which `machine.supported` limits."""

    @pytest.mark.parametrize(
        "gpu",
        [gpu for gpu in GPUS if gpu.compute_capability >= ComputeCapability(5, 0)],
        ids=lambda gpu: gpu.compute_capability.sm,
    )
    def test_names_every_gpu(self, gpu: tables.GpuModel) -> None:
        """A GPU without a name gets CPU builds: widen machine/supported.py for it."""
        assert supported_sm_arch(gpu.compute_capability), (
            f"machine/supported.py cannot name {gpu.compute_capability}: see LOWEST "
            "and HIGHEST there, and whether the published catalog names it"
        )

    @pytest.mark.parametrize(
        "version",
        sorted({*driver_branches().values(), *(v for v in toolkits() if v.major > 10)}),
        ids=str,
    )
    def test_names_every_cuda_version(self, version: CudaVersion) -> None:
        """A version without a name counts as an older one."""
        assert supported.OLDEST <= version <= supported.NEWEST, (
            f"machine/supported.py cannot name CUDA {version}: see OLDEST and NEWEST"
        )

    @pytest.mark.parametrize(
        "gpu",
        NAMED,
        ids=lambda gpu: gpu.compute_capability.sm,
    )
    def test_named_machine_code_runs(self, gpu: tables.GpuModel) -> None:
        """All SASS in the answer runs.

        Systems on a chip are an exception: the published provider does not treat them
        differently, although they run no SASS of desktop GPUs.
        """
        own = gpu.compute_capability
        values = supported_sm_arch(own)
        assert values[0] == f"{own.sm}_real"
        for value in values:
            target, _, kind = value.partition("_")
            if kind == "virtual":
                assert runs_ptx(target, own)
            elif gpu.tegra or capability(target) not in gpu_models():
                continue
            elif not gpu_models()[capability(target)].tegra:
                assert runs_machine_code(target, own)


class TestPtx:
    def test_isa_ascends_with_the_toolkit(self) -> None:
        isas = [item.ptx_isa for item in TOOLKITS]
        assert isas == sorted(isas)
        twice = [str(x.version) for x in TOOLKITS if isas.count(x.ptx_isa) > 1]
        assert twice == ["12.5", "12.6"]
        assert toolkits()[cuda("12.5")].ptx_isa == (8, 5)

    def test_cuda_12_7_has_no_toolkit(self) -> None:
        """A driver reports 12.7. No toolkit emits its PTX version, 8.6."""
        assert cuda("12.7") not in toolkits()
        assert cuda("12.7") in driver_branches().values()
        assert (8, 6) not in {item.ptx_isa for item in TOOLKITS}
        assert tables.ptx_versions()[cuda("12.7")] == (8, 6)

    def test_ptx_that_is_newer_than_the_driver_is_refused(self) -> None:
        """A driver refuses an ISA that it does not know.

        The error is ``CUDA_ERROR_UNSUPPORTED_PTX_VERSION``, 222. A driver therefore
        compiles the PTX of toolkits up to its own version. Beyond that it compiles
        only PTX of the same ISA: a driver for 12.5 compiles that of toolkit 12.6.
        """
        drivers = [v for v in driver_branches().values() if v >= OLDEST_TOOLKIT]
        newer = {
            (str(driver), str(item.version))
            for driver in drivers
            for item in TOOLKITS
            if item.ptx_isa <= newest_isa(driver) and item.version > driver
        }
        assert newer == {("12.5", "12.6")}

    def test_newer_builds_of_a_major_have_ptx_that_is_refused(self) -> None:
        """This is why minor-version compatibility offers no ``virtual`` values."""
        for driver in (cuda("12.4"), cuda("13.0")):
            offered = relaxed_bounds(driver)
            newer = [x for x in TOOLKITS if x.version > driver]
            newer = [x for x in newer if str(x.version) in offered]
            assert newer
            assert all(item.ptx_isa > newest_isa(driver) for item in newer)

    def test_ptx_for_the_oldest_target_reaches_every_target(self) -> None:
        for ptxas, assembles in ptx_targets().items():
            item = toolkits()[cuda(ptxas.rpartition(".")[0])]
            reached = frozenset[str]().union(*assembles.values())
            assert reached <= set(item.targets)
            assert assembles["50"] == set(item.targets)

    def test_a_toolkit_with_new_targets_is_measured(self) -> None:
        """If this fails, add its ptxas to tools/sources/toolkits.json."""
        reached = {
            target
            for assembles in ptx_targets().values()
            for targets in assembles.values()
            for target in targets
        }
        # Kepler was dropped before the oldest ptxas of the table.
        kepler = {"30", "32", "35", "37"}
        # An announced toolkit has no ptxas yet.
        kits = [x for x in TOOLKITS if x.source[:5] in ("ptxas", "PTX I")]
        assert {t for item in kits for t in item.targets} - kepler == reached

    @pytest.mark.parametrize("ptxas", ptx_targets())
    def test_rules_of_runs_ptx_hold_for_each_ptxas(self, ptxas: str) -> None:
        """Plain PTX goes up, ``f`` PTX within its family, ``a`` PTX nowhere else."""
        version = cuda(ptxas.rpartition(".")[0])
        targets = toolkits()[version].targets
        for source, reached in ptx_targets()[ptxas].items():
            own = capability(source)
            if source in ("101a", "101f"):
                continue  # CUDA 13 assembles it for 11.0, the new name of Thor
            if source.endswith("f") and version < cuda("12.9"):
                # CUDA 12.8 accepts the suffix and ignores it.
                assert reached == ptx_targets()[ptxas][own.sm]
            elif source.endswith("a"):
                assert reached == {source}
            elif source.endswith("f"):
                assert {capability(target).major for target in reached} == {own.major}
                assert all(capability(target) >= own for target in reached)
            elif own.sm in targets or own < ComputeCapability(10, 0):
                assert reached == {t for t in targets if capability(t) >= own}

    @pytest.mark.parametrize(
        "members", ["100 103 107", "103 107", "107", "110", "120 121", "121"]
    )
    def test_family_has_the_same_gpus_for_machine_code_and_ptx(
        self, members: str
    ) -> None:
        family = set(members.split())
        source = f"{min(family)}f"
        assert {x for x in NEWEST_PTXAS[source] if x.isdecimal()} == family
        measured = [item for item in CAPABILITIES if item.sm in NEWEST_TARGETS]
        assert {item.sm for item in measured if runs_ptx(source, item)} == family
        assert {x.sm for x in measured if runs_machine_code(source, x)} == family

    @pytest.mark.parametrize("item", CAPABILITIES, ids=str)
    def test_runs_ptx_agrees_with_ptxas(self, item: ComputeCapability) -> None:
        for source, reached in NEWEST_PTXAS.items():
            # Leave out the two names of Thor: ptxas of CUDA 13 takes `101a` for 11.0
            # and no longer knows 10.1 as a target.
            if item.sm in NEWEST_TARGETS and source != "101a":
                compiled = {item.sm, f"{item.sm}a"} & reached
                assert runs_ptx(source, item) == bool(compiled), (source, item)

    def test_ptx_of_thor_crosses_its_renaming(self) -> None:
        """CUDA 13 calls 10.1 by the name 11.0; see `test_linkers` for machine code."""
        old, new = ComputeCapability(10, 1), ComputeCapability(11, 0)
        for source in ("101", "101f", "101a"):
            assert runs_ptx(source, new), source
            assert runs_machine_code(source, new), source
        for source in ("110", "110f", "110a"):
            assert not runs_ptx(source, old), source
            assert not runs_machine_code(source, old), source
        # No driver knows both names.
        assert not any(
            tables.can_exist(item, old) and tables.can_exist(item, new)
            for item in tables.driver_versions()
        )


class TestMachineCode:
    @pytest.mark.parametrize(
        ("target", "runs_on", "fails_on"),
        [
            ("70", "7.0 7.5", "7.2 8.0"),
            ("75", "7.5", "7.0 8.0"),
            # No toolkit and driver are known with which Orin runs code of desktop GPUs.
            ("80", "8.0 8.6 8.9", "7.5 8.7 8.8 9.0"),
            ("86", "8.6 8.9", "8.0 8.7"),
            ("87", "8.7", "8.6 8.8 8.9"),
            ("89", "8.9", "8.6 9.0"),
            ("90", "9.0", "10.0 12.0"),
            ("90a", "9.0", "10.0"),
            ("100", "10.0 10.3 10.7", "9.0 10.1 11.0 12.0"),
            ("100a", "10.0", "10.3 10.7"),
            ("101", "10.1 11.0", "10.3"),
            ("103f", "10.3 10.7", "10.0"),
            ("120", "12.0 12.1", "10.3 11.0"),
            ("120a", "12.0", "12.1"),
        ],
    )
    def test_known_cases(self, target: str, runs_on: str, fails_on: str) -> None:
        for text in runs_on.split():
            assert runs_machine_code(target, ComputeCapability.parse(text))
        for text in fails_on.split():
            assert not runs_machine_code(target, ComputeCapability.parse(text))

    @given(st.sampled_from(CAPABILITIES), st.sampled_from(CAPABILITIES))
    def test_rules(self, built: ComputeCapability, gpu: ComputeCapability) -> None:
        plain = runs_machine_code(built.sm, gpu)
        if built.major == gpu.major:
            assert runs_machine_code(f"{built.sm}a", gpu) == (built == gpu)
        # A cubin for a family runs on the same devices as a plain cubin.
        assert runs_machine_code(f"{built.sm}f", gpu) == plain
        if plain is not False:
            renamed = (built.sm, gpu.sm) == ("101", "110")
            assert renamed or built.major == gpu.major
            assert built <= gpu
        assert runs_ptx(built.sm, gpu) == (built <= gpu)

    @given(st.sampled_from(CAPABILITIES))
    def test_own_targets_run(self, gpu: ComputeCapability) -> None:
        for suffix in ("", "a", "f"):
            assert runs_machine_code(f"{gpu.sm}{suffix}", gpu)
        for suffix in ("", "a"):
            assert runs_ptx(f"{gpu.sm}{suffix}", gpu)
        assert not runs_machine_code("5", gpu)  # a file may have such a target


def test_name_is_the_first_product() -> None:
    assert all(gpu.name and gpu.name in gpu.products for gpu in GPUS)
    assert gpu_models()[ComputeCapability(5, 0)].name == "GeForce GTX 750 Ti"
    assert gpu_models()[ComputeCapability(9, 0)].name == "H100"
