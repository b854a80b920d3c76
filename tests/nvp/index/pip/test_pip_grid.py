"""pip with the local index, and the uv preview, install the same builds."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest
from support.documents import TORCH, TORCH_LABELS, document, forced, nvidia
from support.processes import PIPS, Environment, Pip, clean_environ, installed_labels
from support.uv_installer import UvIndex, uv_index

RELEASES = {
    "torch": TORCH,
    # On this machine, only the non-variant wheel fits.
    "no null": document(TORCH_LABELS),
    "upper bounds": document(
        {
            "null": {},
            "any": nvidia(sm=["50_real", "75_real", "90_virtual"]),
            "below13": nvidia("12.0", "13", ["75_real", "89_real", "90_real"]),
            "cu13": nvidia("13", sm=["75_real", "120_real"]),
        }
    ),
}

DRIVERS = ("11.8", "12.4", "12.8", "12.9", "13.0")
CAPABILITIES = ("5.0", "7.5", "8.6", "9.0", "12.0")
EVERY = [None, *((cuda, sm) for cuda in DRIVERS for sm in CAPABILITIES)]
SOME = [None, ("12.8", "9.0")]


class Case(NamedTuple):
    """The installations of pip and uv: the label of each project."""

    uv: list[str | None]
    pip: list[str | None]


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UvIndex]:
    with uv_index(tmp_path_factory.mktemp("uv")) as value:
        yield value


@pytest.mark.parametrize(
    "machines",
    [
        pytest.param(SOME, id="some machines"),
        pytest.param(EVERY, id="every machine", marks=pytest.mark.slow),
    ],
)
def test_pip_and_uv_install_the_same_builds(
    machines: list[tuple[str, str] | None],
    index: UvIndex,
    pips: dict[str, Environment],
    tmp_path: Path,
) -> None:
    projects = [index.publish(release) for release in RELEASES.values()]

    def check(machine: tuple[str, str] | None) -> Case:
        variables = forced(*machine) if machine else {}
        name = "-".join(machine or ("none",))
        environ = clean_environ(tmp_path / "home", variables)
        target = tmp_path / name
        done = Pip(pips[PIPS[-1]].python, environ)(
            *("install", "-i", index.url, "--no-deps", "--no-compile", "-q"),
            *("--target", target, *projects),
            forced=False,
        )
        assert done.code == 0, done.text
        found = installed_labels(target)
        labels = [found[project].removeprefix("1.0 ") for project in projects]
        return Case(
            uv=index.install(projects, variables),
            pip=[None if label == "None" else label for label in labels],
        )

    with ThreadPoolExecutor(os.cpu_count()) as executor:
        cases = dict(zip(machines, executor.map(check, machines), strict=True))
    different = {
        machine: case for machine, case in cases.items() if case.uv != case.pip
    }
    assert different == {}
    # The machines must not all get the same build.
    distinct = {tuple(case.pip) for case in cases.values()}
    assert len(distinct) == 2 if machines is SOME else len(distinct) > 5
