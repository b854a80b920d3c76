"""The grammar of TORCH_CUDA_ARCH_LIST."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvidia_variant_provider.machine.environment import ComputeCapability
from nvp.doctor.toolchain import parse_architectures

ENTRIES = st.builds(
    lambda number, suffix, ptx: f"{number}{suffix}{ptx}",
    st.sampled_from(["7.5", "8.0", "8.6", "9.0", "10.0", "12.1"]),
    st.sampled_from(["", "a"]),
    st.sampled_from(["", "+PTX"]),
)


@pytest.mark.parametrize(
    ("text", "machine_code", "ptx"),
    [
        ("8.0", ["80"], []),
        ("8.0;9.0+PTX", ["80", "90"], ["90"]),
        ("8.0 9.0a", ["80", "90a"], []),
        ("9.0a+PTX 10.0f", ["90a", "100f"], ["90a"]),
        ("Hopper", ["90"], ["90"]),
        ("Ampere;Ampere+Tegra", ["80", "86", "87"], ["86"]),
        ("Blackwell", ["100", "103", "120", "121"], ["121"]),
        ("Volta 12.0", ["70", "120"], ["70"]),
    ],
)
def test_what_torch_compiles(
    text: str, machine_code: list[str], ptx: list[str]
) -> None:
    parsed = parse_architectures(text)
    assert parsed is not None
    assert (list(parsed.machine_code), list(parsed.ptx)) == (machine_code, ptx)
    assert parsed.unknown == ()


@pytest.mark.parametrize(
    ("text", "unknown"),
    [
        ("8.0; 9.0", [""]),
        ("8.0,9.0", ["8.0,9.0"]),
        ("sm_90", ["sm_90"]),
        ("hopper", ["hopper"]),
        ("Hopper+PTX", ["9.0+PTX+PTX"]),
        ("8.0;", [""]),
        ("90;8.0+ptx", ["90", "8.0+ptx"]),
        ("All\u00e9\n", ["All\u00e9\n"]),
    ],
)
def test_entries_that_torch_refuses(text: str, unknown: list[str]) -> None:
    parsed = parse_architectures(text)
    assert parsed is not None
    assert list(parsed.unknown) == unknown


@pytest.mark.parametrize("text", ["", "native"])
def test_torch_looks_at_the_gpus_itself(text: str) -> None:
    assert parse_architectures(text) is None


@given(st.lists(ENTRIES, min_size=1, max_size=8), st.data())
def test_order_and_separators_do_not_matter(
    entries: list[str], data: st.DataObject
) -> None:
    one = parse_architectures(";".join(entries))
    shuffled = data.draw(st.permutations(entries))
    other = parse_architectures(" ".join(shuffled))
    assert one is not None
    assert other is not None
    assert (set(one.machine_code), set(one.ptx)) == (
        set(other.machine_code),
        set(other.ptx),
    )
    for entry in entries:
        number = entry.partition("+")[0].removesuffix("a")
        gpu = ComputeCapability.parse(number)
        assert one.has_code_for(gpu)
        assert one.has_ptx_for(gpu) or not entry.endswith("+PTX")


@given(st.text(max_size=30))
def test_any_text_is_read(text: str) -> None:
    parsed = parse_architectures(text)
    if parsed is not None:
        assert parsed.machine_code or parsed.unknown
