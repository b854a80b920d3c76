"""The two distributions: their files, and the files of an installation."""

from __future__ import annotations

import configparser
import json
import re
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import dataclass
from email.message import Message
from email.parser import Parser
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from support.paths import ROOT
from support.shared import shared_folder

import nvidia_variant_provider
import nvp


@dataclass(frozen=True, kw_only=True)
class Distribution:
    """The expected contents of a distribution.

    :param folder: the directory of its ``pyproject.toml``.
    :param source: the directory of the package.
    :param left_out: the files of the package that the wheel does not have.
    :param shared: files of the repository, and their directories in the wheel.
    :param papers: other files of the sdist.
    :param requires: the required projects of every installation.
    """

    name: str
    folder: str
    source: str
    left_out: frozenset[str] = frozenset()
    shared: tuple[tuple[str, str], ...] = ()
    papers: frozenset[str]
    requires: frozenset[str]
    extras: frozenset[str] = frozenset()
    entry_points: tuple[tuple[str, str, str], ...]

    @property
    def package(self) -> str:
        return Path(self.source).name

    @property
    def info(self) -> str:
        version = nvidia_variant_provider.__version__
        return f"{self.name.replace('-', '_')}-{version}"


PROVIDER = Distribution(
    name="nvidia-variant-provider",
    folder=".",
    source="nvidia_variant_provider",
    left_out=frozenset({"nvidia_variant_provider/README.md"}),
    papers=frozenset({"LICENSE", "SECURITY.md", "pyproject.toml"}),
    requires=frozenset({"nvidia-ml-py", "packaging", "platformdirs"}),
    entry_points=(
        (
            "variant_plugins",
            "nvidia",
            "nvidia_variant_provider.plugin:NvidiaVariantPlugin",
        ),
    ),
)

NVP = Distribution(
    name="nvp",
    folder="packages/nvp",
    source="packages/nvp/src/nvp",
    shared=(("schemas", "nvp/schemas"), ("docs/rules.md", "nvp/lint/rules.md")),
    papers=frozenset({"LICENSE", "README.md", "hatch_build.py", "pyproject.toml"}),
    requires=frozenset(
        {
            *("certifi", "httpx", "isal", "lxml", "nvidia-variant-provider"),
            *("packaging", "rich", "shtab", "simple-repository", "starlette"),
            *("tomli", "tomli-w", "truststore", "uvicorn", "zstandard"),
        }
    ),
    extras=frozenset({"all", "census", "docs", "fleet", "live", "test"}),
    entry_points=(
        ("console_scripts", "nvidia-variant-provider", "nvp.__main__:run"),
        ("console_scripts", "nvp", "nvp.__main__:run"),
    ),
)

each = pytest.mark.parametrize(
    "distribution", [PROVIDER, NVP], ids=lambda item: item.name
)


