"""Requirements files: pip's grammar, nested files, constraints, and lines without a
pin."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.requirements import Requirement

from nvidia_variant_provider.errors import InputError
from nvp.pins.model import PinnedFile
from nvp.pins.reading import read_pins

SHA = "a1" * 32


def read(folder: Path, **files: str) -> PinnedFile:
    """Read the first of some files; an underscore in a name is a dot."""
    for name, text in files.items():
        folder.joinpath(name.replace("_", ".")).write_text(text, encoding="utf-8")
    return read_pins(str(folder / next(iter(files)).replace("_", ".")))


def pins(pinned: PinnedFile) -> dict[str, str]:
    return {pin.name: str(pin.version) for pin in pinned.pins if not pin.is_open}


def test_what_counts_as_a_pin(tmp_path: Path) -> None:
    pinned = read(
        tmp_path,
        a_txt="# a comment\n"
        "torch==2.9.1+cu128  # the build\n"
        "Torch_Vision === 0.24.1\n"
        "numpy>=2\n"
        "scipy==1.*\n"
        "triton==3.5.1; sys_platform == 'linux'\n"
        "requests\n",
    )
    assert pins(pinned) == {
        "torch": "2.9.1+cu128",
        "torch-vision": "0.24.1",
        "triton": "3.5.1",
    }
    assert [pin.line for pin in pinned.pins] == [2, 3, 6, 4, 5, 7]
    assert [pin.is_open for pin in pinned.pins] == [False] * 3 + [True] * 3
    assert pinned.pins[2].marker == 'sys_platform == "linux"'
    path = tmp_path / "a.txt"
    assert pinned.notes == (
        f"numpy>=2 in {path}:4 is not pinned",
        f"scipy==1.* in {path}:5 is not pinned",
        f"requests in {path}:7 is not pinned",
    )


def test_another_line_or_a_constraint_pins_what_is_open(tmp_path: Path) -> None:
    pinned = read(
        tmp_path,
        a_txt="-c c.txt\ntorch\nnumpy; sys_platform == 'linux'\nvllm>=1\nvllm\n"
        "numpy; sys_platform == 'win32'\ntorch==2.9.1\n",
        c_txt="numpy==2.3.4; python_version > '3'\nvllm<3\n",
    )
    assert [(pin.name, str(pin.version)) for pin in pinned.pins] == [
        ("torch", "2.9.1"),
        ("numpy", "2.3.4"),
        ("vllm", "None"),
        ("numpy", "2.3.4"),
    ]
    linux, windows = pinned.pins[1].marker, pinned.pins[3].marker
    assert linux == '(sys_platform == "linux") and (python_version > "3")'
    assert windows == '(sys_platform == "win32") and (python_version > "3")'
    assert [note.partition(" in ")[0] for note in pinned.notes] == ["vllm>=1"]


def test_nested_files_and_constraints(tmp_path: Path) -> None:
    tmp_path.joinpath("more").mkdir()
    tmp_path.joinpath("more", "gpu.txt").write_text("torch==2.9.1\n-r cpu.txt\n")
    tmp_path.joinpath("more", "cpu.txt").write_text("numpy==2.3.4\nscipy\n")
    pinned = read(
        tmp_path,
        a_txt="--requirement=more/gpu.txt\n-cc.txt\nxformers\npandas<2\n",
        c_txt="scipy==1.16.3\nxformers==0.0.33\npandas==2.3\nrich==14.2.0\n",
    )
    assert pins(pinned) == {
        "torch": "2.9.1",
        "numpy": "2.3.4",
        "scipy": "1.16.3",
        "xformers": "0.0.33",
    }
    places = {pin.name: (Path(pin.path).name, pin.line) for pin in pinned.pins}
    assert places["numpy"] == ("cpu.txt", 1)
    assert places["scipy"] == ("c.txt", 1)
    assert "pandas<2" in pinned.notes[0]
    assert "1 constraints are on packages that no line asks for" in pinned.notes[1]


def test_hashes_and_options(tmp_path: Path) -> None:
    pinned = read(
        tmp_path,
        a_txt="-i https://index.example/simple\n"
        "--extra-index-url https://wheels.example/cu128\n"
        "--pre\n--only-binary :all:\n"
        "torch==2.9.1 \\\n"
        f"    --hash=sha256:{SHA} \\\n"
        "    # which one is for Windows\n"
        "numpy==2.3.4 --hash=md5:00 \\\n"
        f"    --hash sha256:{SHA.upper()}\n",
    )
    assert pins(pinned) == {"torch": "2.9.1", "numpy": "2.3.4"}
    assert [pin.hashes for pin in pinned.pins] == [{SHA}, {SHA}]
    assert [pin.line for pin in pinned.pins] == [5, 8]


def test_wheels_by_their_url_or_path(tmp_path: Path) -> None:
    torch = "torch-2.9.1%2Bcu128-cp312-cp312-manylinux_2_28_x86_64.whl"
    flash = "flash_attn-2.8.3+cu12torch2.8cxx11abiTRUE-cp312-cp312-linux_x86_64.whl"
    pinned = read(
        tmp_path,
        a_txt=f"torch @ https://wheels.example/whl/{torch}#sha256={SHA}\n"
        f"https://files.example/{flash}\n"
        "./wheels/demo-1.0-py3-none-any.whl\n"
        "-e ./here\n"
        "-e git+https://git.example/a/apex.git@1f2#egg=apex\n"
        "./there\n"
        "vllm @ git+https://git.example/vllm.git@v0.20.0\n",
    )
    assert pins(pinned) == {
        "torch": "2.9.1+cu128",
        "flash-attn": "2.8.3+cu12torch2.8cxx11abitrue",
        "demo": "1.0",
        "vllm": "None",
    }
    (wheel,) = pinned.pins[0].wheels
    assert wheel.filename == torch.replace("%2B", "+")
    assert wheel.sha256 == SHA
    assert pinned.pins[3].origin == "git+https://git.example/vllm.git@v0.20.0"
    assert [note.partition(" is ")[0] for note in pinned.notes] == [
        "'./here'",
        "apex",
        "'./there'",
    ]


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32"])
def test_files_of_powershell(encoding: str, tmp_path: Path) -> None:
    path = tmp_path / "freeze.txt"
    path.write_text("torch==2.9.1\r\nnumpy==2.3.4\r\n", encoding=encoding, newline="")
    assert pins(read_pins(str(path))) == {"torch": "2.9.1", "numpy": "2.3.4"}


def test_what_is_elsewhere_is_a_note_and_not_read(tmp_path: Path) -> None:
    pinned = read(
        tmp_path,
        a_txt="-r https://files.example/more.txt\n-r ${HOME}/more.txt\n"
        "-r pylock.toml\ntorch==2.9.1\n",
    )
    assert pins(pinned) == {"torch": "2.9.1"}
    assert len(pinned.notes) == 3


def test_a_loop_of_files_ends(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="names itself, through other files"):
        read(tmp_path, a_txt="-r b.txt\n", b_txt="torch==2.9.1\n-r a.txt\n")


def test_a_chain_of_files_ends(tmp_path: Path) -> None:
    for number in range(30):
        tmp_path.joinpath(f"{number}.txt").write_text(f"-r {number + 1}.txt\n")
    with pytest.raises(InputError, match="named through more than 20 other files"):
        read_pins(str(tmp_path / "0.txt"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("torch==2.9.1\nnumpy=>2\n", r"a.txt:2: .*is not a requirement"),
        ("-r\n", r"a.txt:1: -r names no file"),
        ("-r none.txt\n", r"none.txt: cannot be read"),
        ("torch==2.9.1 --hash='sha256:00\n", r"a.txt:1: a quotation mark"),
        ("dependencies:\n  - pytorch=2.5\n", r"a.txt:1: 'dependencies:' is no"),
        ("torch==2.9.1; python_version\n", r"a.txt:1: .*is not a requirement"),
    ],
)
def test_what_is_no_requirement(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message) as caught:
        read(tmp_path, a_txt=text)
    assert "\n" not in str(caught.value)


# The following tests compare with pip's own reader.


def read_by_pip(path: Path) -> Iterator[Any]:
    from pip._internal.network.session import PipSession
    from pip._internal.req.req_file import parse_requirements

    yield from parse_requirements(str(path), session=PipSession())


NAMES = st.sampled_from(["torch", "Nvidia_CUBLAS.cu12", "numpy", "a", "xformers"])
VERSIONS = st.sampled_from(["1.0", "2.9.1+cu128", "2!1.0rc1", "0.0.33.post1"])
ENDS = st.sampled_from(
    ["", "  # why", " ; sys_platform == 'linux'", " \\\n", " \\\n  # x\n", "#no"]
)
MARKS = (
    " --hash=sha256:{}",
    " --hash sha256:{}",
    " \\\n  --hash=sha256:{}",
    " --hash='sha256:{}'",
)
HASHES = st.sampled_from(
    [
        "",
        f" --hash=sha256:{SHA}",
        f" \\\n    --hash=sha256:{SHA}",
        " --hash=md5:0a",
        f" --hash sha256:{SHA}",
    ]
)
LINES = st.one_of(
    st.builds("{}=={}{}{}".format, NAMES, VERSIONS, HASHES, ENDS),
    st.builds("{}{}".format, NAMES, ENDS),
    st.sampled_from(
        [
            "",
            "# only a comment",
            "#\\",
            "\\",
            "--pre",
            "-i https://index.example/simple",
            "-r more.txt",
            "-rmore.txt",
            "--requirement more.txt",
            "-c 'limits.txt'",
            "--constraint=limits.txt # c",
            "  --no-index",
        ]
    ),
)


@given(st.lists(LINES, max_size=8))
def test_pip_reads_the_same(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str]
) -> None:
    folder = tmp_path_factory.mktemp("files")
    path = folder / "a.txt"
    path.write_text("\n".join(lines))
    folder.joinpath("more.txt").write_text("scipy==1.16.3\n")
    folder.joinpath("limits.txt").write_text("a==1.0\n")
    expected = None
    # pip refuses an invalid requirement later.
    with contextlib.suppress(Exception):
        expected = [
            (str(specifier.version), frozenset({SHA} & {*hashes.get("sha256", ())}))
            for item in read_by_pip(path)
            for hashes in [(item.options or {}).get("hashes", {})]
            for specifier in Requirement(item.requirement).specifier
            if not item.constraint
        ]
    try:
        pinned = read_pins(str(path))
    except InputError:
        assert expected is None
        return
    own = [item for item in pinned.pins if Path(item.path).name != "limits.txt"]
    if expected is not None:
        found = [(str(pin.version), pin.hashes) for pin in own if pin.version]
        assert found == expected


@pytest.mark.parametrize("link", [True, False])
def test_a_file_that_is_elsewhere_is_not_quoted(link: bool, tmp_path: Path) -> None:
    """The author of the file may not have access to the files that it names."""
    secret = tmp_path / "secret.txt"
    secret.write_text("root:$6$S3CRET:19000:0\n")
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "link.txt").symlink_to(secret)
    named = "link.txt" if link else "../secret.txt"
    with pytest.raises(InputError, match=rf"{named}:1: is not a line of") as caught:
        read(folder, a_txt=f"-r {named}\n")
    assert "S3CRET" not in str(caught.value)
    with pytest.raises(InputError, match=r"b\.txt:1: 'a b c' is not a requirement"):
        read(folder, a_txt="-r b.txt\n", b_txt="a b c\n")


@pytest.mark.parametrize(
    "line",
    [
        *("s3cret", "s3cret>=1", "https://s3cret.example/", "./s3cret", "-e s3cret"),
        *("s3cret @ https://s3cret.example/", "-r s3cret.toml", "-r https://s3cret/"),
        *("s3cret a", "-r s3cret", "-c s3cret", "s3cret.whl"),
    ],
)
@pytest.mark.parametrize("first", ["a.txt", "link.txt", "constraints.txt"])
def test_a_line_that_is_elsewhere_is_not_quoted(
    line: str, first: str, tmp_path: Path
) -> None:
    secret = tmp_path / ".token"
    secret.write_text(f"{line}\n")
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "link.txt").symlink_to(secret)
    (folder / "a.txt").write_text("-r ../.token\n")
    (folder / "constraints.txt").write_text("-c ../.token\n")
    try:
        said = repr(read_pins(str(folder / first)))
    except InputError as error:
        said = repr(error.to_dict())
    assert "s3cret" not in said


@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="/proc of Linux")
def test_a_file_may_not_name_a_pipe_of_the_shell_or_quote_the_system(
    tmp_path: Path,
) -> None:
    """A reader would wait for the pipe, and the system's files may have secrets."""
    here, there = os.pipe()
    with os.fdopen(there, "w") as writer:
        writer.write("torch==2.9.1\n-r /proc/version\n")
    try:
        with pytest.raises(InputError, match="not a regular file"):
            read(tmp_path, a_txt=f"-r /dev/fd/{here}\n")
        for path in (str(tmp_path / "b.txt"), f"/dev/fd/{here}"):
            (tmp_path / "b.txt").write_text("-r /proc/version\n")
            with pytest.raises(InputError, match="/proc/version:1: is not a line"):
                read_pins(path)
    finally:
        os.close(here)
