"""The published variant metadata of torch and torchvision, on 96 machines.

The expected labels were checked with the GPU code of the builds: no machine gets a
build without code for its GPU.
"""

from __future__ import annotations

import json
from collections import Counter

import pytest
from support.grids import some_of
from support.paths import FIXTURES

from benchmarks.selection import DRIVERS, GPUS, works
from nvidia_variant_provider import api
from nvidia_variant_provider.metadata import read_metadata
from nvidia_variant_provider.resolution.inputs import Priorities

FOLDER = FIXTURES / "published"
EXPECTED = json.loads((FOLDER / "expected.json").read_text(encoding="utf-8"))


def select(name: str) -> dict[str, list[str | None]]:
    metadata = read_metadata(FOLDER / name)
    return {
        driver: [
            api.resolve(
                metadata,
                environ={
                    "NV_VARIANT_PROVIDER_FORCE_CUDA_DRIVER_VERSION": driver,
                    "NV_VARIANT_PROVIDER_FORCE_SM_ARCH": gpu,
                },
                priorities=Priorities(),
            ).selected
            for gpu in EXPECTED["gpus"]
        ]
        for driver in EXPECTED["selected"][name]
    }


def test_every_published_file_has_expectations() -> None:
    names = {path.name for path in FOLDER.glob("*-variants.json")}
    assert names == EXPECTED["selected"].keys()
    assert EXPECTED["gpus"] == GPUS
    assert all(list(rows) == DRIVERS for rows in EXPECTED["selected"].values())


@pytest.mark.parametrize(
    "name", some_of(((name,) for name in sorted(EXPECTED["selected"])), 3)
)
def test_label_of_each_machine(name: str) -> None:
    assert select(name) == EXPECTED["selected"][name]


@pytest.mark.parametrize(
    ("name", "works_on", "needless", "right"),
    [
        ("torch-2.8.0-variants.json", 65, 12, 19),
        ("torch-2.9.0-variants.json", 77, 0, 19),
        ("torch-2.10.0-variants.json", 77, 0, 19),
    ],
)
def test_what_becomes_of_the_machines(
    name: str, works_on: int, needless: int, right: int
) -> None:
    variants = json.loads((FOLDER / name).read_bytes())["variants"]
    toolkits = {
        label: ".".join((label[-3:-1], label[-1]))
        if label.startswith("cu1")
        else label.removeprefix("cuda")
        for label, properties in variants.items()
        if "nvidia" in properties
    }
    builds = {
        label: (
            toolkit,
            [int(v[:-5]) for v in targets(variants, label) if v.endswith("_real")],
            [int(v[:-8]) for v in targets(variants, label) if v.endswith("_virtual")],
        )
        for label, toolkit in toolkits.items()
    }
    counts: Counter[str] = Counter()
    for driver, labels in EXPECTED["selected"][name].items():
        for gpu, label in zip(EXPECTED["gpus"], labels, strict=True):
            if label in builds:
                assert works(builds[label], driver, gpu), (driver, gpu, label)
                counts["works"] += 1
            elif any(works(build, driver, gpu) for build in builds.values()):
                counts["needless"] += 1
            else:
                counts["right"] += 1
    assert counts == Counter(works=works_on, needless=needless, right=right)


def targets(
    variants: dict[str, dict[str, dict[str, list[str]]]], label: str
) -> list[str]:
    values: list[str] = variants[label]["nvidia"]["sm_arch"]
    return values
