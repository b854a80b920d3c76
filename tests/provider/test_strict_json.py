"""Reading JSON and files with JSON strictly, and the places in messages."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.memory import MIB, peak_of_reading

from nvidia_variant_provider import errors, strict_json
from nvidia_variant_provider.errors import InputError, join, printable, shown
from nvidia_variant_provider.strict_json import parse_json, read_bytes
from nvp import api
from nvp.wheels.archive import open_wheel

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(json_values)
def test_text_that_json_writes_is_read(value: object) -> None:
    assert parse_json(json.dumps(value)) == value


@given(st.text() | st.binary())
def test_any_other_text_is_an_input_error(text: str | bytes) -> None:
    try:
        parse_json(text, "file.json")
    except InputError as error:
        line = str(error)
    else:
        line = "file.json: no error"
    assert line.startswith("file.json: ")
    assert line.isprintable()


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (b'{"a": 1, "a": 2}', "a: the key is given twice"),
        (b'{"x": [{"a.b": 1, "a.b": 2}]}', "x[0].a.b: the key is given twice"),
        (b'{"a": {"b": [1, NaN]}}', "a.b[1]: NaN is not JSON"),
        (b'{"a": -Infinity}', "a: -Infinity is not JSON"),
        (b'{"a": {"b": 1, "b": 2}, "a": 3}', "a: the key is given twice"),
        (b"\xff", "not UTF-8: byte 0"),
        (b'{"a": "\xe9"}', "not UTF-8: byte 7"),
        ("\ufeff{}".encode(), "starts with a byte order mark"),
        ('{"a": 1}'.encode("utf-16"), "not UTF-8"),
        (b"{", "not JSON: Expecting property name"),
        (b"", "not JSON"),
        (b"[" * 50_000, "nested too deeply"),
        (b'{"a":' * 50_000, "nested too deeply"),
        # The comparison of two receipts ended with a RecursionError.
        (b'{"a":' + b"[" * 900 + b"]" * 900 + b"}", "nested too deeply"),
        # The places of 1,000 such flaws would take 500 MB in Python 3.12.
        (b"[" * 300 + b"NaN" + b"]" * 300, "nested too deeply"),
        (b"[" + b"9" * 10_000 + b"]", "a number is too long"),
    ],
    ids=lambda value: repr(value[:20]),
)
def test_flaw_is_an_error_with_its_place(text: bytes, line: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_json(text, "f.json")
    assert str(caught.value).startswith(f"f.json: {line}")
    assert caught.value.exit_code == 3


@pytest.mark.parametrize("unit", ["[%s]", '{"a":%s}'])
def test_a_document_may_have_a_depth_of_100(unit: str) -> None:
    text = "0"
    for _ in range(100):
        text = unit % text
    parse_json(f"{text[:-1]} {text[-1]}")
    with pytest.raises(InputError, match="nested too deeply"):
        parse_json(unit % text)


def test_places_are_built_only_for_flaws(monkeypatch: pytest.MonkeyPatch) -> None:
    joined: list[object] = []

    def counted(place: str, key: str | int) -> str:
        joined.append(key)
        return join(place, key)

    monkeypatch.setattr(strict_json, "join", counted)
    deep = '{"a":' * 98 + "[" + "{}," * 100 + '{"b":1,"b":2}]' + "}" * 98
    with pytest.raises(InputError, match="given twice"):
        parse_json(deep)
    assert len(joined) < 300
    _, flaws = strict_json.parse_lenient("[" + '{"b":1,"b":2},' * 3000 + "NaN]")
    assert len(flaws) == 1000


def test_oversized_file_is_not_read_to_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert strict_json.MAX_BYTES == 4 * 1024 * 1024
    path = tmp_path / "big.json"
    with path.open("wb") as file:
        file.truncate(strict_json.MAX_BYTES + 1)
    with pytest.raises(InputError, match="larger than 4 MiB"):
        read_bytes(path)
    monkeypatch.setattr(strict_json, "MAX_BYTES", 8)
    with pytest.raises(InputError, match="larger than"):
        parse_json('"123456789"')


@pytest.mark.parametrize("name", ["missing", ".", "nul\0"])
def test_path_that_cannot_be_read_is_an_error(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_bytes(f"{tmp_path}/{name}")


@pytest.mark.skipif(os.name == "nt", reason="there are no pipes to open")
class TestPipes:
    """Opening a named pipe would wait for a writer, so pipes are refused."""

    @pytest.mark.parametrize("name", ["pipe.json", "demo-1.0-py3-none-any.whl"])
    def test_named_pipe_is_refused(self, name: str, tmp_path: Path) -> None:
        path = str(tmp_path / name)
        os.mkfifo(path)
        with pytest.raises(InputError, match="not a regular file"):
            read_bytes(path)
        with (
            pytest.raises(InputError, match="not a regular file"),
            open_wheel(path),
        ):
            pass

    def test_named_pipes_in_a_folder_are_findings(self, tmp_path: Path) -> None:
        for name in ("demo-1.0-variants.json", "demo-1.0-py3-none-any-cu12.whl"):
            os.mkfifo(tmp_path / name)
            # Both files have the same time, so NV410 does not report them.
            os.utime(tmp_path / name, (0, 0))
        codes = {item.code for item in api.validate([tmp_path])}
        assert codes == {"NV100", "NV411"}

    @pytest.mark.parametrize(
        ("functions", "reason"),
        [
            ("os.stat", "not a regular file"),
            ("os.stat = os.fstat", "temporarily unavailable"),
        ],
    )
    def test_nothing_makes_a_reader_wait(
        self, functions: str, reason: str, tmp_path: Path
    ) -> None:
        """A file may become a pipe, and the system calls ``/proc/kmsg`` regular."""
        pipe, empty = tmp_path / "pipe.json", tmp_path / "empty"
        os.mkfifo(pipe)
        empty.touch()
        code = (
            "import os, sys\nfrom nvidia_variant_provider import strict_json\n"
            "writer = os.open(sys.argv[1], os.O_RDWR)\n"
            f"{functions} = lambda path, **_: os.lstat(sys.argv[2])\n"
            "strict_json.read_bytes(sys.argv[1])\n"
        )
        words = (sys.executable, "-c", code, pipe, empty)
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 1
        assert f"cannot be read: {reason}" in done.stderr.replace("Resource ", "")

    @pytest.mark.parametrize("folder", ["/dev/fd", "/proc/self/fd"])
    def test_only_the_user_names_a_pipe_that_a_shell_has_opened(
        self, folder: str, tmp_path: Path
    ) -> None:
        """Read the file that ``resolve <(command)`` passes."""
        if not os.path.isdir(folder):
            pytest.skip("not on this system")
        here, there = os.pipe()
        os.write(there, b"{}")
        os.close(there)
        try:
            with pytest.raises(InputError, match="not a regular file"):
                read_bytes(f"{folder}/{here}")
            os.mkfifo(tmp_path / "pipe")
            with pytest.raises(InputError, match="cannot be read"):
                read_bytes(f"{folder}/../../..{tmp_path}/pipe", given=True)
            assert read_bytes(f"{folder}/{here}", given=True) == b"{}"
        finally:
            os.close(here)


def test_join_makes_places_of_keys_and_indexes() -> None:
    assert join("", "variants") == "variants"
    assert join(join("a", "cu12.6"), 2) == "a.cu12.6[2]"
    assert join("a", "b c\n") == r"a.'b c\n'"
    assert join("a", "") == "a.''"


@given(st.text())
def test_shown_text_fits_one_line(text: str) -> None:
    line = shown(text)
    assert line.isascii()
    assert line.isprintable()
    assert len(line) <= 60


MANY = {
    "lists": "[[]" + ",[]" * 1_000_000 + "]",
    "objects": "[{}" + ",{}" * 1_000_000 + "]",
    "members": "[" + ",".join(['{"a":1}'] * 400_000) + "]",
    "large": '{"variants": {' + '"a": {},' * 8_000_000 + '"b": {}}}',
    "labels": json.dumps(
        {
            f"l{n}": {"nvidia": {"cuda_version_lower_bound": ["12.9"]}}
            for n in range(40_000)
        }
    ),
}


@pytest.mark.skipif(sys.platform == "win32", reason="has no module resource")
@pytest.mark.parametrize("name", MANY)
def test_memory_is_bounded_whatever_a_document_holds(name: str, tmp_path: Path) -> None:
    path = tmp_path / "torch-1.0-variants.json"
    path.write_text(MANY[name])
    peak, outcome = peak_of_reading(
        path,
        "from nvidia_variant_provider.metadata import read_metadata as read\n"
        "import json",
    )
    assert peak <= 24 * MIB + 6 * strict_json.MAX_BYTES
    refused = {"large": "larger than 4 MiB", "labels": "no such key"}
    assert refused.get(name, "has too many values for its length") in outcome
    assert outcome.startswith(str(path))


def test_ten_thousand_labels_with_many_targets_are_few() -> None:
    label = {"nvidia": {"sm_arch": [f"{n}0_real" for n in range(1, 13)]}}
    text = json.dumps({f"label{n}": label for n in range(10_000)}, indent=1)
    assert len(parse_json(text)) == 10_000


def test_a_long_text_is_escaped_like_a_short_one() -> None:
    units = "a\x7f\U0001f600\n"
    assert printable(units * 5_000) == printable(units) * 5_000
    assert printable(units) == "a\\x7f\U0001f600\\n"


def test_an_error_has_no_password_of_a_url() -> None:
    url = "ftp://user:s3cret@h/x.json?s3cret"
    error = InputError(f"{url!r} is odd", path=url, place=url, hint=f"read {url}")
    for one in (error, pickle.loads(pickle.dumps(error))):
        one.path = url
        assert "s3cret" not in f"{one} {one!r} {one.args} {one.to_dict()}"
        assert one.path == "ftp://****@h/x.json?****"
    path = "dir//user:b@c?d;e"
    assert str(InputError("is odd", path=path)) == f"{path}: is odd"


def test_long_text_is_cut_before_it_is_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of 1,000 places quoted a key of 4 MiB."""
    lengths = []

    def escape(value: object) -> str:
        lengths.append(len(str(value)))
        return ascii(value)

    monkeypatch.setattr(errors, "ascii", escape, raising=False)
    assert shown("x" * 100_000) == f"'{'x' * 55}...'"
    assert max(lengths) < 10_000


def test_a_short_text_is_shown_without_its_password() -> None:
    """`validate` quoted a URL in a field of ``pyproject.toml``."""
    assert shown("https://user:s3cret@h/x") == "'https://****@h/x'"


@pytest.mark.parametrize("password", ["b" * 5000, "\u00e4" * 1200])
def test_a_long_password_is_not_shown(password: str) -> None:
    """Its start was printed, because the @ behind it was cut off."""
    line = shown(f"https://t0ken:s3cret{password}@index.example/")
    assert "t0ken" not in line
    assert "s3cret" not in line


@pytest.mark.parametrize("start", ["http:/", "//", "http:\\\\", "http:\\/", "http:/\\"])
def test_a_url_with_other_slashes_or_without_a_scheme_is_redacted(start: str) -> None:
    url = f"{start}u:s3cret@h/"
    for text in (url, repr(url), shown(f"{url}{'x' * 100}")):
        assert "s3cret" not in str(InputError(f"{text} is odd", path=text))
