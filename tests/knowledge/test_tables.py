"""What all records of the tables in ``knowledge/`` obey, and the rules on them.

A wrong or forgotten entry of the next toolkit breaks one of these invariants.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import date
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvidia_variant_provider.knowledge import tables
from nvidia_variant_provider.knowledge.tables import (
    gpu_models,
    minor_version_floors,
    ptx_targets,
    runs_machine_code,
    runs_ptx,
    toolkit_drivers,
    toolkits,
)
from nvidia_variant_provider.machine.drivers import (
    CUDA_OF_BRANCH,
    cuda_of_kernel_driver,
)
from nvidia_variant_provider.machine.environment import (
    ComputeCapability,
    CudaVersion,
    Environment,
)
from nvidia_variant_provider.machine.supported import (
    LOWER_BOUND,
    OLDEST,
    supported_features,
    supported_sm_arch,
)

DATA = Path(tables.__file__).parent
TABLES = sorted(DATA.glob("*.json"))

TOOLKITS = list(toolkits().values())
GPUS = list(gpu_models().values())
CAPABILITIES = list(gpu_models())

OLDEST_TOOLKIT = CudaVersion(11, 7)
"""Of the table; what is older was not measured."""

SPANS: dict[str, tuple[str, str | None]] = {
    target: (first, last)
    for targets, first, last in [
        ("35 37", "11.7", "11.8"),
        ("50 52 53 60 61 62 70 72", "11.7", "12.9"),
        ("75 80 86 87", "11.7", None),
        ("88", "13.0", None),
        ("89 90", "11.8", None),
        ("90a", "12.0", None),
        ("100 100a 120 120a", "12.8", None),
        ("100f 120f", "12.9", None),
        # Thor, under its name of CUDA 12 and under that of CUDA 13.
        ("101 101a", "12.8", "12.9"),
        ("101f", "12.9", "12.9"),
        ("110 110a 110f", "13.0", None),
        ("103 103a 103f 121 121a 121f", "12.9", None),
        ("107 107a 107f", "13.4", None),
    ]
    for target in targets.split()
}
"""First and last toolkit, as ptxas of each of them says; ``None``: still there."""


def cuda(text: str) -> CudaVersion:
    return CudaVersion.parse(text)


def capability(sm: str) -> ComputeCapability:
    """``90``, ``90a`` and ``90f`` are of 9.0, ``121`` is of 12.1."""
    number = sm.rstrip("af")
    return ComputeCapability(int(number[:-1]), int(number[-1]))


def numbers(version: str) -> tuple[int, ...]:
    """A driver version by its parts: 570.124.06 is newer than 570.26."""
    return tuple(int(part) for part in version.split("."))


NEWEST_PTXAS = ptx_targets()[max(ptx_targets(), key=numbers)]


def having(target: str) -> list[CudaVersion]:
    return [item.version for item in TOOLKITS if target in item.targets]


def newest_isa(driver: CudaVersion) -> tuple[int, int]:
    """The newest PTX version that a driver for a CUDA version knows."""
    return max(item.ptx_isa for item in TOOLKITS if item.version <= driver)


def relaxed_bounds(driver: CudaVersion, kernel: str | None = None) -> list[str]:
    """The lower bounds of the opt-in answer of minor-version compatibility."""
    machine = Environment(cuda_driver_version=driver, kernel_driver_version=kernel)
    features, _ = supported_features(machine, minor_version_compatibility=True)
    (found,) = (x.values for x in features if x.name == LOWER_BOUND)
    return found


def records(value: Any) -> Iterator[dict[str, Any]]:
    """The records of a table, or of each of its sections."""
    if isinstance(value, dict):
        for section in value.values():
            yield from records(section)
    else:
        yield from value


class TestRecords:
    @pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
    def test_each_has_a_source_and_a_date(self, path: Path) -> None:
        found = list(records(json.loads(path.read_bytes())))
        assert found
        for record in found:
            assert record["source"].strip()
            # Python 3.11 reads more forms than this one.
            assert re.fullmatch(r"\d{4}-\d{2}-\d{2}", record["date"])
            assert date.fromisoformat(record["date"]) <= date.today()  # noqa: DTZ011

    @pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
    def test_nothing_is_there_twice(self, path: Path) -> None:
        """A mapping by version or capability would keep the last one silently."""
        # The first key tells records apart.
        found = [
            next(iter(row.items())) for row in records(json.loads(path.read_bytes()))
        ]
        assert len(set(found)) == len(found)

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
        assert item.default_target in item.targets

    @pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.compute_capability.sm)
    def test_gpu_has_its_toolkits(self, gpu: tables.GpuModel) -> None:
        """Without a gap, and by no toolkit before or after."""
        assert gpu.last_toolkit is None or gpu.first_toolkit <= gpu.last_toolkit
        assert having(gpu.compute_capability.sm) == [
            version
            for version in toolkits()
            if version >= gpu.first_toolkit
            and (gpu.last_toolkit is None or version <= gpu.last_toolkit)
        ]

    def test_targets_without_a_gpu_are_kepler(self) -> None:
        """Which properties cannot name: ``sm_arch`` starts at 50."""
        known = {gpu.compute_capability.sm for gpu in GPUS}
        for item in TOOLKITS:
            plain = {text for text in item.targets if text.isdecimal()}
            kepler = {"35", "37"} if item.version < cuda("12.0") else set()
            assert plain - known == kepler

    @pytest.mark.parametrize("target", SPANS)
    def test_measured(self, target: str) -> None:
        first, last = SPANS[target]
        newest = TOOLKITS[-1].version if last is None else cuda(last)
        found = having(target)
        assert (found[0], found[-1]) == (cuda(first), newest)

    def test_every_target_is_measured(self) -> None:
        """A target of a new toolkit belongs into the table above."""
        assert set(SPANS) == {target for item in TOOLKITS for target in item.targets}

    @pytest.mark.parametrize("item", TOOLKITS, ids=lambda item: str(item.version))
    def test_suffixes(self, item: tables.Toolkit) -> None:
        """``a`` only beside the plain target, from 9.0 and CUDA 12.0 on; then always.

        So is ``f``, from 10.0 and CUDA 12.9 on.
        """
        plain = [text for text in item.targets if text.isdecimal()]
        for suffix, oldest, since in (("a", (9, 0), "12.0"), ("f", (10, 0), "12.9")):
            assert [text for text in item.targets if text.endswith(suffix)] == [
                f"{text}{suffix}"
                for text in plain
                if capability(text) >= oldest and item.version >= cuda(since)
            ]


class TestPtx:
    def test_isa_ascends_with_the_toolkit(self) -> None:
        found = [item.ptx_isa for item in TOOLKITS]
        assert found == sorted(found)
        twice = [str(x.version) for x in TOOLKITS if found.count(x.ptx_isa) > 1]
        assert twice == ["12.5", "12.6"]
        assert toolkits()[cuda("12.5")].ptx_isa == (8, 5)

    def test_cuda_12_7_has_no_toolkit(self) -> None:
        """A driver reports it; its PTX version, 8.6, was never published."""
        assert cuda("12.7") not in toolkits()
        assert cuda("12.7") in CUDA_OF_BRANCH.values()
        assert (8, 6) not in {item.ptx_isa for item in TOOLKITS}

    def test_map_names_the_first_toolkit_of_each_isa(self) -> None:
        table = json.loads((DATA / "drivers.json").read_bytes())["ptx_isa"]
        found = {row["ptx_isa"]: cuda(row["cuda"]) for row in table}
        assert len(found) == len(table)
        first: dict[str, CudaVersion] = {}
        for item in TOOLKITS:
            first.setdefault(".".join(map(str, item.ptx_isa)), item.version)
        assert found == first

    def test_ptx_that_is_newer_than_the_driver_is_refused(self) -> None:
        """``CUDA_ERROR_UNSUPPORTED_PTX_VERSION``, 222, where the ISA is unknown.

        So a driver compiles the PTX of toolkits up to its own, and beyond that
        only of a toolkit that emits the same ISA: a driver for 12.5 that of 12.6.
        """
        drivers = [v for v in CUDA_OF_BRANCH.values() if v >= OLDEST_TOOLKIT]
        newer = {
            (str(driver), str(item.version))
            for driver in drivers
            for item in TOOLKITS
            if item.ptx_isa <= newest_isa(driver) and item.version > driver
        }
        assert newer == {("12.5", "12.6")}

    def test_compatible_drivers_of_a_major_are_offered_no_ptx(self) -> None:
        """The opt-in adds newer builds of the major, whose PTX would be refused."""
        for driver in (cuda("12.4"), cuda("13.0")):
            offered = relaxed_bounds(driver)
            newer = [x for x in TOOLKITS if x.version > driver]
            newer = [x for x in newer if str(x.version) in offered]
            assert newer
            assert all(item.ptx_isa > newest_isa(driver) for item in newer)

    def test_tables_are_of_known_toolkits(self) -> None:
        for ptxas, assembles in ptx_targets().items():
            item = toolkits()[cuda(ptxas.rpartition(".")[0])]
            found = frozenset[str]().union(*assembles.values())
            assert found <= set(item.targets)
            # What it makes machine code for, PTX for the oldest target reaches.
            assert assembles["50"] == set(item.targets)

    @pytest.mark.parametrize("ptxas", ptx_targets())
    def test_rules_of_the_tables(self, ptxas: str) -> None:
        """Plain PTX goes up, ``f`` PTX within its family, ``a`` PTX nowhere else.

        The rules that `runs_ptx` states, on every ptxas that was measured.
        """
        targets = toolkits()[cuda(ptxas.rpartition(".")[0])].targets
        for source, found in ptx_targets()[ptxas].items():
            own = capability(source)
            if source in ("101a", "101f"):
                # Thor: 13.x takes it for 11.0; 12.8 does not know families.
                continue
            if source.endswith("a"):
                assert found == {source}
            elif source.endswith("f"):
                assert {capability(target).major for target in found} == {own.major}
                assert all(capability(target) >= own for target in found)
            elif own.sm in targets or own < ComputeCapability(10, 0):
                assert found == {t for t in targets if capability(t) >= own}

    @pytest.mark.parametrize(
        "members", ["100 103 107", "103 107", "107", "110", "120 121", "121"]
    )
    def test_families(self, members: str) -> None:
        """The same GPUs for machine code and for PTX, as the newest ptxas has them."""
        family = set(members.split())
        source = f"{min(family)}f"
        assert {x for x in NEWEST_PTXAS[source] if x.isdecimal()} == family
        assert {item.sm for item in CAPABILITIES if runs_ptx(source, item)} == family
        runs = {item.sm for item in CAPABILITIES if runs_machine_code(source, item)}
        assert runs == family

    @pytest.mark.parametrize("item", CAPABILITIES, ids=str)
    def test_runs_ptx_agrees_with_ptxas(self, item: ComputeCapability) -> None:
        for source, found in NEWEST_PTXAS.items():
            # Thor's two names are left out: ptxas of CUDA 13 takes `101a` for 11.0,
            # and no longer knows 10.1 as a target.
            if item.sm in TOOLKITS[-1].targets and source != "101a":
                compiled = {item.sm, f"{item.sm}a"} & found
                assert runs_ptx(source, item) == bool(compiled), (source, item)


class TestMachineCode:
    @pytest.mark.parametrize(
        ("target", "runs_on", "fails_on"),
        [
            ("70", "7.0 7.5", "7.2 8.0"),
            ("75", "7.5", "7.0 8.0"),
            # Orin, Xavier and Thor run nothing of desktop GPUs, nor the reverse.
            ("80", "8.0 8.6 8.9", "7.5 8.7 8.8 9.0"),
            ("86", "8.6 8.9", "8.0 8.7"),
            ("87", "8.7", "8.6 8.8 8.9"),
            ("89", "8.9", "8.6 9.0"),
            ("90", "9.0", "10.0 12.0"),
            ("90a", "9.0", "10.0"),
            ("100", "10.0 10.3 10.7", "9.0 10.1 11.0 12.0"),
            ("100a", "10.0", "10.3 10.7"),
            ("101", "10.1", "10.3 11.0"),
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
        assert runs_machine_code(f"{built.sm}a", gpu) == (built == gpu)
        # "the same device set as a plain cubin"
        assert runs_machine_code(f"{built.sm}f", gpu) == plain
        if plain:
            assert built.major == gpu.major
            assert built <= gpu
        assert runs_ptx(built.sm, gpu) == (built <= gpu)

    @given(st.sampled_from(CAPABILITIES))
    def test_own_targets_run(self, gpu: ComputeCapability) -> None:
        for suffix in ("", "a", "f"):
            assert runs_machine_code(f"{gpu.sm}{suffix}", gpu)
        for suffix in ("", "a"):
            assert runs_ptx(f"{gpu.sm}{suffix}", gpu)

    @pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.compute_capability.sm)
    def test_what_properties_promise(self, gpu: tables.GpuModel) -> None:
        """The provider's answer names no machine code that would not run.

        On systems on a chip it does: the published provider knows no Tegra.
        """
        own = gpu.compute_capability
        for value in supported_sm_arch(own):
            target, _, kind = value.partition("_")
            if kind == "virtual":
                assert runs_ptx(target, own)
            elif gpu.tegra or capability(target) not in gpu_models():
                continue
            elif not gpu_models()[capability(target)].tegra:
                assert runs_machine_code(target, own)

    def test_names(self) -> None:
        assert all(gpu.name and gpu.name in gpu.products for gpu in GPUS)
        assert gpu_models()[ComputeCapability(5, 0)].name == "GeForce GTX 750 Ti"
        assert gpu_models()[ComputeCapability(9, 0)].name == "H100"


class TestDrivers:
    def test_newest_first(self) -> None:
        versions = [record.cuda for record in toolkit_drivers()]
        assert versions == sorted(versions, reverse=True)
        for record in toolkit_drivers():
            assert record.release.startswith(str(record.cuda))

    @pytest.mark.parametrize("system", ["linux", "windows"])
    def test_lowest_versions_ascend_with_the_toolkit(self, system: str) -> None:
        found = [getattr(record, system) for record in reversed(toolkit_drivers())]
        known = [numbers(text) for text in found if text is not None]
        assert len(known) > 30
        assert all(older <= newer for older, newer in pairwise(known))
        # Unknown are only the newest: no gap that a reader would not expect.
        assert None not in found[: len(known)]

    def test_every_toolkit_has_a_driver(self) -> None:
        described = {record.cuda for record in toolkit_drivers()}
        assert set(toolkits()) <= described
        # Older ones come as far down as properties can name.
        assert min(described) == OLDEST

    def test_branches_agree(self) -> None:
        """The branch of a toolkit's driver is the one that reports its version."""
        seen = set()
        for record in toolkit_drivers():
            if record.linux is not None:
                assert cuda_of_kernel_driver(record.linux) == record.cuda
                seen.add(record.cuda)
        # 12.7 has no toolkit; for 13.4 only the branch is known, not the driver.
        assert set(CUDA_OF_BRANCH.values()) - seen == {cuda("12.7"), cuda("13.4")}

    def test_branches_on_windows_do_not_mislead(self) -> None:
        """There the first part may be a number of its own, such as 576."""
        for record in toolkit_drivers():
            if record.windows is not None:
                assert cuda_of_kernel_driver(record.windows) in (None, record.cuda)

    def test_branches_ascend(self) -> None:
        assert list(CUDA_OF_BRANCH) == sorted(CUDA_OF_BRANCH)
        versions = list(CUDA_OF_BRANCH.values())
        assert versions == sorted(set(versions))
        for older, newer in pairwise(versions):
            # No minor is left out; a major ends where the next one starts.
            assert newer in ((older.major, older.minor + 1), (older.major + 1, 0))

    @pytest.mark.parametrize("system", ["linux", "windows"])
    def test_floors_lie_in_the_first_release_of_the_major(self, system: str) -> None:
        """Minor-version compatibility starts no later than with the second one."""
        for major, floor in minor_version_floors().items():
            lowest = numbers(getattr(floor, system))
            drivers = {
                minor: [
                    numbers(found)
                    for record in toolkit_drivers()
                    if record.cuda == (major, minor)
                    and (found := getattr(record, system)) is not None
                ]
                for minor in (0, 1)
            }
            if drivers[0]:
                assert min(drivers[0]) <= lowest
            if drivers[1]:
                assert lowest < min(drivers[1])

    def test_floors_on_linux(self) -> None:
        assert sorted(minor_version_floors()) == [11, 12, 13]
        for major, floor in minor_version_floors().items():
            version = CudaVersion(major, 0)
            assert cuda_of_kernel_driver(floor.linux) == version
            first = [r.linux for r in toolkit_drivers() if r.cuda == version][-1]
            # From CUDA 12 on it is the first driver of all that reports the major.
            assert (floor.linux == first) == (major > 11)

    @pytest.mark.parametrize("major", [11, 12, 13])
    def test_floors_are_those_of_the_answer(self, major: int) -> None:
        """A driver at the floor is offered newer builds of its major."""
        floor = minor_version_floors()[major].linux
        head, _, rest = floor.partition(".")
        below = f"{head}.{int(rest.partition('.')[0]) - 1}.99"
        for kernel, relaxed in ((floor, True), (below, major > 11)):
            offered = relaxed_bounds(CudaVersion(major, 0), kernel)
            assert (f"{major}.1" in offered) == relaxed
