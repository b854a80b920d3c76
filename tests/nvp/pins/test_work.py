"""The work of reading a stranger's file, and of selecting its packages, is small."""

from __future__ import annotations

import contextlib
import tracemalloc
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from packaging.version import Version

from nvidia_variant_provider.errors import InputError
from nvidia_variant_provider.machine.environment import Environment
from nvp.api import check
from nvp.builds.needs import requirements_on
from nvp.checking import judging
from nvp.metadata import requirements
from nvp.pins import reading, toml_locks
from nvp.pins.model import Pin
from nvp.pins.reading import read_pins

POETRY = '[metadata]\ncontent-hash = "0"\n'


def test_hashes_are_read_in_linear_time(tmp_path: Path) -> None:
    """The number of steps doubled with each hash."""
    path = tmp_path / "requirements.txt"
    path.write_text(f'torch==1 {"--hash=a" * 40}"')
    with pytest.raises(InputError, match="a quotation mark is left open"):
        read_pins(str(path))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("r.txt", "#\n " * 50_000),
        # The list has no end.
        ("uv.lock", "version = 1\na = [\n" + "  { a = 1 },\n" * 10_000 + "b"),
    ],
)
def test_a_file_takes_little_memory(
    name: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "LIMIT", len(text))  # memory is reserved for so much
    path = tmp_path / name
    path.write_text(text)
    tracemalloc.start()
    try:
        with contextlib.suppress(InputError):
            read_pins(str(path))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 25 * len(text)


def test_cuda_packages_are_listed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A list for each of 8,000 packages took 2 GB."""
    listed = []
    real = judging._cuda_packages

    def counted(versions: Mapping[str, Version]) -> tuple[str, ...]:
        listed.append(versions)
        return real(versions)

    monkeypatch.setattr(judging, "_cuda_packages", counted)
    path = tmp_path / "poetry.lock"
    need = '[package.dependencies]\nnvidia-x = "*"\n'
    names = (f"nvidia-p{number}" for number in range(30))
    path.write_text(
        "".join(
            f'[[package]]\nname = "{name}"\nversion = "1"\n{need}' for name in names
        )
        + POETRY
    )
    check(path, environment=Environment(), offline=True)
    assert len(listed) == 1


def test_a_marker_with_many_extras_is_not_evaluated_for_each() -> None:
    """400 extras took 3,200 evaluations, each of 400 comparisons."""
    extras = [f"extra == 'e{number}'" for number in range(400)]
    short, long = (
        f"torch; os_name == 'nt' and ({' or '.join(extras[:count])})"
        for count in (10, 400)
    )
    platform = "linux_x86_64"
    assert requirements_on([short, "numpy"], platform) == ("numpy",)
    assert requirements_on([long, "numpy"], platform) == ("numpy",)


def test_each_evaluation_of_a_marker_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """10,000 requirements that hold for no Python took three seconds."""
    evaluated: list[object] = []

    def noted(*args: object) -> bool:
        evaluated.append(args)
        return False

    monkeypatch.setattr(requirements, "holds", noted)
    text = "a; os_name == 'x' or python_version ~= '9.1' or python_version ~= '10.1'"
    assert not requirements_on([text] * 10_000, "linux_x86_64")
    assert 5_000 < len(evaluated) <= 1_000_000 / len(text)


def test_entries_of_one_package_are_joined_in_one_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[object] = []

    def counted(pin: Pin, **changes: object) -> Pin:
        calls.append(changes)
        return replace(pin, **changes)  # type: ignore[arg-type]

    monkeypatch.setattr(toml_locks, "replace", counted)
    entries = [
        f'[[package]]\nname = "a"\nversion = "1"\ndependencies = ["b{n}"]\n'
        for n in range(50)
    ]
    path = tmp_path / "pdm.lock"
    path.write_text('[metadata]\nlock_version = "4.5.0"\n' + "".join(entries))
    (pin,) = read_pins(str(path)).pins
    assert pin.requires == tuple(f"b{n}" for n in range(50))
    assert len(calls) == 51
