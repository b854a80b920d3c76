"""The driver table and its sources: branches, toolkit releases, floors, and GPUs."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from nvidia_variant_provider.machine import driver_table
from nvidia_variant_provider.machine.environment import (
    ComputeCapability,
    CudaVersion,
    Environment,
    cuda_of_kernel_driver,
)
from nvidia_variant_provider.machine.supported import (
    LOWER_BOUND,
    OLDEST,
    supported_features,
)
from nvp.knowledge import tables
from nvp.knowledge.tables import (
    can_exist,
    driver_branches,
    gpu_drivers,
    gpu_models,
    toolkits,
)
from tools.records import SOURCES, read

BRANCHES = driver_branches()
QUOTED = read(SOURCES / "drivers.json")
RELEASES: list[dict[str, Any]] = QUOTED["toolkit_drivers"]
FLOORS: dict[int, dict[str, Any]] = {
    floor["major"]: floor for floor in QUOTED["minor_version_floors"]
}


def cuda(text: str) -> CudaVersion:
    return CudaVersion.parse(text)


def numbers(version: str) -> tuple[int, ...]:
    """Split a driver version into its parts: 570.124.06 is newer than 570.26."""
    return tuple(int(part) for part in version.split("."))


class TestBranches:
    def test_ascend_without_a_gap(self) -> None:
        assert list(BRANCHES) == sorted(BRANCHES)
        versions = list(BRANCHES.values())
        assert versions == sorted(set(versions))
        # The driver of a toolkit may be unknown, although the driver of a newer one is
        # known.
        known = sorted({*versions, *(v for v in toolkits() if v >= OLDEST)})
        for older, newer in pairwise(known):
            # No minor is left out, and a major ends where the next one starts.
            assert newer in ((older.major, older.minor + 1), (older.major + 1, 0))

    def test_start_where_variant_properties_start(self) -> None:
        assert next(iter(BRANCHES.values())) == OLDEST

    def test_belong_to_the_drivers_of_the_toolkits(self) -> None:
        """The branch of a toolkit's driver is the one that reports its version."""
        seen = set()
        for record in RELEASES:
            if record["linux"] is not None:
                version = cuda(record["cuda"])
                assert cuda_of_kernel_driver(record["linux"]) == version
                seen.add(version)
        # Toolkit 12.7 does not exist, and the lowest version of other branches is
        # unknown.
        unknown = {cuda(row["cuda"]) for row in RELEASES if row["linux"] is None}
        assert set(BRANCHES.values()) - seen == {cuda("12.7")} | (
            unknown & set(BRANCHES.values())
        )

    def test_versions_of_windows_drivers_never_give_a_wrong_cuda(self) -> None:
        """The first part of a Windows version may be another number, such as 576."""
        for record in RELEASES:
            if record["windows"] is not None:
                reported = cuda_of_kernel_driver(record["windows"])
                assert reported in (None, cuda(record["cuda"]))

    def test_generated_module_equals_the_table(self) -> None:
        assert dict(BRANCHES) == driver_table.CUDA_OF_BRANCH
        for system in ("linux", "windows"):
            floors = {
                major: numbers(f"{floor[system]}.0")[:2]
                for major, floor in FLOORS.items()
            }
            assert floors == driver_table.FLOORS[system]


class TestToolkits:
    def test_newest_first(self) -> None:
        versions = [cuda(record["cuda"]) for record in RELEASES]
        assert versions == sorted(versions, reverse=True)
        for record in RELEASES:
            assert record["release"].startswith(record["cuda"])

    @pytest.mark.parametrize("system", ["linux", "windows"])
    def test_lowest_versions_ascend_with_the_toolkit(self, system: str) -> None:
        lowest = [record[system] for record in reversed(RELEASES)]
        known = [numbers(text) for text in lowest if text is not None]
        assert len(known) > 30
        assert all(older <= newer for older, newer in pairwise(known))
        # Only new ones are unknown.
        assert None not in lowest[:30]

    def test_every_toolkit_has_a_record(self) -> None:
        described = {cuda(record["cuda"]) for record in RELEASES}
        assert {version for version in toolkits() if version >= OLDEST} <= described
        assert min(described) == OLDEST


