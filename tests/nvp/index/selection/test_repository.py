"""`VariantRepository`: the pages and files that it shows."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from simple_repository import errors, model
from simple_repository.components.core import SimpleRepository
from support.documents import TORCH, TORCH_LABELS, document, of_one
from support.loopback import H100
from support.strategies import documents, wild_machines
from support.wheels import stub_wheel, wheel_name

from nvidia_variant_provider.errors import InputError, OverrideError, ProviderError
from nvidia_variant_provider.machine.environment import Environment
from nvidia_variant_provider.resolution import inputs
from nvidia_variant_provider.resolution.inputs import Priorities
from nvp.api import resolve
from nvp.index.http.kept_keys import LABEL_KEY
from nvp.index.selection.component import VariantRepository
from nvp.index.selection.options import Pins, Selection

METADATA = "torch-2.8.0-variants.json"
PLAIN = wheel_name("torch", "2.8.0")
LABELS = [wheel_name("torch", "2.8.0", label) for label in TORCH_LABELS]


class Memory(SimpleRepository):
    """A repository of texts and paths that records the requests for files."""

    def __init__(self, files: Mapping[str, str | Path | Exception]) -> None:
        self.files = files
        self.asked: list[str] = []
        self.more: dict[str, Any] = {}

    async def get_project_page(
        self,
        project_name: str,
        *,
        request_context: model.RequestContext | None = None,  # noqa: ARG002
    ) -> model.ProjectDetail:
        if project_name != "torch":
            raise errors.PackageNotFoundError(project_name)
        files = (
            model.File(
                filename=name, url=f"https://h.example/{name}", hashes={}, size=1
            )
            for name in self.files
        )
        return model.ProjectDetail(
            meta=model.Meta("1.1"), name="torch", files=tuple(files), **self.more
        )

    async def get_resource(
        self,
        project_name: str,  # noqa: ARG002
        resource_name: str,
        *,
        request_context: model.RequestContext | None = None,  # noqa: ARG002
    ) -> model.Resource:
        self.asked.append(resource_name)
        found = self.files.get(resource_name)
        if isinstance(found, str):
            return model.TextResource(text=found)
        if isinstance(found, Path):
            return model.LocalResource(path=found)
        raise found or errors.ResourceUnavailable(resource_name)


def repository(
    source: SimpleRepository, machine: Environment = H100, **options: Any
) -> tuple[VariantRepository, list[str]]:
    """Make a repository, and the list of its warnings.

    :param options: the other fields of `Selection`.
    """
    warnings: list[str] = []
    selection = Selection(machine=lambda: machine, environ={}, **options)
    made = VariantRepository(source, selection=selection, warn=warnings.append)
    return made, warnings


def page(found: VariantRepository) -> list[str]:
    detail = asyncio.run(found.get_project_page("torch"))
    return [file.filename for file in detail.files]


def torch(**changes: Any) -> dict[str, str | Path | Exception]:
    names = [PLAIN, *LABELS, "torch-2.8.0.tar.gz"]
    files = dict.fromkeys(names, "")
    return {**files, METADATA: json.dumps(TORCH), **changes}


def test_a_page_shows_the_builds_that_fit() -> None:
    source = Memory(torch())
    found, warnings = repository(source)
    assert page(found) == [
        # The best build is the first wheel for pdm, and the last one for poetry.
        "torch-2.8.0-2cu128-py3-none-any.whl",
        PLAIN,
        "torch-2.8.0.tar.gz",
        METADATA,
        "torch-2.8.0-1cu126-py3-none-any.whl",
        "torch-2.8.0-2cu128-py3-none-any.whl",
    ]
    assert warnings == []
    # Only the metadata file is read.
    assert source.asked == [METADATA]


def test_only_the_name_of_a_file_changes() -> None:
    source = Memory(torch())
    source.more = {"versions": frozenset(["2.8.0", "1.0"])}
    detail = asyncio.run(repository(source)[0].get_project_page("torch"))
    before = asyncio.run(source.get_project_page("torch"))
    assert (detail.versions, detail.meta, detail.name) == (
        before.versions,
        before.meta,
        before.name,
    )
    by_url = {file.url: file for file in before.files}
    for file in detail.files:
        private = dict(file.private_metadata.items())
        own = by_url[file.url]
        assert (file.hashes, file.size, file.url) == (own.hashes, own.size, own.url)
        if file.filename.endswith(".whl"):
            label = private.pop(LABEL_KEY)
            assert str(label or "") in file.filename
        assert private == {}


def test_a_page_without_variants_is_the_same_object() -> None:
    class Fixed(Memory):
        detail = model.ProjectDetail(meta=model.Meta("1.0"), name="torch", files=())

        async def get_project_page(self, *_: Any, **__: Any) -> model.ProjectDetail:
            return self.detail

    def fail() -> Environment:
        raise AssertionError("nothing is to be detected")

    source = Fixed({})
    found = VariantRepository(source, machine=fail)
    assert asyncio.run(found.get_project_page("torch")) is source.detail
    assert source.asked == []


def test_resources_are_the_wheels_themselves(tmp_path: Path) -> None:
    wheel = stub_wheel(
        tmp_path, "torch", "2.8.0", "cu128", variant_json=of_one("cu128")
    )
    source = Memory(torch(**{wheel.name: wheel}))
    found, _ = repository(source)
    name = "torch-2.8.0-2cu128-py3-none-any.whl"

    async def fetch(name: str) -> model.Resource:
        return await found.get_resource("torch", name)

    # An installer with a cached page requests only the file.
    resource = asyncio.run(fetch(name))
    assert isinstance(resource, model.LocalResource)
    assert resource.path == wheel
    for other in (
        "torch-2.8.0-3cu128-py3-none-any.whl",
        "torch-2.8.0-1cu130-py3-none-any.whl",
    ):
        with pytest.raises(errors.ResourceUnavailable):
            asyncio.run(fetch(other))


@pytest.mark.parametrize(
    "defect",
    [
        "{",
        "[]",
        '{"variants": 5}',
        "\x00",
        json.dumps({**TORCH, "unknown": 1}),
        json.dumps({**TORCH, "variants": {"cu126": {}}}),
        "[" * 100_000,
        errors.ResourceUnavailable("x"),
        errors.PackageNotFoundError("x"),
        errors.SourceRepositoryUnavailable(),
        InputError("no"),
        Path("/nowhere/at/all"),
    ],
)
def test_without_usable_metadata_there_are_no_variants(
    defect: str | Path | Exception,
) -> None:
    found, warnings = repository(Memory(torch(**{METADATA: defect})))
    assert page(found) == [PLAIN, "torch-2.8.0.tar.gz", METADATA]
    (warning,) = warnings
    assert warning.startswith("torch 2.8.0: its variants are ignored: ")
    assert warning.isprintable()
    page(found)
    assert len(warnings) == 1


def test_a_label_that_the_metadata_does_not_have() -> None:
    variants = {"cu126": TORCH_LABELS["cu126"]}
    source = Memory(torch(**{METADATA: json.dumps(document(variants))}))
    found, warnings = repository(source)
    assert "torch-2.8.0-1cu126-py3-none-any.whl" in page(found)
    (warning,) = warnings
    assert "cu128, cu130" in warning


def test_a_label_without_a_wheel() -> None:
    files = torch()
    del files[LABELS[1]]
    found, warnings = repository(Memory(files))
    assert "torch-2.8.0-1cu126-py3-none-any.whl" in page(found)
    assert warnings == []


class TestPins:
    def test_a_pinned_label_hides_everything_else(self) -> None:
        files = torch(**{"torch-2.9.0-py3-none-any.whl": ""})
        found, warnings = repository(
            Memory(files), pins=Pins(projects={"torch": "cu126"})
        )
        names = page(found)
        assert "torch-2.8.0-1cu126-py3-none-any.whl" in names
        assert PLAIN not in names
        assert warnings == []

    def test_a_pinned_label_that_no_release_has(self) -> None:
        found, warnings = repository(
            Memory(torch()), pins=Pins(projects={"torch": "cu999"})
        )
        assert page(found) == []
        (warning,) = warnings
        assert warning.startswith(
            "no release of torch has the label cu999: it has cu126, cu128"
        )

    @pytest.mark.parametrize("label", ["cu999", "unheard"])
    def test_a_label_for_all_that_a_project_does_not_have(self, label: str) -> None:
        """Builds for another CUDA version than the requested one must not be
        selected."""
        found, warnings = repository(Memory(torch()), pins=Pins(everywhere=label))
        refused = label == "cu999"
        assert (page(found) == []) is refused
        assert len(warnings) == refused

    def test_a_pinned_label_that_does_not_fit(self) -> None:
        found, warnings = repository(
            Memory(torch()), pins=Pins(projects={"torch": "cu130"})
        )
        assert page(found) == []
        (warning,) = warnings
        assert warning.startswith("torch==2.8.0: cu130 does not fit this machine: it ")

    def test_a_pinned_label_that_only_an_older_release_has(self) -> None:
        files = torch(
            **{"torch-2.9.0.tar.gz": "", "torch-2.9.0+cu130-py3-none-any.whl": ""}
        )
        found, warnings = repository(Memory(files), pins=Pins(everywhere="cu126"))
        # The best build is the first wheel for pdm, and the last one for poetry.
        assert page(found) == ["torch-2.8.0-1cu126-py3-none-any.whl"] * 2
        assert warnings == []

    def test_a_pinned_local_label(self) -> None:
        name = "torch-2.9.0+cu130-py3-none-any.whl"
        found, warnings = repository(
            Memory(torch(**{name: ""})), pins=Pins(projects={"torch": "cu130"})
        )
        assert page(found) == [name]
        assert warnings == []


class TestMarkers:
    NAME = "torch-2.8.0-2cu128-py3-none-any.whl"

    def fetch(self, files: Mapping[str, Any]) -> list[str]:
        found, warnings = repository(Memory(files))
        asyncio.run(found.get_resource("torch", self.NAME))
        return warnings

    def wheel(self, folder: Path, *requires: str) -> dict[str, Any]:
        path = stub_wheel(
            folder,
            "torch",
            "2.8.0",
            "cu128",
            variant_json=of_one("cu128"),
            requires=requires,
        )
        return torch(**{path.name: path})

    @pytest.mark.parametrize(
        "marker", ["label", "namespaces", "features", "properties"]
    )
    def test_variant_markers_are_refused_with_a_reason(
        self, marker: str, tmp_path: Path
    ) -> None:
        files = self.wheel(tmp_path, f"a; 'cu128' in variant_{marker}")
        with pytest.raises(
            errors.InvalidPackageError, match="refused, because its METADATA has"
        ):
            self.fetch(files)

    def test_other_markers_are_not_refused(self, tmp_path: Path) -> None:
        assert (
            self.fetch(self.wheel(tmp_path, "variant-label; python_version > '3'"))
            == []
        )

    @pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"x" * 100_000])
    def test_metadata_that_cannot_be_read_is_left_to_the_installer(
        self, content: bytes, tmp_path: Path
    ) -> None:
        path = tmp_path / LABELS[1]
        path.write_bytes(content)
        (warning,) = self.fetch(torch(**{path.name: path}))
        assert "METADATA could not be checked" in warning
        path.unlink()
        (warning,) = self.fetch(torch(**{path.name: path}))
        assert "METADATA could not be checked" in warning


class TestWithoutMetadataFile:
    def files(self, folder: Path, labels: list[str]) -> dict[str, Any]:
        paths = (
            stub_wheel(folder, "torch", "2.8.0", label, variant_json=of_one(label))
            for label in labels
        )
        return {PLAIN: "", **{path.name: path for path in paths}}

    def test_the_metadata_is_read_from_the_wheels(self, tmp_path: Path) -> None:
        source = Memory(self.files(tmp_path, ["cu126", "cu128", "cu130"]))
        found, warnings = repository(source)
        assert "torch-2.8.0-2cu128-py3-none-any.whl" in page(found)
        assert warnings == []
        asked = len(source.asked)
        page(found)
        assert len(source.asked) == asked

    @pytest.mark.parametrize("defect", ["gone", "empty", "other"])
    def test_a_wheel_without_usable_metadata(self, defect: str, tmp_path: Path) -> None:
        files = self.files(tmp_path, ["cu126", "cu128"])
        path = files[LABELS[1]]
        if defect == "gone":
            path.unlink()
        elif defect == "empty":
            path.write_bytes(b"")
        else:
            path.write_bytes((tmp_path / LABELS[0]).read_bytes())
        found, warnings = repository(Memory(files))
        assert page(found) == [PLAIN]
        assert len(warnings) == 1

    def test_too_many_labels(self) -> None:
        labels = [f"x{number}" for number in range(65)]
        names = [wheel_name("torch", "2.8.0", label) for label in labels]
        source = Memory({PLAIN: "", **dict.fromkeys(names, "")})
        found, warnings = repository(source)
        assert page(found) == [PLAIN]
        assert "65 labels" in warnings[0]
        assert source.asked == []
        same = document(dict.fromkeys(labels, TORCH["variants"]["cu128"]))
        source.files = {**source.files, METADATA: json.dumps(same)}
        page(repository(source, rewrites=True)[0])
        assert len(source.asked) == 65  # the metadata, and the wheels of 64 labels


@settings(max_examples=30, deadline=None)
@given(documents(), wild_machines)
def test_the_builds_that_are_shown_are_those_that_api_resolve_returns(
    metadata: dict[str, Any], machine: Environment
) -> None:
    names = [wheel_name("torch", "2.8.0", label) for label in metadata["variants"]]
    source = Memory(
        {PLAIN: "", **dict.fromkeys(names, ""), METADATA: json.dumps(metadata)}
    )
    found, warnings = repository(source, machine)
    page(found)
    release = found.last("torch").releases["2.8.0"]
    try:
        expected = resolve(metadata, environment=machine, environ={})
    except (InputError, OverrideError, ProviderError):
        assert release.labels == ()
        assert warnings
        return
    assert release.labels == tuple(expected.compatible)


class TestPreparation:
    """The machine and ``variants.toml`` are read only once, when they are needed."""

    def test_both_are_read_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        calls: list[str] = []

        def find_machine() -> Environment:
            calls.append("machine")
            return H100

        def load() -> Priorities:
            calls.append("priorities")
            return Priorities()

        monkeypatch.setattr(inputs, "load_priorities", load)
        older = {name.replace("2.8.0", "2.7.0"): text for name, text in torch().items()}
        made = VariantRepository(
            Memory({**torch(), **older}),
            selection=Selection(environ={}, machine=find_machine),
        )

        async def read_twice() -> None:
            for _ in range(2):
                await made.get_project_page("torch")

        assert calls == []
        asyncio.run(read_twice())
        assert len(made.last("torch").releases) == 2
        assert calls == ["machine", "priorities"]

    def test_given_priorities_replace_those_of_the_user(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(inputs, "load_priorities", None)
        preferred = Priorities(
            features={"nvidia": ("cuda_version_lower_bound", "sm_arch")},
            properties={"nvidia": {"cuda_version_lower_bound": ("12.6",)}},
        )
        made, _ = repository(Memory(torch()), priorities=preferred)
        page(made)
        assert made.last("torch").releases["2.8.0"].labels[0] == "cu126"

    def test_a_broken_file_of_the_user_is_a_reason(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "variants.toml").write_text("nonsense")
        monkeypatch.chdir(tmp_path)
        made, warnings = repository(Memory(torch()))
        assert page(made) == [PLAIN, "torch-2.8.0.tar.gz", METADATA]
        assert "variants.toml: not TOML" in warnings[0]

    def test_the_machine_alone_can_be_given(self) -> None:
        made = VariantRepository(Memory(torch()), machine=lambda: H100)
        page(made)
        assert made.last("torch").releases["2.8.0"].labels[0] == "cu128"
