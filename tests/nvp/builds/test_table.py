"""The table of builds: what all records obey, and what is found in it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import Version
from support.downloads import download

from nvidia_variant_provider.machine.environment import (
    ComputeCapability,
    CudaVersion,
    Environment,
    Gpu,
)
from nvp import api
from nvp.builds.needs import needs_of_report, parse_backend
from nvp.builds.verdicts import judge
from nvp.gpu_code.units import first_toolkit
from nvp.knowledge import builds
from nvp.knowledge.builds import (
    PROJECTS,
    BuildRecord,
    LibraryCode,
    Needs,
    build_records,
    find_record,
    needs_in_table,
)
from tools.update_builds import (
    SCRIPTS,
    merge,
    records_of_scripts,
    render,
)

TABLE = Path(builds.__file__).with_name("builds.json")
RECORDS = [record for group in build_records().values() for record in group]


def libraries(record: BuildRecord) -> list[LibraryCode]:
    return [item for piece in record.needs.pieces or () for item in piece]


def machine(driver: str, gpu: str) -> Environment:
    capability = ComputeCapability.parse(gpu)
    return Environment(
        cuda_driver_version=CudaVersion.parse(driver),
        gpus=(Gpu(index=0, compute_capability=capability),),
    )


class TestRecords:
    def test_a_round_trip_gives_the_same_bytes(self) -> None:
        assert render(RECORDS) == TABLE.read_text(encoding="utf-8")

    def test_the_table_is_what_the_updater_writes(self) -> None:
        scripts = json.loads(SCRIPTS.read_text(encoding="utf-8"))
        inspected = [record for record in RECORDS if record.wheels]
        assert len(inspected) >= 60
        text = render(merge(inspected, records_of_scripts(scripts)))
        assert text == TABLE.read_text(encoding="utf-8")
        assert len(text) < 200_000

    @pytest.mark.parametrize("project", sorted(build_records()))
    def test_names_versions_and_platforms_are_normalized(self, project: str) -> None:
        assert canonicalize_name(project) == project
        for record in build_records()[project]:
            assert str(Version(record.version)) == record.version
            platforms = ("linux_x86_64", "linux_aarch64", "win_amd64")
            assert record.platform in platforms
            assert record.source
            assert record.date.startswith("2026-")

    def test_no_two_records_are_of_one_build(self) -> None:
        keys = {(r.project, r.version, r.label, r.platform) for r in RECORDS}
        assert len(keys) == len(RECORDS)

    def test_wheels_are_those_of_the_release(self) -> None:
        for record in RECORDS:
            for name, digest in record.wheels.items():
                project, version, _, _ = parse_wheel_filename(name)
                assert (project, str(version)) == (record.project, record.version)
                assert len(bytes.fromhex(digest)) == 32

    def test_labels_are_of_the_cuda_version_of_the_build(self) -> None:
        for record in RECORDS:
            backend = parse_backend(record.label)
            if backend is not None:
                assert backend.cuda == record.needs.cuda, record

    def test_no_code_is_newer_than_the_cuda_version_of_its_library(self) -> None:
        for record in RECORDS:
            for item in libraries(record):
                toolkits = [first_toolkit(f"{t}_real") for t in item.machine_code]
                newest = max(filter(None, toolkits), default=None)
                if newest is not None and newest >= CudaVersion(11, 7):
                    assert item.cuda is not None
                    assert newest <= item.cuda, (record, item)

    def test_scripts_and_wheels_of_torch_agree(self) -> None:
        """Whatever GPU the scripts name, the library that was read has code for it."""
        scripts = json.loads(SCRIPTS.read_text(encoding="utf-8"))
        described = {
            (record.version, record.platform): record
            for record in records_of_scripts(scripts)
            if record.label is None
        }
        compared = 0
        for record in build_records()["torch"]:
            if not record.wheels:
                continue
            (script,) = libraries(described[record.version, record.platform])
            by_name = {item.name: item for item in libraries(record)}
            library = by_name["torch/lib/libtorch_cuda.so"]
            assert set(script.machine_code) <= set(library.machine_code), record
            assert record.needs.cuda == script.cuda
            compared += 1
        assert compared >= 15

    def test_requirements_are_on_projects_of_the_table(self) -> None:
        assert build_records().keys() == PROJECTS
        required = {text for record in RECORDS for text in record.needs.requires}
        assert required
        for text in required:
            assert canonicalize_name(Requirement(text).name) in PROJECTS


class TestFind:
    def test_plain_and_labelled(self) -> None:
        plain = find_record("Torch", "2.10.0", "linux_x86_64")
        labelled = find_record("torch", "2.10.0+cu126", "linux_x86_64")
        assert plain is not None
        assert labelled is not None
        assert (plain.needs.cuda, labelled.needs.cuda) == ((12, 8), (12, 6))

    @pytest.mark.parametrize(
        ("project", "version", "platform"),
        [
            ("torch", "2.10.0+cpu", "linux_x86_64"),
            ("torch", "2.10.0+foo", "linux_x86_64"),
            ("torch", "1.0", "linux_x86_64"),
            ("torch", "not a version", "linux_x86_64"),
            ("torch", "2.10.0", "macosx_14_0_arm64"),
            ("unheard-of", "1.0", "linux_x86_64"),
        ],
    )
    def test_no_record(self, project: str, version: str, platform: str) -> None:
        assert find_record(project, version, platform) is None

    def test_the_hash_decides_about_a_file_of_the_same_name(self) -> None:
        record = find_record("torch", "2.10.0", "linux_x86_64")
        assert record is not None
        ((name, digest),) = record.wheels.items()
        found = [
            find_record("torch", "2.10.0", "linux_x86_64", file_name=n, sha256=d)
            for n, d in [(name, digest), (name, None), ("other.whl", "0" * 64)]
        ]
        assert found == [record] * 3
        other = find_record(
            "torch", "2.10.0", "linux_x86_64", file_name=name, sha256="0" * 64
        )
        assert other is None


class TestVerdicts:
    @pytest.mark.parametrize(
        ("version", "driver", "gpu", "verdict"),
        [
            ("2.15.0", "12.8", "8.0", "cannot"),
            ("2.10.0", "12.8", "8.0", "runs"),
            ("2.10.0", "12.2", "8.6", "runs"),
            ("2.10.0", "12.8", "7.0", "runs"),
            ("2.7.1", "12.8", "6.1", "runs"),
            ("2.8.0", "13.0", "6.1", "cannot"),
            ("2.0.1", "11.8", "8.0", "runs"),
            ("2.1.2", "11.8", "8.0", "cannot"),
            # The linear algebra of 2.11 to 2.14 has nothing for 7.5.
            ("2.14.1", "13.0", "7.5", "partly"),
            ("2.15.0", "13.2", "7.5", "runs"),
        ],
    )
    def test_torch_of_pypi(
        self, version: str, driver: str, gpu: str, verdict: str
    ) -> None:
        record = find_record("torch", version, "linux_x86_64")
        assert record is not None
        judgement = judge(record.needs, machine(driver, gpu))
        assert judgement.verdict == verdict
        assert judgement.evidence == "table"

    def test_a_library_for_each_cuda(self) -> None:
        record = find_record("bitsandbytes", "0.50.2", "linux_x86_64")
        assert record is not None
        for driver, verdict in [("11.8", "runs"), ("13.0", "runs"), ("10.2", "cannot")]:
            judgement = judge(record.needs, machine(driver, "8.0"))
            assert judgement.verdict == verdict


def test_a_record_keeps_what_was_inspected() -> None:
    needs = Needs(
        evidence="inspected",
        source="METADATA",
        cuda=CudaVersion(12, 8),
        pieces=(
            (
                LibraryCode(
                    name="a.so",
                    cuda=CudaVersion(12),
                    machine_code=frozenset({"100", "90a", "75"}),
                    ptx={"120": CudaVersion(12, 8), "130": None},
                ),
            ),
        ),
    )
    record = BuildRecord(
        project="demo",
        version="1.0",
        label=None,
        platform="linux_x86_64",
        needs=needs_in_table(needs, "2026-11-21"),
        wheels={"demo.whl": "0" * 64},
        source="inspected",
        date="2026-11-21",
    )
    (library,) = libraries(record)
    assert library.to_dict()["real"] == ["75", "90a", "100"]
    assert BuildRecord.from_dict(json.loads(json.dumps(record.to_dict()))) == record
    again = record.needs
    assert (again.cuda, again.pieces, again.gpu) == (needs.cuda, needs.pieces, True)


class TestUpdater:
    def test_a_census_replaces_what_it_has_read_and_nothing_else(self) -> None:
        old = next(record for record in RECORDS if record.wheels)
        newer = replace(old, date="2999-01-01")
        (script, *_) = (record for record in RECORDS if not record.wheels)
        assert merge([old, newer], [script]) == merge([script], [newer])

    @pytest.mark.network
    @pytest.mark.parametrize(
        ("project", "version"),
        [("torchvision", "0.29.2"), ("torchao", "0.18.0"), ("xformers", "0.0.35")],
    )
    def test_a_fresh_inspection_gives_the_record(
        self, project: str, version: str, tmp_path: Path
    ) -> None:
        record = find_record(project, version, "linux_x86_64")
        assert record is not None
        ((name, digest),) = record.wheels.items()
        wheel = download(name, tmp_path)
        assert hashlib.sha256(wheel.read_bytes()).hexdigest() == digest
        needs = needs_of_report(api.inspect(wheel))
        assert needs is not None
        fresh = BuildRecord(
            project=project,
            version=version,
            label=None,
            platform="linux_x86_64",
            needs=needs_in_table(needs, record.date),
            wheels={name: digest},
            source="inspected",
            date=record.date,
        )
        assert fresh == record
