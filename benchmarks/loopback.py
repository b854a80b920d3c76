"""The loopback index: a large wheel, regular packages, a page of 10,000 files."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.harness import (
    Command,
    Environment,
    Sample,
    fresh_environment,
    options,
    print_machine,
    print_ratios,
    run,
)

GIB = 1024 * 1024 * 1024
FILES = 10_000
EXTRAS = (
    "simple-repository-server>=0.9",
    "httpx",
    "starlette",
    "truststore",
    "uvicorn",
)

# Real wheels without extension modules, like most packages that people install.
PACKAGES = [
    "attrs",
    "certifi",
    "click",
    "colorama",
    "exceptiongroup",
    "filelock",
    "idna",
    "iniconfig",
    "jmespath",
    "mdurl",
    "packaging",
    "platformdirs",
    "pluggy",
    "pyparsing",
    "python-dateutil",
    "pytz",
    "six",
    "tomli",
    "typing-extensions",
    "zipp",
]

FORCED = {
    "NV_VARIANT_PROVIDER_FORCE_CUDA_DRIVER_VERSION": "12.9",
    "NV_VARIANT_PROVIDER_FORCE_SM_ARCH": "9.0",
}
METADATA = {
    "$schema": "https://variants-schema.wheelnext.dev/v0.2.0.json",
    "default-priorities": {"namespace": ["nvidia"]},
    "providers": {"nvidia": {"requires": ["nvidia-variant-provider"]}},
    "variants": {
        "null": {},
        "cu129": {
            "nvidia": {"cuda_version_lower_bound": ["12.9"], "sm_arch": ["90_real"]}
        },
    },
}
CLEAN = {
    "PIP_CONFIG_FILE": os.devnull,
    "PIP_FIND_LINKS": "",
    "PIP_EXTRA_INDEX_URL": "",
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    "NO_PROXY": "127.0.0.1",
}


def main() -> None:
    runs = options(__doc__, 5).parse_args().runs
    # Keep the files in memory if the system has a directory for that. With a disk, the
    # system would write the files of one side during the measurement of the next.
    memory = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryDirectory(prefix="benchmark-", dir=memory) as name:
        folder = Path(name)
        CLEAN["TMPDIR"] = name
        with fresh_environment(*EXTRAS) as environment:
            make_big(folder / "index")
            make_page(folder / "index")
            download_packages(environment, folder / "index")
            with upstream(environment, folder / "index") as url:
                print_machine(runs)
                compare_big(environment, url, folder / "index", runs)
                # For one package, most of the time is the start of both programs.
                compare_packages(environment, url, ["six"], runs * 3, 1.5)
                compare_packages(environment, url, PACKAGES, runs, 1.15)
                compare_pages(environment, url, runs * 3)


def make_big(index: Path) -> None:
    """Write wheels of 1 GiB: a regular one, a variant, and one with variant markers."""
    payload = b"\0" * (1 << 20)
    plain = index / "plain" / "plain-1.0-py3-none-any.whl"
    variant = index / "variant" / "variant-1.0-py3-none-any-cu129.whl"
    marked = index / "marked" / "marked-1.0-py3-none-any-cu129.whl"
    for path in (plain, variant, marked):
        path.parent.mkdir(parents=True)
        project = path.parent.name
        info = f"{project}-1.0.dist-info"
        with zipfile.ZipFile(path, "w") as archive:
            with archive.open(f"{project}/data.bin", "w", force_zip64=True) as member:
                for _ in range(1024):
                    member.write(payload)
            text = f"Metadata-Version: 2.1\nName: {project}\nVersion: 1.0\n"
            if path == marked:
                text += 'Requires-Dist: six; variant_label == "cu129"\n'
            archive.writestr(f"{info}/METADATA", text)
            archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
            archive.writestr(f"{info}/variant.json", json.dumps(METADATA))
            archive.writestr(f"{info}/RECORD", "")
    for path in (variant, marked):
        name = f"{path.parent.name}-1.0-variants.json"
        (path.parent / name).write_text(json.dumps(METADATA))
    for path in (plain, variant, marked):
        link_all(path.parent)


def make_page(index: Path) -> None:
    """Write pages of 10,000 files, one without variants and one with ten."""
    for project, labels in (("many", 0), ("mixed", 10)):
        folder = index / project
        folder.mkdir()
        names = [
            f"{project}-1.{number}-cp3{tag}-cp3{tag}-manylinux_2_28_x86_64.whl"
            for number in range(FILES // 10)
            for tag in range(5, 15)
        ]
        for number in range(labels):
            tag = "cp310-cp310-manylinux_2_28_x86_64"
            names.append(f"{project}-1.{number}-{tag}-cu129.whl")
            path = folder / f"{project}-1.{number}-variants.json"
            path.write_text(json.dumps(METADATA))
            names.append(path.name)
        links = [
            f'<a href="{name}#sha256={hashlib.sha256(name.encode()).hexdigest()}" '
            f'data-requires-python="&gt;=3.5">{name}</a><br/>\n'
            if name.endswith(".whl")
            else f'<a href="{name}">{name}</a>\n'
            for name in names
        ]
        text = f"<!DOCTYPE html><html><body>\n{''.join(links)}</body></html>\n"
        (folder / "index.html").write_text(text)


def link_all(folder: Path) -> None:
    """Write a project page for the files of a directory."""
    links = []
    for path in sorted(folder.iterdir()):
        with path.open("rb") as file:
            digest = hashlib.sha256()
            while chunk := file.read(1 << 20):
                digest.update(chunk)
        href = f"{path.name}#sha256={digest.hexdigest()}"
        links.append(f'<a href="{href}">{path.name}</a>')
    text = f"<!DOCTYPE html><html><body>{''.join(links)}</body></html>"
    (folder / "index.html").write_text(text)


def download_packages(environment: Environment, index: Path) -> None:
    """Download the wheels of `PACKAGES` from the index that pip is configured for."""
    folder = index.parent / "downloads"
    words = ["-m", "pip", "download", "--quiet", "--only-binary", ":all:", "--dest"]
    run(environment, Command([*words, str(folder), "--no-deps", *PACKAGES]))
    for path in folder.iterdir():
        project = re.sub(r"[-_.]+", "-", path.name.partition("-")[0]).lower()
        target = index / project
        target.mkdir(exist_ok=True)
        path.rename(target / path.name)
        link_all(target)


@contextlib.contextmanager
def upstream(environment: Environment, index: Path) -> Iterator[str]:
    """Run the web server of Python behind the index."""
    port = free_port()
    words = ["-m", "http.server", "--bind", "127.0.0.1", "--protocol", "HTTP/1.1"]
    words += ["--directory", str(index), str(port)]
    with process(environment, words):
        yield f"http://127.0.0.1:{port}/"


@contextlib.contextmanager
def process(
    environment: Environment, words: Sequence[str], variables: Mapping[str, str] = {}
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a server while the context lasts."""
    server = subprocess.Popen(
        [str(environment.python), *words],
        cwd=environment.folder,
        env={**os.environ, **CLEAN, **variables},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield server
    finally:
        server.terminate()
        server.wait()


def free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port: int = bound.getsockname()[1]
        return port


def wait_for(url: str) -> None:
    """Wait until a server responds with any status."""
    host = urllib.parse.urlsplit(url)
    for _ in range(1000):
        with contextlib.suppress(OSError):
            socket.create_connection((host.hostname or "", host.port or 80)).close()
            return
        time.sleep(0.01)
    raise SystemExit(f"no answer from {url}")


def take_turns(
    sides: Mapping[str, Callable[[], object]], runs: int
) -> dict[str, Sample]:
    """Measure the sides in turn, after one run of each to warm up."""
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(-1, runs):
        for name, work in sides.items():
            start = time.perf_counter()
            work()
            if number >= 0:
                seconds[name].append(time.perf_counter() - start)
    return {name: Sample(taken) for name, taken in seconds.items()}


def compare_big(environment: Environment, url: str, index: Path, runs: int) -> None:
    """Download 1 GiB directly, streamed through the index, and by its redirect."""
    target = Path(CLEAN["TMPDIR"]) / "big"
    download = ["download", "--quiet", "--no-deps", "--no-cache-dir", "--dest"]
    download += [str(target)]
    # Only the index has the credentials of the server, so the index must stream.
    private = url.replace("//", "//user:secret@")
    with (
        index_of(environment, private) as (streaming, server),
        index_of(environment, url) as (redirecting, _),
        # The web server of Python does not support range requests, which read METADATA.
        index_of(environment, str(index)) as (rewriting, rewriter),
    ):
        own = ["nvp", "pip"]
        sides = {
            "pip download, direct": ["pip", *download, "-i", url, "plain"],
            "from the index, streamed": ["pip", *download, "-i", streaming, "variant"],
            "from the index, redirected": [
                *("pip", *download, "-i", redirecting, "variant")
            ],
            "from the index, rewritten": [
                *("pip", *download, "-i", rewriting, "marked")
            ],
            "command pip, streamed": [*own, *download, "-i", private, "variant"],
            "command pip, redirected": [*own, *download, "-i", url, "variant"],
        }

        def side(words: Sequence[str]) -> Callable[[], None]:
            def work() -> None:
                run(environment, Command(["-m", *words], {**CLEAN, **FORCED}))
                (wheel,) = target.iterdir()
                if wheel.stat().st_size < GIB:
                    raise SystemExit(f"{wheel} is too small")
                wheel.unlink()

            return work

        samples = take_turns({name: side(words) for name, words in sides.items()}, runs)
        peak, peak_rewriting = peak_of(server.pid), peak_of(rewriter.pid)
    with index_of(environment, private) as (_, server):
        idle = peak_of(server.pid)
    limits = {"from the index, rewritten": 1.3}
    print_ratios("A wheel of 1 GiB, whole command", samples, 1.1, limits)
    print(
        f"\nresident at most: {peak:.1f} MiB streamed, {peak_rewriting:.1f} rewritten, "
        f"{idle:.1f} before the first request"
    )


@contextlib.contextmanager
def index_of(
    environment: Environment, url: str
) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Run `serve` in front of an index; the value is the URL and the process."""
    port = free_port()
    words = ["-m", "nvp", "serve", "-i", url, "--port", str(port)]
    with process(environment, words, FORCED) as server:
        wait_for(f"http://127.0.0.1:{port}/simple/none/")
        yield f"http://127.0.0.1:{port}/simple/", server


def peak_of(number: int) -> float:
    """Return the peak of a process's resident memory in MiB (Linux)."""
    status = Path(f"/proc/{number}/status").read_text()
    match = re.search(r"VmHWM:\s+(\d+) kB", status)
    return int(match[1]) / 1024 if match else 0.0


def compare_packages(
    environment: Environment, url: str, names: Sequence[str], runs: int, limit: float
) -> None:
    """Install regular packages into an empty directory."""

    def side(program: Sequence[str]) -> Callable[[], None]:
        words = ["install", "--quiet", "--no-deps", "--no-cache-dir", "--target"]

        def work() -> None:
            folder = Path(tempfile.mkdtemp(dir=CLEAN["TMPDIR"])) / "packages"
            line = ["-m", *program, *words, str(folder), "-i", url, *names]
            run(environment, Command(line, CLEAN))
            if len(list(folder.glob("*.dist-info"))) != len(names):
                raise SystemExit("not all were installed")

        return work

    samples = take_turns(
        {
            "pip": side(["pip"]),
            "nvp pip": side(["nvp", "pip"]),
        },
        runs,
    )
    print_ratios(f"Regular packages: {len(names)}, whole command", samples, limit)
    pip, ours = (min(sample.seconds) for sample in samples.values())
    print(f"\nratio of the shortest runs: {ours / pip:.3f}")


def compare_pages(environment: Environment, url: str, runs: int) -> None:
    """Fetch a page of 10,000 files from this index and from simple-repository."""
    port = free_port()
    words = ["-m", "simple_repository_server", "--host", "127.0.0.1"]
    words += ["--port", str(port), url]

    def get(index: str, project: str) -> Callable[[], None]:
        request = urllib.request.Request(
            f"{index}{project}/",
            headers={"Accept": "application/vnd.pypi.simple.v1+json"},
        )

        def work() -> None:
            with urllib.request.urlopen(request) as answer:
                files = json.load(answer)["files"]
            if len(files) < FILES:
                raise SystemExit(f"{len(files)} files on the page of {project}")

        return work

    theirs = f"http://127.0.0.1:{port}/simple/"
    with index_of(environment, url) as (ours, _), process(environment, words):
        wait_for(f"{theirs}none/")
        for project, what in (("many", "no variant"), ("mixed", "ten variants")):
            samples = take_turns(
                {
                    "simple-repository-server": get(theirs, project),
                    "nvp serve": get(ours, project),
                },
                runs,
            )
            print_ratios(f"A page of {FILES:,} files, {what}", samples, 1.5)


if __name__ == "__main__":
    if sys.version_info < (3, 11):
        raise SystemExit("simple-repository-server needs Python 3.11")
    main()
