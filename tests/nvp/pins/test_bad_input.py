"""Unreadable files cause one line: the file, the defect, and the next step."""

from __future__ import annotations

import io
import json
import os
import random
import sys
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from hypothesis import example, given
from hypothesis import strategies as st
from support.paths import FIXTURES

from benchmarks.fuzz_mutations import mutate_json, mutate_text
from nvidia_variant_provider.errors import InputError, ProviderError, UsageError
from nvp.pins.documents import parse_toml
from nvp.pins.reading import LIMIT, read_pins
from nvp.pins.targets import find_target

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PINS = FIXTURES / "pins"
FILES = sorted(
    path
    for path in PINS.glob("*/*")
    if path.is_file() and path.name != "pyproject.toml"
)
SMALL = [path for path in FILES if path.stat().st_size < 40_000]
TARGET = find_target(platforms=["manylinux_2_28_x86_64"], python_version="3.12")

UV = 'version = 1\n[[package]]\nname = "torch"\nversion = "2.9.1"\n'
POETRY = '[metadata]\ncontent-hash = "0"\n[[package]]\nname = "torch"\n'
PDM = '[metadata]\nlock_version = "4.5.0"\n[[package]]\nname = "torch"\n'
PYLOCK = 'lock-version = "1.0"\ncreated-by = "x"\n[[packages]]\nname = "torch"\n'
MANY = "-".join(["x." * 1000 + "x"] * 3)
CASES: dict[str, tuple[str | bytes, str]] = {
    "not UTF-8": (b"torch==2.9.1\n\xff\n", "not UTF-8: byte 13; save it as UTF-8"),
    "NUL": (b"torch==2.9.1\n\0", "has NUL bytes; this is not a text file"),
    "cut TOML": (UV + 'source = { registry = "https', "not TOML: "),
    "cut JSON": ('{"_meta": {"hash"', "not JSON: "),
    "deep TOML": (UV + "a = " + "[" * 100_000, "nested too deeply"),
    "deep JSON": ('[{"a": ' * 50_000, "nested too deeply"),
    "deep keys": (UV + "a" + ".a" * 100, "has keys of too many parts"),
    "many values": (UV + "a = [" + "1," * 600_000 + "]", "has too many values"),
    "other JSON": ('{"variants": {}}', "is neither a Pipfile.lock nor the output"),
    "other TOML": ("[other]\na = 1\n", "is neither a supported lock file nor"),
    "a project": ('[project]\nname = "a"\n', "is a project, which pins nothing"),
    "uv 2": ("version = 2\n", "version: version 2 of uv.lock is not known"),
    "no table": ("version = 1\npackage = 3\n", "package: expected a list, found"),
    "not tables": ("version = 1\npackage = [3]\n", "package[0]: expected an object"),
    "no name": ("version = 1\n[[package]]\n", "package[0].name: expected a string"),
    "bad name": (UV.replace("torch", "../torch"), "is not the name of a project"),
    "wheels": (UV + 'wheels = "a"\n', "package[0].wheels: expected a list"),
    "a wheel": (
        UV + "wheels = [{ a = 1 }]\n",
        "package[0].wheels[0]: there is",
    ),
    "a URL": (UV + "wheels = [{ url = 1 }]\n", "package[0].wheels[0].url: expected"),
    "a source": (UV + 'source = "a"\n', "package[0].source: expected an object"),
    "a dependency": (UV + "dependencies = [1]\n", "package[0].dependencies[0]: exp"),
    "poetry": (POETRY, "package[0].version: expected a string"),
    "poetry files": (POETRY + 'version = "1"\nfiles = [1]\n', "package[0].files[0]: "),
    "poetry groups": (POETRY + 'version = "1"\ngroups = 1\n', "package[0].groups: "),
    "pdm": (PDM + "version = 1\n", "package[0].version: expected a string"),
    "pylock": (PYLOCK + "version = 1\n", "packages[0].version: Unexpected type int"),
    "pylock 2": (PYLOCK.replace("1.0", "2.0"), "Exactly one of"),
    "pylock tags": (
        f'{PYLOCK}version = "1"\nwheels = [{{ name = "a-1-{MANY}.whl" }}]\n',
        "a wheel names too many tags",
    ),
    "Pipfile": ('{"_meta": {}, "default": 1}', "default: expected an object"),
    "Pipfile pin": ('{"_meta": {}, "default": {"a": 1}}', "default.a: expected an obj"),
    "inspect": ('{"installed": [1]}', "[0]: expected an object, found a number"),
    "script": ("# /// script\n# dependencies = 1\n# ///\n", "the dependencies are no"),
    "scripts": ("# /// script\n# a = 1\n# ///\n\n" * 2, "has several blocks"),
    "YAML": ("name: gpu\ndependencies:\n  - pytorch=2.9\n", "'name: gpu' is not a re"),
}


