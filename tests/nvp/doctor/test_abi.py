"""ND5xx with libraries that are compiled for both C++ ABIs."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.cxx_libraries import compile_library, needs_cxx, torch_library
from support.stacks import Installed, make_stack, run_checks

from nvp.doctor import abi
from nvp.doctor.abi import OF_TORCH, abi_of, qualified_name, with_other_tag
from nvp.doctor.distributions import Distribution
from nvp.doctor.model import Finding
from nvp.gpu_code.dynamic import Symbol

USES_STRING = """
#include <string>
namespace c10 { void check(const std::string &); struct Shape { int dims() const; }; }
void run() { c10::check("x"); c10::Shape().dims(); }
"""
RETURNS_STRING = """
#include <string>
namespace c10 { std::string name(); }
unsigned long run() { return c10::name().size(); }
"""
USES_NUMBERS = """
namespace c10 { struct Shape { int dims() const; }; }
extern "C" int torch_call();
int run() { return c10::Shape().dims() + torch_call(); }
"""
USES_NEW_FUNCTION = """
namespace c10 { namespace detail { int added(); } struct Shape { int gone(int); }; }
int run() { return c10::detail::added() + c10::Shape().gone(1); }
"""
OPTIONAL = """
namespace c10 { int added() __attribute__((weak)); }
int run() { return c10::added ? c10::added() : 0; }
"""


def torch(version: str = "2.15.0", *, new_abi: bool = True) -> Installed:
    files = {
        "torch/lib/libc10.so": torch_library(new_abi=new_abi),
        "torch/version.py": b"cuda: Optional[str] = '13.2'\n",
    }
    return Installed(name="torch", version=version, files=files)


def extension(
    source: str, *, new_abi: bool = True, version: str = "1.0", **more: bytes
) -> Installed:
    library = compile_library(source, new_abi=new_abi, needed=("libc10.so",))
    files = {"demo/_C.so": library}
    files |= {f"demo/{name}.so": data for name, data in more.items()}
    return Installed(version=version, files=files)


def labelled(label: str) -> Installed:
    return Installed(version=f"1.0+{label}", requires=["torch"])


def check(tmp_path: Path, *installed: Installed) -> list[Finding]:
    return run_checks(make_stack(tmp_path, *installed))


@needs_cxx
@pytest.mark.parametrize("source", [USES_STRING, RETURNS_STRING])
@pytest.mark.parametrize("new_abi", [True, False])
def test_another_abi(source: str, new_abi: bool, tmp_path: Path) -> None:
    installed = extension(source, new_abi=not new_abi)
    (finding,) = check(tmp_path, torch(new_abi=new_abi), installed)
    assert finding.code == "ND501"
    assert finding.distribution == "demo"
    assert str(finding.path).endswith("demo/_C.so")
    theirs, ours = (0, 1) if new_abi else (1, 0)
    assert f"built with _GLIBCXX_USE_CXX11_ABI={theirs}, and torch" in finding.message
    assert f"2.15.0 with _GLIBCXX_USE_CXX11_ABI={ours}" in finding.message
    assert finding.hint.endswith(
        "install --upgrade --only-binary demo 'demo!=1.0' torch==2.15.0"
    )


@needs_cxx
@pytest.mark.parametrize("source", [USES_STRING, RETURNS_STRING, USES_NUMBERS])
@pytest.mark.parametrize("new_abi", [True, False])
def test_the_same_abi_is_no_nd501(source: str, new_abi: bool, tmp_path: Path) -> None:
    installed = extension(source, new_abi=new_abi)
    findings = check(tmp_path, torch(new_abi=new_abi), installed)
    assert "ND501" not in [finding.code for finding in findings]
    assert findings == []


@needs_cxx
def test_an_extension_without_strings_fits_both() -> None:
    assert compile_library(USES_NUMBERS) == compile_library(USES_NUMBERS, new_abi=False)


@needs_cxx
def test_symbols_that_torch_does_not_have(tmp_path: Path) -> None:
    installed = replace(extension(USES_NEW_FUNCTION), requires=["torch==2.14.0"])
    required, finding = check(tmp_path, torch(), installed)
    assert (required.code, finding.code) == ("ND305", "ND503")
    assert finding.message == (
        "demo 1.0 needs c10::Shape::gone and 1 other symbol, which torch 2.15.0 does "
        "not have"
    )


@needs_cxx
def test_a_near_miss_of_nd503(tmp_path: Path) -> None:
    others = "namespace c10 { namespace detail { int added() { return 1; } }\n"
    others += "struct Shape { int gone(int); }; int Shape::gone(int x) { return x; } }"
    own = compile_library(others, needed=("libc10.so",))
    stacks = {
        "own": (torch(), extension(USES_NEW_FUNCTION, _own=own)),
        "weak": (torch(), extension(OPTIONAL)),
        "none": (extension(USES_NEW_FUNCTION),),
    }
    for name, installed in stacks.items():
        findings = check(tmp_path / name, *installed)
        assert "ND503" not in [finding.code for finding in findings]
        assert findings == []


@needs_cxx
@pytest.mark.parametrize(("version", "codes"), [("2.15", []), ("2.8", ["ND503"])])
def test_of_libraries_for_releases_of_torch_one_counts(
    version: str, codes: list[str], tmp_path: Path
) -> None:
    """torch-c-dlpack-ext has a library for each release from 2.4 on."""
    old = compile_library(USES_NEW_FUNCTION, needed=("libc10.so",))
    new = compile_library(USES_NUMBERS, needed=("libc10.so",))
    files = {"demo/addon_torch28-cpu.so": old, "demo/addon_torch215-cpu.so": new}
    findings = check(tmp_path, torch(version), Installed(files=files))
    assert [finding.code for finding in findings] == codes


@needs_cxx
def test_a_hidden_function_of_torch_counts_as_missing(tmp_path: Path) -> None:
    source = 'extern "C" int torch_hidden(); int run() { return torch_hidden(); }'
    (finding,) = check(tmp_path, torch(), extension(source))
    assert finding.code == "ND503"
    assert "torch_hidden" in finding.message


TRIGGERS = {
    "ND502": [
        "cu12torch2.15cxx11abiTRUE",
        "pt215cu126",
        "torch2140cu132",
        "cu130torch2.14",
        "cu128",
        "cu13torch2.15cxx11abiFALSE",
        "cuda13.0.torch2.8.1",
    ]
}
NEAR_MISSES = {
    "ND502": [
        "cu13torch2.15cxx11abiTRUE",
        "pt215cu130",
        "torch2150cu132",
        "cu130",
        "cpu",
        "cu128something",
        "1234abcd",
    ]
}


@needs_cxx
@pytest.mark.parametrize("label", TRIGGERS["ND502"])
def test_a_label_names_something_else(label: str, tmp_path: Path) -> None:
    (finding,) = check(tmp_path, torch(), labelled(label))
    assert finding.code == "ND502"
    assert finding.message.startswith(f"demo 1.0+{label} is for ")


@needs_cxx
@pytest.mark.parametrize("label", NEAR_MISSES["ND502"])
def test_a_label_fits_or_says_nothing(label: str, tmp_path: Path) -> None:
    assert check(tmp_path, torch(), labelled(label)) == []


def test_the_message_names_all_differences(tmp_path: Path) -> None:
    version_file = {"torch/version.py": b"cuda = None\n"}
    installed = Installed(name="torch", version="2.8.1", files=version_file)
    (finding,) = check(tmp_path, installed, labelled("cu126torch2.7"))
    assert finding.message == (
        "demo 1.0+cu126torch2.7 is for torch 2.7 (2.8.1 is installed) and CUDA 12.6 "
        "(torch 2.8.1 has none)"
    )


def test_a_label_of_what_does_not_use_torch_says_nothing(tmp_path: Path) -> None:
    installed = Installed(version="1.0+cu118")
    assert (
        check(tmp_path, Installed(name="torch", version="2.8+cu128"), installed) == []
    )


@pytest.mark.parametrize(
    ("url", "count"),
    [
        ("https://a.test/demo-1.0%2Bcu12torch2.6cxx11abiTRUE-cp311-cp311-any.whl", 1),
        ("https://a.test/demo-1.0+cu12torch2.8cxx11abiTRUE-cp311-cp311-any.whl", 0),
        (
            f"https://a.test/demo-1.0-{'a.' * 9999}a-{'b.' * 9999}b-{'c.' * 9999}c.whl",
            0,
        ),
        ("https://a.test/demo.tar.gz", 0),
        ("https://[", 0),
        (7, 0),
    ],
)
def test_the_wheel_that_it_was_installed_from(
    url: object, count: int, tmp_path: Path
) -> None:
    origin = json.dumps({"url": url}).encode()
    files = {"demo-1.0.dist-info/direct_url.json": origin}
    demo = Installed(files=files, requires=["torch"])
    findings = check(tmp_path, Installed(name="torch", version="2.8.0+cu126"), demo)
    assert [finding.code for finding in findings] == ["ND502"] * count


def test_the_letters_of_a_server_are_not_normalized(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That takes quadratic time."""

    forms = []
    original = unicodedata.normalize

    def normalize(form: Literal["NFC", "NFKC"], text: str) -> str:
        forms.append(form)
        return original(form, text)

    name = "demo-1.0+cu12torch2.6cxx11abiTRUE-cp311-cp311-any.whl"
    origin = json.dumps({"url": f"https://a\u0300\u0316/{name}"}).encode()
    demo = Installed(
        files={"demo-1.0.dist-info/direct_url.json": origin}, requires=["torch"]
    )
    monkeypatch.setattr(unicodedata, "normalize", normalize)
    findings = check(tmp_path, Installed(name="torch", version="2.8.0+cu126"), demo)
    assert [finding.code for finding in findings] == ["ND502"]
    assert "NFKC" not in forms


