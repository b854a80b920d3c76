"""Releases with one defect each for NV4xx, and similar releases without the defect."""

from __future__ import annotations

import copy
import json
import os
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.lint_cases import lint_document
from support.wheels import publish, record_of, stub_wheel, variants_json_name

__all__ = [
    "CASES",
    "CLEAN",
    "Folder",
    "edit_wheel",
    "rename_index",
    "rename_wheel",
    "rewrite",
    "without",
]

CLEAN: Any = lint_document("clean")
NAME, VERSION = "torch", "2.9.1"
LINUX = "py3-none-manylinux_2_28_x86_64"
WHEEL = "torch-2.9.1-py3-none-any-{}.whl"
INFO = "torch-2.9.1.dist-info"


class Folder:
    """The files of a release without defects, for tests to damage."""

    def __init__(self, path: Path, document: Any = CLEAN, name: str = NAME) -> None:
        self.path = path
        publish(path, document, name, VERSION)
        self.files = path / name.lower().replace("_", "-").replace(".", "-")
        self.index = self.files / variants_json_name(name, VERSION)

    def wheel(self, label: str, **options: Any) -> Path:
        """Write a wheel again, by default with the correct ``variant.json``."""
        options.setdefault("variant_json", self.own(label))
        return stub_wheel(self.files, NAME, VERSION, label, **options)

    def own(self, label: str, **changes: Any) -> Any:
        """Return the ``variant.json`` of a label."""
        variants = {label: CLEAN["variants"].get(label, {})}
        return copy.deepcopy({**CLEAN, "variants": variants, **changes})

    def write(self, **changes: Any) -> None:
        """Change keys of the metadata file."""
        document = {**json.loads(self.index.read_bytes()), **changes}
        self.index.write_text(json.dumps(document), encoding="utf-8")

    def remove(self, *names: str) -> None:
        """Remove files."""
        for name in names:
            (self.files / name).unlink()

    def settle(self, **ages: int) -> None:
        """Give all files the same time, because tests write files one after the other.

        :param ages: how many seconds newer the wheels of some labels are.
        """
        for path in self.files.iterdir():
            label = path.stem.rpartition("-")[2]
            time = 1_700_000_000 + ages.get(label, 0)
            os.utime(path, (time, time))


Damage = Callable[[Folder], object]


@dataclass(frozen=True, kw_only=True)
class Case:
    """A damage to a release, its findings, and a similar change without findings."""

    damage: Damage
    codes: frozenset[str]
    near_miss: Damage
    why: str = ""


def only_for_linux(folder: Folder) -> None:
    folder.wheel("cu12", tag=LINUX)
    folder.remove(WHEEL.format("cu12"))


def case(codes: str, damage: Damage, near_miss: Damage, why: str = "") -> Case:
    return Case(
        damage=damage, codes=frozenset(codes.split()), near_miss=near_miss, why=why
    )


def rename_index(folder: Folder, name: str) -> None:
    folder.index = folder.index.rename(folder.files / name)


def other_properties() -> Any:
    variants = copy.deepcopy(CLEAN["variants"])
    variants["cu12"]["nvidia"]["sm_arch"].remove("70_real")
    return variants


def reordered_properties() -> Any:
    variants = copy.deepcopy(CLEAN["variants"])
    variants["cu12"]["nvidia"]["sm_arch"].reverse()
    return variants


def relabelled(folder: Folder, variants: Any) -> Any:
    return folder.own("cu12", variants={"cu12": variants["cu12"]})


def longer_namespaces() -> dict[str, Any]:
    return {
        "default-priorities": {"namespace": ["nvidia", "x86_64"]},
        "providers": {**CLEAN["providers"], "x86_64": {"builtin": "x86_64"}},
    }


def other_order(folder: Folder) -> None:
    folder.write(**longer_namespaces())
    own = longer_namespaces()
    own["default-priorities"]["namespace"].reverse()
    folder.wheel("cu12", variant_json=folder.own("cu12", **own))


def other_provider(folder: Folder) -> None:
    providers = copy.deepcopy(CLEAN["providers"])
    providers["nvidia"]["requires"] = ["nvidia-variant-provider"]
    folder.wheel("cu12", variant_json=folder.own("cu12", providers=providers))


def rename_wheel(folder: Folder, name: str) -> None:
    """Give the wheel of cu12 another name."""
    (folder.files / WHEEL.format("cu12")).rename(folder.files / name)


def rewrite(
    folder: Folder,
    names: Mapping[str, str],
    texts: Mapping[str, str],
    name: str = WHEEL.format("cu12"),
) -> None:
    """Write a wheel again, with other names and texts in its dist-info."""
    edit_wheel(folder.files / name, names, texts)


