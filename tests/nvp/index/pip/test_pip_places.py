"""``pip`` with indexes and links from every place that pip reads."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from support.builds import gpu_build, metadata
from support.index_server import serve
from support.processes import PIPS, Pip, installed_labels
from support.wheels import publish, stub_wheel, write_page

CHOSEN = {"torch": "2.8.0 cu126", "runtime": "12.6 None"}


@pytest.fixture
def links(tmp_path: Path) -> Path:
    """Return a directory with the files of ``linked``; its best build is cu128."""
    builds = {"cu121": gpu_build("12.1", "80_real"), "cu128": gpu_build("12.8")}
    publish(tmp_path / "links", metadata(builds), "linked", "1.0")
    return tmp_path / "links" / "linked"


@pytest.mark.parametrize(
    "way", ["variable", pytest.param("file", marks=pytest.mark.slow)]
)
def test_configured_index(way: str, pip: Pip, index: str, tmp_path: Path) -> None:
    extra = tmp_path / "extra"
    publish(extra, metadata({"gpu": gpu_build("12.0")}), "other", "1.0")
    with serve(extra) as second:
        if way == "variable":
            pip.environ |= {"PIP_INDEX_URL": index, "PIP_EXTRA_INDEX_URL": second}
        else:
            file = tmp_path / "pip.conf"
            file.write_text(
                f"[global]\nindex-url = {index}\n[install]\nextra-index-url = {second}"
            )
            pip.environ["PIP_CONFIG_FILE"] = str(file)
        done = pip("install", "--target", tmp_path / "it", "torch", "other")
    assert done.code == 0, done.text
    assert installed_labels(tmp_path / "it") == {**CHOSEN, "other": "1.0 gpu"}


@pytest.mark.parametrize(
    "first", ["cu121", pytest.param("cu128", marks=pytest.mark.slow)]
)
def test_the_first_index_wins(first: str, pip: Pip, tmp_path: Path) -> None:
    """PEP 825 recommends to consider the metadata of each index in isolation."""
    builds = {"cu121": gpu_build("12.1"), "cu128": gpu_build("12.8", "80_real")}
    order = sorted(builds, key=lambda label: label != first)
    for label in order:
        release = metadata({label: builds[label]})
        publish(tmp_path / label, release, "torch", "1.0")
    stub_wheel(tmp_path / "plain/torch", "torch", "1.0")
    write_page(tmp_path / "plain/torch")
    with (
        serve(tmp_path / order[0]) as one,
        serve(tmp_path / order[1]) as two,
        serve(tmp_path / "plain") as plain,
    ):
        extra = ("--extra-index-url", one, "--extra-index-url", two)
        target = tmp_path / "it"
        done = pip("install", "-i", plain, *extra, "--target", target, "torch")
    assert done.code == 0, done.text
    assert installed_labels(target) == {"torch": f"1.0 {first}"}


@pytest.mark.slow
def test_a_pinned_label_of_the_second_index(pip: Pip, tmp_path: Path) -> None:
    for label in ("cu121", "cu126"):
        release = metadata({label: gpu_build("12.1")})
        publish(tmp_path / label, release, "torch", "1.0")
    target = tmp_path / "it"
    with serve(tmp_path / "cu121") as one, serve(tmp_path / "cu126") as two:
        words = ("-i", one, "--extra-index-url", two, "--label", "torch=cu126")
        done = pip("install", *words, "--target", target, "torch")
    assert done.code == 0, done.text
    assert installed_labels(target) == {"torch": "1.0 cu126"}
    assert done.err == ""


def test_an_index_in_a_folder(pip: Pip, published: Path, tmp_path: Path) -> None:
    target = tmp_path / "it"
    done = pip("install", "-i", published.as_uri(), "--target", target, "torch")
    assert done.code == 0, done.text
    assert installed_labels(target) == CHOSEN


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "expected"),
    [
        ('<a data-yanked href="{}">', "2.0"),
        ('<textarea><a href="{}"></textarea>', "2.0"),
        ('<base href="file:///nowhere/"><a data-yanked href="{}">', None),
        ('<a href="{}/">', None),
        ('<a href=".\\{}">', "1.0"),
        ("", "2.0"),
    ],
)
def test_a_folder_that_only_pip_reads(
    page: str, expected: str | None, pip: Pip, tmp_path: Path
) -> None:
    """nvp passes its pages on, and lists its files if there is no page."""
    for place, version in (("one", "2.0"), ("two", "1.0")):
        stub_wheel(tmp_path / place / "kern", "kern", version)
    write_page(tmp_path / "two" / "kern")
    if page:
        text = page.format("kern-2.0-py3-none-any.whl")
        (tmp_path / "one" / "kern" / "index.html").write_text(text)
    words = ("-i", tmp_path / "one", "--extra-index-url", tmp_path / "two", "kern")
    done = pip("install", *words, "--target", tmp_path / "it")
    assert done.code == (1 if expected is None else 0), done.text
    found = installed_labels(tmp_path / "it") if expected else {}
    assert found == ({"kern": f"{expected} None"} if expected else {})


@pytest.mark.slow
def test_links_alone(pip: Pip, links: Path, tmp_path: Path) -> None:
    with_space = links.rename(tmp_path / "a directory")
    target = tmp_path / "it"
    done = pip(
        *("install", "--no-index", "--find-links", with_space),
        *("--target", target, "linked"),
    )
    assert done.code == 0, done.text
    assert installed_labels(target) == {"linked": "1.0 cu128"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "extra", "expected"),
    [
        ('<a href="../out/{}">', "README-2.0.md", "2.0 None"),
        ('<a data-yanked href="../out/{}">', "README-2.0.md", "2.0 None"),
        ("", "linked-1.0-1.zip", "1.0 None"),
        ("", "README-2.0.md", "1.0 cu128"),
    ],
)
def test_everything_in_a_folder_of_links(
    page: str, extra: str, expected: str, *, pip: Pip, links: Path, tmp_path: Path
) -> None:
    """nvp reads its pages too, and leaves it to pip if pips differ in its files."""
    wheel = stub_wheel(tmp_path / "links" / "out", "linked", "2.0")
    (links / "index.html").write_text(page.format(wheel.name))
    (links / extra).touch()
    words = ("--no-index", "--find-links", links, "--target", tmp_path / "it")
    done = pip("install", *words, "linked")
    assert done.code == 0, done.text
    assert installed_labels(tmp_path / "it") == {"linked": expected}


@pytest.mark.slow
def test_links_and_an_index(pip: Pip, links: Path, index: str, tmp_path: Path) -> None:
    target = tmp_path / "it"
    with serve(links) as page:
        pip.environ["PIP_FIND_LINKS"] = page
        done = pip("install", "-i", index, "--target", target, "linked", "torch")
    assert done.code == 0, done.text
    assert installed_labels(target) == {**CHOSEN, "linked": "1.0 cu128"}


@pytest.mark.parametrize("right", [True, False])
def test_the_url_of_a_wheel(right: bool, pip: Pip, tmp_path: Path) -> None:
    """pip takes every URL of --find-links for a file, with its hash."""
    wheel = stub_wheel(tmp_path, "kern", "2.0")
    stub_wheel(tmp_path / "index" / "kern", "kern", "1.0")
    digest = hashlib.sha256(wheel.read_bytes() if right else b"").hexdigest()
    with serve(tmp_path, credentials="user:word") as page:
        url = f"{page.replace('://', '://user:word@')}{wheel.name}#sha256={digest}"
        words = ("-i", tmp_path / "index", "--find-links", url, "--target", "it")
        done = pip("install", *words, "kern", cwd=tmp_path)
    assert done.code == (0 if right else 1), done.text
    if right:
        assert installed_labels(tmp_path / "it") == {"kern": "2.0 None"}


def test_a_directory_before_the_url_of_a_wheel(pip: Pip, tmp_path: Path) -> None:
    """pip prefers the file of the directory, in either order of the options."""
    here, there = tmp_path / "here", tmp_path / "there"
    stub_wheel(here, "torch", "2.0+cu118", tag="cp311-cp311-linux_x86_64")
    stub_wheel(here, "kern", "1.0", members={"kern/here.py": b""})
    wheel = stub_wheel(there, "kern", "1.0", members={"kern/there.py": b""})
    with serve(there) as url:
        for number, places in enumerate(((here, url), (url, here))):
            links = [f"{x}{wheel.name}" if x == url else x for x in places]
            words = [word for link in links for word in ("--find-links", link)]
            target = tmp_path / str(number)
            done = pip("install", "--no-index", *words, "--target", target, "kern")
            assert done.code == 0, done.text
            assert (target / "kern" / "here.py").exists()


@pytest.mark.slow
def test_places_in_requirements_files(
    pip: Pip, links: Path, index: str, tmp_path: Path
) -> None:
    nested = tmp_path / "nested"
    nested.mkdir()
    (tmp_path / "main.txt").write_text(
        f"--index-url={index}\n-r nested/more.txt\ntorch[fast]  # for speed\n"
    )
    place = os.path.relpath(links, nested)
    (nested / "more.txt").write_text(
        f"--find-links {place}\n-c limits.txt\nlinked>=1 \\\n  ,<2\n"
    )
    (nested / "limits.txt").write_text("torch<2.8\nhelper==1.0\n")
    target = tmp_path / "it"
    # pip runs in another directory than that of the files.
    done = pip("install", "-r", tmp_path / "main.txt", "--target", target, cwd=nested)
    assert done.code == 0, done.text
    assert installed_labels(target) == {
        "torch": "2.7.0 cu126",
        "runtime": "12.6 None",
        "helper": "1.0 None",
        "linked": "1.0 cu128",
    }


@pytest.mark.slow
def test_an_extra_index_in_a_requirements_file(
    pip: Pip, index: str, tmp_path: Path
) -> None:
    extra = tmp_path / "extra"
    publish(extra, metadata({"gpu": gpu_build("12.0")}), "other", "1.0")
    limits = tmp_path / "limits.txt"
    limits.write_text("torch==2.7.0\n")
    with serve(extra) as second:
        file = tmp_path / "requirements.txt"
        file.write_text("--extra-index-url ${SECOND}\nother\ntorch\n")
        pip.environ["SECOND"] = second
        target = tmp_path / "it"
        done = pip(
            *("install", "-i", index, "-r", file, "-c", limits, "--target", target)
        )
    assert done.code == 0, done.text
    assert installed_labels(target) == {
        "torch": "2.7.0 cu126",
        "runtime": "12.6 None",
        "other": "1.0 gpu",
    }


@pytest.mark.parametrize(
    "version", [pytest.param(PIPS[0], marks=pytest.mark.slow), PIPS[-1]]
)
def test_isolated_from_variables_and_files(
    version: str, pip_of: Callable[[str], Pip], index: str, tmp_path: Path
) -> None:
    pip, target = pip_of(version), tmp_path / "it"
    pip.environ |= {"PIP_EXTRA_INDEX_URL": "http://127.0.0.1:1/", "PIP_TARGET": "no"}
    done = pip("--isolated", "install", "-i", index, "--target", target, "torch")
    assert done.code == 0, done.text
    assert installed_labels(target) == CHOSEN
    assert "127.0.0.1:1/" not in done.text


@pytest.mark.slow
def test_an_index_given_twice(pip: Pip, index: str, tmp_path: Path) -> None:
    """pip gets only the local index."""
    pip.environ["PIP_EXTRA_INDEX_URL"] = index
    target = tmp_path / "it"
    done = pip("install", "-i", index, "--target", target, "torch")
    assert done.code == 0, done.text
    assert installed_labels(target) == CHOSEN


@pytest.mark.slow
def test_places_in_requirements_files_of_the_configuration(
    pip: Pip, index: str, tmp_path: Path
) -> None:
    limits, file = tmp_path / "limits.txt", tmp_path / "requirements.txt"
    limits.write_text(f"--index-url {index}\ntorch<2.8\n")
    file.write_text("-r more.txt\n")
    (tmp_path / "more.txt").write_text(f"--index-url {index}\nnarrow\n")
    config, target = tmp_path / "pip.conf", tmp_path / "it"
    config.write_text(f"[install]\nrequirement = {file}\n")
    pip.environ |= {"PIP_CONSTRAINT": str(limits), "PIP_CONFIG_FILE": str(config)}
    done = pip("install", "--target", target, "torch")
    assert done.code == 0, done.text
    assert installed_labels(target) == {
        "torch": "2.7.0 cu126",
        "runtime": "12.6 None",
        "narrow": "1.0 b126",
        "helper": "1.0 None",
    }


def test_markers_see_what_this_machine_supports_of_the_wheel_that_it_gets(
    pip: Pip, tmp_path: Path
) -> None:
    """PEP 825: they "MUST be evaluated only once variant wheel selection" is over."""
    release = metadata({"a": gpu_build("12.0", "80_real", "90_real"), "null": {}})
    marker = "runtime; 'nvidia :: sm_arch :: 90_real' in variant_properties"
    publish(tmp_path / "index", release, "torch", "1.0", requires={"a": [marker]})
    stub_wheel(tmp_path / "index/runtime", "runtime", "1")
    for sm, expected in (("8.0", {"torch"}), ("9.0", {"torch", "runtime"})):
        target = tmp_path / sm
        words = ("install", "-i", tmp_path / "index", "--target", target)
        fixed = ("--cuda-driver", "12.8", "--sm-arch", sm)
        done = pip(*words, *fixed, "torch", forced=False)
        assert done.code == 0, done.text
        labels = installed_labels(target)
        assert labels.keys() == expected
        assert labels["torch"] == "1.0 a"


@pytest.mark.parametrize("option", ["--extra-index-url={}", "--"])
def test_arguments_after_two_dashes_are_no_options(
    option: str, pip: Pip, index: str, tmp_path: Path
) -> None:
    """A script puts names that it does not trust after two dashes."""
    words = ("--target", tmp_path / "it", "--", option.format(index), "helper")
    done = pip("install", "-i", index, *words)
    assert done.code == 1
    assert "Invalid requirement: '-" in done.err
    assert not (tmp_path / "it").exists()


@pytest.mark.parametrize(
    "given",
    [
        *(pytest.param(x, marks=pytest.mark.slow) for x in ("a z", "z a", "a file")),
        "page a",
    ],
)
def test_several_directories_have_the_order_of_pip(
    given: str, pip: Pip, links: Path, tmp_path: Path
) -> None:
    """pip sorts the files of all directories, and prefers those of pages."""
    for name in ("a", "page", "z"):
        stub_wheel(tmp_path / name, "helper", "1.0")
    write_page(tmp_path / "page")
    links.rename(tmp_path / "y")
    (tmp_path / "more.txt").write_text("--find-links z\n--find-links y\n")
    with serve(tmp_path / "page") as page:
        places = {"page": page, "file": tmp_path / "z/helper-1.0-py3-none-any.whl"}
        words = ["--no-index", "-r", tmp_path / "more.txt", "--target", tmp_path / "it"]
        for place in given.split():
            words += ["--find-links", places.get(place, tmp_path / place)]
        done = pip("install", *words, "helper", "linked")
    assert done.code == 0, done.text
    assert installed_labels(tmp_path / "it")["linked"] == "1.0 cu128"
    taken = "page" if "page" in given else "a"
    assert ("Processing " not in done.out) == (taken == "page"), done.out
    if taken == "a":
        assert f"Processing {tmp_path / 'a'}" in done.out


def test_an_empty_index_is_no_index(pip: Pip, index: str, tmp_path: Path) -> None:
    """A script may give the value of a variable that is not set."""
    pip.environ["PIP_INDEX_URL"] = index
    done = pip("install", "-i", "", "--target", tmp_path / "it", "torch")
    assert done.code == 1
    assert not (tmp_path / "it").exists()


@pytest.mark.parametrize(
    "name",
    ["PIP_PYPI_URL"]
    + [
        pytest.param(x, marks=pytest.mark.slow)
        for x in ("PIP_index_url", "PIP_INDEX-URL")
    ],
)
def test_other_spellings_of_a_variable(
    name: str, pip: Pip, index: str, tmp_path: Path
) -> None:
    """The last of them counts for pip, but an option of the command line is first."""
    nowhere = "http://127.0.0.1:1/"
    pip.environ |= {"PIP_INDEX_URL": nowhere, name: nowhere}
    done = pip("install", "-i", index, "--target", tmp_path / "it", "torch")
    assert done.code == 0, done.text
    assert installed_labels(tmp_path / "it") == CHOSEN
    assert nowhere not in done.text


def test_constraints_of_one_command_are_not_for_builds(
    pip_of: Callable[[str], Pip], index: str, tmp_path: Path
) -> None:
    """The pip that a build starts reads all variables, but not the section [wheel]."""
    pip, project = pip_of(PIPS[0]), tmp_path / "project"
    project.mkdir()
    (project / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["helper"]\nbuild-backend = "own"\n'
        'backend-path = ["."]\n'
    )
    stub_wheel(project, "made", "1.0")
    (project / "own.py").write_text(
        "import helper, shutil\n"
        "def build_wheel(folder, *_):\n"
        "    return shutil.copy('made-1.0-py3-none-any.whl', folder).split('/')[-1]\n"
    )
    limits, config = tmp_path / "limits.txt", tmp_path / "pip.conf"
    limits.write_text(f"--index-url {index}\nhelper<1\n")
    config.write_text(f"[wheel]\nindex-url = {index}\nconstraint = {limits}\n")
    pip.environ["PIP_CONFIG_FILE"] = str(config)
    done = pip("wheel", "-w", tmp_path / "it", project)
    assert done.code == 0, done.text
    done = pip("wheel", "-w", tmp_path / "it", "helper")
    assert done.code == 1
    assert "helper<1" in done.text


def test_links_in_build_constraints_are_only_for_builds(
    pip: Pip, index: str, links: Path, tmp_path: Path
) -> None:
    stub_wheel(links, "helper", "9.0")
    (tmp_path / "limits.txt").write_text(f"--find-links {links}\n")
    words = ("install", "-i", index, "--build-constraint", tmp_path / "limits.txt")
    done = pip(*words, "--target", tmp_path / "it", "helper")
    assert done.code == 0, done.text
    assert installed_labels(tmp_path / "it") == {"helper": "1.0 None"}


def test_an_abbreviation_does_not_isolate_pip(
    pip: Pip, index: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pip reads its variables then. It splits their values at spaces."""
    (tmp_path / "of all").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "of all"))
    limits = tmp_path / "limits.txt"
    limits.write_text(f"--extra-index-url {index}\n-c more.txt\n")
    (tmp_path / "more.txt").write_text("torch<2.8\n")
    pip.environ["PIP_CONSTRAINT"] = str(limits)
    target = tmp_path / "it"
    done = pip("install", "--isol", "-i", index, "--target", target, "torch")
    assert done.code == 0, done.text
    assert installed_labels(target)["torch"] == "2.7.0 cu126"


def test_an_isolated_pip_uses_the_local_index(
    pip: Pip, index: str, tmp_path: Path
) -> None:
    config = tmp_path / "pip.conf"
    config.write_text(f"[install]\nextra-index-url = {index}\n")
    pip.environ["PIP_CONFIG_FILE"] = str(config)
    target = tmp_path / "it"
    done = pip("install", "--isolated", "-i", index, "--target", target, "torch")
    assert done.code == 0, done.text
    assert installed_labels(target) == CHOSEN
