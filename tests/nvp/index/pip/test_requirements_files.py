"""Copies of requirements files have the same meaning for pip as the originals."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pip._internal.exceptions import PipError
from pip._internal.req.req_file import RequirementsFileParser, get_line_parser
from support.processes import PIPS, Pip, installed_labels
from support.wheels import stub_wheel

from nvp.index.pip.redirecting import FileCopies

HERE = "http://127.0.0.1:1/"


def place(text: str) -> str:
    return HERE + quote(text, safe="") if text else ""


def links(text: str) -> str:
    return place(f"links {text}")


class Files:
    """Files of a user, and the copies that pip reads instead."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "project"
        self.copies = folder / "copies"
        self.folder.mkdir(parents=True)
        self.copies.mkdir()

    def write(self, name: str, text: str | bytes) -> str:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return str(path)

    def rewrite(self, path: str) -> str:
        return self.open().replace(path)

    def open(self) -> FileCopies:
        return FileCopies(
            folder=self.copies, index=place, links=links, environ=os.environ
        )

    def read(self, path: str) -> list[tuple[Any, ...]]:
        """Return the requirements and options that pip reads in a file and its included
        files."""
        session: Any = None  # Servers are not read.
        parser = RequirementsFileParser(session, get_line_parser(None))
        return [self._event(line) for line in parser.parse(path, False)]

    def _event(self, line: Any) -> tuple[Any, ...]:
        if (requirement := getattr(line, "requirement", None)) is not None:
            return requirement, line.constraint, line.opts.__dict__.get("hashes")
        opts = line.opts
        found: list[str] = []
        if opts.find_links:
            found = [self._link(opts.find_links[0], line.filename)]
        return (
            opts.index_url,
            tuple(opts.extra_index_urls or ()),
            tuple(found),
            (
                opts.no_index,
                opts.pre,
                tuple(opts.trusted_hosts or ()),
            ),
        )

    def _link(self, text: str, file: str) -> str:
        inner = os.path.join(os.path.dirname(os.path.abspath(file)), text)
        return inner if os.path.exists(inner) else text

    def expected(self, path: str) -> list[tuple[Any, ...]]:
        """Return the result that pip should read in the copy, with replaced places."""
        return [
            (
                event[0] and place(event[0]),
                tuple(map(place, event[1])),
                tuple(map(links, event[2])),
                event[3],
            )
            if len(event) == 4
            else event
            for event in self.read(path)
        ]

    def check(self, path: str) -> str:
        """Return the copy of ``path``, and check that pip reads the same in the
        copy."""
        new = self.rewrite(path)
        assert self.read(new) == self.expected(path)
        return new


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


URL = "https://user:pass@index.example/simple"


