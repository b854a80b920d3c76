"""The directory of the caches, and the users who may change it."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.paths import FIXTURES
from support.strangers import STRANGER, needs_root

from nvp.cli import main
from nvp.files import CacheWarning, cache_folder, load, replacing, store

pytestmark = pytest.mark.skipif(
    os.name == "nt", reason="Windows asks the system for the directory"
)

NAME = "nvidia-variant-provider"
INDEX = FIXTURES / "census"
DOCUMENT = FIXTURES / "variants-json" / "torch-2.8.0-variants.json"


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the directory of all caches, which belongs to this user."""
    folder = tmp_path / "caches"
    folder.mkdir(mode=0o755)
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    return folder


def find() -> tuple[str | None, list[str]]:
    """Return the directory of the cache, and the messages about it."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        return cache_folder(os.environ), [str(item.message) for item in told]


@pytest.mark.parametrize("name", ["HOME", "XDG_CACHE_HOME"])
def test_the_working_folder_gets_no_cache(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv(name, str(tmp_path))
    assert (cache_folder(os.environ) or "").startswith(str(tmp_path))
    monkeypatch.setenv(name, "folder")
    # Some versions of platformdirs ignore such a value, and others use it.
    assert os.path.isabs(cache_folder(os.environ) or os.sep)


def test_what_is_kept_is_for_this_user_alone(base: Path) -> None:
    before = os.umask(0o002)
    try:
        folder, told = find()
        store(os.path.join(folder or "", "kind", "file"), b"content")
    finally:
        os.umask(before)
    assert (folder, told) == (str(base / NAME), [])
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in base.rglob("*")}
    assert modes == {NAME: 0o700, "kind": 0o700, "file": 0o600}
    assert load(base / NAME / "kind" / "file", 7) == b"content"
    assert load(base / NAME / "kind" / "file", 6) is None
    # The second run finds the directory.
    assert find() == (folder, [])


def own(path: Path) -> None:
    path.mkdir()


def foreign(path: Path) -> None:
    path.mkdir()
    os.chown(path, STRANGER, STRANGER)


def of_a_home(path: Path) -> None:
    """Make the home of another user, who has no cache yet, as with ``sudo -E``."""
    os.chown(path.parent, STRANGER, STRANGER)


def foreign_link(path: Path) -> None:
    target = path.parent.parent / "rootonly"
    target.mkdir()
    path.symlink_to(target)
    os.chown(path, STRANGER, STRANGER, follow_symlinks=False)


def link_to_foreign(path: Path) -> None:
    target = path.parent.parent / "theirs"
    foreign(target)
    path.symlink_to(target)


def dangling(path: Path) -> None:
    path.symlink_to(path.parent.parent / "nowhere")


def mode(bits: int) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        path.mkdir()
        path.chmod(bits)

    make.__name__ = f"mode_{bits:o}"
    return make


def shared_parent(path: Path) -> None:
    path.parent.chmod(0o777)


def a_file(path: Path) -> None:
    path.write_text("")


@pytest.mark.parametrize(
    "make",
    [
        *(
            pytest.param(make, marks=needs_root)
            for make in (foreign, of_a_home, foreign_link, link_to_foreign)
        ),
        *(mode(0o777), mode(0o770), mode(0o707), mode(0o1777)),
        *(shared_parent, dangling, a_file),
    ],
)
def test_folders_that_are_no_cache(make: Callable[[Path], None], base: Path) -> None:
    make(base / NAME)
    before = sorted(base.parent.rglob("*"))
    folder, told = find()
    assert folder is None
    (line,) = told
    assert line.startswith(f"no cache is used: {base}")
    # No file is written there, not even by a first request.
    with pytest.warns(CacheWarning):
        store(base / NAME / "file", b"x")
    assert sorted(base.parent.rglob("*")) == before


def sticky_parent(path: Path) -> None:
    path.parent.chmod(0o1777)


def private_group(path: Path) -> None:
    path.parent.chmod(0o775)


def own_link(path: Path) -> None:
    target = path.parent.parent / "elsewhere"
    target.mkdir()
    path.symlink_to(target)


@pytest.mark.parametrize("make", [own, sticky_parent, private_group, own_link])
def test_folders_that_are_a_cache(make: Callable[[Path], None], base: Path) -> None:
    make(base / NAME)
    folder, told = find()
    assert (folder, told) == (str(base / NAME), [])
    store(base / NAME / "kind" / "file", b"x")
    assert load(base / NAME / "kind" / "file", 1) == b"x"


@needs_root
@pytest.mark.parametrize("make", [foreign, foreign_link])
def test_a_folder_that_somebody_else_makes_meanwhile(
    make: Callable[[Path], None], base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Anyone can create a directory in /tmp after nvp has found it missing."""
    sticky_parent(base / NAME)
    looked_at = os.stat

    def stat_and_make(path: str, **options: bool) -> os.stat_result:
        found = looked_at(path, **options)
        if not os.path.lexists(base / NAME):
            make(base / NAME)
        return found

    monkeypatch.setattr(os, "stat", stat_and_make)
    with pytest.warns(CacheWarning, match="belongs to another user"):
        store(base / NAME / "kind" / "file", b"x")
    monkeypatch.undo()
    assert not [*(base / NAME).rglob("*"), *base.parent.glob("rootonly/*")]


