"""The torch that existing machines get from regular pages, and whether it runs.

A label page has a build for each backend (``+cu126``, ``+cpu``, ``+xpu``), and a page
such as PyPI's has one build of each release. The benchmark makes both pages from the
table of builds, with wheels that have only METADATA, and installs nothing. A pick
counts by whether it runs on the machine, by `benchmarks.selection.works`.
"""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import tempfile
import zipfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import quote

from benchmarks.harness import Environment, fresh_environment, options, print_table
from benchmarks.loopback import CLEAN, EXTRAS, link_all, upstream
from benchmarks.selection import DRIVERS, GPUS, UV, Build, works
from nvidia_variant_provider.machine.environment import ComputeCapability, CudaVersion
from nvp.knowledge.builds import BuildRecord, build_records
from nvp.knowledge.tables import can_exist, driver_branches

PLATFORM = "linux_x86_64"
OUTCOMES = {
    "runs": "runs",
    "cannot": "cannot run",
    "needless": "CPU although a build runs",
    "right": "CPU, none runs",
    "foreign": "another vendor's",
    "nothing": "nothing",
}

Machine = tuple[str, str]
Page = Mapping[str, "Build | None"]
"""The build, or ``None`` without NVIDIA code, by the version with the label."""

Pick = Callable[[Machine], "str | None"]


def main() -> None:
    options(__doc__, 1).parse_args()
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        raise SystemExit(f"the pages are those of {PLATFORM}")
    records = [r for r in build_records()["torch"] if r.platform == PLATFORM]
    plain = {r.version: build_of(r) for r in records if r.label is None}
    labelled: dict[str, Build | None] = {
        f"{r.version}+{r.label}": build_of(r) for r in records if r.label
    }
    for version in plain:
        labelled |= {f"{version}+cpu": None, f"{version}+xpu": None}
    machines = [
        (driver, gpu)
        for driver in DRIVERS
        for gpu in GPUS
        if can_exist(CudaVersion.parse(driver), ComputeCapability.parse(gpu))
    ]
    with (
        tempfile.TemporaryDirectory(prefix="benchmark-") as name,
        fresh_environment(UV, *EXTRAS) as environment,
    ):
        index = Path(name)
        CLEAN["TMPDIR"] = name
        write_page(index / "plain", plain)
        write_page(index / "labels", labelled)
        for label in sorted({version.partition("+")[2] for version in labelled}):
            kept = {v: b for v, b in labelled.items() if v.endswith(f"+{label}")}
            write_page(index / label, kept)
        with upstream(environment, index) as url, ThreadPoolExecutor(2) as executor:
            rows = []
            for page, builds in (("labels", labelled), ("plain", plain)):
                for selector, pick in selectors(environment, url, page).items():
                    picks = list(executor.map(pick, machines))
                    counts = Counter(
                        outcome(builds, picked, machine)
                        for picked, machine in zip(picks, machines, strict=True)
                    )
                    cells = [str(counts[key]) for key in OUTCOMES]
                    rows.append([f"{page}: {selector}", *cells])
                possible = sum(any_works(builds, machine) for machine in machines)
                rest = str(len(machines) - possible)
                rows.append(
                    [f"{page}: possible", str(possible), "0", "0", rest, "", ""]
                )
    print_table(f"{len(machines)} machines, torch", ["", *OUTCOMES.values()], rows)


def build_of(record: BuildRecord) -> Build | None:
    """Return the code of the largest library, which torch needs to start."""
    for library, *_ in record.needs.pieces or ():
        if not library.minor:
            real = [int(t) for t in library.machine_code if t.isdigit()]
            ptx = [int(t) for t in library.ptx if t.isdigit()]
            return str(record.needs.cuda), real, ptx
    return None


def write_page(folder: Path, builds: Page) -> None:
    """Write an index with one project, torch, whose wheels have only METADATA."""
    project = folder / "torch"
    project.mkdir(parents=True)
    for version in builds:
        name = f"torch-{version}-py3-none-manylinux_2_28_x86_64.whl"
        info = f"torch-{version}.dist-info"
        text = f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n"
        with zipfile.ZipFile(project / name, "w") as archive:
            archive.writestr(f"{info}/METADATA", text)
            archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
            archive.writestr(f"{info}/RECORD", "")
    link_all(project)
    page = project / "index.html"
    page.write_text(page.read_text().replace("+", quote("+")))


