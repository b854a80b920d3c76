"""``pip`` with releases of every shape, and with broken ones."""

from __future__ import annotations

import html
import json
import zipfile
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from support.builds import gpu_build, metadata
from support.index_server import serve
from support.json_index import serve_json
from support.processes import Pip, installed_labels
from support.range_server import Answer, serve_answers
from support.wheels import (
    publish,
    stub_wheel,
    variants_json_name,
    wheel_name,
    write_page,
)

BUILDS = {"best": gpu_build("12.8"), "less": gpu_build("12.4"), "null": {}}


def add_wheel(
    folder: Path, project: str, label: str | None, tag: str, **more: Any
) -> Path:
    """Add a wheel to a directory: one of `BUILDS`, or the non-variant wheel."""
    document = metadata({label: BUILDS[label]}) if label else None
    return stub_wheel(
        folder / project, project, "1.0", label, variant_json=document, tag=tag, **more
    )


def add_metadata(folder: Path, project: str, *labels: str) -> None:
    document = metadata({label: BUILDS[label] for label in labels})
    path = folder / project / variants_json_name(project, "1.0")
    path.write_text(json.dumps(document))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "index"
    made.mkdir()
    return made


def install(pip: Pip, folder: Path, *words: str) -> tuple[dict[str, str], str]:
    """Return what pip installs from the index in ``folder``, and its stderr."""
    target = folder.parent / "it"
    for project in folder.iterdir():
        if project.is_dir():
            write_page(project)
    with serve(folder) as url:
        done = pip("install", "-i", url, "--target", target, *words)
    assert done.code == 0, done.text
    return installed_labels(target), done.err


@pytest.mark.slow
def test_tags_and_build_numbers_do_not_overrule_the_order(
    pip: Pip, folder: Path
) -> None:
    """Installers compare platform tags first, and then build numbers."""
    any_linux = "manylinux_2_17_x86_64.manylinux2014_x86_64"
    platforms = (
        *(any_linux, "win_amd64", "macosx_11_0_arm64"),
        *("manylinux_2_17_aarch64", "macosx_10_9_x86_64"),
    )
    for platform in platforms:
        for label in (None, "null", "less", "best"):
            add_wheel(folder, "platforms", label, f"py3-none-{platform}")
    add_metadata(folder, "platforms", *BUILDS)

    # The tags of the worse builds are closer to the machine.
    add_wheel(folder, "trap", "best", "py3-none-any")
    add_wheel(folder, "trap", "less", f"py3-none-{any_linux}.win_amd64")
    add_wheel(folder, "trap", None, f"py3-none-{any_linux}.win_amd64")
    add_metadata(folder, "trap", "best", "less")

    # All wheels have build numbers, the non-variant wheel too.
    for number, label in ((7, "less"), (1, "best"), (2, "best"), (9, None)):
        made = add_wheel(folder, "numbered", label, "py3-none-any", requires=())
        name = wheel_name("numbered", f"1.0-{number}", label)
        made.rename(made.with_name(name))
    add_metadata(folder, "numbered", "best", "less")
    found, said = install(pip, folder, "platforms", "trap", "numbered")
    assert found == dict.fromkeys(("platforms", "trap", "numbered"), "1.0 best")
    assert said == ""


@pytest.mark.slow
def test_labels_that_start_with_a_digit(pip: Pip, folder: Path) -> None:
    builds = {
        "9": gpu_build("12.4"),
        "12_8": gpu_build("12.8"),
        "0x.1": gpu_build("12"),
    }
    publish(folder, metadata(builds), "digits", "1.0")
    found, said = install(pip, folder, "digits")
    assert (found, said) == ({"digits": "1.0 12_8"}, "")


@pytest.mark.slow
def test_names_and_versions_of_every_kind(pip: Pip, folder: Path) -> None:
    publish(folder, metadata(BUILDS), "Some.Long_Name", "1!2.0rc1+local.3")
    found, _ = install(pip, folder, "--pre", "some-long.NAME")
    assert found == {"Some.Long_Name": "1!2.0rc1+local.3 best"}


def test_variant_markers_are_evaluated_for_the_build(pip: Pip, folder: Path) -> None:
    requires = [
        'wanted; "nvidia" in variant_namespaces',
        "unwanted; variant_label == 'null'",
    ]
    publish(folder, metadata(BUILDS), "marked", "1.0", requires={"best": requires})
    stub_wheel(folder / "wanted", "wanted", "1.0")
    found, said = install(pip, folder, "marked")
    assert found == {"marked": "1.0 best", "wanted": "1.0 None"}
    assert said == ""


@pytest.mark.slow
def test_variant_markers_and_required_hashes(pip: Pip, folder: Path) -> None:
    """A wheel that is rewritten has another hash than the user's."""
    requires = ['wanted; "nvidia" in variant_namespaces']
    publish(folder, metadata(BUILDS), "marked", "1.0", requires={"best": requires})
    wheel = folder / "marked" / "marked-1.0-py3-none-any-best.whl"
    digest = sha256(wheel.read_bytes()).hexdigest()
    file = folder.parent / "requirements.txt"
    file.write_text(f"marked==1.0 --hash=sha256:{digest}\n")
    target = folder.parent / "it"
    with serve(folder) as url:
        done = pip("install", "-i", url, "--target", target, "-r", file)
    assert done.code == 1
    assert (
        "warning: marked-1.0-py3-none-any-best.whl: refused, because its METADATA has "
        "variant markers, which are evaluated by rewriting it, and the hashes that you "
        "require do not allow that"
    ) in done.err
    assert not target.exists()