def fifo(path: Path) -> None:
    os.mkfifo(path, 0o600)


def link(path: Path) -> None:
    other = path.parent / "other"
    other.write_bytes(b"x")
    other.chmod(0o600)
    path.symlink_to(other)


def folder_of_that_name(path: Path) -> None:
    path.mkdir(mode=0o600)


def written_by(user: int, bits: int) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        path.write_bytes(b"x")
        path.chmod(bits)
        if user != os.geteuid():
            os.chown(path, user, user)

    make.__name__ = f"of_{user}_{bits:o}"
    return make


@pytest.mark.parametrize(
    "make",
    [
        *(fifo, link, folder_of_that_name, written_by(os.geteuid(), 0o666)),
        pytest.param(written_by(STRANGER, 0o600), marks=needs_root),
    ],
)
def test_files_that_are_not_read(make: Callable[[Path], None], base: Path) -> None:
    """A named pipe would block the reader forever."""
    folder = base / NAME
    folder.mkdir(mode=0o700)
    make(folder / "file")
    assert load(folder / "file", 9) is None
    if not (folder / "file").is_dir():
        store(folder / "file", b"new")
        assert load(folder / "file", 9) == b"new"
        assert [x.read_bytes() for x in folder.glob("other")] in ([], [b"x"])


@needs_root
def test_a_folder_that_has_become_foreign(base: Path) -> None:
    store(base / NAME / "kind" / "file", b"x")
    os.chown(base / NAME / "kind", STRANGER, STRANGER)
    assert load(base / NAME / "kind" / "file", 9) is None


