"""The files about the project: addresses, workflows and lock files."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
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
        assert {name for name, _ in used} == {
            *("ci.yml", "newest.yml", "release.yml", "trust.yml"),
        }
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
            "attest",
            "publish-provider",
            "publish-nvp",
        ]
        for job in with_token:
            assert "attestations: true" in job or "attestations: write" in job
            assert "run:" not in job, "no code of the repository runs with the token"

    def test_what_a_workflow_installs_has_a_hash(self) -> None:
        """Only the job with the newest clients installs versions without a hash."""
        lines = [
            line.strip()
            for path in WORKFLOWS
            for line in path.read_text(encoding="utf-8").splitlines()
            if "pip install" in line and path.name != "newest.yml"
        ]
        assert len(lines) >= 10
        allowed = re.compile(r"--require-hashes -r \.ci/\w+\.txt$|--no-deps ")
        assert [line for line in lines if not allowed.search(line)] == []


def read_lock(name: str) -> dict[str, list[str]]:
    """Return the versions of each project in a lock file: one, or one for each Python.

    Every line has one version, with the hashes of its files.
    """
    text = (ROOT / ".ci" / name).read_text(encoding="utf-8").replace("\\\n", " ")
    versions: dict[str, list[str]] = {}
    for line in text.splitlines():
        given, *hashes = line.split("--hash=")
        requirement = Requirement(given)
        (pin,) = requirement.specifier
        assert pin.operator == "==", line
        assert hashes, line
        assert all(re.fullmatch(r"sha256:[0-9a-f]{64}\s*", item) for item in hashes)
        versions.setdefault(canonicalize_name(requirement.name), []).append(pin.version)
    return versions


@pytest.mark.skipif(not WORKFLOWS, reason="no checkout: there are no dotfiles")
@pytest.mark.parametrize(
    ("name", "extras"),
    [("test.txt", ["test", "docs"]), ("runtime.txt", []), ("release.txt", None)],
)
def test_the_lock_has_what_is_demanded(name: str, extras: list[str] | None) -> None:
    """``.ci/lock`` writes the file, with the requirements of each system and Python."""
    lock = read_lock(name)
    if extras is None:
        lines = (ROOT / ".ci" / "release.in").read_text(encoding="utf-8").splitlines()
        demanded = [line for line in lines if not line.startswith("#")]
    else:
        project = tomllib.loads(PYPROJECTS[1].read_text(encoding="utf-8"))["project"]
        own = tomllib.loads(PYPROJECTS[0].read_text(encoding="utf-8"))["project"]
        demanded = project["dependencies"] + own["dependencies"]
        optional = project["optional-dependencies"]
        waiting = list(extras)
        while waiting:
            for text in optional[waiting.pop()]:
                waiting += Requirement(text).extras if text.startswith("nvp[") else ()
                demanded.append(text)
    for requirement in map(Requirement, demanded):
        if requirement.name in ("nvp", "nvidia-variant-provider"):
            continue
        versions = lock[canonicalize_name(requirement.name)]
        assert all(map(requirement.specifier.contains, versions)), requirement


def test_the_affiliation_is_said_where_people_look() -> None:
    for name in ("README.md", "packages/nvp/README.md", "docs/index.md"):
        text = " ".join((ROOT / name).read_text(encoding="utf-8").split())
        assert "not made by NVIDIA" in text, name