@needs_cxx
def test_torch_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = (torch(), extension(USES_NEW_FUNCTION))
    cache = tmp_path / "cache"
    first = run_checks(make_stack(tmp_path / "env", *installed, cache=cache))
    read: list[str] = []
    original = abi.read_library

    def read_library(distribution: Distribution, path: str) -> Iterator[Symbol]:
        if "torch/lib" in path:
            read.append(path)
        return original(distribution, path)

    monkeypatch.setattr(abi, "read_library", read_library)
    assert run_checks(make_stack(tmp_path / "env", *installed, cache=cache)) == first
    assert read == []
    for kept in cache.iterdir():
        kept.write_text('{"abi": "new", "hashes": "AA"}')
    assert run_checks(make_stack(tmp_path / "env", *installed, cache=cache)) == first
    assert len(read) == 1


@needs_cxx
def test_a_damaged_library_of_torch_is_a_note(tmp_path: Path) -> None:
    broken = replace(torch(), files={"torch/lib/libc10.so": b"\x7fELF broken"})
    stack = make_stack(tmp_path, broken, extension(USES_NEW_FUNCTION))
    assert [f.code for f in run_checks(stack)] == []
    assert "libc10.so: not an ELF file" in stack.distributions["torch"].defects[-1]


@pytest.mark.parametrize(
    ("name", "abi"),
    [
        (b"_ZN3c106detail14torchCheckFailEPKcS2_jRKSs", "old"),
        (
            b"_ZN3c105checkERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE",
            "new",
        ),
        (b"_ZN3c104nameB5cxx11Ev", "new"),
        (b"_ZN3Ssh3ownEi", None),
        (b"_ZN3c103getILj4EEEv", None),
        (b"_ZN3c103getILj4EEESsv", "old"),
        (b"_ZN3c105ShapeS0_Ss", "old"),
        (b"_ZN" + b"9" * 5000 + b"Ss", None),
    ],
)
def test_which_abi_a_name_says(name: bytes, abi: str | None) -> None:
    assert abi_of(name) == abi


