"""The grammar of labels that name the backend of a build."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvidia_variant_provider.machine.environment import CudaVersion
from nvp.builds.needs import parse_backend

MINORS = st.integers(0, 20)
CUDA = st.tuples(st.integers(11, 14), st.integers(0, 9))


@pytest.mark.parametrize(
    ("text", "torch", "cuda", "abi"),
    [
        ("cu12torch2.8cxx11abiTRUE", (2, 8), (12,), "new"),
        ("cu12torch2.8cxx11abifalse", (2, 8), (12,), "old"),
        ("cu122torch2.3cxx11abiFALSE", (2, 3), (12, 2), "old"),
        ("pt28cu126", (2, 8), (12, 6), None),
        ("pt210cu128", (2, 10), (12, 8), None),
        ("pt113cu117", (1, 13), (11, 7), None),
        ("torch280cu128", (2, 8), (12, 8), None),
        ("torch2100cu130", (2, 10), (13, 0), None),
        ("cu128torch2.7", (2, 7), (12, 8), None),
        ("cu128torch2.8.0", (2, 8), (12, 8), None),
        ("cu128.torch2.8.0", (2, 8), (12, 8), None),
        ("torch2.8.cu128", (2, 8), (12, 8), None),
        ("cuda12.6.torch2.7.1", (2, 7), (12, 6), None),
        ("pt2.8.0cu128", (2, 8), (12, 8), None),
        ("cu128torch27", (2, 7), (12, 8), None),
        ("cu128.torch211", (2, 11), (12, 8), None),
        ("torch211cu118", (2, 1), (11, 8), None),
        ("cu.12.8.torch.2.11", (2, 11), (12, 8), None),
        ("cu128torch2.8.0.post3", (2, 8), (12, 8), None),
        ("cuda12.cudnn89", None, (12,), None),
        ("cu117.with.pypi.cudnn", None, (11, 7), None),
        ("g1a2b3c4.d20260101.cu129", None, (12, 9), None),
        ("cu13", None, (13,), None),
        ("cu999", None, (99, 9), None),
        ("cu128", None, (12, 8), None),
        ("cu92", None, (9, 2), None),
    ],
)
def test_labels_that_projects_use(
    text: str,
    torch: tuple[int, int] | None,
    cuda: tuple[int, ...] | None,
    abi: str | None,
) -> None:
    backend = parse_backend(text)
    assert backend is not None
    assert (backend.kind, backend.label) == ("cuda", text)
    assert (backend.torch, backend.abi) == (torch, abi)
    assert backend.cuda is not None
    assert backend.cuda[: 1 + backend.minor] == cuda


@pytest.mark.parametrize(
    ("text", "kind", "torch"),
    [
        ("cpu", "cpu", None),
        ("cpu.cxx11.abi", "cpu", None),
        ("pt210cpu", "cpu", (2, 10)),
        ("cpu.torch.2.11", "cpu", (2, 11)),
        ("xpu", "xpu", None),
        ("rocm6.4.1", "rocm", None),
        ("rocm.7.2.torch.2.11", "rocm", (2, 11)),
        ("rocm7.2.0.lw.git7e1940d4", "rocm", None),
    ],
)
def test_labels_of_other_hardware(
    text: str, kind: str, torch: tuple[int, int] | None
) -> None:
    backend = parse_backend(text)
    assert backend is not None
    assert (backend.kind, backend.cuda, backend.torch) == (kind, None, torch)


@pytest.mark.parametrize(
    "text",
    [
        *("", "cu", "cu1", "cu1x", "cu1280", "cu128.", ".cu128", "git1234", "rocm7."),
        *("computecanada", "full", "post1", "g1a2b3c4", "torch2.8", "cxx11abiTRUE"),
        *("cu128cu126", "cu128cpu", "cu128torch2.8pt28", "cuda12.8cu128", "cu128pt2"),
        *("cu128+torch2.8", "cu128torch2.8.0rc1", "cu128." * 20, "cu128.gxyz"),
        *("cu128\n", "\u0663\u0663cu128", "cu128torch2.123", "cpucxx11abitrue2"),
        *("34c6371d24.nv25.08", "cudnn89", "cu128.unknown"),
    ],
)
def test_other_labels_say_nothing(text: str) -> None:
    assert parse_backend(text) is None


@given(
    minor=MINORS,
    patch=st.none() | st.integers(0, 9),
    cuda=CUDA,
    known=st.booleans(),
    data=st.data(),
)
def test_every_order_of_the_parts_says_the_same(
    minor: int,
    patch: int | None,
    cuda: tuple[int, int],
    known: bool,
    data: st.DataObject,
) -> None:
    dots = f"2.{minor}" if patch is None else f"2.{minor}.{patch}"
    torch = data.draw(
        st.sampled_from(
            ["", f"torch{dots}", f"pt{dots}", f"torch.{dots}", f"pt2{minor}"]
            # "torch210" was torch 2.1.0 once.
            + ([] if minor // 10 == 1 or minor == 1 else [f"torch2{minor}0"])
        )
    )
    major = cuda[0]
    forms = [f"cu{major}{cuda[1]}", f"cuda{major}.{cuda[1]}", f"cu.{major}.{cuda[1]}"]
    gpu = data.draw(st.sampled_from(forms if known else [f"cu{major}", f"cuda{major}"]))
    abi = data.draw(st.sampled_from(["", "cxx11abiTRUE", "cxx11abiFALSE"]))
    noise = data.draw(st.sampled_from(["", "d20260101", "gabcdef0", "post1"]))
    parts = data.draw(st.permutations(list(filter(None, [torch, gpu, abi]))))
    # Letters begin each part, because two adjacent numbers could not be separated.
    separator = data.draw(st.sampled_from(["", "_", "-", "."]))
    label = separator.join(parts) + (f".{noise}" if noise else "")
    backend = parse_backend(label)
    assert backend is not None
    assert backend.cuda == CudaVersion(major, cuda[1] if known else 0)
    assert backend.minor is known
    assert backend.torch == ((2, minor) if torch else None)
    assert backend.abi == {"cxx11abiTRUE": "new", "cxx11abiFALSE": "old"}.get(abi)
    assert backend.base == f"cu{major}{cuda[1] if known else ''}"


@given(st.text(alphabet="cutorhpx1abie0289.-_ ", max_size=40))
def test_any_text_is_a_label_or_nothing(text: str) -> None:
    backend = parse_backend(text)
    if backend is not None:
        assert (backend.cuda is None) == (backend.kind != "cuda")
        again = parse_backend(text.upper())
        assert again is not None
        assert replace(again, label=text) == backend
