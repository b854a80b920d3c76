"""The regular wheels that installers see on indexes such as PyTorch's and PyPI."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache

import pytest
from packaging.utils import parse_wheel_filename
from packaging.version import Version
from simple_repository import model
from support.builds import gpu_build, machine, metadata
from support.label_index import (
    FILES,
    Pages,
    html_page,
    torch_records,
    union_names,
    wheel_file,
)

from benchmarks.selection import DRIVERS, GPUS, works
from nvidia_variant_provider.machine.environment import (
    ComputeCapability,
    CudaVersion,
    Environment,
)
from nvp.index.http.client import Client
from nvp.index.selection import evidence, judging, visibility
from nvp.index.selection.component import VariantRepository, select
from nvp.index.selection.options import Pins, Selection
from nvp.index.selection.reader import Reader
from nvp.knowledge.tables import can_exist

MACHINES = [
    (driver, gpu)
    for driver in DRIVERS
    for gpu in GPUS
    if can_exist(CudaVersion.parse(driver), ComputeCapability.parse(gpu))
]


def repository(
    *sources: Pages,
    environment: Environment,
    warn: Callable[[str], None] = pytest.fail,
    **options: object,
) -> VariantRepository:
    """Return the first source as installers see it, next to the others.

    :param options: the other fields of `Selection`.
    """
    selection = Selection(
        machine=lambda: environment,
        platform="linux_x86_64",
        environ={},
        **options,  # type: ignore[arg-type]
    )
    return select(
        sources,
        selection=selection,
        reader=Reader(Client()),
        warn=warn,
    )[0]


def ignore(_: str) -> None:
    """Accept any warning."""


def show(repository: VariantRepository, project: str = "torch") -> list[model.File]:
    return list(asyncio.run(repository.get_project_page(project)).files)


def version_of(file: model.File) -> Version:
    return parse_wheel_filename(file.filename)[1]


def pick(files: Iterable[model.File]) -> str | None:
    """Return the wheel that pip selects: the highest version that is not yanked."""
    versions = [version_of(file) for file in files if not file.yanked]
    return str(max(versions)) if versions else None


def pick_of_all(sources: Sequence[Pages], environment: Environment) -> str | None:
    """Return the wheel that pip selects from several indexes behind the server."""
    files: list[model.File] = []
    for source in sources:
        others = [other for other in sources if other is not source]
        files += show(repository(source, *others, environment=environment))
    return pick(files)


@cache
def surely_works(version: str, driver: str, gpu: str) -> bool:
    """Return whether a build of torch runs, by the rules of the benchmark."""
    record = torch_records().get(version)
    if record is None:
        return False
    exact = gpu.replace(".", "")
    for piece in record.needs.pieces or ():
        (library,) = piece
        real = [
            int(target.rstrip("af"))
            for target in library.machine_code
            if target.isdigit() or target.rstrip("af") == exact
        ]
        ptx = [int(target.rstrip("af")) for target in library.ptx]
        build = (str(library.cuda or record.needs.cuda), real, ptx)
        if not library.minor and works(build, driver, gpu):
            return True
    return False


UNION = Pages({"torch": html_page(union_names())})
PYPI = Pages({"torch": html_page(union_names(plain=True), hashes=False)})

DATE = torch_records()["2.15.0+cu130"].date


def test_there_are_69_machines() -> None:
    assert len(MACHINES) == 69


@pytest.mark.parametrize(
    "sources",
    [
        [UNION],
        [PYPI],
        pytest.param([PYPI, UNION], marks=pytest.mark.slow),
        pytest.param([UNION, PYPI], marks=pytest.mark.slow),
    ],
    ids=["union", "pypi", "both", "reverse"],
)
def test_every_machine_that_can_exist_gets_a_torch_that_runs(
    sources: Sequence[Pages],
) -> None:
    wrong = {}
    for driver, gpu in MACHINES:
        shown = {
            str(parse_wheel_filename(name)[1])
            for name, source in (
                *((name, UNION) for name in union_names()),
                *((name, PYPI) for name in union_names(plain=True)),
            )
            if source in sources
        }
        possible = any(surely_works(version, driver, gpu) for version in shown)
        found = pick_of_all(sources, machine(driver, gpu))
        if found is None or (possible and not surely_works(found, driver, gpu)):
            wrong[driver, gpu] = found
    assert wrong == {}


class TestLabels:
    """``--label`` on the union page, with a driver for CUDA 12.8."""

    def show(self, label: str) -> tuple[list[str], list[str]]:
        """Return the versions that are shown, and the warnings."""
        warnings: list[str] = []
        found = repository(
            UNION,
            environment=machine("12.8", "8.0"),
            warn=warnings.append,
            pins=Pins(projects={"torch": label}),
        )
        return [str(version_of(file)) for file in show(found)], warnings

    def test_one_that_the_newest_release_lacks(self) -> None:
        versions, warnings = self.show("cu128")
        assert max(versions, key=Version) == "2.11.0+cu128"
        assert {Version(version).local for version in versions} == {"cu128"}
        assert warnings == []

    def test_one_that_cannot_run(self) -> None:
        assert self.show("cu130") == (
            [],
            [
                "torch==2.15.0: cu130 does not fit this machine: it needs a driver for "
                f"CUDA 13, but this one is for CUDA 12.8 (table of builds, {DATE})"
            ],
        )

    def test_one_that_exists_nowhere(self) -> None:
        versions, (warning,) = self.show("cu999")
        assert versions == []
        assert warning.startswith(
            "no release of torch has the label cu999: it has cpu, cu117, cu"
        )

    def test_one_for_other_hardware(self) -> None:
        versions, warnings = self.show("xpu")
        assert max(versions, key=Version) == "2.15.0+xpu"
        assert warnings == []


def test_a_release_that_cannot_run_does_not_hide_an_older_variant() -> None:
    variants = metadata({"null": {}, "cu126": gpu_build("12.6")})
    tag = "cp311-cp311-manylinux_2_28_x86_64"
    names = [
        wheel_file("torch", "2.15.0"),
        wheel_file("torch", "2.9.0"),
        *(f"torch-2.9.0-{tag}-{label}.whl" for label in ("null", "cu126")),
        "torch-2.9.0-variants.json",
    ]
    source = Pages(
        {"torch": html_page(names, hashes=False, metadata=lambda _: None)},
        {"torch-2.9.0-variants.json": json.dumps(variants)},
    )
    files = show(repository(source, environment=machine("12.8", "8.0")))
    fitting = [file for file in files if not file.yanked]
    wheels = [file.filename for file in fitting if file.filename.endswith(".whl")]
    # pip takes the highest build tag of the highest version.
    assert max(wheels, key=lambda name: parse_wheel_filename(name)[1:3]) == (
        f"torch-2.9.0-2cu126-{tag}.whl"
    )


def test_a_machine_without_a_driver() -> None:
    """CPU builds are shown if there are any, and builds without a label are not
    changed."""
    none = machine(None)
    assert pick(show(repository(UNION, environment=none))) == "2.15.0+cpu"
    assert not any(file.yanked for file in show(repository(PYPI, environment=none)))


def test_json_upstreams() -> None:
    """PyPI's page has the size and the hash of each file."""
    records = torch_records()
    files = [
        {
            "filename": name,
            "url": f"{FILES}/{name}",
            "hashes": {"sha256": digest},
            "size": 800_000_000,
            "core-metadata": {"sha256": "0" * 64},
        }
        for version, item in records.items()
        if "+" not in version
        for name, digest in item.wheels.items()
    ]
    document = {"meta": {"api-version": "1.1"}, "name": "torch", "files": files}
    source = Pages(
        {"torch": json.dumps(document)}, kind="application/vnd.pypi.simple.v1+json"
    )
    found = repository(source, environment=machine("12.8", "8.0"))
    assert pick(show(found)) == "2.10.0"
    # No bytes of these files were needed.
    assert source.asked == []