class TestFloors:
    @pytest.mark.parametrize("system", ["linux", "windows"])
    def test_lie_in_the_first_release_of_the_major(self, system: str) -> None:
        """Minor-version compatibility starts no later than with the second release."""
        for major, floor in FLOORS.items():
            lowest = numbers(floor[system])
            drivers = {
                minor: [
                    numbers(version)
                    for record in RELEASES
                    if record["cuda"] == f"{major}.{minor}"
                    and (version := record[system]) is not None
                ]
                for minor in (0, 1)
            }
            if drivers[0]:
                assert min(drivers[0]) <= lowest
            if drivers[1]:
                assert lowest < min(drivers[1])

    def test_on_linux(self) -> None:
        assert sorted(FLOORS) == [11, 12, 13]
        for major, floor in FLOORS.items():
            version = CudaVersion(major, 0)
            assert cuda_of_kernel_driver(floor["linux"]) == version
            first = [r["linux"] for r in RELEASES if r["cuda"] == str(version)][-1]
            # Since CUDA 12, the floor is the first driver that reports the major
            # version.
            assert (floor["linux"] == first) == (major > 11)

    @pytest.mark.parametrize("major", [11, 12, 13])
    def test_are_those_of_the_answer(self, major: int) -> None:
        """A driver at the floor is offered newer builds of its major."""
        floor = FLOORS[major]["linux"]
        head, _, rest = floor.partition(".")
        below = f"{head}.{int(rest.partition('.')[0]) - 1}.99"
        for kernel, relaxed in ((floor, True), (below, major > 11)):
            machine = Environment(
                cuda_driver_version=CudaVersion(major, 0), kernel_driver_version=kernel
            )
            features, _ = supported_features(machine, minor_version_compatibility=True)
            (lower,) = (f.values for f in features if f.name == LOWER_BOUND)
            assert (f"{major}.1" in lower) == relaxed


class TestGpus:
    def test_every_gpu_has_its_branches(self) -> None:
        assert list(gpu_drivers()) == list(gpu_models())
        for record in gpu_drivers().values():
            # Branch 390, the last one for Fermi, is older than CUDA 11.
            assert record.last_branch in {None, 390, *BRANCHES}
            assert record.last_branch is None or (
                record.first_branch <= record.last_branch
            )

    def test_first_branch_knows_the_first_toolkit(self) -> None:
        for capability, model in gpu_models().items():
            first = BRANCHES.get(gpu_drivers()[capability].first_branch)
            if first is None:  # older than the oldest branch of the table
                assert model.first_toolkit < OLDEST
            else:
                assert first >= model.first_toolkit

    def test_580_is_the_last_branch_of_maxwell_pascal_and_volta(self) -> None:
        ended = {c for c, record in gpu_drivers().items() if record.last_branch == 580}
        assert {str(c) for c in ended} == set("5.0 5.2 5.3 6.0 6.1 6.2 7.0 7.2".split())  # noqa: SIM905

    @pytest.mark.parametrize(
        ("version", "capability", "exists"),
        [
            ("13.0", "7.0", True),
            ("13.1", "7.0", False),
            # R470 is the last branch for Kepler.
            ("11.4", "3.7", True),
            ("11.5", "3.7", False),
            ("11.0", "2.0", False),
            ("12.7", "10.0", False),
            ("12.8", "10.0", True),
            # CUDA 13.0 renamed 10.1 to 11.0.
            ("12.9", "10.1", True),
            ("13.0", "10.1", False),
            ("12.9", "11.0", False),
            # DGX Spark came with R580, although CUDA 12.9 compiles for it.
            ("12.9", "12.1", False),
            ("13.0", "12.1", True),
            # The tables have neither this driver nor this GPU.
            ("99.0", "7.5", True),
            ("10.0", "9.0", True),
            ("99.0", "7.0", False),
            ("13.0", "99.0", True),
        ],
    )
    def test_machines(self, version: str, capability: str, exists: bool) -> None:
        parsed = ComputeCapability.parse(capability)
        assert can_exist(cuda(version), parsed) is exists

    def test_a_driver_between_two_branches(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The driver of an announced toolkit is known, and that of the previous toolkit
        is not."""
        known = {**BRANCHES, 9999: cuda("99.9")}
        monkeypatch.setattr(tables, "driver_branches", lambda: known)
        last = {
            name: can_exist.__wrapped__(cuda("99.8"), ComputeCapability.parse(name))
            for name in ("7.0", "7.5", "12.1")
        }
        assert last == {"7.0": False, "7.5": True, "12.1": True}
        assert {*toolkits()} - {*tables.driver_versions.__wrapped__()} == {
            version for version in toolkits() if version < OLDEST
        }

    def test_of_the_96_pairs_that_selectors_are_compared_on_69_exist(self) -> None:
        """The pairs are those of ``benchmarks/selection.py``."""
        from benchmarks.selection import DRIVERS, GPUS

        pairs = [
            can_exist(cuda(version), ComputeCapability.parse(capability))
            for version in DRIVERS
            for capability in GPUS
        ]
        assert (len(pairs), sum(pairs)) == (96, 69)
