"""Hostile environments that anyone could publish: none causes an exception."""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.command import Run
from support.containers import linked
from support.gpu_wheels import binary
from support.stacks import Installed, make_environment

from nvidia_variant_provider.errors import UsageError
from nvp import api
from nvp.cli import _saying_warnings

_LONG = st.sampled_from(["9" * 5000, "1." * 3000, "(" * 600, "a" * 70_000])
_TEXT = st.one_of(
    st.text(max_size=30),
    _LONG,
    st.sampled_from(
        [
            *("nvidia-cublas-cu12==12.*; extra == 'a'", "cuda-toolkit[cublas]==13.2"),
            *("nvidia-cudnn-cu12==1!9.*; extra == 'and-cuda'", "nvidia-cublas"),
            *("nvidia-cublas-cu12>=v12; extra == 'and-cuda'", "jax[cuda12]===x"),
            *("torch===1_x", "triton~=3.9; python_version < '3.1e9'", "../../x", "\0"),
            *("demo/x.so", "/etc/passwd", "torch/lib/libc10.so", "\x1b[31m", "1.0"),
            *("https://host/torch-2.8.0+cu126-cp311-cp311-linux_x86_64.whl", "3.11.7"),
        ]
    ),
)
_LINES = st.lists(
    st.tuples(
        st.sampled_from(
            [
                *("Name: ", "Requires-Dist: ", "Tag: ", "X: ", " ", "version = ", ""),
                *("home = ", "include-system-site-packages = true\nhome = ", "cuda = "),
            ]
        ),
        _TEXT,
        st.sampled_from(["\n", "\r\n", ",,", ",sha256=x,1\n", ",,99999999999999999\n"]),
    ).map("".join),
    max_size=6,
).map("".join)
_JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), _TEXT),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(["url", "variants", "providers", "nvidia", "cu126", "x"]),
            inner,
            max_size=3,
        ),
    ),
    max_leaves=8,
).map(json.dumps)
_LIBRARY = st.builds(
    linked,
    st.sampled_from(["libcudart.so.13", "libc10.so", "libtorch.so", "..", "/", "a/b"]),
    st.sampled_from(["libcublas.so.12", "", "$ORIGIN/x.so", "\x1b[31m"]),
    runpath=st.sampled_from(["", ":", "$ORIGIN:$LIB", "/proc/self/fd:/dev", "a\n"]),
    soname=st.sampled_from(["", "libc10.so", "libcudart.so.13"]),
    names=st.sampled_from([None, 0, 1 << 62, (1 << 64) - 1]),
)
_BYTES = st.one_of(
    st.binary(max_size=80),
    st.one_of(_LINES, _JSON).map(lambda text: text.encode("utf-8", "replace")),
    _LIBRARY,
    st.sampled_from(["plain.so", "ptx-only.so"]).map(binary),
    st.sampled_from(["pipe", "link", "circle", "folder"]),
)
_IN_DIST_INFO = (
    *("RECORD", "METADATA", "WHEEL", "INSTALLER", "direct_url.json", "variant.json"),
    *("entry_points.txt", "REQUESTED"),
)
_BESIDE = (
    *("torch/lib/libtorch_global_deps.so", "torch/lib/libc10.so", "torch/version.py"),
    *("torch/__init__.py", "torch/_C.x.so", "torch/bin/ptxas", "demo/x.so", "demo/y"),
    *("triton/backends/nvidia/bin/ptxas", "triton/backends/nvidia/compiler.py"),
    *("bitsandbytes/libbitsandbytes_cuda999.so", "bitsandbytes/cextension.py"),
    *("jax_plugins/xla_cuda12/__init__.py", "nvidia/cu13/lib/libcudart.so.13"),
    *("nvidia/cublas/lib/libcublas.so.12", "demo.libs/libx-12345678.so"),
)
_FOLDERS = (
    *(b"torch-2.8.0+cu126", b"triton-3.9.0", b"nvidia_cublas_cu12-12.8", b"nvp-1"),
    *(b"jax_cuda12_plugin-0.6", b"demo-\x1b[31m\n", b"demo-1.0+\xff\xfe", b"~emo-1.0"),
    *(b"tensorflow-2.19", b"ctranslate2-4", b"bitsandbytes-0.49", b"jaxlib-0.6"),
    *(b"onnxruntime-1.22", b"onnxruntime_gpu-1.22", b"numpy-2_x", b"cupy_cuda13x-14"),
    *(b"demo-1!2.3.post4+pt2.8cu126", b"demo-" + b"9" * 200, b"flash_attn-2.8+cu12"),
)


