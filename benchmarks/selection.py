"""The builds that selectors pick for 96 machines: strict, opted in, and the real uv.

The machines are 12 GPUs with 8 drivers each, of which 69 can exist. A pick counts by
whether it runs on the machine, whatever the metadata claims. uv installs the releases
of the tutorials; the published metadata is only resolved.
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import (
    CHECKOUT,
    Command,
    fresh_environment,
    options,
    print_table,
    run,
)
from nvidia_variant_provider.machine.environment import ComputeCapability, CudaVersion
from nvp.knowledge.tables import can_exist

UV = "uv==0.13.8"
GPUS = "7.0 6.1 7.5 8.0 8.6 8.9 9.0 10.0 10.3 11.0 12.0 12.1".split()  # noqa: SIM905
DRIVERS = "11.8 12.2 12.4 12.6 12.8 12.9 13.0 13.2".split()  # noqa: SIM905

# The CUDA version of the toolkit, the targets of machine code, the targets of PTX.
Build = tuple[str, Sequence[int], Sequence[int]]
Machine = tuple[str, str]
Picks = dict[str, dict[str, "str | None"]]
"""The labels by driver and GPU."""

RELEASES: Mapping[str, Mapping[str, Build]] = {
    "torch 2.8.0": {
        "cu126": ("12.6", [50, 60, 70, 75, 80, 86, 90], []),
        "cu128": ("12.8", [75, 80, 86, 90, 100, 120], []),
        "cu129": ("12.9", [75, 80, 86, 90, 100, 120], [120]),
    },
    "torch 2.9.1": {
        "cu126": ("12.6", [50, 60, 70, 75, 80, 86, 90], []),
        "cu128": ("12.8", [70, 75, 80, 86, 90, 100, 120], []),
        "cu130": ("13.0", [75, 80, 86, 90, 100, 120], [120]),
    },
}
PUBLISHED = [f"torch-{v}-variants.json" for v in ("2.8.0", "2.9.0", "2.10.0")]
SELECTORS = {
    "strict": "strict lower bounds",
    "relaxed": "opted in to minor-version compatibility",
    "uv": f"uv {UV.partition('==')[2]} with preview",
}
OUTCOMES = {
    "works": "works",
    "no-kernels": "no kernels for the GPU",
    "needless-cpu": "CPU although a build works",
    "cpu": "CPU is right",
}


def main() -> None:
    parser = options(__doc__, 1)
    parser.add_argument("--pick", action="store_true", help="used by the script itself")
    if parser.parse_args().pick:
        print(json.dumps(pick_all()))
        return
    with fresh_environment(UV) as environment:
        search = [str(CHECKOUT), str(CHECKOUT / "tests")]
        variables = {"PYTHONPATH": ":".join(search)}
        command = Command(["-m", "benchmarks.selection", "--pick"], variables)
        picks = json.loads(run(environment, command))
    releases = {**RELEASES, **{name: builds_of(name) for name in PUBLISHED}}
    machines = [(driver, gpu) for driver in DRIVERS for gpu in GPUS]
    existing = [
        (driver, gpu)
        for driver, gpu in machines
        if can_exist(CudaVersion.parse(driver), ComputeCapability.parse(gpu))
    ]
    for title, some in (("machines", machines), ("machines that can exist", existing)):
        rows = [
            [f"{release}, {name}", *counts]
            for release, builds in releases.items()
            for name, counts in count(builds, picks[release], some)
        ]
        print_table(
            f"{len(some)} {title}, by what becomes of the pick",
            ["", *OUTCOMES.values()],
            rows,
        )


def count(
    builds: Mapping[str, Build], picks: Mapping[str, Picks], machines: Sequence[Machine]
) -> Iterator[tuple[str, list[str]]]:
    """Yield each selector of a release with the number of machines by outcome."""
    for selector, by_driver in picks.items():
        counts = Counter(
            outcome(builds, by_driver[driver][gpu], driver, gpu)
            for driver, gpu in machines
        )
        yield SELECTORS[selector], [str(counts[key]) for key in OUTCOMES]
    possible = sum(
        any(works(build, driver, gpu) for build in builds.values())
        for driver, gpu in machines
    )
    yield "possible", [str(possible), "0", "0", str(len(machines) - possible)]


def builds_of(name: str) -> dict[str, Build]:
    """Return the builds of a published release, whose labels name the toolkit."""
    document = json.loads((CHECKOUT / "fixtures" / "published" / name).read_bytes())
    builds: dict[str, Build] = {}
    for label, spaces in document["variants"].items():
        if "nvidia" not in spaces:
            continue
        digits = "".join(filter(str.isdigit, label))
        targets = [target.split("_") for target in spaces["nvidia"]["sm_arch"]]
        real, virtual = (
            [int(number) for number, kind in targets if kind == wanted]
            for wanted in ("real", "virtual")
        )
        builds[label] = f"{digits[:-1]}.{digits[-1]}", real, virtual
    return builds


def pick_all() -> dict[str, dict[str, Picks]]:
    """Return ``{release: {selector: {driver: {gpu: label}}}}``."""
    from support.documents import document, forced, nvidia
    from support.uv_installer import uv_index

    picks: dict[str, dict[str, Picks]] = {}
    with tempfile.TemporaryDirectory() as folder, uv_index(Path(folder)) as index:
        documents = {}
        for release, builds in RELEASES.items():
            labels = {
                label: nvidia(
                    toolkit,
                    sm=[f"{n}_real" for n in real] + [f"{n}_virtual" for n in virtual],
                )
                for label, (toolkit, real, virtual) in builds.items()
            }
            documents[release] = document({"null": {}, **labels})
            picks[release] = {selector: {} for selector in SELECTORS}
        projects = {release: index.publish(d) for release, d in documents.items()}
        for driver in DRIVERS:
            for gpu in GPUS:
                variables = forced(driver, gpu)
                installed = index.install(list(projects.values()), variables)
                for release, by_uv in zip(documents, installed, strict=True):
                    metadata = documents[release]
                    labels_by: dict[str, str | None] = {"uv": by_uv}
                    for selector in ("strict", "relaxed"):
                        labels_by[selector] = select(metadata, variables, selector)
                    for selector, label in labels_by.items():
                        row = picks[release][selector].setdefault(driver, {})
                        row[gpu] = label
    for name in PUBLISHED:
        path = CHECKOUT / "fixtures" / "published" / name
        picks[name] = {
            selector: {
                driver: {
                    gpu: select(path, forced(driver, gpu), selector) for gpu in GPUS
                }
                for driver in DRIVERS
            }
            for selector in ("strict", "relaxed")
        }
    return picks


def select(release: Any, variables: Mapping[str, str], selector: str) -> str | None:
    """Return the label that this project selects."""
    from nvidia_variant_provider.resolution.inputs import Priorities
    from nvp import api

    opt_in = {"NV_VARIANT_PROVIDER_MINOR_VERSION_COMPATIBILITY": "1"}
    more = opt_in if selector == "relaxed" else {}
    return api.resolve(
        release,
        supported={"priority": {"order": ["1", "2", "3"]}, "intel": {}, "amd": {}},
        environ={**variables, **more},
        priorities=Priorities(),
    ).selected


def outcome(
    builds: Mapping[str, Build], label: str | None, driver: str, gpu: str
) -> str:
    """Return how a pick fares on a machine: a key of `OUTCOMES`."""
    if label is not None and label in builds:
        return "works" if works(builds[label], driver, gpu) else "no-kernels"
    possible = any(works(build, driver, gpu) for build in builds.values())
    return "needless-cpu" if possible else "cpu"


def works(build: Build, driver: str, gpu: str) -> bool:
    """Return whether a build runs, by SASS or by PTX that the driver compiles.

    SASS runs on the GPUs of its major with the same or a higher minor, under drivers of
    the same or a newer CUDA major. PTX also runs on newer GPUs, under drivers that are
    as new as its toolkit.
    """
    toolkit, real, virtual = build
    capability = int(gpu.replace(".", ""))
    wanted, offered = version(toolkit), version(driver)
    native = any(n // 10 == capability // 10 and n <= capability for n in real)
    compiled = any(n <= capability for n in virtual) and offered >= wanted
    return (native and offered[0] >= wanted[0]) or compiled


def version(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(".")))


if __name__ == "__main__":
    main()
