"""The table of releases, from real indexes in directories and on servers."""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.builds import gpu_build, machine, metadata
from support.command import Run
from support.containers import library
from support.index_server import serve
from support.range_server import Answer, RangeServer, serve_answers
from support.sessions import ROOT
from support.wheels import publish, stub_wheel, write_index

from nvidia_variant_provider.errors import InputError, UsageError
from nvp import api
from nvp.builds.releases import ListedBuild, ReleaseTable
from nvp.index.releases import machines

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() != "x86_64",
    reason="the wheels are for Linux on x86_64",
)

OLD = machine("12.8", "8.0")
HERE = "py3-none-manylinux_2_17_x86_64"
JSON = "application/vnd.pypi.simple.v1+json"


def listed(table: ReleaseTable) -> dict[str, ListedBuild]:
    """Return each build by its version, with its label."""
    return {
        f"{release.version}+{build.label}" if build.label else release.version: build
        for release in table.releases
        for build in release.builds
    }


def test_a_plain_index_is_judged_by_the_table(tmp_path: Path) -> None:
    index = write_index(tmp_path, "torch", "2.15.0", "2.10.0", "2.9.1", "2.16.0rc1")
    table = api.releases("Torch", index_url=index, environment=OLD)
    assert table.project == "torch"
    assert table.newest == "2.10.0"
    versions = [release.version for release in table.releases]
    assert versions == ["2.16.0rc1", "2.15.0", "2.10.0", "2.9.1"]
    builds = listed(table)
    assert (builds["2.15.0"].verdict, builds["2.15.0"].cuda) == ("cannot", "13.2")
    assert "needs a driver for CUDA 13" in builds["2.15.0"].reasons[0]
    best = builds["2.10.0"]
    assert (best.verdict, best.how, best.evidence) == ("runs", "native", "table")
    selected = {release.version: release.selected for release in table.releases}
    assert selected["2.10.0"] == f"torch-2.10.0-{HERE}.whl"
    assert selected["2.15.0"] is None


LABELS = ("cpu", "cu126", "cu130", "xpu", "rocm6.4")


def test_a_label_index_shows_one_backend_of_each_release(tmp_path: Path) -> None:
    versions = [f"2.9.1+{label}" for label in LABELS]
    index = write_index(tmp_path, "torch", *versions)
    with serve(tmp_path) as url:
        of_server = api.releases("torch", index_url=url, environment=OLD)
    table = api.releases("torch", index_url=index, environment=OLD)
    assert of_server.to_dict() == table.to_dict()
    (release,) = table.releases
    assert release.selected == f"torch-2.9.1+cu126-{HERE}.whl"
    builds = listed(table)
    assert {name: build.verdict for name, build in builds.items()} == {
        "2.9.1+cu126": "runs",
        "2.9.1+cu130": "cannot",
        "2.9.1+cpu": "cpu",
        "2.9.1+xpu": "unknown",
        "2.9.1+rocm6.4": "unknown",
    }
    assert next(iter(builds)) == "2.9.1+cu126"
    assert builds["2.9.1+xpu"].reasons == ("it is for hardware of another vendor",)
    assert "+cu126 is the build of 2.9.1" in builds["2.9.1+cpu"].reasons[0]


def test_two_indexes_are_one_table(tmp_path: Path) -> None:
    plain = write_index(tmp_path / "plain", "torch", "2.15.0", "2.10.0")
    labels = write_index(tmp_path / "labels", "torch", "2.11.0+cu126", "2.11.0+cpu")
    table = api.releases(
        "torch", index_url=plain, extra_index_urls=[labels], environment=OLD
    )
    assert table.newest == "2.11.0"
    assert [release.version for release in table.releases] == [
        "2.15.0",
        "2.11.0",
        "2.10.0",
    ]
    assert table.releases[1].selected == f"torch-2.11.0+cu126-{HERE}.whl"


VARIANTS = metadata(
    {
        "null": {},
        "cu126": gpu_build("12.6", "70_real", "80_real"),
        "cu128": gpu_build("12.8", "90_real", "80_virtual"),
        "cu130": gpu_build("13.0", "80_real"),
    }
)