class TestSeveralIndexes:
    def test_nothing_that_cannot_run_comes_in_from_an_index_of_its_own(self) -> None:
        """The builds of one index cannot run, and those of the other index can."""
        names = [name for name in union_names() if "+cu130" in name]
        only = Pages({"torch": html_page(names)})
        assert pick_of_all([only, PYPI], machine("12.8", "8.0")) == "2.10.0"
        assert pick_of_all([PYPI, only], machine("12.8", "8.0")) == "2.10.0"
        # If there are no other builds, the installer decides.
        assert pick_of_all([only], machine("12.8", "8.0")) == "2.15.0+cu130"

    def test_a_folder_for_each_backend(self) -> None:
        """Wheels of one name, such as those of paddlepaddle-gpu."""
        name = wheel_file("demo", "3.0")
        folders = [
            Pages(
                {"demo": html_page([name], base=f"{FILES}/{label}")},
                url=f"https://wheels.example/{label}/",
            )
            for label in ("cu118", "cu126", "cu130")
        ]
        environment = machine("12.8", "8.0")
        shown = {}
        for index in folders:
            others = [other for other in folders if other is not index]
            found = repository(index, *others, environment=environment, warn=ignore)
            (file,) = show(found, "demo")
            shown[index.url.split("/")[-2]] = file.yanked
        assert shown.pop("cu126") is None
        assert "cu126 is the build of 3.0" in str(shown["cu118"])
        assert "it needs a driver for CUDA 13" in str(shown["cu130"])

    def test_copies_in_such_a_folder_are_no_builds(self) -> None:
        """The files of numpy are the same for each directory, and are stored
        elsewhere."""
        index = Pages(
            {"numpy": html_page([wheel_file("numpy", "2.0")])},
            url="https://wheels.example/cu130/",
        )
        found = repository(index, environment=machine("12.8", "8.0"), warn=ignore)
        (file,) = show(found, "numpy")
        assert not file.yanked
        assert found.last("numpy").judged.builds[0].backend is None

    def test_metadata_is_read_from_the_index_that_has_the_file(self) -> None:
        vision = wheel_file("torchvision", "9.0")
        torch = wheel_file("torch", "9.0")
        heads = {
            name: f"Metadata-Version: 2.1\nName: {name}\nVersion: 9.0\n"
            for name in ("torch", "torchvision")
        }
        first = Pages(
            {"torchvision": html_page([vision])},
            {
                f"{vision}.metadata": heads["torchvision"]
                + "Requires-Dist: torch==9.0\n"
            },
        )
        second = Pages(
            {"torch": html_page([torch], base="https://other.example")},
            {
                f"{torch}.metadata": heads["torch"]
                + "Requires-Dist: nvidia-cuda-runtime==13.0.48\n"
            },
        )
        found = repository(first, second, environment=machine("12.8", "8.0"))
        show(found, "torchvision")
        (build,) = found.last("torchvision").judged.builds
        assert build.judgement.verdict == "cannot"
        assert build.judgement.reasons[0].startswith("it requires torch==9.0, and none")
        assert f"{torch}.metadata" in second.asked

    def test_indexes_that_disagree_on_a_file(self) -> None:
        """The SHA-256 decides whether the table knows a file."""
        (record,) = [
            item for version, item in torch_records().items() if version == "2.15.0"
        ]
        ((name, digest),) = record.wheels.items()
        known = f'<a href="{FILES}/{name}#sha256={digest}">it</a>'
        other = f'<a href="{FILES}/other/{name}#sha256={"0" * 64}">it</a>'
        first, second = Pages({"torch": known}), Pages({"torch": other})
        texts = {
            f"{name}.metadata": "Metadata-Version: 2.1\nName: torch\nVersion: 2.15.0\n"
        }
        second.contents = texts
        environment = machine("12.8", "8.0")
        verdicts = []
        for one, two in ((first, second), (second, first)):
            found = repository(one, two, environment=environment, warn=ignore)
            show(found)
            verdicts.append(found.last("torch").judged.builds[0].judgement.verdict)
        assert verdicts == ["cannot", "unknown"]


