"""The papers of the project: addresses, workflows and what they promise."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from support.paths import ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ADDRESS = "https://github.com/OWNER/nvidia-variant-provider"
"""The address of the repository, with the placeholder for its owner."""

PYPROJECTS = [ROOT / "pyproject.toml", ROOT / "packages" / "nvp" / "pyproject.toml"]

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def test_the_placeholder_stands_in_three_files_alone() -> None:
    named = [*ROOT.glob("*.toml"), *ROOT.glob("*.yml"), *ROOT.glob("packages/*/*.toml")]
    named += [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *WORKFLOWS]
    having = {
        path.relative_to(ROOT).as_posix()
        for path in named
        if re.search(r"\bOWNER\b", path.read_text(encoding="utf-8"))
    }
    # CONTRIBUTING.md says how the placeholder is replaced.
    assert having - {"CONTRIBUTING.md"} == {
        "mkdocs.yml",
        "packages/nvp/pyproject.toml",
        "pyproject.toml",
    }


@pytest.mark.parametrize("path", PYPROJECTS, ids=lambda path: path.parent.name)
def test_both_distributions_have_the_same_addresses(path: Path) -> None:
    urls = tomllib.loads(path.read_text(encoding="utf-8"))["project"]["urls"]
    assert urls == {
        "Changelog": f"{ADDRESS}/blob/main/CHANGELOG.md",
        "Documentation": "https://OWNER.github.io/nvidia-variant-provider/",
        "Issues": f"{ADDRESS}/issues",
        "Source": ADDRESS,
    }


def test_the_site_links_to_the_same_repository() -> None:
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert f"\nrepo_url: {ADDRESS}\n" in text
    assert "\nsite_url: https://OWNER.github.io/nvidia-variant-provider/\n" in text
    assert "\nedit_uri: edit/main/docs/\n" in text


@pytest.mark.skipif(not WORKFLOWS, reason="no checkout: there are no dotfiles")
class TestWorkflows:
    def test_every_action_is_pinned_by_commit(self) -> None:
        used = [
            (path.name, action)
            for path in WORKFLOWS
            for action in re.findall(r"uses: (.+)", path.read_text(encoding="utf-8"))
        ]
        assert {name for name, _ in used} == {"ci.yml", "newest.yml", "release.yml"}
        pinned = re.compile(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+")
        assert [item for item in used if not pinned.fullmatch(item[1])] == []

    def test_an_action_has_one_version(self) -> None:
        versions: dict[str, set[str]] = {}
        for path in WORKFLOWS:
            text = path.read_text(encoding="utf-8")
            for action, commit in re.findall(r"uses: ([^@\s]+)@(.+)", text):
                versions.setdefault(action, set()).add(commit)
        assert {action for action, found in versions.items() if len(found) > 1} == set()

    def test_only_the_jobs_that_publish_get_a_token(self) -> None:
        path = ROOT / ".github" / "workflows" / "release.yml"
        jobs = re.split(r"\n  (?=[\w-]+:\n    name: )", path.read_text("utf-8"))
        with_token = [job for job in jobs if "id-token: write" in job]
        assert [job.partition(":")[0] for job in with_token] == [
            "publish-provider",
            "publish-nvp",
        ]
        for job in with_token:
            assert "attestations: true" in job
            assert "run:" not in job, "no code of the repository runs with the token"


def test_the_affiliation_is_said_where_people_look() -> None:
    for name in ("README.md", "packages/nvp/README.md", "docs/index.md"):
        text = " ".join((ROOT / name).read_text(encoding="utf-8").split())
        assert "not made by NVIDIA" in text, name