def selectors(environment: Environment, url: str, page: str) -> dict[str, Pick]:
    """Return the functions that pick from a page, by the name of the program."""
    words = ["install", "--dry-run", "--quiet", "--ignore-installed", "--no-deps"]
    words += ["--report", "-", "--index-url", f"{url}{page}/", "torch"]

    def pip(program: Sequence[str]) -> str | None:
        done = execute(environment, ["-m", *program, *words])
        report = json.loads(done.stdout) if done.returncode == 0 else {"install": []}
        versions = [item["metadata"]["version"] for item in report["install"]]
        return versions[0] if versions else None

    def ours(machine: Machine) -> str | None:
        given = ["--cuda-driver", machine[0], "--sm-arch", machine[1]]
        return pip(["nvp", "pip", *given])

    same = pip(["pip"])
    pickers: dict[str, Pick] = {"this project": ours, "pip": lambda _: same}
    preview = ["--preview-features", "wheel-variants"]
    pickers[f"{UV} with preview".replace("==", " ")] = lambda machine: uv_pick(
        environment, f"{url}{page}/", preview, forced(machine)
    )
    if page == "labels":
        folders = {driver: backends(environment, driver) for driver in DRIVERS}
        picks = {
            driver: next(
                (
                    version
                    for name in names
                    if (version := uv_pick(environment, f"{url}{name}/", [], {}))
                ),
                None,
            )
            for driver, names in folders.items()
        }
        name = f"{UV} --torch-backend=auto".replace("==", " ")
        pickers[name] = lambda machine: picks[machine[0]]
    return pickers


def forced(machine: Machine) -> dict[str, str]:
    driver, gpu = machine
    return {
        "NV_VARIANT_PROVIDER_FORCE_CUDA_DRIVER_VERSION": driver,
        "NV_VARIANT_PROVIDER_FORCE_SM_ARCH": gpu,
    }


def uv_pick(
    environment: Environment, url: str, words: Sequence[str], variables: dict[str, str]
) -> str | None:
    done = run_uv(environment, [*words, "--default-index", url], variables)
    found = re.search(r"^ \+ torch==(\S+)", done.stderr, re.MULTILINE)
    return found[1] if found else None


def backends(environment: Environment, driver: str) -> list[str]:
    """Return the directories of PyTorch's index in which uv looks, best first.

    uv has the URLs of that index built in. Offline, uv only lists the directories that
    it would read: those of all CUDA versions that the driver supports by its table. The
    newest directory with the project is used.
    """
    branch = next(b for b, cuda in driver_branches().items() if str(cuda) == driver)
    # This number is newer than every release of the branch.
    variables = {"UV_CUDA_DRIVER_VERSION": f"{branch}.999"}
    words = ["--torch-backend=auto", "--offline", "--verbose"]
    done = run_uv(environment, words, variables)
    names = set(re.findall(r"/whl/(cu\d+|cpu)/", done.stderr))
    return sorted(names, key=lambda n: int(n[2:]) if n != "cpu" else 0, reverse=True)


def run_uv(
    environment: Environment, words: Sequence[str], variables: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    install = ["pip", "install", "--dry-run", "--no-config", "--no-cache", "--no-deps"]
    return execute(
        environment,
        ["-m", "uv", *install, "--reinstall", *words, "torch"],
        {**variables, "UV_PYTHON": str(environment.python)},
    )


def execute(
    environment: Environment, words: Sequence[str], variables: Mapping[str, str] = {}
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(environment.python), *words],
        cwd=environment.folder,
        env={**os.environ, **CLEAN, **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def any_works(builds: Page, machine: Machine) -> bool:
    return any(
        build is not None and works(build, *machine) for build in builds.values()
    )


def outcome(builds: Page, picked: str | None, machine: Machine) -> str:
    """Return how a pick fares on a machine: a key of `OUTCOMES`."""
    if picked is None:
        return "nothing"
    if picked.endswith("+xpu"):
        return "foreign"
    build = builds[picked]
    if build is None:
        return "needless" if any_works(builds, machine) else "right"
    return "runs" if works(build, *machine) else "cannot"


if __name__ == "__main__":
    main()
