"""The program that `ordering` runs in the environment with both packages.

The arguments are the kind of targets, the number of labels, the number of calls, and
the names of the sides to measure. The output is the times of each side in seconds, as
JSON.
"""

from __future__ import annotations

import gc
import json
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from variantlib.models.variant import VariantProperty  # type: ignore[import-untyped]
from variantlib.resolver.lib import (  # type: ignore[import-untyped]
    sort_and_filter_supported_variants,
)
from variantlib.variants_json import VariantsJson  # type: ignore[import-untyped]

from nvidia_variant_provider.machine.environment import (
    ComputeCapability,
    CudaVersion,
    Environment,
    Gpu,
)
from nvidia_variant_provider.machine.supported import all_features, supported_features
from nvidia_variant_provider.metadata import read_metadata
from nvidia_variant_provider.resolution.ordering import order
from nvp import api

MACHINE = Environment(
    cuda_driver_version=CudaVersion(12, 9),
    gpus=(Gpu(index=0, compute_capability=ComputeCapability(9, 0)),),
)
TARGETS = (50, 60, 70, 75, 80, 86, 89, 90, 100, 103, 120, 121)


def neighbours(generator: random.Random) -> list[str]:
    """Return six targets in a row: many labels share few lists."""
    first = generator.randrange(len(TARGETS) - 5)
    return [f"{sm}_real" for sm in TARGETS[first : first + 6]]


def any_six(generator: random.Random) -> list[str]:
    """Return any six of the twelve targets: there are 924 such lists."""
    return [f"{sm}_real" for sm in sorted(generator.sample(TARGETS, 6))]


def catalog(generator: random.Random) -> list[str]:
    """Return any six of the values of the catalog: hardly any list repeats."""
    return generator.sample(all_features()[2].values, 6)


KINDS = {function.__name__: function for function in (neighbours, any_six, catalog)}


def document(labels: int, targets: Callable[[random.Random], list[str]]) -> Any:
    """Return metadata with ``labels`` labels and the null variant, always the same."""
    generator = random.Random(825)
    variants: dict[str, Any] = {"null": {}}
    for number in range(labels):
        minor = generator.randrange(15)
        variants[f"cu12{minor}_{number:05}"] = {
            "nvidia": {
                "cuda_version_lower_bound": [f"12.{minor}"],
                "sm_arch": targets(generator),
            }
        }
    return {
        "$schema": "https://variants-schema.wheelnext.dev/v0.2.0.json",
        "default-priorities": {"namespace": ["nvidia"]},
        "providers": {"nvidia": {"requires": ["nvidia-variant-provider"]}},
        "variants": variants,
    }


class Sides:
    """The sides that can be measured on one file; each method is one call."""

    def __init__(self, path: Path) -> None:
        self.path = path
        # A file of 50,000 labels is longer than any that is read from a path.
        self.metadata = read_metadata(self.read_json())
        self.descriptions = list(self.read_theirs().variants.values())
        features, _ = supported_features(MACHINE)
        self.supported = {"nvidia": {item.name: item.values for item in features}}
        self.supported_theirs = [
            VariantProperty("nvidia", item.name, value)
            for item in features
            for value in item.values
        ]

    def ours(self) -> list[str]:
        ordering = order(
            self.metadata.variants,
            namespaces=self.metadata.namespaces,
            supported=self.supported,
        )
        return list(ordering.compatible)

    def theirs(self, **options: bool) -> list[str]:
        ordered = sort_and_filter_supported_variants(
            self.descriptions, self.supported_theirs, ["nvidia"], **options
        )
        return [description.label for description in ordered]

    def theirs_warm(self) -> list[str]:
        return self.theirs()

    def theirs_filter(self) -> list[str]:
        return self.theirs(filter_values=True)

    def resolve(self) -> list[str]:
        return list(api.resolve(self.metadata, environment=MACHINE).compatible)

    def read(self) -> Any:
        return read_metadata(self.path)

    def read_theirs(self) -> Any:
        with self.path.open(encoding="utf-8") as file:
            return VariantsJson(json.load(file))

    def read_json(self) -> Any:
        return json.loads(self.path.read_bytes())

    def prepare(self, side: str) -> None:
        """Restore the state of a process that sorts for the first time."""
        if side != "theirs_warm":
            for description in self.descriptions:
                # The first call stores a hash on each label that it rejects.
                vars(description).pop("hexdigest", None)
        gc.collect()


def main() -> None:
    kind, labels, calls, *names = sys.argv[1:]
    path = Path("many-1.0-variants.json")
    path.write_text(json.dumps(document(int(labels), KINDS[kind])))
    sides = Sides(path)
    labels_in_order = sides.ours()
    if sides.theirs() != labels_in_order or sides.resolve() != labels_in_order:
        raise SystemExit("the sides give different labels")
    taken: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(int(calls)):
        for name in names:
            call = getattr(sides, name)
            sides.prepare(name)
            start = time.perf_counter()
            call()
            taken[name].append(time.perf_counter() - start)
    json.dump(taken, sys.stdout)


if __name__ == "__main__":
    main()