@pytest.mark.parametrize(
    "line",
    [
        f"-i {URL}",
        f"-i{URL}",
        f"--index-url {URL}",
        f"--index-url={URL}",
        f"--index-url='{URL}'",
        f'  --index-url "{URL}"  # comment',
        f"--pypi-url {URL}",
        f"--extra-index-url {URL}",
        f"--extra-index-url={URL} --extra-index-url https://b.example/",
        f"--index {URL}",
        f"--ind={URL}",
        f"--py {URL}",
        f"--extra {URL}",
        f"--pre -i {URL} --trusted-host index.example",
        f"--no-index -f {URL}",
        f"-f {URL}",
        f"-f{URL}",
        f"--find-links {URL}",
        f"--find-links={URL}",
        f"--find {URL}",
        f"--f {URL}",
        f"-i https://a.example/ --index-url {URL}",
        f"\t-i\t{URL}",
        f"-i \\\n{URL}",
        f"--index-\\\nurl {URL}",
        f"--pre \\\n  # comment\n-i {URL}",
        f"-i {URL} \\",
        "-i https://h.example/${TOKEN}/simple",
        "-i ${INDEX}",
        "${OPTION} https://h.example/",
        "-i https://h.example/${UNSET}/",
        "-i https://h.example/$TOKEN/",
        "-i https://h.example/#fragment",
        "-f wheels",
        "-f ./wheels",
        "-f ../project/wheels",
        "-f link/../wheels",
        "-i -e./x",
        "-f 'with space'",
        "-f nowhere",
        "-f file:///somewhere",
    ],
)
def test_every_spelling(
    line: str, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN", "to#ken")
    monkeypatch.setenv("INDEX", URL)
    monkeypatch.setenv("OPTION", "--extra-index-url")
    monkeypatch.delenv("UNSET", raising=False)
    (files.folder / "wheels").mkdir()
    (files.folder / "with space").mkdir()
    (files.folder / "other" / "wheels").mkdir(parents=True)
    (files.folder / "other" / "below").mkdir()
    (files.folder / "link").symlink_to(files.folder / "other" / "below")
    path = files.write("requirements.txt", f"# first\na==1\n{line}\nb # x\n")
    if line.startswith("${"):
        # pip takes a line that starts like this as a requirement or an option.
        assert files.read(files.rewrite(path)) in (
            files.read(path),
            files.expected(path),
        )
        return
    new = files.check(path)
    assert new != path
    assert "pass@" not in Path(new).read_text()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a\nb==1 --hash=sha256:abc\n",
        "# -i https://h.example/\n",
        "a # -i https://h.example/\n",
        "-e ./here\n--pre\n--require-hashes\n--trusted-host h.example\n",
        "-r other.txt\n-c nothing.txt\n",
        "-r\n",
        "--no-binary :all:\n--prefer-binary\n",
        "-i 'not closed\n",
        "-r a\0b\n",
        "a \\\n  -i https://h.example/\n",
        "a --index-url https://h.example/",
        "-e ./here -i https://h.example/ -f wheels\n",
    ],
)
def test_files_without_places_are_used_as_they_are(text: str, files: Files) -> None:
    files.write("other.txt", "c\n")
    path = files.write("requirements.txt", text)
    assert files.rewrite(path) == path
    assert files.open().find_places([path]) == []
    assert os.listdir(files.copies) == []


@pytest.mark.parametrize("content", [None, b"-i x\x00\xff", "folder", bytes(65 << 20)])
def test_files_that_cannot_be_read_are_left_to_pip(
    content: bytes | str | None, files: Files
) -> None:
    path = str(files.folder / "requirements.txt")
    if content == "folder":
        os.mkdir(path)
    elif isinstance(content, bytes) and content[0] == 0:
        files.write("requirements.txt", content)
    elif content is not None:
        return
    assert files.rewrite(path) == path
    for url in (
        "https://h.example/requirements.txt",
        "http://[bad/",
        "file:///nowhere",
    ):
        assert files.rewrite(url) == url


@pytest.mark.parametrize("option", ["-i", "--extra-index-url", "-f", "-r", "-c"])
def test_an_option_without_its_value_is_left_to_pip(option: str, files: Files) -> None:
    """pip ends with an error; with an empty value, it would use its other indexes."""
    path = files.write("a.txt", f"-i {URL}\n{option}  # later\n")
    assert Path(files.rewrite(path)).read_text().splitlines()[1] == option