def refusal(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        read_pins(str(path))
    text = str(caught.value)
    assert "\n" not in text
    assert text.startswith(str(path))
    assert "; " in text
    return text


@pytest.mark.parametrize("name", CASES)
def test_what_is_wrong_with_a_file(name: str, tmp_path: Path) -> None:
    content, message = CASES[name]
    path = tmp_path / "file"
    data = content.encode() if isinstance(content, str) else content
    path.write_bytes(data)
    assert message in refusal(path)


def test_a_file_that_is_too_large(tmp_path: Path) -> None:
    path = tmp_path / "uv.lock"
    with path.open("wb") as file:
        file.truncate(LIMIT + 1)
    assert "larger than 16 MiB; name a pylock.toml" in refusal(path)


@pytest.mark.skipif(sys.platform == "win32", reason="it has other names")
def test_what_is_no_file(tmp_path: Path) -> None:
    assert "cannot be read: No such file" in refusal(tmp_path / "uv.lock")
    assert "cannot be read: Is a directory" in refusal(tmp_path)
    os.mkfifo(tmp_path / "fifo")
    assert "not a regular file" in refusal(tmp_path / "fifo")
    with pytest.raises(InputError, match="null byte"):
        read_pins("a\0b")


def test_stdin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tmp_path.joinpath("more.txt").write_text("numpy==2.3.4\n")
    text = b"torch==2.9.1\n-r more.txt\n"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
    pinned = read_pins("-")
    assert [(pin.title, pin.path) for pin in pinned.pins] == [
        ("torch 2.9.1", "stdin"),
        ("numpy 2.3.4", "more.txt"),
    ]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a b\n")))
    with pytest.raises(InputError, match="stdin:1: 'a b' is not a requirement"):
        read_pins("-")


def read_all(path: Path) -> None:
    """Read a file, and use all of its contents."""
    try:
        pinned = read_pins(str(path))
    except InputError as error:
        refused: ProviderError = error
    else:
        assert all(note.isprintable() for note in pinned.notes)
        for chosen in pinned.alternatives()[:4]:
            pinned.select(chosen, TARGET)
            pinned.why_not(TARGET)
        pinned.target()
        try:
            pinned.choose([x.name for x in pinned.choices])
        except UsageError as error:
            refused = error
        else:
            return
    assert "\n" not in str(refused)


@given(seed=st.integers(0, 2**32), path=st.sampled_from(SMALL), by_value=st.booleans())
def test_mutants_are_read_or_refused(
    seed: int,
    path: Path,
    by_value: bool,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    rng = random.Random(seed)
    data = path.read_bytes()
    data = (_changed(rng, path) if by_value else None) or mutate_text(rng, [data])
    mutant = tmp_path_factory.mktemp("pins") / path.name
    mutant.write_bytes(data)
    read_all(mutant)


def _changed(rng: random.Random, path: Path) -> bytes | None:
    text = path.read_text(encoding="utf-8")
    if text.lstrip().startswith("{"):
        return json.dumps(mutate_json(rng, [json.loads(text)])).encode()
    try:
        document: Any = mutate_json(rng, [tomllib.loads(text)])
        return tomli_w.dumps(document).encode()
    except (TypeError, ValueError, AttributeError):
        return None  # a script, or TOML cannot hold the value


@given(
    data=st.binary(max_size=300),
    name=st.sampled_from(["a.txt", "uv.lock", "a.py", "a.json"]),
)
def test_any_bytes_are_read_or_refused(
    data: bytes, name: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("bytes") / name
    path.write_bytes(data)
    read_all(path)


# The regular expressions for lists of files give the results of tomllib.


@pytest.mark.parametrize("path", FILES, ids=lambda x: f"{x.parent.name}/{x.name}")
def test_lists_of_files_are_those_of_tomllib(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    try:
        expected = tomllib.loads(text)
    except ValueError:
        return
    assert parse_toml(text) == expected


ITEMS = st.sampled_from(
    [
        '    { url = "a", hash = "b" },\n',
        '    { url = "a", size = 12, inner = { sha256 = "b" } },\n',
        '    {file = "a"},\n',
        "    { url = 'a' },\n",
        '    { url = "\\u0061", size = 1_2 },\n',
        '    { url = "a", url = "b" },\n',
        '    { a = { b = "1", b = "2" } },\n',
        '    { url = "a" }\n',
        '    { url = "a\tb", size = 007 },\n',
        '    { a.b = "c" },\n',
        "    # comment\n",
        "    {},\n",
    ]
)
LISTS = st.builds(
    "{} = [\n{}]\n".format,
    st.sampled_from("abc"),
    st.builds("".join, st.lists(ITEMS, max_size=4)),
)
ESCAPED = r'x = "\u007fset\u0020aside\u007f"' + "\n"  # once the name of a list
AROUND = st.sampled_from(
    ["x = 1\n", "[t]\n", "[[p]]\n", "'''\n", '"""\n', 's = """\n', ESCAPED]
)


@given(st.lists(LISTS | AROUND, max_size=6).map("".join))
@example(f"a = [\n    {{ b = 1 }},\n]\n{ESCAPED}")
def test_any_list_of_tables_is_that_of_tomllib(text: str) -> None:
    try:
        expected = tomllib.loads(text)
    except ValueError:
        with pytest.raises(InputError, match="not TOML"):
            parse_toml(text)
        return
    assert parse_toml(text) == expected


@pytest.mark.parametrize(
    "line",
    [
        "-e git+https://token:S3CRET@git.example/x.git",
        "-r https://user:S3CRET@host.example/r.txt",
        '"a https://user:S3CRET@host.example/',
        "torch=={https://user:S3CRET@host.example/}",
    ],
)
def test_no_password_of_a_url_is_shown(line: str, tmp_path: Path) -> None:
    path = tmp_path / "requirements.txt"
    path.write_text(f"{line}\n")
    try:
        shown = " ".join(read_pins(str(path)).notes)
    except InputError as error:
        shown = str(error)
    assert "example" in shown
    assert "S3CRET" not in shown


def test_a_number_that_is_too_long_is_no_matter_of_variants(tmp_path: Path) -> None:
    path = tmp_path / "inspect.json"
    path.write_text(f'{{"version": "1", "installed": [{"9" * 6000}]}}')
    with pytest.raises(InputError, match="check the file"):
        read_pins(str(path))


@pytest.mark.parametrize(
    "text",
    [
        "a = { S3CRET = 1, S3CRET = 2 }",
        '{"S3CRET": 1, "S3CRET": 2}',
        '[{"name": "S3CRET!", "version": "1"}]',
        '[{"name": "S3CRET", "version": "x"}]',
        "version = 'S3CRET'",
        "# /// script\n# dependencies = ['S3CRET!']\n# ///",
    ],
)
@pytest.mark.parametrize("link", ["s.py.lock", "requirements.txt"])
def test_a_link_to_a_secret_is_not_quoted(text: str, link: str, tmp_path: Path) -> None:
    """The files of a stranger may contain links."""
    folder, secret = tmp_path / "folder", tmp_path / "secret"
    folder.mkdir()
    secret.write_text(f"{text}\n")
    (folder / "s.py").write_text("# /// script\n# dependencies = []\n# ///\n")
    (folder / link).symlink_to(secret)
    path = folder / "s.py" if link.endswith(".lock") else folder / link
    try:
        said = " ".join(read_pins(str(path)).notes)
    except InputError as error:
        said = str(error)
    assert "S3CRET" not in said
    assert str(folder / link) in said
