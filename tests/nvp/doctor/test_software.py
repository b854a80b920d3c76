"""Requirements between distributions, direct and through others."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.gpu_wheels import binary
from support.stacks import Installed, machine, make_stack

from nvp.doctor.distributions import Distribution
from nvp.doctor.installation import Installation
from nvp.doctor.runner import diagnose
from nvp.doctor.software import CodeReader, Software

NAMES = "abcde"


class Required(Distribution):
    """A distribution with given requirements, which are not read from files."""

    @cached_property
    def required(self) -> frozenset[str]:
        return frozenset(self.version)


def software(requirements: Mapping[str, Sequence[str]]) -> Software:
    """Return software of which each distribution requires the given others."""
    return Software(
        environment=machine(None),
        installation=Installation(python=None, prefix="", folders=(), version=None),
        distributions={
            name: Required(name=name, version="".join(others), folder="")
            for name, others in requirements.items()
        },
        reader=CodeReader(),
    )


def closure(requirements: Mapping[str, Sequence[str]]) -> set[tuple[str, str]]:
    """Return all pairs of needing and needed distributions, by adding pairs until the
    set is closed."""
    pairs = {(a, b) for a, others in requirements.items() for b in others}
    while more := {(a, d) for a, b in pairs for c, d in pairs if b == c} - pairs:
        pairs |= more
    return pairs


@given(
    st.dictionaries(
        st.sampled_from(NAMES), st.lists(st.sampled_from(NAMES), max_size=3)
    )
)
def test_requirements_are_followed_in_both_directions(
    requirements: dict[str, list[str]],
) -> None:
    stack, pairs = software(requirements), closure(requirements)
    for name in NAMES:
        assert stack.required_by(name) == {a for a, b in pairs if b == name}
        assert stack.needed_for(name) == {b for a, b in pairs if a == name}
        assert stack.is_required(name) == any(b == name for _, b in pairs)


@pytest.mark.parametrize("count", [20, 80])
def test_the_work_grows_with_the_number_of_distributions(
    count: int, tmp_path: Path
) -> None:
    # Each library lacks the CUDA runtime, so each has a finding. Each distribution
    # needs all that come after it.
    installed = [
        Installed(
            name=f"nvidia-demo{number}",
            files={f"demo{number}/plain.so": binary("plain.so")},
            requires=[f"nvidia-demo{number + 1}"],
        )
        for number in range(count)
    ]
    stack = make_stack(
        tmp_path,
        *installed,
        environment=machine("13.4", "9.0"),
        root=tmp_path / "empty",
    )
    calls = 0

    def is_library(_: Distribution) -> bool:
        nonlocal calls
        calls += 1
        return True

    with patch.object(Distribution, "is_library", property(is_library)):
        findings = diagnose(stack).findings
    assert len(findings) >= count - 1
    assert calls <= 15 * count


def test_old_results_are_removed(tmp_path: Path) -> None:
    cache = tmp_path / "installed"
    cache.mkdir(mode=0o700)
    ages = {"old": 31, "old.json.7.ab": 31, "new": 29}
    for name, days in ages.items():
        (cache / name).touch()
        changed = time.time() - days * 24 * 3600
        os.utime(cache / name, (changed, changed))
    files = {"demo/code.so": binary("arch-specific.so")}
    diagnose(make_stack(tmp_path, Installed(files=files), cache=cache))
    left = {path.name for path in cache.iterdir()}
    assert left & set(ages) == {"new"}
    assert len(left) == 2
