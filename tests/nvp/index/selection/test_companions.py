"""The backend of a companion, such as torchvision, is that of its own index."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from support.required_projects import (
    CU13,
    OTHER_PYTHON,
    RUNS,
    Wheels,
    find_shown,
    index_of,
    wheel,
)

BACKENDS = {
    f"{name}+{label}": wheel(requires)
    for name, requires in {"torch-99.0": "", "torchvision-0.9": "torch>=99.0"}.items()
    for label in ("cu126", "cu128")
}


@pytest.mark.parametrize(
    "other",
    [
        {},
        {
            "torchvision-0.1+cu126": wheel("bitsandbytes==1.0"),
            "bitsandbytes-1.0+cu126": wheel(),
        },
        {"torch-99.1+cu126": wheel(tag=OTHER_PYTHON)},
        {"torch-99.1rc1+cu126": wheel()},
    ],
)
def test_the_backend_of_a_companion(other: Wheels) -> None:
    """Another index decided on cu126, although the torch is one for cu128."""
    shown = find_shown("torchvision", index_of(0, BACKENDS), index_of(1, other))
    assert shown == ["0.9+cu128"]


CPU = {"kern-0.9+cu126": wheel("torch==98.0"), "kern-0.9+cpu": wheel("torch==98.0")}


@pytest.mark.parametrize(
    ("own", "other"),
    [
        # Only another index has a torch with a label, which is older.
        ({**CPU, "torch-98.0": wheel(RUNS)}, {"torch-97.0+cpu": wheel()}),
        # The other index has the CPU build of the required release.
        ({**CPU, "torch-98.0": wheel()}, {"torch-98.0+cpu": wheel()}),
        ({**CPU, "torch-98.0": wheel()}, {"torch-98.0+cpu": wheel("", OTHER_PYTHON)}),
        # Only a build of the other index, which cannot run, requires a GPU project.
        (
            {
                "kern-0.9+cu126": wheel(),
                "kern-0.9+cpu": wheel(),
                "torch-98.0+cpu": wheel(),
            },
            {"kern-0.8+cu130": wheel("torch==99.0")},
        ),
        (
            {**CPU, "torch-98.0": wheel(RUNS)},
            {"kern-0.8+cu130": wheel("torchaudio"), "torchaudio-2.0+cpu": wheel()},
        ),
        # The release is not known to require the project that only the other has.
        (
            {
                "kern-0.9+cu126": wheel(),
                "kern-0.9+cpu": wheel(),
                "kern-1.0": wheel("torch==99.0"),
            },
            {"torch-99.0": wheel(CU13), "torch-97.0+cpu": wheel()},
        ),
    ],
)
def test_a_gpu_build_gives_way_to_no_cpu_build(own: Wheels, other: Wheels) -> None:
    """It did for a CPU build of a required project on another index."""
    shown = find_shown("kern", index_of(0, own), index_of(1, other))
    assert "0.9+cu126" in shown


def test_a_cpu_build_of_an_older_required_release() -> None:
    """The index has it beside a required release without a label, which runs."""
    torch = {"torch-98.0": wheel(RUNS), "torch-97.0+cpu": wheel()}
    assert "0.9+cu126" in find_shown("kern", index_of(0, {**CPU, **torch}))


def test_a_release_whose_requirements_only_another_index_tells() -> None:
    own = {**BACKENDS, "torch-97.0+cu126": wheel()}
    own |= {f"torchvision-0.8+{label}": wheel(None) for label in ("cu126", "cu128")}
    other = {"torchvision-0.8+cu130": wheel("torch==97.0")}
    shown = find_shown("torchvision", index_of(0, own), index_of(1, other))
    assert shown == ["0.9+cu128", "0.8+cu128"]


@pytest.mark.parametrize(
    ("own", "other", "expected"),
    [
        (
            {
                "torch-2.7.0+cu126": wheel(),
                "kern-0.9+cu126torch2.7": wheel("torch"),
                "kern-0.9+cu126torch2.8": wheel("torch"),
            },
            {"torch-2.8.0+cu126": wheel()},
            # pip takes the torch of the other index, so its build stays.
            ["0.9+cu126torch2.7", "0.9+cu126torch2.8"],
        ),
        (
            {
                "torch-99.0+cu128": wheel(),
                "kern-0.9+cu126": wheel("torch>=99.0"),
                "kern-0.9+cu128": wheel("torch>=99.0"),
            },
            {"torch-99.1+cu126": wheel()},
            ["0.9+cu128"],
        ),
        (
            {
                "torch-98.0+cu128": wheel(),
                "kern-0.9+cu126": wheel("torch==98.0"),
                "kern-0.9+cu128": wheel("torch==98.0"),
            },
            {"kern-0.9": wheel("torch==97.0", OTHER_PYTHON)},
            ["0.9+cu128"],
        ),
    ],
)
def test_a_build_for_the_torch_of_the_same_index(
    own: Wheels, other: Wheels, expected: Sequence[str]
) -> None:
    """uv takes both from the first index, and found no solution."""
    assert find_shown("kern", index_of(0, own), index_of(1, other)) == expected
