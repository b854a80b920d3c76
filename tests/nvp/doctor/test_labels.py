"""The grammar of labels that say what an extension was built with."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvp.doctor.abi import Label, parse_label

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
    label = parse_label(text)
    assert label is not None
    assert (label.torch, label.cuda, label.abi) == (torch, cuda, abi)


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "cpu",
            "cu",
            "cu1280",
            "rocm6.4",
            "pt28cpu",
            "cu128.",
            ".cu128",
            "git1234",
        ),
        *("cu128cu126", "torch2.8pt28", "cuda12.8cu128", "cxx11abi", "torch28", "pt2"),
        *("cu128torch2.8.0.post2", "cu128+torch2.8", "torch2.8.0rc1", "cu128" * 20),
        *("cu128\n", "\u0663\u0663cu128", "torch2.123", "cxx11abitrue2"),
    ],
)
def test_other_forms_say_nothing(text: str) -> None:
    assert parse_label(text) is None


@given(minor=MINORS, patch=st.none() | st.integers(0, 9), cuda=CUDA, data=st.data())
def test_every_order_of_the_parts_says_the_same(
    minor: int, patch: int | None, cuda: tuple[int, int], data: st.DataObject
) -> None:
    dots = f"2.{minor}" if patch is None else f"2.{minor}.{patch}"
    torch = data.draw(
        st.sampled_from([f"torch{dots}", f"pt{dots}", f"torch2{minor}0", f"pt2{minor}"])
    )
    gpu = data.draw(
        st.sampled_from([f"cu{cuda[0]}{cuda[1]}", f"cuda{cuda[0]}.{cuda[1]}"])
    )
    abi = data.draw(st.sampled_from(["", "cxx11abiTRUE", "cxx11abiFALSE"]))
    parts = data.draw(st.permutations(list(filter(None, [torch, gpu, abi]))))
    # Two numbers beside each other cannot be told apart, but letters begin each part.
    separator = data.draw(st.sampled_from(["", "_", "-", "."]))
    label = parse_label(separator.join(parts))
    expected = {"": None, "cxx11abiTRUE": "new", "cxx11abiFALSE": "old"}[abi]
    assert label == Label(torch=(2, minor), cuda=cuda, abi=expected)  # type: ignore[arg-type]


@given(st.text(alphabet="cutorhpx1abie0289.-_ ", max_size=40))
def test_any_text_is_a_label_or_nothing(text: str) -> None:
    label = parse_label(text)
    if label is not None:
        assert (label.torch, label.cuda, label.abi) != (None, None, None)
        assert parse_label(text.upper()) == label
