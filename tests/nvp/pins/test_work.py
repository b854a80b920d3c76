"""The work of reading a stranger's file, and of selecting its packages, is limited."""

from __future__ import annotations

import contextlib
import itertools
import tracemalloc
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from packaging.version import Version

from nvidia_variant_provider.errors import InputError
from nvidia_variant_provider.machine.environment import Environment
from nvp.api import check
from nvp.checking import judging
from nvp.metadata.requirements import requirements_on
from nvp.pins import model, reading, requirements, toml_locks
from nvp.pins.model import Pin
from nvp.pins.reading import read_pins
from nvp.pins.targets import PinTarget, find_target

POETRY = '[metadata]\ncontent-hash = "0"\n'
FORKS = [
    f'[[package]]\nname = "torch"\nversion = "2.{number}"\n' for number in range(201)
]

LONG = "os_name in 'a' or " * 4000 + "os_name in 'a'"
PYLOCK = 'lock-version = "1.0"\ncreated-by = "x"\n[[packages]]\nname = "torch"\n'
INSPECTED = '{"installed": [], "environment": {"python_version": "%s"}}'


def uv(packages: int, dependencies: str) -> str:
    rest = f'source = {{ virtual = "." }}\ndependencies = [{dependencies}]\n'
    project = f'[[package]]\nname = "demo"\nversion = "1"\n{rest}'
    return "version = 1\n" + "".join(FORKS[:packages]) + project


def poetry(packages: int, dependencies: int) -> str:
    optional = "".join(f"{fork}optional = true\n" for fork in FORKS[:packages])
    more = ", ".join(['"*"'] * dependencies)
    demo = '[[package]]\nname = "demo"\nversion = "1"\n[package.dependencies]\n'
    return f"{optional}{demo}torch = [{more}]\n{POETRY}"


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        # The first one took a number of steps that doubled with each of its hashes.
        ("r.txt", f'torch==1 {"--hash=a" * 40}"', "a quotation mark is left open"),
        ("uv.lock", uv(190, '{ name = "torch" },' * 1100), "more than 200,000 depend"),
        ("poetry.lock", poetry(190, 1100), "more than 200,000 dependencies"),
        ("uv.lock", uv(190, '{ name = "torch", version = "3" },' * 1100), "more than"),
        ("x.py", "# /// script\n" + "#\n" * 600_000, "has more than 1 MiB"),
        ("uv.lock", uv(201, '{ name = "torch" }, 1'), "pins 'torch' 201 times"),
        ("uv.lock", uv(1, f'{{ name = "torch", marker = "{LONG}" }},'), "has markers"),
        ("uv.lock", f'version = 1\nsupported-markers = ["{LONG}"]\n', "has markers"),
        ("pylock.toml", f'{PYLOCK}marker = "{LONG * 30}"\n', "has markers"),
        ("i.json", INSPECTED % ("3." * 40_000), "has markers or versions of more"),
    ],
)
def test_a_file_is_refused_before_it_takes_long(
    name: str, text: str, message: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(InputError, match=message):
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


def test_comparisons_with_constraints_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requirements, "_MOST_COMPARED", 100)
    path = tmp_path / "requirements.txt"
    lines = (f"torch>=3,!=4; python_version < '3.{n}'\n" for n in range(6))
    path.write_text("-c c.txt\n" + "".join(lines))
    path.with_name("c.txt").write_text("torch==2.9\n" * 8)
    assert len(read_pins(str(path)).pins) == 6
    path.with_name("c.txt").write_text("torch==2.9\n" * 9)
    with pytest.raises(InputError, match="too many constraints"):
        read_pins(str(path))


MEMBERS = [f"m{number}" for number in range(30)]


def chain() -> str:
    """Return a uv.lock in which the extra of each member activates that of the next."""
    edges = ['{ name = "m0", extra = ["e"] }']
    for last, name in itertools.pairwise(MEMBERS):
        marker = f"extra == 'extra-{len(last)}-{last}-e'"
        edges.append(f'{{ name = "{name}", extra = ["e"], marker = "{marker}" }}')
    tables = "".join(
        f'[[package]]\nname = "{name}"\nversion = "1"\nsource = {{ editable = "x" }}\n'
        for name in MEMBERS
    )
    members = ", ".join(f'"{name}"' for name in (*MEMBERS, "demo"))
    text = uv(0, ", ".join(edges)).removeprefix("version = 1\n")
    return f"version = 1\n{tables}{text}[manifest]\nmembers = [{members}]\n"


def pdm() -> str:
    """Return a pdm.lock of two releases, each with many requirements and groups."""
    rows = [
        f'[[package]]\nname = "torch"\nversion = "2.{number}"\n'
        f"groups = {[f'g{n}' for n in range(number * 6, number * 6 + 6)]}\n"
        f"dependencies = {[f'nvidia-x{n}==1' for n in range(40)]}\n"
        for number in range(2)
    ]
    groups = [f"g{n}" for n in range(12)]
    return f'[metadata]\nlock_version = "4.5.0"\ngroups = {groups}\n{"".join(rows)}'


EXTRAS = "".join(f"e{number} = []\n" for number in range(30))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("uv.lock", chain()),
        ("pdm.lock", pdm()),
        ("poetry.lock", "".join(FORKS[:30]) + f"[extras]\n{EXTRAS}{POETRY}"),
    ],
)
def test_edges_are_counted_in_all_selections(
    name: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Packages times extras, and steps times extras, would be without a limit."""
    path = tmp_path / name
    path.write_text(text)
    check(path, environment=Environment(), offline=True)
    monkeypatch.setattr(model, "_MOST_STEPS", 600)
    with pytest.raises(InputError, match="too many packages for its number of extras"):
        check(path, environment=Environment(), offline=True)


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
    assert requirements_on([long, "numpy"], platform) == (long, "numpy")


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


def test_long_markers_are_counted_for_each_choice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    evaluated: list[str] = []

    def holds(_: PinTarget, marker: str, *__: object) -> bool:
        evaluated.append(marker)
        return True

    monkeypatch.setattr(PinTarget, "holds", holds)
    choices = tuple(model.Choice("extra", f"e{number}") for number in range(50))
    edge = model.Edge(0, " or ".join(f"extra == 'e{n}'" for n in range(60_000)))
    file = model.PinnedFile(
        path="uv.lock",
        form="uv.lock",
        pins=(Pin(name="torch", version=None),),
        roots=(edge,),
        choices=choices,
    )
    with pytest.raises(InputError, match="too many packages for its number of extras"):
        judging.select_all(file, find_target(), None)
    assert 10 < len(evaluated) < 40