def listed(*options: str) -> set[str]:
    """Return the files that git lists."""
    done = subprocess.run(
        ["git", "ls-files", "-z", *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        pytest.skip("not a git checkout")
    return {name for name in done.stdout.split("\0") if name}


def tracked(*folders: str) -> set[str]:
    """Return the files below ``folders`` that git tracks and that still exist."""
    gone = listed("--deleted", "--", *folders)
    return listed("--", *folders) - gone


def strays() -> set[str]:
    """Return the untracked files of a user, which the distributions must not have."""
    return listed("--others", "--exclude-standard")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the checkout, and below ``again`` the sdists; return the directory.

    The wheels below ``editable`` are those of ``pip install --editable``.
    """
    return shared_folder(tmp_path_factory, "dist", _build_all)


def _build_all(folder: Path) -> None:
    for distribution in (PROVIDER, NVP):
        source = ROOT / distribution.folder
        _build(source, folder, "sdist", "wheel")
        _build(source, folder / "editable", "wheel:editable")
        (sdist,) = folder.glob(f"{distribution.info}.tar.gz")
        with tarfile.open(sdist) as archive:
            archive.extractall(folder / "unpacked", filter="data")
        _build(folder / "unpacked" / distribution.info, folder / "again", "wheel")


def _build(source: Path, folder: Path, *targets: str) -> None:
    words = [word for target in targets for word in ("-t", target)]
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", *words, "-d", folder],
        cwd=source,
        capture_output=True,
        check=True,
    )


def wheel_of(distribution: Distribution, folder: Path) -> Path:
    return folder / f"{distribution.info}-py3-none-any.whl"


def read_wheel(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as wheel:
        return {name: wheel.read(name) for name in wheel.namelist()}


def metadata_of(distribution: Distribution, folder: Path) -> Message:
    files = read_wheel(wheel_of(distribution, folder))
    text = files[f"{distribution.info}.dist-info/METADATA"].decode()
    return Parser().parsestr(text)


@each
def test_the_wheel_has_exactly_the_package(
    distribution: Distribution, built: Path
) -> None:
    names = set(read_wheel(wheel_of(distribution, built)))
    above = distribution.source.removesuffix(distribution.package)
    of_package = tracked(distribution.source) - distribution.left_out
    expected = {name.removeprefix(above) for name in of_package}
    unknown = {name.removeprefix(above) for name in strays()}
    for source, place in distribution.shared:
        expected |= {place + n.removeprefix(source) for n in tracked(source)}
        unknown |= {place + n.removeprefix(source) for n in strays()}
    info = f"{distribution.info}.dist-info"
    expected |= {
        f"{info}/{name}"
        for name in (
            *("METADATA", "RECORD", "WHEEL", "entry_points.txt"),
            "licenses/LICENSE",
        )
    }
    assert names - unknown == expected


@each
def test_the_sdist_has_what_a_build_needs(
    distribution: Distribution, built: Path
) -> None:
    with tarfile.open(built / f"{distribution.info}.tar.gz") as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    prefix = "" if distribution.folder == "." else f"{distribution.folder}/"
    expected = {name.removeprefix(prefix) for name in tracked(distribution.source)}
    expected |= {name for source, _ in distribution.shared for name in tracked(source)}
    unknown = {name.removeprefix(prefix) for name in strays()} | strays()
    # hatchling adds these two itself.
    expected |= {*distribution.papers, "PKG-INFO", ".gitignore"}
    assert names - unknown == expected


@each
def test_the_sdist_builds_the_same_wheel(
    distribution: Distribution, built: Path
) -> None:
    again = read_wheel(wheel_of(distribution, built / "again"))
    assert again == read_wheel(wheel_of(distribution, built))


@each
def test_an_editable_installation_has_no_copies(
    distribution: Distribution, built: Path
) -> None:
    files = read_wheel(wheel_of(distribution, built / "editable"))
    info = f"{distribution.info}.dist-info/"
    (path,) = (name for name in files if not name.startswith(info))
    folder = (ROOT / distribution.source).parent
    assert files[path].decode().strip() == str(folder)


def test_the_wheel_of_the_provider_is_small(built: Path) -> None:
    path = wheel_of(PROVIDER, built)
    files = len(read_wheel(path).keys() - strays())
    assert files <= 55
    assert path.stat().st_size <= 95_000


@each
def test_what_an_installation_brings(distribution: Distribution, built: Path) -> None:
    metadata = metadata_of(distribution, built)
    assert set(metadata.get_all("Provides-Extra", [])) == distribution.extras
    requires = map(Requirement, metadata.get_all("Requires-Dist", []))
    plain = [item for item in requires if "extra" not in str(item.marker)]
    assert {item.name for item in plain} == distribution.requires
    pins = [str(item.specifier) for item in plain if item.name == PROVIDER.name]
    # nvp uses inner modules of the provider, which may change with any version.
    assert pins == [f"=={nvidia_variant_provider.__version__}"] * (distribution is NVP)


@each
def test_the_entry_points(distribution: Distribution, built: Path) -> None:
    files = read_wheel(wheel_of(distribution, built))
    parser = configparser.ConfigParser(delimiters="=")
    parser.read_string(
        files[f"{distribution.info}.dist-info/entry_points.txt"].decode()
    )
    found = [
        (group, *item) for group in parser.sections() for item in parser[group].items()
    ]
    assert sorted(found) == sorted(distribution.entry_points)
    for group, name, value in distribution.entry_points:
        (installed,) = entry_points(group=group, name=name)
        assert installed.value == value


def test_both_have_one_version_and_one_license() -> None:
    version = nvidia_variant_provider.__version__
    assert nvp.__version__ == version
    # Metadata in the field asks for nvidia-variant-provider>=0.0.1,<1.0.0.
    assert re.fullmatch(r"0\.\d+\.\d+", version)
    texts = {(ROOT / item.folder / "LICENSE").read_bytes() for item in (PROVIDER, NVP)}
    assert len(texts) == 1


def test_no_module_is_long() -> None:
    modules = [ROOT / name for name in tracked(".") if name.endswith(".py")]
    long = {
        path.name: count
        for path in modules
        if (count := path.read_text(encoding="utf-8").count("\n")) > 450
    }
    assert not long


_OWN = {
    *("strict_json.py", "files.py", "cache.py"),  # the openers themselves
    *("presence.py", "signals.py", "programs.py"),  # files of the kernel
    *("child.py", "proof.py", "served_locks.py", "hooks.py"),  # own temporary files
    *("findings.py", "written.py", "probe.py"),  # the documentation, and files of pip
}


def test_files_of_strangers_are_opened_as_regular_files() -> None:
    """Other ways of opening wait for named pipes and files such as /proc/kmsg."""
    opening = re.compile(
        r"(?<!def )(?<![\w.])open\((?!os\.devnull)|\.read_(text|bytes)\(|\.open\(\""
    )
    names = [x for x in tracked(PROVIDER.source, NVP.source) if x.endswith(".py")]
    texts = {x: (ROOT / x).read_text(encoding="utf-8") for x in names}
    found = [name for name, text in texts.items() if opening.search(text)]
    assert {Path(name).name for name in found} == _OWN
    assert len(found) == len(_OWN)


_OWN_JSON = {
    *("strict_json.py", "pages.py", "reading.py"),  # the readers with limits
    *("light.py", "tables.py", "builds.py", "nvidia.py", "opened.py"),
    *("child.py", "processes.py", "process.py", "settings.py", "probe.py"),  # children
    *("app.py", "hooks.py"),  # what the user's pip and this program send to each other
    *("software.py", "reader.py", "kept.py", "releases.py"),  # the cache, and own texts
}


def test_json_of_strangers_is_read_with_limits() -> None:
    """The values of a JSON text may take thirty times its length in memory."""
    names = [x for x in tracked(PROVIDER.source, NVP.source) if x.endswith(".py")]
    texts = {x: (ROOT / x).read_text(encoding="utf-8") for x in names}
    found = [name for name, x in texts.items() if re.search(r"json\.loads?\(", x)]
    assert {Path(name).name for name in found} == _OWN_JSON
    assert len(found) == len(_OWN_JSON)


def test_schemas_are_json() -> None:
    for name in tracked("schemas"):
        json.loads((ROOT / name).read_text(encoding="utf-8"))