def edit_wheel(
    path: Path,
    names: Mapping[str, str],
    texts: Mapping[str, str],
    *,
    record: bool = True,
) -> None:
    """Change the names of members of a wheel, and texts in its dist-info.

    :param record: whether to write RECORD for the new members.
    """

    def edited(text: str, changes: Mapping[str, str]) -> str:
        for old, new in changes.items():
            text = text.replace(old, new)
        return text

    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    members = {
        edited(name, names): edited(data.decode(), texts).encode()
        if ".dist-info/" in name
        else data
        for name, data in members.items()
    }
    if record:
        (place,) = (name for name in members if name.endswith("/RECORD"))
        members[place] = record_of({**members, place: None})
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)


def edit_record(folder: Folder, edit: Callable[[list[str]], list[str]]) -> None:
    """Change the rows of the RECORD of a wheel."""
    path = folder.files / WHEEL.format("cu12")
    with zipfile.ZipFile(path) as archive:
        old = archive.read(f"{INFO}/RECORD").decode()
    new = "\n".join(edit(old.splitlines()))
    edit_wheel(path, {}, {old: f"{new}\n"}, record=False)


def compressed_tags(folder: Folder) -> None:
    """Write the tags in WHEEL in the short form, which `packaging` expands."""
    folder.remove(WHEEL.format("cu12"))
    path = folder.wheel("cu12", tag="py2.py3-none-any")
    tags = "Tag: py2-none-any\nTag: py3-none-any"
    rewrite(folder, {}, {tags: "Tag: py2.py3-none-any"}, path.name)


def plain_linux(folder: Folder, machine: str) -> None:
    """Write a wheel for manylinux whose WHEEL has the tag ``linux``."""
    folder.remove(WHEEL.format("cu12"))
    name = folder.wheel("cu12", tag=LINUX).name
    tag = f"Tag: py3-none-linux_{machine}"
    rewrite(folder, {}, {f"Tag: {LINUX}": tag}, name)


def other_version(folder: Folder) -> None:
    """Rename the wheels as wheels of another version, such as 1.0+cu126."""
    for label in CLEAN["variants"]:
        name = WHEEL.format(label)
        (folder.files / name).rename(folder.files / name.replace("2.9.1", "2.9.1+cu12"))
    text = folder.index.read_text(encoding="utf-8")
    folder.remove(folder.index.name, "torch-2.9.1-py3-none-any.whl")
    folder.index = folder.files / variants_json_name(NAME, "2.9.1+cu12")
    folder.index.write_text(text, encoding="utf-8")


def without(label: str) -> dict[str, Any]:
    variants = {k: v for k, v in CLEAN["variants"].items() if k != label}
    return {"variants": variants}