@pytest.mark.parametrize("name", ["open", "replace"])
def test_an_interrupt_leaves_no_unfinished_file(
    name: str, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = getattr(os, name)

    def interrupt(*arguments: object) -> None:
        if name == "open":  # the file exists when Python handles the signal
            call(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(os, name, interrupt)
    with pytest.raises(KeyboardInterrupt):
        store(base / NAME / "kind" / "entry", b"x")
    assert not [path for path in base.rglob("*") if path.is_file()]


LIMITED = """
import resource, sys, warnings
from nvp.files import store
resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))
for number in range(2):
    store(sys.argv[1] + f"/kind/{number}", b"x" * 11)
store(sys.argv[1] + "/kind/small", b"x")
"""


@pytest.mark.parametrize("limit", ["file", "disk"])
def test_a_full_disk(limit: str, base: Path) -> None:
    """A message is printed, no incomplete file is left, and older files stay."""
    folder = base / NAME
    with mounted(folder, limit):
        store(folder / "kind" / "before", b"b")
        if limit == "file":
            done = subprocess.run(
                [sys.executable, "-W", "always", "-c", LIMITED, str(folder)],
                capture_output=True,
                text=True,
                check=True,
                timeout=60,
            )
            assert done.stderr.count("kind cannot be written: File too large") == 2
        else:
            with pytest.warns(CacheWarning, match="No space left on device"):
                store(folder / "kind" / "large", b"x" * 200_000)
        names = {path.name for path in (folder / "kind").iterdir()}
        assert names - {"small"} == {"before"}
        assert load(folder / "kind" / "before", 1) == b"b"


class mounted:  # noqa: N801  # it is used as a function
    """Mount a small file system, if this user may."""

    def __init__(self, folder: Path, limit: str, *options: str) -> None:
        self.folder, self.limit = folder, limit
        self.options = ["size=100k", "mode=0700", *options]

    def __enter__(self) -> None:
        self.folder.mkdir(mode=0o700)
        if self.limit == "disk":
            words = ["mount", "-t", "tmpfs", "-o", ",".join(self.options), "nvp"]
            done = subprocess.run(
                [*words, str(self.folder)], capture_output=True, check=False
            )
            if done.returncode:
                pytest.skip("no file system can be mounted here")

    def __exit__(self, *_: object) -> None:
        if self.limit == "disk":
            subprocess.run(["umount", str(self.folder)], check=True)


@pytest.fixture
def in_reach() -> Iterator[Path]:
    """Return a directory that another user can reach."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@needs_root
def test_a_read_only_folder(in_reach: Path) -> None:
    """Existing files are read, and a message is printed about files that cannot be
    written."""
    folder = in_reach / NAME
    store(folder / "file", b"x")
    for path in (folder, folder / "file", in_reach):
        os.chown(path, STRANGER, STRANGER)
    folder.chmod(0o500)
    os.seteuid(STRANGER)
    try:
        assert load(folder / "file", 1) == b"x"
        with pytest.warns(CacheWarning, match="cannot be written: Permission denied"):
            store(folder / "other", b"x")
    finally:
        os.seteuid(0)


@needs_root
def test_the_command_line_says_it_once(
    base: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    foreign(base / NAME)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    index = base.parent / "index"
    (index / "demo").mkdir(parents=True)
    words = ["matrix", "demo==1.0", "--index-url", str(index)]
    assert main([*words]) != 0
    (line,) = (x for x in capsys.readouterr().err.splitlines() if "cache" in x)
    assert line == (
        f"warning: no cache is used: {base / NAME} belongs to another user; set "
        "XDG_CACHE_HOME to a directory that only you can write"
    )


@pytest.mark.parametrize(
    ("owner", "bits", "lost"),
    [
        *((os.geteuid(), 0o600, 0o177), (os.geteuid(), 0o6755, 0o6000)),
        # A stranger would be able to write the new file.
        pytest.param(STRANGER, 0o777, 0o002, marks=needs_root),
    ],
)
def test_an_unfinished_file_of_a_killed_process(
    owner: int, bits: int, lost: int, tmp_path: Path
) -> None:
    tmp_path.chmod(0o1777)
    path = tmp_path / "new.json"
    written_by(owner, bits)(path)
    # In a container, the killed process often had the same number.
    (tmp_path / f".new.json.{os.getpid()}.part").touch()
    with replacing(path) as file:
        (unfinished,) = set(tmp_path.glob("*.part")) - {*tmp_path.glob(".new*")}
        assert unfinished.stat().st_mode & lost == 0
        file.write(b"secret")
    assert path.read_bytes() == b"secret"


@needs_root
@pytest.mark.parametrize("owner", [0, STRANGER])
@pytest.mark.parametrize("words", [["upgrade", DOCUMENT], ["census", INDEX]])
def test_a_planted_link_is_not_followed(
    owner: int, words: list[object], tmp_path: Path
) -> None:
    """Linux protects programs from such links in /tmp, unless they resolve them."""
    shared, target = tmp_path / "shared", tmp_path / "target"
    shared.mkdir()
    shared.chmod(0o1777)
    (shared / "out").symlink_to(target)
    os.chown(shared / "out", owner, owner, follow_symlinks=False)
    code = main([*map(str, words), "-o", str(shared / "out")])
    assert (code == 3, target.exists()) == (owner != 0, owner == 0)


@needs_root
@pytest.mark.parametrize("owner", [0, STRANGER])
@pytest.mark.parametrize("end", ["wal", "journal", "shm"])
def test_a_planted_journal_is_not_read(owner: int, end: str, tmp_path: Path) -> None:
    """SQLite would add the pages of the journal to the store of another user."""
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    words = ["census", str(INDEX), "-o", str(shared / "store")]
    assert main(words) == 0
    (shared / f"store-{end}").touch()
    os.chown(shared / f"store-{end}", owner, owner)
    assert main(words) == (3 if owner else 0)