def test_variants_are_builds(tmp_path: Path) -> None:
    publish(tmp_path, VARIANTS, "demo", "1.0")
    table = api.releases("demo", index_url=str(tmp_path), environment=OLD)
    (release,) = table.releases
    assert (table.newest, release.selected) == (
        "1.0",
        "demo-1.0-py3-none-any-cu128.whl",
    )
    builds = {build.label: build for build in release.builds}
    assert {label: (b.verdict, b.how, b.cuda) for label, b in builds.items()} == {
        "cu126": ("runs", "native", "12.6"),
        "cu128": ("runs", "ptx", "12.8"),
        "null": ("cpu", None, None),
        "cu130": ("cannot", None, "13.0"),
        None: ("unknown", None, None),
    }
    evidence = {build.evidence for label, build in builds.items() if label}
    assert evidence == {"variants.json"}
    assert "driver for CUDA 13.0" in builds["cu130"].reasons[0]


def test_broken_variants_are_unknown(tmp_path: Path) -> None:
    publish(tmp_path, {**VARIANTS, "providers": 1}, "demo", "1.0")
    table = api.releases("demo", index_url=str(tmp_path), environment=OLD)
    assert table.newest is None
    assert "variants are ignored" in listed(table)["1.0+cu126"].reasons[0]
    assert len(table.notes) == 1


def test_wheels_for_other_systems_are_left_out(tmp_path: Path) -> None:
    tags = ("cp311-cp311-win_amd64", "cp311-cp311-macosx_14_0_arm64")
    for tag in (*tags, "cp311-cp311-manylinux_2_28_aarch64", "cp38-cp38-linux_x86_64"):
        stub_wheel(tmp_path / "torch", "torch", "2.10.0", tag=tag)
    stub_wheel(tmp_path / "torch", "torch", "2.11.0", tag=tags[0])
    table = api.releases("torch", index_url=str(tmp_path), environment=OLD)
    assert table.releases[0].to_dict() == {
        "version": "2.11.0",
        "selected": None,
        "builds": [],
    }
    # A wheel for another Python stands for the build.
    assert listed(table)["2.10.0"].file == "torch-2.10.0-cp38-cp38-linux_x86_64.whl"
    assert (table.newest, table.releases[1].selected) == ("2.10.0", None)


def test_files_that_the_index_or_the_interpreter_refuses(tmp_path: Path) -> None:
    names = [f"torch-{version}-{HERE}.whl" for version in ("2.10.0", "2.9.1", "2.8.0")]
    links = (
        f'<a href="{names[0]}" data-yanked="broken">{names[0]}</a>'
        f'<a href="{names[1]}" data-requires-python="&gt;=4">{names[1]}</a>'
        f'<a href="{names[2]}">{names[2]}</a>'
    )
    (tmp_path / "torch").mkdir()
    page = f"<!DOCTYPE html><html><body>{links}</body></html>"
    (tmp_path / "torch" / "index.html").write_text(page)
    table = api.releases("torch", index_url=str(tmp_path), environment=OLD)
    assert [release.selected for release in table.releases] == [None, None, names[2]]
    assert listed(table)["2.10.0"].reasons == ("the index has yanked it: broken",)
    assert table.newest == "2.9.1"


def test_without_a_driver_nothing_runs(tmp_path: Path) -> None:
    index = write_index(tmp_path, "torch", "2.10.0", "2.10.0+cpu")
    table = api.releases("torch", index_url=index, environment=machine(None))
    assert table.newest is None
    assert {build.verdict for build in listed(table).values()} == {"cannot", "cpu"}
    assert table.releases[0].selected == f"torch-2.10.0+cpu-{HERE}.whl"


def test_errors_say_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no index has a project nosuch; check the"):
        api.releases("nosuch", index_url=str(tmp_path), environment=OLD)
    with pytest.raises(InputError, match="their own: give --vendor-indexes"):
        api.releases("flashinfer-cubin", index_url=str(tmp_path), environment=OLD)
    with pytest.raises(UsageError, match="not the name of a project"):
        api.releases("torch==2.0", index_url=str(tmp_path), environment=OLD)
    with pytest.raises(UsageError, match="there is no such directory"):
        api.releases("torch", index_url="nowhere", environment=OLD)
    with serve_answers({"/torch/": Answer(status=500)}) as server:
        with pytest.raises(InputError, match="500"):
            api.releases("torch", index_url=server.url, environment=OLD)
        # Another index has the project: the failure is a note.
        index = write_index(tmp_path, "torch", "2.10.0")
        table = api.releases(
            "torch", index_url=server.url, extra_index_urls=[index], environment=OLD
        )
    assert (table.newest, len(table.notes)) == ("2.10.0", 1)


