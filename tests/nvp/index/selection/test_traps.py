"""Variants that one installer would take wrongly, and another one would not."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from simple_repository import model
from support.pages import json_file, read_json

from nvp.index.selection import shown
from nvp.index.selection.shown import without_traps

VARIANT = "kern-1.0-py3-none-any-cu126.whl"


@pytest.mark.parametrize(
    ("left", "is_kept"),
    [
        (None, True),
        ("kern-1.0-py3-none-any.whl", False),
        ("kern-1.0+cu118-cp311-cp311-win_amd64.whl", False),
        ("kern-1.0.tar.bz2", False),
        ("kern-1.1-py3-none-any.whl", True),
        ("kern-1.0-variants.json", True),
        ("kern.whl", True),
    ],
)
def test_a_yanked_variant_is_left_out_beside_other_files_of_its_release(
    left: str | None, is_kept: bool
) -> None:
    """For a pin, uv takes the wheel with the best tags, even a yanked one."""
    names = [VARIANT, "kern-1.0-cp311-cp311-win_amd64.whl"]
    files = [model.File(name, name, {}, yanked="CVE") for name in names]
    files += [model.File(left, left, {})] if left else []
    shown = [file.filename for file in without_traps(files, "kern")]
    kept = [name for name in [*names, left] if name and (name != VARIANT or is_kept)]
    assert shown == kept


@pytest.mark.parametrize(
    ("yanked", "left"),
    [
        (["kern-1.0-py3-none-any.whl"], []),
        (["kern-1.0.tar.gz"], []),
        (["kern-1.0+cu118-py3-none-any.whl"], ["kern-1.0-py3-none-any.whl"]),
        (["kern-1.0-1-py3-none-any.whl"], ["kern-1.0-py3-none-any.whl"]),
    ],
)
def test_variants_are_left_out_beside_yanked_files_of_their_release(
    yanked: Sequence[str], left: Sequence[str]
) -> None:
    """uv takes a release if one of its files is not yanked, and then any of them."""
    files = [model.File(name, name, {}, yanked="CVE") for name in yanked]
    other = "kern-1.1-py3-none-any-cu126.whl"
    files += [model.File(name, name, {}) for name in [*left, VARIANT, other]]
    shown = [file.filename for file in without_traps(files, "kern")]
    assert shown == [*yanked, *left, other]


@pytest.mark.parametrize("yanked", ["", True, "CVE"])
@pytest.mark.parametrize("name", ["kern-1.0-py3-none-any.whl", "kern-1.0-0.tar.gz"])
def test_any_installer_may_count_a_file_as_yanked(yanked: str, name: str) -> None:
    """uv also does so for an empty reason in JSON."""
    version = "1.0.post0" if name.endswith("gz") else "1.0"
    variant = f"kern-{version}-py3-none-any-cu126.whl"
    left = f"kern-{version}.tar.gz"
    page = read_json(
        json_file(filename=name, yanked=yanked),
        json_file(filename=variant),
        json_file(filename=left),
    )
    assert [file.filename for file in without_traps(page.files, "kern")] == [name, left]


def test_other_variants_stay_beside_a_yanked_one() -> None:
    other = "kern-1.0-py3-none-any-cu118.whl"
    files = [
        model.File(VARIANT, VARIANT, {}, yanked="CVE"),
        model.File(other, other, {}),
    ]
    assert [file.filename for file in without_traps(files, "kern")] == [other]


@pytest.mark.parametrize(
    ("regular", "own", "is_kept"),
    [
        (None, ">=3.12", False),
        (">=3.9", ">=3.12", False),
        (">=3.9", None, True),
        (">=3.9,<4", ">=3.9", True),
        (">=3.9,<4", "<4, >= 3.9", True),
        (">=3.9,<4", ">=3. 9", False),
        (">=3.9,<4", ">=3.9,,<4", False),
        (">=3.9,<4", ", ,", False),
        (">=3.9,", ">=3.9,", True),
        (None, "", True),
    ],
)
def test_a_variant_needs_no_other_python_than_the_regular_files(
    regular: str | None, own: str | None, is_kept: bool
) -> None:
    """uv takes no file of a release if the wheel with the best tags does not fit."""
    names = {"kern-1.0-py3-none-any.whl": regular, VARIANT: own}
    files = [model.File(x, x, {}, requires_python=y) for x, y in names.items()]
    assert len(without_traps(files, "kern")) == 1 + is_kept
    assert len(without_traps(files[1:], "kern")) == 1


def test_a_variant_is_compared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """40,000 variants beside 40,000 regular files took a minute."""
    compared = []

    class Clauses(frozenset[str]):
        def __le__(self, other: object) -> bool:
            compared.append(other)
            return True

    monkeypatch.setattr(shown, "clauses_of", lambda _: Clauses())
    names = [f"kern-1.0-{n}-py3-none-any.whl" for n in range(9)]
    names += [f"kern-1.0-py3-none-any-cu{n}.whl" for n in range(9)]
    assert len(without_traps([model.File(x, x, {}) for x in names], "kern")) == 18
    assert len(compared) == 9
