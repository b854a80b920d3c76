"""The output of ``doctor --report`` and ``--share`` for an issue tracker."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from support.command import Run
from support.gpu_wheels import binary
from support.stacks import Installed, machine, make_stack

from nvidia_variant_provider.errors import printable, redacted, shown
from nvp.doctor import issue
from nvp.doctor.issue import LONGEST_SHARED, issue_lines
from nvp.doctor.runner import diagnose
from nvp.findings import shortened

FILES = {"demo/plain.so": binary("plain.so")}


def test_no_replacement_removes_a_quote(tmp_path: Path) -> None:
    """Both together look like a URL with a password."""
    names = "nvidia-cublas===aa:/x", "nvidia-cudnn===1@`id`&#"
    torch = Installed(name="torch", version="2.8.0", requires=names)
    stack = make_stack(tmp_path / "env", torch, environment=machine("12.8", "9.0"))
    lines = [*issue_lines(diagnose(stack), {})]
    first = lines.index("```sh") + 1
    commands = list(map(shlex.split, lines[first : lines.index("```", first)]))
    assert names[1] in {word for words in commands for word in words}


def test_nothing_names_the_user(tmp_path: Path) -> None:
    home = tmp_path / "jane"
    home.mkdir()
    stack = make_stack(
        home / "env", Installed(files=FILES), environment=machine("12.8", "5.0")
    )
    secret = f"https://jane:secret@wheels.example/?token=abc of {home}/x"
    notes = (
        secret,
        "/home/john/x, C:\\Users\\john\\y and jane.doe stay apart",
        "/data/jane_project/a, /data/of-jane/jane.b and /data/janet/",
    )
    diagnosis = replace(diagnose(stack), notes=notes)
    text = "\n".join(issue_lines(diagnosis, {"HOME": str(home), "USER": "jane"}))
    assert "secret" not in text
    assert "abc" not in text
    assert str(tmp_path) not in text
    assert "john" not in text
    assert "~/env" in text
    assert "/home/USER/x" in text
    assert "/data/USER_project/a, /data/of-USER/USER.b and /data/janet/" in text


@pytest.mark.parametrize("cut", [shortened, shown])
def test_no_part_of_a_password_stays_where_a_text_is_cut(
    cut: Callable[[str], str],
) -> None:
    url = f"https://user:{'secret' * 5}@wheels.example/"
    for kept in range(0, 1_200, 10):
        text = f"{'x' * kept} {url} {'x' * (2_200 - kept)}"
        assert "sec" not in redacted(cut(text))


def test_a_home_behind_a_link_and_other_names_of_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, link = tmp_path / "nfs" / "jane", tmp_path / "home"
    real.mkdir(parents=True)
    link.symlink_to(real)
    monkeypatch.setattr(issue, "_account", lambda: "jdoe")
    stack = make_stack(real / "env", environment=machine("12.8", "5.0"))
    notes = (
        f"{real}/env and {link}/env",
        "/srv/jdoe/x and /srv/john/x",
        "/srv/node17/z and node17.cluster.example",
        "c:\\USERS\\amy",
    )
    diagnosis = replace(diagnose(stack), notes=notes)
    environ = {"HOME": str(link), "USER": "root", "SUDO_USER": "john"}
    environ["HOSTNAME"] = "node17.cluster.example"
    text = "\n".join(issue_lines(diagnosis, environ))
    assert "- ~/env and ~/env\n- /srv/USER/x and /srv/USER/x\n" in text
    assert "- /srv/USER/z and USER\n" in text
    assert "amy" not in text


@pytest.mark.parametrize("name", ["josé", "o'brien", "a\tb"])
def test_a_home_that_messages_escape(tmp_path: Path, name: str) -> None:
    home = tmp_path / name
    home.mkdir()
    path = f"{home}/x"
    notes = (shown(path, 999), printable(path), shlex.quote(path), f"/srv/{name}/y")
    diagnosis = replace(diagnose(make_stack(tmp_path)), notes=notes)
    lines = issue_lines(diagnosis, {"HOME": str(home), "USER": name})
    assert {"- '~/x'", "- ~/x", "- /srv/USER/y"} <= {x.replace('"', "'") for x in lines}
    text = "\n".join(lines)
    assert not [x for x in (name, ascii(name)[1:-1], str(tmp_path)) if x in text]


def test_a_version_cannot_hide_the_rest_of_a_report(tmp_path: Path) -> None:
    version = "2.8.0<details>`x`[![x](y) @octocat"
    torch = Installed(name="torch", version=version, files=FILES)
    stack = make_stack(tmp_path, torch, environment=machine("12.8", "5.0"))
    text = "\n".join(issue_lines(diagnose(stack), {}))
    assert version not in text.partition("```sh")[0]
    assert r"torch 2.8.0\<details>\`x\`[![x]\(y) @<!-- -->octocat" in text


@pytest.mark.parametrize(
    ("note", "shown"),
    [
        (r"\<img src=x>", r"\\\<img src=x>"),
        (r"a\\<!-- `x\`", r"a\\\\\<!-- \`x\\\`"),
        (r"[x]\(y)", r"[x]\(y)"),
        (r"C:\work\x", r"C:\work\x"),
        ("//user:word@octocat", "//****@<!-- -->octocat"),
        ("_@octocat_", "_@<!-- -->octocat_"),
    ],
)
def test_a_text_cannot_undo_its_escapes(tmp_path: Path, note: str, shown: str) -> None:
    stack = make_stack(tmp_path, environment=machine("12.8", "5.0"))
    diagnosis = replace(diagnose(stack), notes=(note,))
    assert f"- {shown}" in issue_lines(diagnosis, {})


def test_what_an_issue_needs_is_there(tmp_path: Path) -> None:
    torch = Installed(name="torch", version="2.8.0+cu128", files=FILES)
    stack = make_stack(tmp_path, torch, environment=machine("12.8", "5.0"))
    text = "\n".join(issue_lines(diagnose(stack), {}))
    assert "- Driver: CUDA 12.8" in text
    assert "compute capability 5.0" in text
    assert "- torch 2.8.0+cu128 (CUDA 13" in text
    assert "- **ND201** (error): torch 2.8.0+cu128 cannot start" in text
    assert "```sh\nnvp pip --python" in text


def test_what_is_shared_is_short(tmp_path: Path) -> None:
    programs = [Installed(name=f"demo{n}", files=FILES) for n in range(40)]
    stack = make_stack(tmp_path, *programs, environment=machine("12.8", "5.0"))
    lines = issue_lines(diagnose(stack), {}, most=LONGEST_SHARED)
    assert len(lines) == LONGEST_SHARED
    assert "lines more: nvp doctor --report FILE.md" in lines[-1]
    assert len(issue_lines(diagnose(stack), {})) > LONGEST_SHARED


def test_only_notes_that_are_shown_are_anonymized(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    anonymized: list[str] = []

    def redact(text: str) -> str:
        anonymized.append(text)
        return text

    monkeypatch.setattr(issue, "redacted", redact)
    notes = tuple(f"note {number}" for number in range(500))
    diagnosis = replace(diagnose(make_stack(tmp_path)), notes=notes)
    lines = issue_lines(diagnosis, {})
    assert "- note 9" in lines
    assert "- 490 more notes" in lines
    assert len(anonymized) < 50


def test_the_options(run: Run, tmp_path: Path) -> None:
    make_stack(tmp_path / "env", Installed(files=FILES))
    words = ["doctor", "--python", str(tmp_path / "env")]
    words += ["--cuda-driver", "12.8", "--sm-arch", "5.0"]
    file = tmp_path / "report.md"
    outcome = run(*words, "--share", "--report", file)
    assert outcome.code == 1
    assert outcome.out.splitlines() == file.read_text().splitlines()
    outcome = run(*words, "--report", tmp_path / "nowhere" / "report.md")
    assert outcome.code == 3
    assert "cannot be written" in outcome.err
    assert "ND201" in outcome.out


def test_what_looks_like_a_mention_without_a_path_or_as_an_entity(
    tmp_path: Path,
) -> None:
    diagnosis = replace(
        diagnose(make_stack(tmp_path, environment=machine("12.8", "5.0"))),
        notes=("a/root@mallory of &#64;mallory, &commat;mallory & AT&T",),
    )
    text = "\n".join(issue_lines(diagnosis, {"HOME": "/root"}))
    assert r"- a~@<!-- -->mallory of \&#64;mallory, \&commat;mallory & AT\&T" in text