def _write(path: bytes, content: bytes | str) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if isinstance(content, bytes):
        with open(path, "wb") as file:
            file.write(content)
    elif content == "pipe":
        os.mkfifo(path)
    elif content == "folder":
        os.makedirs(path)
    else:
        os.symlink(path if content == "circle" else b"/dev/zero", path)


@pytest.mark.skipif(sys.platform != "linux", reason="needs names that are no text")
@settings(
    max_examples=settings().max_examples // 2,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_any_environment_is_looked_at(
    data: st.DataObject, empty_folders: Iterator[Path], run: Run
) -> None:
    prefix = next(empty_folders)
    packages = make_environment(
        prefix, Installed(files={"demo/plain.so": binary("plain.so")})
    )
    root = os.fsencode(packages)
    for folder in data.draw(st.sets(st.sampled_from(_FOLDERS), max_size=6)):
        os.makedirs(os.path.join(root, folder + b".dist-info"), exist_ok=True)
        for name in data.draw(st.sets(st.sampled_from(_IN_DIST_INFO))):
            path = os.path.join(root, folder + b".dist-info", name.encode())
            _write(path, data.draw(_BYTES))
    for name in data.draw(st.sets(st.sampled_from(_BESIDE), max_size=8)):
        _write(os.path.join(root, name.encode()), data.draw(_BYTES))
    if data.draw(st.booleans()):
        (prefix / "pyvenv.cfg").unlink()
        _write(os.fsencode(prefix / "pyvenv.cfg"), data.draw(_BYTES))
    # RECORD lists the files of the directory, unless a hostile RECORD replaces it.
    for number, item in enumerate(packages.glob("*.dist-info")):
        if not os.path.lexists(item / "RECORD"):
            rows = [f"{name},sha{256 + number % 2}=x{number},9\n" for name in _BESIDE]
            (item / "RECORD").write_text("".join(rows))
    words = data.draw(
        st.sampled_from([(), ("--cuda-driver", "12.8", "--sm-arch", "9.0")])
    )
    try:
        api.doctor(str(prefix), environ={"NV_VARIANT_PROVIDER_SYSROOT": str(prefix)})
    except UsageError:
        assert run("doctor", "--python", prefix, *words).code == 2
        return
    outcome = run("doctor", "--python", prefix, *words)
    assert outcome.code in (0, 1), outcome.err
    text = (outcome.out + outcome.err).replace("\n", "")
    assert "Traceback" not in text
    assert text.isprintable() or not any(ord(x) < 32 or x == "\x7f" for x in text)
    outcome = run("doctor", "--python", prefix, *words, "--json")
    assert outcome.code in (0, 1)
    assert json.loads(outcome.out)["command"] == "doctor"


def test_python_prints_nothing_of_the_code_that_is_read(
    tmp_path: Path, run: Run
) -> None:
    """Python 3.12 and newer print a warning with the character of the escape."""
    compiler = "triton/backends/nvidia/compiler.py"
    code = b"def get_ptxas(arch):\n    '\\\x1b \\\x0e'\n    return knobs.nvidia.ptxas\n"
    files = {compiler: code, "triton/backends/nvidia/bin/ptxas": b"#!/bin/sh\n"}
    triton = Installed(name="triton", version="3.9.0", files=files)
    make_environment(tmp_path, triton)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        outcome = run("doctor", "--python", tmp_path)
    said = [outcome.err, *(str(each.message) for each in told)]
    assert "invalid escape" not in str(said)


def test_a_warning_of_python_is_printed_without_control_characters(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with warnings.catch_warnings(), _saying_warnings():
        warnings.simplefilter("always")
        warnings.warn("in \x1b[31m.py", stacklevel=1)
    assert capsys.readouterr().err == "UserWarning: in \\x1b[31m.py\n"
