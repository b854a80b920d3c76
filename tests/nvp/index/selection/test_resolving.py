"""Resolving the releases of an index with the options of a selection."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from support.documents import TORCH_LABELS, document
from support.loopback import H100

from nvidia_variant_provider.machine.environment import CudaVersion
from nvidia_variant_provider.metadata import read_metadata
from nvidia_variant_provider.resolution.inputs import Priorities
from nvp.index.selection.options import Selection
from nvp.index.selection.variants import ReleaseResolver

OPT_IN = {"NV_VARIANT_PROVIDER_MINOR_VERSION_COMPATIBILITY": "1"}


@pytest.mark.parametrize(
    ("given", "fits"),
    [
        ({}, False),
        ({"environ": {}}, False),
        ({"environ": OPT_IN}, True),
        ({"minor_version_compatibility": True}, True),
    ],
)
def test_the_caller_passes_the_environment(
    given: dict[str, Any],
    fits: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With a driver for CUDA 12.7, the build for CUDA 12.8 needs the opt-in."""
    # The variables of this process do not count.
    for name, text in OPT_IN.items():
        monkeypatch.setenv(name, text)
    older = H100.replace(cuda_driver_version=CudaVersion(12, 7))
    selection = Selection(machine=lambda: older, priorities=Priorities(), **given)
    resolver = ReleaseResolver(selection)
    metadata = read_metadata(document(TORCH_LABELS))
    resolution = asyncio.run(resolver.resolve(metadata))
    assert ("cu128" in resolution.compatible) is fits
