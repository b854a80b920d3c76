"""Files that were written in each form are read: names, versions, wheels and
choices."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from hypothesis import given
from hypothesis import strategies as st

from nvp.metadata.requirements import parse_requirement
from nvp.pins.model import Choice, PinnedFile, PinnedWheel
from nvp.pins.reading import read_pins
from nvp.pins.targets import find_target

TARGET = find_target(platforms=["manylinux_2_28_x86_64"], python_version="3.12")
OTHERS = ("cp39-cp39-win32", "cp312-cp312-musllinux_1_2_x86_64", "py2-none-any")
OURS = ("cp312-cp312-manylinux_2_27_x86_64", "py3-none-any", "cp38-abi3-linux_x86_64")
SHA = "0f" * 32

NAMES = st.from_regex(r"[a-z][a-z0-9]{0,6}(-[a-z0-9]{1,4})?", fullmatch=True)
VERSIONS = st.sampled_from(["1.0", "2.9.1", "2.9.1+cu128", "0.0.33.post1", "3.0rc1"])
CHOICES = ("cpu", "cu12", "dev")


@st.composite
def releases(draw: st.DrawFn) -> dict[str, Any]:
    """Draw an installation: for each package its version, wheels and choices."""
    names = draw(st.lists(NAMES, min_size=1, max_size=5, unique=True))
    return {
        name: {
            "version": draw(VERSIONS),
            "tags": draw(st.lists(st.sampled_from(OURS + OTHERS), unique=True)),
            "choice": draw(st.sampled_from((None, *CHOICES))),
            "linux": draw(st.sampled_from((None, True, False))),
        }
        for name in names
    }


def wheels_of(name: str, item: dict[str, Any]) -> list[str]:
    stem = f"{name.replace('-', '_')}-{item['version']}"
    return [f"{stem}-{tag}.whl" for tag in item["tags"]]


def marker_of(item: dict[str, Any]) -> str:
    return {
        None: "",
        True: "sys_platform == 'linux'",
        False: "sys_platform != 'linux'",
    }[item["linux"]]


def uv_lock(drawn: dict[str, Any]) -> str:
    def dependency(name: str) -> dict[str, str]:
        marker = marker_of(drawn[name])
        return {"name": name, **({"marker": marker} if marker else {})}

    def asked(choice: str | None) -> list[dict[str, str]]:
        return [dependency(x) for x in drawn if drawn[x]["choice"] == choice]

    project = {
        "name": "the-project-itself",
        "version": "0",
        "source": {"virtual": "."},
        "dependencies": asked(None),
        "optional-dependencies": {x: asked(x) for x in ("cpu", "cu12")},
        "dev-dependencies": {"dev": asked("dev")},
    }
    packages = [
        {
            "name": name,
            "version": item["version"],
            "source": {"registry": "https://index.example/simple"},
            "wheels": [
                {"url": f"https://files.example/{x}", "hash": f"sha256:{SHA}"}
                for x in wheels_of(name, item)
            ],
        }
        for name, item in drawn.items()
    ]
    return tomli_w.dumps({"version": 1, "package": [project, *packages]})


def poetry_lock(drawn: dict[str, Any]) -> str:
    packages = []
    for name, item in drawn.items():
        parts = [marker_of(item)]
        group = "main"
        if item["choice"] == "dev":
            group = "dev"
        elif item["choice"]:
            parts.append(f"extra == '{item['choice']}'")
        marker = " and ".join(filter(None, parts))
        packages.append(
            {
                "name": name,
                "version": item["version"],
                "optional": item["choice"] in ("cpu", "cu12"),
                "groups": [group],
                **({"markers": marker} if marker else {}),
                "files": [
                    {"file": x, "hash": f"sha256:{SHA}"} for x in wheels_of(name, item)
                ],
            }
        )
    extras = {
        x: [name for name in drawn if drawn[name]["choice"] == x]
        for x in ("cpu", "cu12")
    }
    metadata = {"lock-version": "2.1", "content-hash": "0", "python-versions": ">=3.8"}
    return tomli_w.dumps({"package": packages, "extras": extras, "metadata": metadata})


def pdm_lock(drawn: dict[str, Any]) -> str:
    packages = [
        {
            "name": name,
            "version": item["version"],
            "groups": [item["choice"] or "default"],
            **({"marker": marker_of(item)} if marker_of(item) else {}),
            "files": [
                {"url": f"https://files.example/{x}", "hash": f"sha256:{SHA}"}
                for x in wheels_of(name, item)
            ],
        }
        for name, item in drawn.items()
    ]
    metadata = {"groups": ["default", *CHOICES], "lock_version": "4.5.0"}
    return tomli_w.dumps({"metadata": metadata, "package": packages})


def pylock(drawn: dict[str, Any]) -> str:
    packages = []
    for name, item in drawn.items():
        choice = item["choice"]
        where = "dependency_groups" if choice == "dev" else "extras"
        parts = [marker_of(item), f"'{choice}' in {where}" if choice else ""]
        marker = " and ".join(filter(None, parts))
        files = [
            {"url": f"https://files.example/{x}", "hashes": {"sha256": SHA}}
            for x in wheels_of(name, item)
        ]
        sdist = f"{name.replace('-', '_')}-{item['version']}.tar.gz"
        packages.append(
            {
                "name": name,
                "version": item["version"],
                **({"marker": marker} if marker else {}),
                **({"wheels": files} if files else {}),
                "sdist": {
                    "url": f"https://files.example/{sdist}",
                    "hashes": {"sha256": SHA},
                },
            }
        )
    document = {
        "lock-version": "1.0",
        "created-by": "a test",
        "extras": ["cpu", "cu12"],
        "dependency-groups": ["dev"],
        "packages": packages,
    }
    return tomli_w.dumps(document)


WRITERS = {
    "uv.lock": uv_lock,
    "poetry.lock": poetry_lock,
    "pdm.lock": pdm_lock,
    "pylock.toml": pylock,
}


@pytest.mark.parametrize("form", WRITERS)
@given(drawn=releases())
def test_a_lock_file(
    form: str, drawn: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    pinned = read(tmp_path_factory, form, WRITERS[form](drawn))
    assert pinned.form == form
    for name in (None, *CHOICES):
        # PDM calls each of them a group.
        chosen = frozenset(x for x in pinned.choices if x.name == name)
        assert len(chosen) == (name in {x.name for x in pinned.choices})
        found = {
            pin.name: (str(pin.version), *parts_of(wheel))
            for pin, wheel in pinned.select(chosen, TARGET)
        }
        assert found == expected(drawn, name)


def parts_of(wheel: PinnedWheel | None) -> tuple[str, ...]:
    return () if wheel is None else (wheel.filename, wheel.sha256 or "")


def expected(drawn: dict[str, Any], choice: str | None) -> dict[str, tuple[str, ...]]:
    """Return the packages on `TARGET`, each with the wheel that fits best."""
    result = {}
    for name, item in drawn.items():
        if item["choice"] not in (None, choice) or item["linux"] is False:
            continue
        # The exact interpreter comes first, then the stable ABI, then any.
        best = [x for x in (OURS[0], OURS[2], OURS[1]) if x in item["tags"]][:1]
        stem = f"{name.replace('-', '_')}-{item['version']}"
        wheel = [part for tag in best for part in (f"{stem}-{tag}.whl", SHA)]
        result[name] = (item["version"], *wheel)
    return result


def read(factory: pytest.TempPathFactory, name: str, text: str) -> PinnedFile:
    path: Path = factory.mktemp("written") / name
    path.write_text(text, encoding="utf-8")
    return read_pins(str(path))


@given(drawn=releases())
def test_what_has_no_wheels(
    drawn: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    frozen = "".join(f"{name}=={item['version']}\n" for name, item in drawn.items())
    pipfile = {
        "_meta": {"requires": {"python_version": "3.12"}},
        "default": {
            name: {"version": f"=={item['version']}", "hashes": [f"sha256:{SHA}"]}
            for name, item in drawn.items()
        },
    }
    installed = [
        {"metadata": {"name": name, "version": item["version"]}}
        for name, item in drawn.items()
    ]
    listed = [{"name": name, "version": drawn[name]["version"]} for name in drawn]
    forms = {
        "requirements.txt": frozen,
        "Pipfile.lock": json.dumps(pipfile, indent=4),
        "pip inspect": json.dumps({"installed": installed}),
        "pip report": json.dumps({"install": installed}),
        "pip list": json.dumps(listed),
        "script": "# /// script\n# dependencies = [\n"
        + "".join(f'#   "{line}",\n' for line in frozen.splitlines())
        + "# ]\n# ///\n",
    }
    versions = {name: item["version"] for name, item in drawn.items()}
    for form, text in forms.items():
        pinned = read(tmp_path_factory, "file", text)
        assert pinned.form == form
        assert {pin.name: str(pin.version) for pin in pinned.pins} == versions
        assert len(pinned.select(frozenset(), TARGET)) == len(versions)


def test_a_lock_of_poetry_before_groups(tmp_path: Path) -> None:
    """Poetry 1 records only the extra that requires the first of the optional
    packages."""
    document = {
        "package": [
            {"name": "numpy", "version": "1.26.4", "optional": False},
            {
                "name": "torch",
                "version": "2.2.1",
                "optional": True,
                "dependencies": {
                    "nvidia-nccl-cu12": {
                        "version": "2.19.3",
                        "markers": "platform_system == 'Linux'",
                    }
                },
            },
            {"name": "nvidia-nccl-cu12", "version": "2.19.3", "optional": True},
            {"name": "pytest", "version": "8.0", "category": "dev", "optional": False},
        ],
        "extras": {"gpu": ["torch"]},
        "metadata": {
            "lock-version": "1.1",
            "content-hash": "0",
            "files": {
                "torch": [{"file": "torch-2.2.1-cp312-none-win_amd64.whl", "hash": "x"}]
            },
        },
    }
    path = tmp_path / "poetry.lock"
    path.write_text(tomli_w.dumps(document))
    pinned = read_pins(str(path))

    def names(*chosen: Choice) -> list[str]:
        return [pin.name for pin, _ in pinned.select(frozenset(chosen), TARGET)]

    assert names() == ["numpy"]
    assert names(Choice("extra", "gpu")) == ["numpy", "torch", "nvidia-nccl-cu12"]
    assert names(Choice("group", "dev")) == ["numpy", "pytest"]
    assert pinned.pins[1].wheels[0].filename == "torch-2.2.1-cp312-none-win_amd64.whl"


def test_versions_as_poetry_writes_them(tmp_path: Path) -> None:
    written = {
        "a": "*",
        "b": "2.9.1",
        "c": "2.*",
        "d": ">=1,<2,!=1.5.*",
        "e": {"version": "==13.4.*", "optional": True, "markers": "extra == 'x'"},
        "f": "^1.2",
        "g": ">=1.11,<1.13 || >1.13",
        "h": {"version": "1.0", "optional": True},
        "i": [
            {"version": "1.0", "markers": "os_name == 'nt'"},
            {"version": "2.0", "markers": "os_name != 'nt'"},
        ],
        "j": {"version": "~=1.4", "extras": ["y"]},
    }
    package = {"name": "torch", "version": "2.9.1", "dependencies": written}
    document = {"package": [package], "metadata": {"content-hash": "0"}}
    path = tmp_path / "poetry.lock"
    path.write_text(tomli_w.dumps(document))
    (torch,) = read_pins(str(path)).pins
    assert torch.requires is not None
    assert sorted(torch.requires) == [
        "a",
        "b==2.9.1",
        "c==2.*",
        "d>=1,<2,!=1.5.*",
        "e==13.4.* ; extra == 'x'",
        "f",
        "g",
        "i==1.0 ; os_name == 'nt'",
        "i==2.0 ; os_name != 'nt'",
        "j[y]~=1.4",
    ]
    assert all(map(parse_requirement, torch.requires))


def test_variant_wheels_of_a_pylock(tmp_path: Path) -> None:
    """PEP 825 adds a label to the names of wheels, which `packaging` cannot parse."""
    name = "torch-2.9.1-cp312-cp312-manylinux_2_28_x86_64"
    files = [
        {"url": f"https://files.example/{x}.whl", "hashes": {"sha256": SHA}}
        for x in (f"{name}-cu128", name)
    ]
    package = {"name": "torch", "version": "2.9.1", "wheels": files}
    document = {"lock-version": "1.0", "created-by": "a test", "packages": [package]}
    path = tmp_path / "pylock.toml"
    path.write_text(tomli_w.dumps(document))
    ((pin, wheel),) = read_pins(str(path)).select(frozenset(), TARGET)
    assert [x.filename for x in pin.wheels] == [f"{name}-cu128.whl", f"{name}.whl"]
    assert wheel == pin.wheels[0]