def server_answers(
    folder: Path, code: Mapping[str, Sequence[str]]
) -> dict[str, Answer]:
    """Return an index of releases, each with code for some GPUs."""
    answers = {}
    files = []
    for version, targets in code.items():
        members = {"demo/lib.so": library(*targets)}
        path = stub_wheel(folder, "demo", version, tag=HERE, members=members)
        answers[f"/files/{path.name}"] = Answer(body=path.read_bytes())
        hashes = {"sha256": version.replace(".", "").ljust(64, "a")}
        item: dict[str, Any] = {"filename": path.name, "hashes": hashes}
        files.append({**item, "url": f"/files/{path.name}", "size": 50_000_000})
    document = {"meta": {"api-version": "1.1"}, "name": "demo", "files": files}
    page = json.dumps(document).encode()
    answers["/simple/demo/"] = Answer(body=page, kind=JSON)
    return answers


def test_a_server_that_sends_a_byte_at_a_time(
    monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    monkeypatch.setattr(machines, "_DEADLINE", 0.5)
    monkeypatch.setenv("PIP_DEFAULT_TIMEOUT", "180")
    page = Answer(body=b"<!DOCTYPE html>" + b" " * 99_999, fault="drip")
    with serve_answers({"/torch/": page}) as server:
        done = run("releases", "torch", "-i", server.url, "--cuda-driver", "12.8")
    assert (done.code, len(done.err.splitlines())) == (3, 1)
    assert "not complete after 0.5 s; try again" in done.err


class TestInspect:
    """Unknown wheels, on a server that supports range requests."""

    CODE: Mapping[str, Sequence[str]] = {
        "3.0": ["90_real"],
        "2.0": ["80_real"],
        "1.0": ["80_real"],
    }

    @pytest.fixture
    def server(self, tmp_path: Path) -> Iterator[RangeServer]:
        with serve_answers(server_answers(tmp_path, self.CODE)) as found:
            yield found

    def read(self, server: RangeServer, **options: Any) -> dict[str, ListedBuild]:
        url = f"{server.url}/simple/"
        return listed(api.releases("demo", index_url=url, environment=OLD, **options))

    def test_newest_first_until_one_runs_and_once(self, server: RangeServer) -> None:
        assert {b.verdict for b in self.read(server).values()} == {"unknown"}
        watched: list[str] = []

        def watch(name: str) -> Any:
            from contextlib import nullcontext

            watched.append(name.split("-")[1])
            return nullcontext()

        builds = self.read(server, inspect=True, watch=watch)
        assert watched == ["3.0", "2.0"]
        verdicts = {version: build.verdict for version, build in builds.items()}
        assert verdicts == {"3.0": "cannot", "2.0": "runs", "1.0": "unknown"}
        assert builds["2.0"].evidence == "inspected"
        assert "only for 90" in builds["3.0"].reasons[0]
        assert builds["1.0"].reasons == (
            "its METADATA was not read: a newer release may run; --inspect --all "
            "reads the wheel",
        )
        server.requests.clear()
        again = self.read(server)
        assert again["2.0"] == builds["2.0"]
        assert server.requests == ["/simple/demo/ whole"]
        self.read(server, inspect="all", watch=watch)
        assert watched == ["3.0", "2.0", "1.0"]

    def test_results_count_at_once_beside_another_index(
        self, server: RangeServer, tmp_path: Path
    ) -> None:
        """Evidence that the pages of several indexes share is cached for a minute."""
        (tmp_path / "empty" / "demo").mkdir(parents=True)
        empty = str(tmp_path / "empty")
        builds = self.read(server, inspect=True, extra_index_urls=[empty])
        verdicts = {version: build.verdict for version, build in builds.items()}
        assert verdicts == {"3.0": "cannot", "2.0": "runs", "1.0": "unknown"}

    def test_another_index_that_claims_the_same_hash(
        self, server: RangeServer, tmp_path: Path
    ) -> None:
        """Wheels are read in parts, so their hashes are only claims."""
        with serve_answers(server_answers(tmp_path, {"2.0": ["90_real"]})) as hostile:
            assert self.read(hostile, inspect=True)["2.0"].verdict == "cannot"
            assert self.read(server)["2.0"].verdict == "unknown"
            assert self.read(server, inspect=True)["2.0"].verdict == "runs"
            assert self.read(hostile)["2.0"].verdict == "cannot"

    @pytest.mark.parametrize("days", [29, 31])
    def test_a_server_that_has_lied_once(self, days: int, tmp_path: Path) -> None:
        """Ranges of a wheel cannot be compared with the hash of the whole wheel."""
        answers = server_answers(tmp_path, {"2.0": ["80_real"]})
        lies = server_answers(tmp_path / "lies", {"2.0": ["90_real"]})
        (path,) = (path for path in lies if path.endswith(".whl"))
        honest, lie = answers[path], replace(answers[path], parts=lies[path].body)
        with serve_answers(answers) as server:
            answers[path] = lie
            assert self.read(server, inspect=True)["2.0"].verdict == "cannot"
            answers[path] = honest
            cache = Path(os.environ["XDG_CACHE_HOME"], "nvidia-variant-provider")
            (record,) = (cache / "inspected").iterdir()
            os.utime(record, (time.time() - days * 24 * 3600,) * 2)
            verdict = "cannot" if days < 30 else "runs"
            assert self.read(server, inspect=True)["2.0"].verdict == verdict

    @pytest.mark.slow
    def test_a_damaged_record_and_no_cache(
        self, server: RangeServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.read(server, inspect=True)
        cache = Path(os.environ["XDG_CACHE_HOME"], "nvidia-variant-provider")
        for text in ("{", "[" * 100_000):
            for path in (cache / "inspected").iterdir():
                path.write_text(text)
            assert {b.verdict for b in self.read(server).values()} == {"unknown"}
        monkeypatch.setenv("NV_VARIANT_PROVIDER_NO_CACHE", "1")
        assert self.read(server, inspect=True)["2.0"].verdict == "runs"
        assert self.read(server)["2.0"].verdict == "unknown"


class TestCommand:
    def test_text_and_exit_codes(self, tmp_path: Path, run: Run) -> None:
        index = write_index(tmp_path, "torch", "2.15.0", "2.10.0")
        words = ("releases", "torch", "-i", index)
        done = run(*words, "--cuda-driver", "12.8", "--sm-arch", "8.0")
        assert done.code == 0
        lines = done.out.splitlines()
        assert lines[0] == (
            "torch 2.10.0 (CUDA 12.8) is the newest release that runs on a machine "
            "with a driver for CUDA 12.8 and compute capability 8.0."
        )
        assert lines[2].split() == ["release", "build", "CUDA", "runs", "why"]
        assert lines[4].split() == ["2.10.0", "plain", "12.8", "yes"]
        assert lines[-2] == (
            "torch 2.14.1+cu126 runs here, from PyTorch's index: nvp pip download "
            "--index-url https://download.pytorch.org/whl/cu126 torch "
            "--cuda-driver 12.8 --sm-arch 8.0"
        )
        newer = run(*words, "--cuda-driver", "13.2", "--sm-arch", "8.0")
        assert "from PyTorch's index" not in newer.out
        assert run(*words, "--cuda-driver", "11.4").code == 1
        assert run("releases", "nosuch", "-i", index).code == 3
        assert run("releases", "a b", "-i", index).code == 2
        assert run(*words, "--cuda-driver", "x").code == 4

    def test_a_report_is_as_the_schema_says(
        self, tmp_path: Path, run: Run, report_schema: Any
    ) -> None:
        publish(tmp_path, VARIANTS, "demo", "1.0")
        done = run(
            "releases", "demo", "-i", tmp_path, "--json", "--cuda-driver", "12.8"
        )
        report = json.loads(done.out)
        report_schema.validate(report)
        keys = {
            "project",
            "platform",
            "newest",
            "releases",
            "elsewhere",
            "gpu_requirements",
        }
        assert set(report["data"]) == keys
        builds = report["data"]["releases"][0]["builds"]
        page = (ROOT / "docs" / "reference" / "json-reports.md").read_text("utf-8")
        for key in {*keys, *report["data"]["releases"][0], *builds[0]}:
            assert f"`{key}`" in page.partition("`releases` reports")[2]
        labels = {build["label"] for build in builds}
        assert labels == {None, *VARIANTS["variants"]}


PYPI = [
    ("torch", "12.8", "8.0", "2.10.0"),
    ("torch", "13.0", "7.0", "2.10.0"),
    ("torch", "12.8", "6.1", "2.7.1"),
    ("torch", "11.8", "8.0", "2.0.1"),
    ("torch", "13.2", "9.0", "2.15.0"),
    ("torchvision", "12.8", "8.0", "0.25.0"),
    ("vllm", "12.8", "8.0", "0.19.1"),
]


@pytest.mark.network
@pytest.mark.parametrize(("project", "driver", "gpu", "newest"), PYPI)
def test_releases_on_pypi(project: str, driver: str, gpu: str, newest: str) -> None:
    table = api.releases(project, environment=machine(driver, gpu))
    assert table.newest == newest
