"""Reading lock files: their names, and any contents."""

from __future__ import annotations

from pathlib import Path

import pytest
import tomli_w
from hypothesis import given
from hypothesis import strategies as st
from support.builds import gpu_build, metadata

from nvidia_variant_provider.errors import InputError
from nvp.index.pip.locks import is_lock, read_lock

KEYS = ("name", "version", "wheels", "url", "path", "hashes", "variants-json")

VALUES = st.recursive(
    st.one_of(st.booleans(), st.integers(-9, 9), st.text(max_size=5)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(KEYS), inner, max_size=5),
    ),
    max_leaves=20,
)

FILE = st.fixed_dictionaries(
    {},
    optional={
        "name": st.one_of(st.just("torch-1.0-py3-none-any-cu126.whl"), VALUES),
        "url": st.one_of(st.just("https://wheels.example/torch.whl"), VALUES),
        "path": st.one_of(st.just("../torch.whl"), VALUES),
        "hashes": st.one_of(st.just({"sha256": "0"}), VALUES),
    },
)

PACKAGE = st.fixed_dictionaries(
    {"name": st.one_of(st.just("torch"), VALUES)},
    optional={
        "version": st.one_of(st.just("1.0"), VALUES),
        "wheels": st.one_of(st.lists(FILE, max_size=3), VALUES),
        "variants-json": st.one_of(FILE, VALUES),
    },
)


@given(
    packages=st.one_of(st.lists(PACKAGE, max_size=3), VALUES),
    version=st.sampled_from(["1.0", "1.9", "0.1", "2", "x", 1]),
)
def test_no_document_is_a_defect(
    tmp_path_factory: pytest.TempPathFactory, packages: object, version: object
) -> None:
    """Every lock file is read, or causes a message about its defect."""
    path = tmp_path_factory.getbasetemp() / "pylock.toml"
    document = {"lock-version": version, "packages": packages}
    path.write_text(tomli_w.dumps(document), encoding="utf-8")
    try:
        lock = read_lock(str(path))
    except InputError as error:
        message = str(error)
    else:
        message = ""
        assert str(version).startswith("1.")
        assert len(lock.packages) <= len(lock.document["packages"])
    assert not message or message.startswith(f"{path}: ")
    assert "\n" not in message


@pytest.mark.parametrize(
    ("path", "is_one"),
    [
        ("pylock.toml", True),
        ("a/pylock.dev.toml", True),
        ("pylock.a.b.toml", False),
        ("pylock..toml", False),
        ("Pylock.toml", False),
        ("https://wheels.example/pylock.toml", False),
        ("requirements.txt", False),
    ],
)
def test_names_of_lock_files(path: str, is_one: bool) -> None:
    assert is_lock(path) is is_one


@pytest.mark.parametrize(
    ("name", "version"), [("torch", "../1"), ("../torch", "1.0"), ("torch", "x")]
)
def test_inlined_metadata_is_written_nowhere_else(
    name: str, version: str, tmp_path: Path
) -> None:
    """The metadata is written to a file with the name and the version of the
    package."""
    path = tmp_path / "pylock.toml"
    inlined = metadata({"cu126": gpu_build("12.6")})
    table = {"name": name, "version": version, "wheels": [], "variants-json": inlined}
    path.write_text(tomli_w.dumps({"lock-version": "1.0", "packages": [table]}))
    with pytest.raises(InputError, match="the name or the version is not valid"):
        read_lock(str(path))
