"""The documentation names the parts of the code, and its links have targets."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import generated
from support.paths import NVP, PROVIDER, ROOT
from support.sessions import pages

from nvidia_variant_provider import errors
from nvp.cli.parsers import COMMANDS
from tools.site_pages import PAGES

README = (ROOT / "README.md").read_text(encoding="utf-8")
REFERENCE = ROOT / "docs" / "reference"
LINK = re.compile(r"(?<!`)\[[^\]\n]*(?:\n[^\]\n]*)?\]\((?P<target>[^)\s]+)\)")


def page_names() -> list[str]:
    return [path.relative_to(ROOT).as_posix() for path in pages()]


def without_code(text: str) -> str:
    return re.sub(r"^ *```.*?^ *```$", "", text, flags=re.MULTILINE | re.DOTALL)


def anchors(text: str) -> Iterator[str]:
    """Yield the anchors that mkdocs gives to a page."""
    yield from re.findall(r'<a id="([^"]+)">', text)
    for heading in re.findall(r"^#+ (.+)$", without_code(text), re.MULTILINE):
        text, given, name = heading.partition(" { #")
        if given:
            yield name.removesuffix(" }")
        else:
            plain = re.sub(r"[^\w\s-]", "", text.replace("`", "")).strip().lower()
            yield re.sub(r"[-\s]+", "-", plain)


class TestReadme:
    def test_is_short(self) -> None:
        assert len(README.encode()) <= 7_000

    def test_main_job_is_the_one_whose_output_it_shows(self) -> None:
        assert f".venv/bin/nvp {generated.MAIN_JOB}\n" in README

    def test_ci_finds_the_test_command(self) -> None:
        assert re.findall(r"^.*bin/pytest$", README, re.MULTILINE) == [
            "python3 -m venv .venv && .venv/bin/python -m pip install . "
            "'./packages/nvp[test]' && .venv/bin/pytest"
        ]

    @pytest.mark.skipif(sys.platform == "win32", reason="it is for a POSIX shell")
    def test_main_job_is_one_command_for_a_posix_shell(self) -> None:
        block = re.findall(r"```bash\n(.+?)```", README, re.DOTALL)[0]
        done = subprocess.run(["bash", "-n"], input=block, text=True, check=False)
        assert done.returncode == 0
        assert block.count("\\\n") == block.count("\n") - 1


@pytest.mark.parametrize("name", ["nvidia_variant_provider", "packages/nvp"])
def test_the_text_on_pypi_is_short_and_has_no_dead_links(name: str) -> None:
    text = (ROOT / name / "README.md").read_text(encoding="utf-8")
    assert len(text.encode()) <= 2_000
    targets = [match["target"] for match in LINK.finditer(without_code(text))]
    # PyPI shows no files of the repository.
    assert [target for target in targets if not target.startswith("https://")] == []


def test_generated_tables_are_what_the_code_gives() -> None:
    for name in page_names():
        text = (ROOT / name).read_text(encoding="utf-8")
        assert generated.refresh(text) == text, "run: python -m tools.refresh_docs"


@pytest.mark.parametrize("name", page_names())
def test_links_lead_to_files_and_sections_that_exist(name: str) -> None:
    page = ROOT / name
    text = without_code(page.read_text(encoding="utf-8"))
    dead = []
    for target in (match["target"] for match in LINK.finditer(text)):
        if target.startswith(("http:", "https:", "mailto:")):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        # The name of a picture ends with its color scheme.
        named = anchor if file.suffix == ".md" else ""
        if not file.exists() or (
            named and named not in anchors(file.read_text(encoding="utf-8"))
        ):
            dead.append(target)
    assert dead == []


def test_site_links_to_pages_of_the_site_only() -> None:
    docs = ROOT / "docs"
    outside = {
        (page.name, match["target"])
        for page in docs.rglob("*.md")
        for match in LINK.finditer(without_code(page.read_text(encoding="utf-8")))
        if not match["target"].startswith(("http", "#"))
        and not (file := page.parent / match["target"].partition("#")[0])
        .resolve()
        .is_relative_to(docs)
        and file.resolve() not in {ROOT / name for name in PAGES}
    }
    assert outside == set()


def test_a_page_ends_with_next_steps() -> None:
    for name in (n for n in page_names() if n.startswith("docs/")):
        text = without_code((ROOT / name).read_text(encoding="utf-8"))
        last = re.split(r"^## ", text, flags=re.MULTILINE)[-1]
        assert last.startswith("Next steps\n\n- "), name
        assert 2 <= len(LINK.findall(last)) <= 5, name


def test_pages_do_not_name_the_machine_that_refreshed_them() -> None:
    own = (str(ROOT), platform.release(), f"{tempfile.gettempdir()}{os.sep}")
    for name in page_names():
        text = (ROOT / name).read_text(encoding="utf-8")
        assert [(name, place) for place in own if place in text] == []


def test_every_page_is_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("nav:")[2]
    docs = ROOT / "docs"
    listed = re.findall(r": (\S+\.md)$", navigation, re.MULTILINE)
    assert sorted(listed) == sorted(
        [
            *(page.relative_to(docs).as_posix() for page in docs.rglob("*.md")),
            *PAGES.values(),
        ]
    )


@pytest.mark.parametrize("name", ["docs/architecture.md", "CONTRIBUTING.md"])
def test_modules_that_contributors_are_sent_to_exist(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    roots = (ROOT, PROVIDER, NVP)
    named = {
        path
        for path in re.findall(r"`([\w/]+/[\w/]*\.py)`", text)
        if "NAME" not in path
    }
    rows = re.findall(r"^\| `(\w+)/` \|.*\| `([\w/]+)`", text, re.MULTILINE)
    named |= {f"{folder}/{path}" for folder, path in rows if "/" not in path}
    assert len(named) > 5
    dead = [p for p in named if not any((root / p).exists() for root in roots)]
    assert dead == []


def test_variables_are_documented() -> None:
    named = {
        name
        for package in (PROVIDER, NVP)
        for path in package.rglob("*.py")
        for name in re.findall(
            r'"(NV_VARIANT_PROVIDER_[A-Z_]+)"', path.read_text(encoding="utf-8")
        )
    }
    page = (REFERENCE / "environment-variables.md").read_text(encoding="utf-8")
    documented = set(re.findall(r"^\| `(NV_VARIANT_PROVIDER_\w+)`", page, re.MULTILINE))
    assert named
    assert documented == named


def test_reason_codes_are_documented() -> None:
    page = (REFERENCE / "reason-codes.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `([a-z-]+)`", page, re.MULTILINE)) == (
        generated.reason_codes()
    )


def test_commands_are_documented() -> None:
    page = (REFERENCE / "commands.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^## ([a-z]+)$", page, re.MULTILINE)) == set(COMMANDS)
    assert {command for command in COMMANDS if f"| `{command}" not in README} == set()


def test_exit_codes_are_documented() -> None:
    codes = {0, 1} | {
        error.exit_code
        for error in vars(errors).values()
        if isinstance(error, type) and issubclass(error, errors.ProviderError)
    }
    page = (REFERENCE / "exit-codes.md").read_text(encoding="utf-8")
    rows = {int(code) for code in re.findall(r"^\| (\d+) \|", page, re.MULTILINE)}
    assert rows - {130} == codes


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    ["github-workflows", "dependabot", "github-issue-config", "github-issue-forms"],
)
def test_github_files_follow_their_schema(kind: str) -> None:
    pytest.importorskip("check_jsonschema")
    folder = ROOT / ".github"
    if not folder.exists():
        pytest.skip("the source distribution has no dotfiles")
    files = {
        "github-workflows": [*folder.glob("workflows/*.yml")],
        "dependabot": [folder / "dependabot.yml"],
        "github-issue-config": [folder / "ISSUE_TEMPLATE" / "config.yml"],
        "github-issue-forms": [
            path
            for path in folder.glob("ISSUE_TEMPLATE/*.yml")
            if path.name != "config.yml"
        ],
    }[kind]
    assert files
    done = subprocess.run(
        [
            *(sys.executable, "-m", "check_jsonschema"),
            *("--builtin-schema", f"vendor.{kind}"),
            *files,
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


def test_site_builds_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="needs the extra docs")
    pytest.importorskip("mkdocstrings", reason="needs the extra docs")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "mkdocs", "build", "--strict"),
            *("--site-dir", tmp_path / "site"),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    page = tmp_path / "site" / "reference" / "api" / "index.html"
    text = re.sub(r"<[^>]*>", "", page.read_text(encoding="utf-8"))
    # mkdocstrings derives the signatures of records from their fields.
    signature = r"^Environment\(\s*\*,\s*cuda_driver_version: "
    assert re.search(signature, text, re.MULTILINE)
