"""Generated metadata and machines, for property tests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hypothesis import strategies as st
from support.documents import PROVIDER, document

from nvidia_variant_provider.machine.environment import (
    ComputeCapability,
    CudaVersion,
    Environment,
    Gpu,
)

__all__ = ["documents", "machines", "wild_machines"]

# The strategy has few values, and most machines support most of them: tests of the
# order need labels that fit.
_LOWER = ("11", "11.8", "12", "12.0", "12.4", "12.8", "12.20", "13.0")
_UPPER = ("11", "12.10", "13", "13.0", "14", "15", "15.20")
_SM = ("50", "52", "60", "70", "75", "80", "86", "89", "90", "100", "103", "120", "121")
_TARGETS = tuple(f"{sm}_{kind}" for sm in _SM for kind in ("real", "virtual"))

_LIBRARIES = ("mkl", "openblas", "accelerate")
_LABELS = st.from_regex(r"[0-9a-z_.]{1,6}", fullmatch=True).filter("null".__ne__)


def _some(values: tuple[str, ...], most: int) -> st.SearchStrategy[list[str]]:
    return st.lists(st.sampled_from(values), min_size=1, max_size=most, unique=True)


def _part_of(
    choices: Mapping[str, st.SearchStrategy[Any]],
) -> st.SearchStrategy[dict[str, Any]]:
    """Draw a mapping with at least one of the keys, without discarding examples."""
    names = st.lists(st.sampled_from(sorted(choices)), min_size=1, unique=True)
    return names.flatmap(
        lambda keys: st.fixed_dictionaries({name: choices[name] for name in keys})
    )


_NVIDIA = _part_of(
    {
        "cuda_version_lower_bound": _some(_LOWER, 2),
        "cuda_version_upper_bound": _some(_UPPER, 2),
        "sm_arch": _some(_TARGETS, 12),
    }
)
_BLAS = _part_of({"library": _some(_LIBRARIES, 2), "threads": _some(("on", "off"), 1)})


@st.composite
def documents(draw: st.DrawFn) -> dict[str, Any]:
    """Draw index-level metadata; half of it has a second namespace, a static one."""
    static = draw(st.booleans())
    choices = {"nvidia": _NVIDIA, "blas_lapack": _BLAS}
    properties = _part_of(choices if static else {"nvidia": _NVIDIA})
    variants = draw(st.dictionaries(_LABELS, properties, min_size=2, max_size=7))
    if draw(st.booleans()):
        variants["null"] = {}
    if not static:
        return document(variants)
    order = draw(st.permutations(["library", "threads"]))
    provider = {
        "static-properties": {
            "library": draw(_some(_LIBRARIES, 2)),
            "threads": draw(_some(("on", "off"), 2)),
        },
        "feature-order": order,
    }
    return document(
        variants,
        providers={"nvidia": PROVIDER, "blas_lapack": provider},
        namespaces=draw(st.permutations(["nvidia", "blas_lapack"])),
    )


def _environment(
    cuda: st.SearchStrategy[CudaVersion | None],
    capabilities: st.SearchStrategy[list[ComputeCapability]],
) -> st.SearchStrategy[Environment]:
    return st.builds(
        lambda version, capabilities: Environment(
            cuda_driver_version=version,
            gpus=tuple(
                Gpu(index=index, compute_capability=item)
                for index, item in enumerate(capabilities)
            ),
        ),
        cuda,
        capabilities,
    )


machines = _environment(
    st.builds(
        CudaVersion, st.sampled_from((11, 12, 12, 12, 13, 15)), st.integers(0, 20)
    ),
    st.sampled_from((*_SM, None)).map(
        lambda sm: [] if sm is None else [ComputeCapability(int(sm[:-1]), int(sm[-1]))]
    ),
)
"""Machines with a CUDA version and at most one GPU, both named by the catalog."""

wild_machines = _environment(
    st.none() | st.builds(CudaVersion, st.integers(0, 99), st.integers(0, 99)),
    st.lists(
        st.builds(ComputeCapability, st.integers(0, 99), st.integers(0, 99)),
        max_size=3,
    ),
)
"""Machines with any values that a driver or a user could give."""