TOKEN = abi._TOKEN
ONE_BY_ONE = re.compile(
    rb"(?P<length>[0-9]+)|L[a-z]n?[0-9]{1,20}E|[ST][0-9A-Z]{0,12}_|(?P<string>Ss)|.",
    re.DOTALL,
)
"""The grammar of names, with a match for each other character."""

PIECES = [b"Ss", b"S", b"T", b"L", b"s", b"_", b"S0_", b"T_", b"Lj4E", b"Lin12E", b"E"]
PIECES += [b"1", b"2", b"07", b"Z", b"\n", b"\xff", b"S" + b"9" * 13 + b"_"]
PIECES += [b"Lj" + b"1" * 21 + b"E"]


@given(
    st.lists(st.one_of(st.sampled_from(PIECES), st.binary(max_size=3))).map(b"".join)
)
def test_a_match_may_take_many_characters(name: bytes) -> None:
    expected, at = False, 0
    while match := ONE_BY_ONE.match(name, at):
        if match["string"]:
            expected = True
            break
        at = match.end() + int((match["length"] or b"0")[:6])
    assert (abi_of(name) == "old") == expected


def test_a_long_name_takes_few_matches(monkeypatch: pytest.MonkeyPatch) -> None:
    """A library may have thousands of names with 65,000 bytes each."""
    taken: list[bytes] = []

    class Counted:
        def match(self, name: bytes, at: int) -> re.Match[bytes] | None:
            match = TOKEN.match(name, at)
            taken.extend([match[0]] if match else [])
            return match

    monkeypatch.setattr(abi, "_TOKEN", Counted())
    for piece in (b"v", b"T", b"S", b"L", b"S_", b"Lj4E", b"\n"):
        assert abi_of(b"_ZN2at" + piece * 9000 + b"1SsSs") == "old"
    assert len(taken) < 100


def test_names_of_torch() -> None:
    of_torch = [b"_ZN3c101fEv", b"_ZNK2at6Tensor1fEv", b"_ZTVN5torch3jit1AE"]
    of_torch += [b"_ZThn16_N6caffe21A1fEv", b"aoti_torch_get_dim", b"THPVariable_Wrap"]
    assert all(map(OF_TORCH.match, of_torch))
    others = [b"_ZN11torchvision1fEv", b"torchaudio_init", b"_ZNSt3c10", b"THPx", b""]
    assert not any(map(OF_TORCH.match, others))


def test_names_for_people() -> None:
    assert qualified_name(b"_ZNK3c105Shape4dimsEv") == "c10::Shape::dims"
    assert qualified_name(b"torch_call") == "torch_call"
    assert qualified_name(b"_ZN") == "_ZN"
    assert with_other_tag(b"_ZN3c104nameEv") == b"_ZN3c104nameB5cxx11Ev"
    assert with_other_tag(b"_ZN3c104nameB5cxx11Ev") == b"_ZN3c104nameEv"
    assert with_other_tag(b"torch_call") is None