def test_a_broken_release_gives_the_non_variant_wheel(pip: Pip, folder: Path) -> None:
    """The installation goes on, with a warning."""
    # The files are not JSON, are invalid, or do not have the hash on the page.
    publish(folder, metadata(BUILDS), "torn", "1.0")
    (folder / "torn" / "torn-1.0-variants.json").write_text('{"$schema": ')
    publish(folder, metadata(BUILDS) | {"oops": 1}, "wrong", "1.0")
    # There is no metadata file, and the wheel has no variant.json.
    stub_wheel(folder / "mute", "mute", "1.0")
    stub_wheel(folder / "mute", "mute", "1.0", "best")
    # The metadata does not have the label of a wheel.
    publish(folder, metadata({"less": BUILDS["less"]}), "short", "1.0")
    add_wheel(folder, "short", "best", "py3-none-any")
    found, said = install(pip, folder, "torn", "wrong", "mute", "short")
    assert found == {
        "torn": "1.0 None",
        "wrong": "1.0 None",
        "mute": "1.0 None",
        "short": "1.0 less",
    }
    for project in ("torn", "wrong", "mute"):
        assert f"warning: {project} 1.0: its variants are ignored: " in said
    assert (
        "warning: short 1.0: wheels are ignored because short-1.0-variants.json does "
        "not have their labels: best\n"
    ) in said


@pytest.mark.slow
def test_metadata_with_another_hash_is_not_used(pip: Pip, folder: Path) -> None:
    publish(folder, metadata(BUILDS), "forged", "1.0")
    document = folder / "forged" / "forged-1.0-variants.json"
    document.write_text(json.dumps(metadata({"best": {}})))
    with serve(folder) as url:
        target = folder.parent / "it"
        done = pip("install", "-i", url, "--target", target, "forged")
    assert done.code == 0, done.text
    assert installed_labels(target) == {"forged": "1.0 None"}
    assert "its sha256 is not the one that the page gives" in done.err


@pytest.mark.parametrize("kind", [pytest.param("html", marks=pytest.mark.slow), "json"])
def test_without_metadata_the_wheels_are_read(
    kind: str, pip: Pip, folder: Path
) -> None:
    publish(folder, metadata(BUILDS), "silent", "1.0")
    (folder / "silent" / "silent-1.0-variants.json").unlink()
    if kind == "html":
        found, said = install(pip, folder, "silent")
    else:
        target = folder.parent / "it"
        (folder / "silent" / "index.html").unlink()
        with serve_json(folder, folder.parent / "log") as index:
            done = pip("install", "-i", index.url, "--target", target, "silent")
        found, said = installed_labels(target), done.err
    assert found == {"silent": "1.0 best"}
    assert said == ""


def test_an_index_that_is_down_is_reported(pip: Pip, folder: Path) -> None:
    """pip uses the other index, and alone does not mention the one that is down."""
    publish(folder, metadata(BUILDS), "there", "1.0")
    with serve(folder) as url:
        pass
    pip.environ |= {"PIP_EXTRA_INDEX_URL": url, "PIP_RETRIES": "0"}
    found, said = install(pip, folder, "there")
    assert found == {"there": "1.0 best"}
    assert f"WARNING: pip skips {url}there/: it cannot be read" in said


@pytest.mark.parametrize("kind", [pytest.param("html", marks=pytest.mark.slow), "json"])
def test_attributes_of_files_on_a_page_count(
    kind: str, pip: Pip, tmp_path: Path
) -> None:
    """The attributes are ``requires-python``, ``yanked`` and the hash of METADATA."""
    says = {"3.0": {"requires-python": ">=4"}, "2.9": {"yanked": "a bug"}, "2.8": {}}
    answers, files = {}, []
    for version, more in says.items():
        publish(tmp_path / version, metadata(BUILDS), "torch", version)
        for path in sorted((tmp_path / version / "torch").iterdir()):
            if path.suffix == ".html":
                continue
            body = path.read_bytes()
            answers[f"/files/{path.name}"] = Answer(body=body)
            file: dict[str, Any] = {"hashes": {"sha256": sha256(body).hexdigest()}}
            if path.suffix == ".whl":
                with zipfile.ZipFile(path) as archive:
                    (name,) = (n for n in archive.namelist() if "METADATA" in n)
                    text = archive.read(name)
                answers[f"/files/{path.name}.metadata"] = Answer(body=text)
                file["core-metadata"] = {"sha256": sha256(text).hexdigest()}
                file |= more
            files.append({"filename": path.name, "url": f"../files/{path.name}"} | file)
    if kind == "json":
        page = {"meta": {"api-version": "1.0"}, "name": "torch", "files": files}
        text = json.dumps(page).encode()
        answer = Answer(body=text, kind="application/vnd.pypi.simple.v1+json")
    else:
        answer = Answer(body="\n".join(map(_link, files)).encode(), kind="text/html")
    target = tmp_path / "it"
    with serve_answers({"/torch/": answer, **answers}) as server:
        done = pip("install", "-i", server.url, "--target", target, "torch")
    assert done.code == 0, done.text
    assert installed_labels(target) == {"torch": "2.8 best"}
    wheel = "/files/torch-2.8-py3-none-any-best.whl"
    # METADATA of each label is read, since dependencies may depend on the variant.
    requests = {item.partition(" ")[0] for item in server.requests}
    assert {path for path in requests if path.endswith(".whl")} == {wheel}
    assert f"{wheel}.metadata" in requests


def _link(file: dict[str, Any]) -> str:
    found = f'<a href="{file["url"]}#sha256={file["hashes"]["sha256"]}"'
    if "core-metadata" in file:
        found += f' data-core-metadata="sha256={file["core-metadata"]["sha256"]}"'
    for key in ("yanked", "requires-python"):
        if key in file:
            found += f' data-{key}="{html.escape(file[key])}"'
    return f"{found}>{file['filename']}</a>"