class TestIncludes:
    def test_nested(self, files: Files) -> None:
        (files.folder / "sub" / "wheels").mkdir(parents=True)
        files.write("sub/deep/inner.txt", f"c\n-i {URL}\n-r../plain.txt\n")
        files.write("sub/plain.txt", "d\n-f wheels\n")
        files.write("sub/constraints.txt", "c<2\n")
        files.write(
            "sub/middle.txt",
            "b\n--requirement=deep/inner.txt\n--constraint constraints.txt\n",
        )
        path = files.write(
            "requirements.txt", "a\n-r sub/middle.txt\n-c sub/constraints.txt\n"
        )
        files.check(path)

    def test_only_the_included_file_has_a_place(self, files: Files) -> None:
        files.write("b.txt", f"b\n--extra-index-url {URL}\n")
        assert files.check(files.write("a.txt", "--requirem b.txt\na\n")) != "a.txt"

    def test_paths_relative_to_the_working_folder(
        self, files: Files, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        files.write("sub/b.txt", f"b\n-i {URL}\n")
        files.write("sub/a.txt", "a\n-r b.txt\n-r ../sub/b.txt\n")
        monkeypatch.chdir(files.folder)
        files.check("sub/a.txt")

    def test_through_variables(
        self, files: Files, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        files.write("sub/b.txt", f"b\n-i {URL}\n")
        monkeypatch.setenv("PART", "sub")
        monkeypatch.setenv("WHOLE", str(files.folder / "sub"))
        path = files.write("a.txt", "a\n-r ${PART}/b.txt\n-c ${WHOLE}/b.txt\n--pre\n")
        files.check(path)

    def test_through_urls(self, files: Files) -> None:
        inner = files.write("sub/b.txt", f"b\n-i {URL}\n")
        path = files.write("a.txt", f"a\n-r {Path(inner).as_uri()}\n")
        first, line = Path(files.rewrite(path)).read_text().splitlines()
        assert first == "a"
        assert files.read(line.removeprefix("-r "))[1][0] == place(URL)

    @pytest.mark.parametrize("scheme", ["https", "HTTP"])
    def test_files_on_servers_are_left_to_pip(
        self, scheme: str, files: Files, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(files.folder)
        # As a path, the URL names this file.
        files.write(f"{scheme}:/h.example/b.txt", f"-i {URL}/other\n")
        url = f"{scheme}://h.example/b.txt"
        assert files.rewrite(url) == url
        path = files.write("a.txt", f"-i {URL}\n-r {url}\n-c {url}\n")
        lines = Path(files.rewrite(path)).read_text().splitlines()
        assert lines[1:] == [f"-r {url}", f"-c {url}"]

    @pytest.mark.parametrize("names", [("a",), ("a", "b"), ("a", "b", "c")])
    def test_files_that_include_each_other(
        self, names: Sequence[str], files: Files, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name, after in zip(names, (*names[1:], names[0]), strict=True):
            files.write(f"{name}.txt", f"{name}\n-i {URL}\n-r {after}.txt\n")
        monkeypatch.chdir(files.folder)
        for path in (str(files.folder / "a.txt"), "a.txt"):
            assert files.rewrite(path) != path

    def test_files_of_the_same_name_get_a_copy_each(self, files: Files) -> None:
        copies = files.open()
        same = f"{'r' * 250}.txt"  # the number of a copy must not make it too long
        for name in ("a", "b"):
            files.write(f"{name}/{same}", f"{name}\n-i {URL}\n")
        paths = [str(files.folder / name / same) for name in ("a", "b")]
        texts = [Path(copies.replace(path)).read_text() for path in paths]
        assert [text.splitlines()[0] for text in texts] == ["a", "b"]
        # The first copy is still there when pip reads both of them.
        assert Path(copies.copied[paths[0]]).read_text() == texts[0]

    def test_pip_reads_one_file_of_a_line(self, files: Files) -> None:
        """pip ignores the other options and files of the line."""
        files.write("a.txt", "a\n")
        files.write("b.txt", f"b\n-i {URL}\n")
        line = f"-i {URL} -c b.txt -r a.txt -r b.txt\n"
        path = files.write("all.txt", line)
        assert files.rewrite(path) == path
        files.check(files.write("both.txt", f"{line}-f {URL}\n"))

    def test_many_files_that_include_one_another(self, files: Files) -> None:
        """pip itself reads at most about 900."""
        for number in range(800):
            files.write(f"{number}.txt", f"-r {number + 1}.txt\n")
        files.write("800.txt", f"a\n-i {URL}\n")
        copies = files.open()
        copies.replace(str(files.folder / "0.txt"))
        assert len(copies.copied) == 801

    def test_a_missing_file(self, files: Files) -> None:
        path = files.write("a.txt", f"-i {URL}\n-r missing.txt\n")
        text = Path(files.rewrite(path)).read_text()
        # The error of pip should name the file of the user.
        assert f"-r {files.folder}/missing.txt" in text


@pytest.mark.parametrize(
    "data",
    [
        f"\ufeffcaf\u00e9\n-i {URL}\n".encode(),
        f"#\n# coding: utf-7\na +AFw-\n-c b\n+AC0-i {URL}\n".encode(),
        f"\ufeff# caf\u00e9\n-i {URL}\na\n".encode("utf-16-le"),
        f"\ufeff-i {URL}\na\n".encode("utf-16-be"),
        f"# -*- coding: latin-1 -*-\n# caf\u00e9\n-i {URL}\na\n".encode("latin-1"),
        f"a\r\n-i {URL}\r\nb\r\n".encode(),
        f"a\x0c-i {URL}\x0bb".encode(),
    ],
)
def test_encodings(data: bytes, files: Files) -> None:
    path = files.write("requirements.txt", data)
    assert files.check(path) != path


@pytest.mark.parametrize("value", ["${HOME}", "a #b", "#b", "a\t#${HOME}'", "$${HOME}"])
def test_a_value_of_a_variable_is_not_expanded_again(value: str, files: Files) -> None:
    path = files.write(
        "a.txt", f'-i {URL} --trusted-host "${{VALUE}}"\n-f "${{VALUE}}"'
    )
    with patch.dict(os.environ, {"VALUE": value}):
        files.check(path)


_WORDS = st.sampled_from(
    [
        *("-i", "-f", "-r", "-c", "--index-url", "--extra-index-url=", "--find-links"),
        *("--trust", "--no-binary", "-e./x", "https://j.example/ -i", "-f=x"),
        *("--pre", "--no-index", "--ind=", "--require", "a==1", "-e", "--hash=md5:ab"),
        *("https://h.example/", "b.txt", "wheels", "#", "# x", " ", "\\\n", "\n", "\n"),
        *(
            "'",
            '"',
            "\\",
            "${A}",
            "${B}",
            "${C}",
            "-",
            "--",
            "=",
            "-ihttps://i.example/",
        ),
    ]
)


@given(words=st.lists(_WORDS, max_size=12), gap=st.sampled_from(["", " "]))
def test_any_file(
    words: list[str], gap: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    files = Files(tmp_path_factory.mktemp("any"))
    (files.folder / "wheels").mkdir()
    files.write("b.txt", f"-i {URL}\n")
    with patch.dict(os.environ, {"A": "a", "C": "'${A} #'"}):
        path = files.write("requirements.txt", gap.join(words))
        new = files.rewrite(path)
        try:
            expected = files.expected(path)
        except (PipError, SystemExit, OSError, ValueError, AttributeError):
            return  # pip refuses the file, or reads from a server.
        assert files.read(new) == expected


@pytest.mark.skipif(os.name == "nt", reason="pipes of POSIX")
def test_a_pipe_is_read_once(tmp_path: Path) -> None:
    """``-r <(...)`` and ``-r /dev/stdin`` are pipes, which cannot be read twice."""
    files = Files(tmp_path)
    reading, writing = os.pipe()
    with open(writing, "wb") as file:
        file.write(b"torch\n-r other.txt\n")
    with open(reading, "rb"):
        copy = files.rewrite(f"/dev/fd/{reading}")
    assert Path(copy).parent == files.copies
    assert Path(copy).read_text() == "torch\n-r /dev/fd/other.txt\n"


@pytest.mark.skipif(os.name == "nt", reason="named pipes of POSIX")
def test_a_named_pipe_is_left_to_pip(tmp_path: Path) -> None:
    """An empty copy of it would silently install nothing."""
    files = Files(tmp_path)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert files.rewrite(str(pipe)) == str(pipe)


def test_many_spaces_take_linear_time(files: Files) -> None:
    """In quadratic time, this test would take an hour."""
    path = files.write("a.txt", f"-i {URL}{' ' * 1_000_000}x")
    assert Path(files.rewrite(path)).read_text() == f"-i {place(URL)} x\n"


@pytest.mark.parametrize(
    ("version", "expected"), [(PIPS[0], "2.0 None"), (PIPS[-1], "1.0 None")]
)
def test_a_file_behind_a_link(
    version: str, expected: str, pip_of: Callable[[str], Pip], tmp_path: Path
) -> None:
    """Only old versions of pip follow the link before ".."."""
    (tmp_path / "other" / "below").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "other" / "below")
    for folder, number in ((tmp_path, "1.0"), (tmp_path / "other", "2.0")):
        stub_wheel(folder / "wheels", "kern", number)
        (folder / "more.txt").write_text(f"--no-index\n-f {folder}/wheels\nkern\n")
    (tmp_path / "all.txt").write_text("-r link/../more.txt\n")
    words = ("install", "--target", "it", "-r", "all.txt")
    done = pip_of(version)(*words, cwd=tmp_path)
    assert done.code == 0, done.text
    assert installed_labels(tmp_path / "it") == {"kern": expected}