CASES: dict[str, Case] = {
    "NV401": case(
        "NV401",
        lambda f: rename_index(f, "torch-v2.9.1-variants.json"),
        Folder.settle,
    ),
    "NV402": case(
        "NV402",
        lambda f: f.remove(WHEEL.format("cu12")),
        only_for_linux,
    ),
    "NV403": case(
        "NV403",
        lambda f: f.write(**without("cu13")),
        lambda f: stub_wheel(f.files, NAME, VERSION, tag=LINUX),
    ),
    "NV404": case(
        "NV404",
        lambda f: f.wheel("cu12", variant_json=None),
        lambda f: stub_wheel(f.files, NAME, VERSION, variant_json=None),
    ),
    "NV405": case(
        "NV405",
        lambda f: f.write(variants=other_properties()),
        lambda f: f.write(variants=reordered_properties()),
    ),
    "NV406 order": case("NV406", other_order, lambda f: f.write(**longer_namespaces())),
    "NV406 provider": case("NV406", other_provider, lambda f: f.wheel("cu12")),
    "NV407": case(
        "NV405 NV407",
        lambda f: f.wheel(
            "cu12", tag=LINUX, variant_json=relabelled(f, other_properties())
        ),
        lambda f: f.wheel(
            "cu12", tag=LINUX, variant_json=relabelled(f, reordered_properties())
        ),
        "one of the two differs from the metadata file as well",
    ),
    "NV408 labelled": case(
        "NV408",
        lambda f: f.wheel(
            "cu12", requires=["x; 'nvidia :: sm_arch :: 90' in variant_properties"]
        ),
        lambda f: f.wheel("cu12", requires=["variant_label; extra == 'gpu'"]),
    ),
    "NV408 plain": case(
        "NV408",
        lambda f: stub_wheel(
            f.files, NAME, VERSION, requires=["x; variant_label == 'cu12'"]
        ),
        lambda f: stub_wheel(f.files, NAME, VERSION, requires=["variant_features"]),
    ),
    "NV409": case(
        "NV409",
        lambda f: f.remove(f.index.name),
        lambda f: f.remove(f.index.name, *map(WHEEL.format, CLEAN["variants"])),
    ),
    "NV410": case(
        "NV410",
        lambda f: f.settle(cu12=1),
        lambda f: f.settle(cu12=-1),
    ),
    "NV411 labelled": case(
        "NV411",
        lambda f: (f.files / WHEEL.format("cu12")).write_bytes(b"<html>"),
        lambda f: f.wheel("cu12"),
    ),
    "NV411 plain": case(
        "NV411",
        lambda f: (f.files / "torch-2.9.1-py3-none-any.whl").write_bytes(b"<html>"),
        lambda f: stub_wheel(f.files, NAME, VERSION),
    ),
    "NV411 name": case(
        "NV411",
        lambda f: (f.files / "torch-2.9.1.whl").write_bytes(b""),
        lambda f: (f.files / "torch-2.9.1.tar.gz").write_bytes(b""),
    ),
    "NV412": case(
        "NV412",
        lambda f: f.wheel("cu12", variant_json=f.own("cu13")),
        lambda f: f.wheel("cu12", variant_json=f.own("cu12")),
    ),
    "NV413 version": case(
        "NV413",
        other_version,
        lambda f: rewrite(f, {}, {"Version: 2.9.1": "Version: 2.9.1.0"}),
    ),
    "NV413 name": case(
        "NV413",
        lambda f: rewrite(f, {}, {"Name: torch": "Name: torch-nightly"}),
        lambda f: rewrite(f, {}, {"Name: torch": "Name: Torch"}),
    ),
    "NV413 no name": case(
        "NV413",
        lambda f: rewrite(f, {}, {"Name: torch": "Summary: torch"}),
        lambda f: rewrite(f, {}, {"Name: torch": "name:  torch "}),
    ),
    "NV413 directory": case(
        "NV413",
        lambda f: rewrite(f, {INFO: "torch-2.9.dist-info"}, {}),
        lambda f: rewrite(f, {INFO: "Torch-2.9.1.dist-info"}, {}),
    ),
    "NV414": case(
        "NV414",
        lambda f: rewrite(f, {}, {"Tag: py3-none-any": "Tag: py2-none-any"}),
        lambda f: rewrite(f, {}, {"Tag: py3-none-any": "Build: 1\nTag: py3-none-any"}),
    ),
    "NV414 one of two": case(
        "NV414",
        lambda f: rewrite(
            f, {}, {"Tag: py3-none-any": "Tag: py3-none-any\nTag: py2-none-any"}
        ),
        # Older builders wrote no tags.
        lambda f: rewrite(f, {}, {"Tag: py3-none-any": "X: y"}),
    ),
    "NV414 malformed": case(
        "NV414",
        lambda f: rewrite(f, {}, {"Tag: py3-none-any": "Tag: any"}),
        compressed_tags,
    ),
    "NV414 machine": case(
        "NV414",
        lambda f: plain_linux(f, "aarch64"),
        lambda f: plain_linux(f, "x86_64"),
    ),
    "NV420 not listed": case(
        "NV420",
        lambda f: edit_record(f, lambda rows: rows[1:]),
        lambda f: edit_record(f, lambda rows: rows[::-1]),
    ),
    "NV420 not there": case(
        "NV420",
        lambda f: edit_record(f, lambda rows: [*rows, "gone.py,sha256=x,1"]),
        # Signatures and RECORD itself have no hash, and RECORD need not list them.
        lambda f: edit_record(f, lambda rows: [*rows[:-1], f"{INFO}/RECORD.jws,,"]),
    ),
    "NV420 stale": case(
        "NV420",
        lambda f: edit_wheel(
            f.files / WHEEL.format("cu12"), {}, {"stub_wheel": "me"}, record=False
        ),
        lambda f: edit_wheel(f.files / WHEEL.format("cu12"), {}, {"stub_wheel": "me"}),
    ),
    "NV420 size": case(
        "NV420",
        lambda f: edit_record(f, lambda rows: [f"{rows[0]}1", *rows[1:]]),
        lambda f: edit_record(f, lambda rows: [f"{rows[0]}\r", *rows[1:]]),
    ),
    "NV420 none": case(
        "NV420",
        lambda f: edit_wheel(
            f.files / WHEEL.format("cu12"), {"RECORD": "RECORDS"}, {}, record=False
        ),
        lambda f: edit_record(f, lambda rows: rows),
    ),
    "NV412 no label": case(
        "NV412",
        lambda f: stub_wheel(f.files, NAME, VERSION, variant_json=f.own("cu12")),
        lambda f: stub_wheel(f.files, NAME, VERSION),
    ),
    "NV415 name": case(
        "NV415",
        lambda f: rename_wheel(f, "Torch-2.9.1-py3-none-any-cu12.whl"),
        lambda f: rename_wheel(f, "torch-2.9.1-1-py3-none-any-cu12.whl"),
    ),
    "NV415 version": case(
        "NV415",
        lambda f: rename_wheel(f, "torch-2.9.01-py3-none-any-cu12.whl"),
        lambda f: rename_wheel(f, "torch-2.9.1-2_a-py3-none-any-cu12.whl"),
    ),
    "NV416": case(
        "NV416",
        lambda f: f.wheel("cu12", tag=LINUX, requires=["numpy"]),
        lambda f: (
            f.wheel("cu12", tag=LINUX, requires=["Numpy >=2,<3", "a; os_name=='nt'"]),
            f.wheel("cu12", requires=['a; os_name == "nt"', "Numpy<3,>=2"]),
        ),
    ),
}