class TestCompanions:
    def test_torchvision_follows_the_torch_that_it_requires(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Only the builds for CUDA 12.6 have code for this GPU."""
        names = [
            wheel_file("torchvision", f"0.29.1+{label}")
            for label in ("cu126", "cu130", "cpu", "xpu")
        ]
        contents = {
            f"{name}.metadata": (
                f"Metadata-Version: 2.1\nName: torchvision\n"
                f"Version: {name.split('-')[1]}\nRequires-Dist: torch==2.14.1\n"
            )
            for name in names
        }
        pages = {
            "torch": html_page(union_names()),
            "torchvision": html_page(names),
        }
        found = repository(Pages(pages, contents), environment=machine("13.0", "7.0"))
        assert pick(show(found, "torch")) == "2.14.1+cu126"
        assert pick(show(found, "torchvision")) == "0.29.1+cu126"
        page = found.last("torchvision").judged
        assert (page.follows, page.strays) == ("torch", {})

        # The pages of thirty projects, each with 25,000 files, took 25 seconds.
        monkeypatch.setattr(evidence, "_MOST", len(union_names()) - 1)
        found = repository(Pages(pages, contents), environment=machine("13.0", "7.0"))
        show(found, "torchvision")
        assert found.last("torchvision").judged.follows is None

    def test_the_page_of_a_required_project_that_does_not_arrive(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A page may require thirty projects, and each page of them may be slow."""
        monkeypatch.setattr(visibility, "PATIENCE", 0.3)
        defaults = judging.PageJudge.__init__.__kwdefaults__
        assert defaults is not None
        monkeypatch.setitem(defaults, "patience", 0.3)
        name = wheel_file("torchvision", "0.29.1+cu126")
        contents = {
            f"{name}.metadata": "Metadata-Version: 2.1\nName: torchvision\n"
            "Version: 0.29.1+cu126\nRequires-Dist: torch==2.14.1\n"
        }
        pages = _Stalled({"torchvision": html_page([name])}, contents)
        found = repository(pages, environment=machine("13.0", "7.0"), warn=ignore)
        assert pick(show(found, "torchvision")) == "0.29.1+cu126"
        assert found.last("torchvision").judged.follows is None


class _Stalled(Pages):
    """An index that never sends the page of torch."""

    async def get_project_page(
        self, project_name: str, *, request_context: model.RequestContext | None = None
    ) -> model.ProjectDetail:
        if project_name == "torch":
            await asyncio.Event().wait()
        return await super().get_project_page(
            project_name, request_context=request_context
        )


class TestOtherPlatforms:
    """Wheels that this machine cannot install, on a page such as that of PyPI."""

    pages: Mapping[str, str] = {
        "torch": html_page(
            [
                f"torch-{version}-cp311-cp311-{tag}.whl"
                for version in ("2.10.0", "2.15.0")
                for tag in ("manylinux_2_28_x86_64", "win_amd64", "macosx_14_0_arm64")
            ],
            hashes=False,
        )
    }

    def shown(self, driver: str, *, several: bool = False) -> list[str]:
        index = repository(
            Pages(self.pages),
            environment=machine(driver, "8.0"),
            several_platforms=several,
        )
        return [
            file.filename.removeprefix("torch-").removesuffix(".whl")
            for file in show(index)
            if not file.yanked
        ]

    def test_they_do_not_stand_for_a_release_that_can_be_installed(self) -> None:
        assert "2.15.0-cp311-cp311-manylinux_2_28_x86_64" in self.shown("11.8")

    def test_an_installer_that_locks_for_them_too(self) -> None:
        assert [name for name in self.shown("12.8") if name.startswith("2.15")] == [
            "2.15.0-cp311-cp311-win_amd64",
            "2.15.0-cp311-cp311-macosx_14_0_arm64",
        ]
        shown = self.shown("12.8", several=True)
        assert {name.partition("-")[0] for name in shown} == {"2.10.0"}
        assert len(shown) == 3
