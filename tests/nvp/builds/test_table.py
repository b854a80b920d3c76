"""The table of builds: rules for all records, and searches in it."""

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
from tools.list_builds import RELEASES
from tools.update_builds import (
    SCRIPTS,
    merge,
    read_kept,
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
        kept = read_kept(TABLE)
        assert sum(bool(record.wheels) for record in kept) >= 400
        text = render(merge(kept))
        assert text == TABLE.read_text(encoding="utf-8")
        assert len(text) < 600_000

    def test_wheels_of_the_list_of_releases_were_read(self) -> None:
        sources = json.loads(RELEASES.read_text(encoding="utf-8"))
        assert sources["projects"].keys() <= PROJECTS
        assert set(sources["metadata"]) <= PROJECTS
        for project, platforms in sources["projects"].items():
            for platform, releases in platforms.items():
                for version in set(releases.split()) - {"*"}:
                    record = find_record(project, version, platform)
                    assert record is not None, (project, version, platform)
                    assert record.wheels

    def test_requirements_are_all_that_some_records_have(self) -> None:
        by_metadata = [r for r in RECORDS if r.needs.evidence == "metadata"]
        assert len(by_metadata) >= 300
        for record in by_metadata:
            assert record.source == record.needs.source
            assert record.needs.pieces is None
            assert record.needs.cuda or record.needs.requires, record

    @pytest.mark.parametrize("project", sorted(build_records()))
    def test_names_versions_and_platforms_are_normalized(self, project: str) -> None:
        assert canonicalize_name(project) == project
        for record in build_records()[project]:
            assert str(Version(record.version)) == record.version
            platforms = ("linux_x86_64", "linux_aarch64", "win_amd64", "any")
            assert record.platform in platforms
            assert record.source
            assert record.date.startswith("2026-")
            if record.platform == "any":
                assert find_record(project, record.version, "any") == record

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
        """The library in the wheel has code for every GPU that the scripts name."""
        scripts = json.loads(SCRIPTS.read_text(encoding="utf-8"))
        described = {
            (record.version, record.platform): record
            for record in records_of_scripts(scripts)
            if record.label is None
        }
        compared = 0
        for record in build_records()["torch"]:
            if not record.wheels or record.platform == "win_amd64":
                continue
            (script,) = libraries(described[record.version, record.platform])
            by_name = {item.name: item for item in libraries(record)}
            library = by_name["torch/lib/libtorch_cuda.so"]
            assert set(script.machine_code) <= set(library.machine_code), record
            assert record.needs.cuda == script.cuda
            compared += 1
        assert compared >= 15

    def test_requirements_are_on_projects_of_the_table(self) -> None:
        others = {"lightgbm", "paddlepaddle-gpu", "triton"}
        assert build_records().keys() == PROJECTS | others
        assert PROJECTS.isdisjoint(others)
        required = {text for record in RECORDS for text in record.needs.requires}
        assert required
        for text in required:
            assert canonicalize_name(Requirement(text).name) in PROJECTS


class TestCodeOfOtherKinds:
    @pytest.mark.parametrize(
        ("build", "driver", "gpu", "verdict"),
        [
            # OpenCL, for any driver and GPU
            ("lightgbm 4.7.0 linux_x86_64", "11.4", "6.1", "runs"),
            ("lightgbm 4.7.0 win_amd64", "13.0", "8.0", "cpu"),
            # the ptxas of triton, and its second one for compute capability 10.0
            ("triton 3.9.0 linux_x86_64", "12.4", "8.0", "runs"),
            ("triton 3.9.0 linux_x86_64", "12.4", "9.0", "runs"),
            ("triton 3.9.0 linux_x86_64", "12.8", "12.0", "cannot"),
            ("triton 3.9.0 linux_x86_64", "13.0", "12.0", "runs"),
            ("triton 3.6.0 linux_x86_64", "12.8", "12.0", "runs"),
            ("triton 3.2.0 linux_x86_64", "12.8", "12.0", "cannot"),
            ("triton 3.9.0 linux_x86_64", "11.8", "8.0", "cannot"),
            ("triton 3.9.0 linux_x86_64", "12.8", "6.1", "cannot"),
            # the CUDA version that paddle names
            ("paddlepaddle-gpu 2.6.2 linux_x86_64", "11.4", "8.0", "runs"),
            ("paddlepaddle-gpu 2.6.2 linux_x86_64", "12.8", "12.0", "unknown"),
            ("paddlepaddle-gpu 2.6.2 win_amd64", "10.2", "7.5", "cannot"),
            ("paddlepaddle-gpu 2.4.2 win_amd64", "10.2", "7.5", "runs"),
        ],
    )
    def test_is_judged(self, build: str, driver: str, gpu: str, verdict: str) -> None:
        project, version, platform = build.split()
        record = find_record(project, version, platform)
        assert record is not None
        assert judge(record.needs, machine(driver, gpu)).verdict == verdict


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
            # The library for linear algebra in 2.11 to 2.14 has no code for 7.5.
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

    @pytest.mark.parametrize(
        ("project", "driver", "gpu", "newest"),
        [
            ("onnxruntime-gpu", "13.0", "8.0", "1.31.1"),
            ("onnxruntime-gpu", "12.4", "8.0", "1.26.0"),
            ("onnxruntime-gpu", "11.8", "7.0", "1.18.1"),
            ("tensorflow", "11.8", "7.0", "2.14.1"),
            ("xgboost", "12.4", "8.0", "3.3.0"),
            ("xgboost", "12.4", "7.0", "3.2.0"),
            ("xgboost", "11.8", "7.0", "2.0.3"),
            ("vllm", "12.4", "8.0", "0.19.1"),
            ("ctranslate2", "12.4", "8.0", "4.8.5"),
            ("ctranslate2", "11.8", "7.0", "3.24.0"),
            ("cupy-cuda12x", "12.4", "6.1", "14.2.0"),
            # Releases since 1.9.0.post1 have the same two targets.
            ("faiss-gpu-cu12", "12.4", "8.0", "1.14.1.post1"),
            ("faiss-gpu-cu12", "12.4", "9.0", "1.9.0.0"),
            ("faiss-gpu-cu11", "11.8", "9.0", "1.9.0.0"),
            ("xformers", "13.0", "7.0", "0.0.30"),
            ("libcudf-cu13", "12.4", "8.0", None),
            ("libcudf-cu12", "12.4", "7.0", "26.10.2"),
        ],
    )
    def test_the_newest_wheel_that_is_known_to_have_code(
        self, project: str, driver: str, gpu: str, newest: str | None
    ) -> None:
        running = [
            Version(record.version)
            for record in build_records()[project]
            if record.platform == "linux_x86_64"
            and record.needs.pieces
            and judge(record.needs, machine(driver, gpu)).verdict in ("runs", "partly")
        ]
        assert max(running, default=None) == (newest and Version(newest))

    @pytest.mark.parametrize(
        ("driver", "gpu", "verdict"),
        [("13.0", "12.0", "runs"), ("12.4", "8.0", "runs"), ("11.8", "8.0", "cannot")],
    )
    def test_no_gpu_is_too_new_for_a_wheel_without_code_of_its_own(
        self, driver: str, gpu: str, verdict: str
    ) -> None:
        record = find_record("cuml-cu12", "26.10.0", "linux_x86_64")
        assert record is not None
        assert record.needs.pieces == ()
        assert "libcuml-cu12==26.10.*" in record.needs.requires
        assert judge(record.needs, machine(driver, gpu)).verdict == verdict

    @pytest.mark.parametrize(
        ("version", "verdict"),
        [("2.8.0", "cpu"), ("2.10.0", "cpu"), ("2.11.0", "runs")],
    )
    def test_torch_of_pypi_for_aarch64(self, version: str, verdict: str) -> None:
        record = find_record("torch", version, "linux_aarch64")
        assert record is not None
        assert judge(record.needs, machine("13.0", "9.0")).verdict == verdict

    def test_torch_of_pypi_for_windows_has_no_gpu_code(self) -> None:
        records = build_records()["torch"]
        plain = [r for r in records if (r.platform, r.label) == ("win_amd64", None)]
        assert len(plain) >= 25
        for record in plain:
            judgement = judge(record.needs, machine("13.0", "8.0"))
            assert judgement.verdict == "cpu"

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
    def test_the_later_of_two_wheels_counts(self) -> None:
        old = next(record for record in RECORDS if record.wheels)
        newer = replace(old, date="2999-01-01")
        assert newer in merge([old, newer])
        assert old in merge([newer, old])

    def test_a_wheel_counts_before_what_makers_publish_and_metadata_last(self) -> None:
        wheel = find_record("tensorflow", "2.18.1", "linux_x86_64")
        published = find_record("tensorflow", "2.17.1", "linux_x86_64")
        assert wheel is not None
        assert published is not None
        assert published.source.startswith("https://")
        assert published.needs.cuda == (12, 3)
        metadata = replace(published, source="METADATA requires torch")
        assert published in merge([metadata])
        assert metadata not in merge([metadata])
        assert wheel in merge([replace(metadata, version=wheel.version), wheel])

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
