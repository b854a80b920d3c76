"""``validate INDEX --store STORE``: wheels that cannot be read, or not this time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.command import Run
from support.range_server import Answer, serve_answers
from support.stored_checks import check, labelled, same

from nvp.census import store as store_module
from nvp.census.store import Store


class TestFailures:
    PAGE = "/simple/demo/"

    def serve(self, path: Path, answers: dict[str, Answer]) -> Any:
        name = path.name
        page = f'<!DOCTYPE html><a href="/{name}#sha256={"1" * 64}">{name}</a>'
        answers[self.PAGE] = Answer(body=page.encode(), kind="text/html")
        return serve_answers(answers)

    def test_a_failure_that_may_pass_is_not_kept(self, tmp_path: Path) -> None:
        path, store = labelled(tmp_path), tmp_path / "census.sqlite"
        answers = {f"/{path.name}": Answer(status=404)}
        with self.serve(path, answers) as server:
            url = f"{server.url}{self.PAGE}"
            first = check(url, store)
            same(first, check(url))
            assert "NV411" in {finding.code for finding in first.findings}
            answers[f"/{path.name}"] = Answer(body=path.read_bytes())
            second = check(url, store)
            same(second, check(url))
            assert "NV411" not in {finding.code for finding in second.findings}
            assert len(second.read.outcomes) == 1
            assert check(url, store).read.outcomes == []

    def test_several_projects_list_a_wheel(self, tmp_path: Path) -> None:
        """What cannot be read is known to all of them, and nobody tries again."""
        path, store = labelled(tmp_path), tmp_path / "census.sqlite"
        answers: dict[str, Answer] = {}
        with self.serve(path, answers) as server:
            answers["/simple/other/"] = answers[self.PAGE]
            links = '<a href="demo/">x</a><a href="other/">x</a>'
            answers["/simple/"] = Answer(body=links.encode(), kind="text/html")
            checked = check(f"{server.url}/simple/", store)
        unread = [item for item in checked.findings if item.code == "NV411"]
        assert len(unread) == 1, "the same file has the same finding"
        asked = [line for line in server.requests if path.name in line]
        assert len(asked) == len(checked.read.outcomes)

    def test_a_failure_does_not_replace_what_an_older_reader_has_read(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path, store = labelled(tmp_path), tmp_path / "census.sqlite"
        answers = {f"/{path.name}": Answer(body=path.read_bytes())}
        with self.serve(path, answers) as server:
            url = f"{server.url}{self.PAGE}"
            check(url, store, hashes=False)
            monkeypatch.setattr(store_module, "READER", store_module.READER + 1)
            answers[f"/{path.name}"] = Answer(status=404)
            failed = check(url, store, hashes=False)
        assert "NV411" in {finding.code for finding in failed.findings}
        with Store(str(store)) as opened:
            (row,) = opened.wheels()
        assert row["status"] == "inspected"

    def test_a_wheel_with_another_hash_is_not_exported(
        self, tmp_path: Path, run: Run
    ) -> None:
        path, store = labelled(tmp_path), tmp_path / "census.sqlite"
        answers = {f"/{path.name}": Answer(body=path.read_bytes())}
        with self.serve(path, answers) as server:
            checked = check(f"{server.url}{self.PAGE}", store)
        assert {"NV417", "NV501"} <= {finding.code for finding in checked.findings}
        rows = tmp_path / "rows.csv"
        assert "0 rows" in run("census", "--export", rows, "-o", store).out
        (project,) = run("census", "--report", "-o", store, "--json").data["projects"]
        assert project["targets"] == []
        (release,) = project["releases"]
        assert (release["status"], release["targets"]) == ("failed", [])

    def test_parts_that_an_earlier_run_has_read_have_no_hash(
        self, tmp_path: Path
    ) -> None:
        path, store = labelled(tmp_path), tmp_path / "census.sqlite"
        answers = {f"/{path.name}": Answer(body=path.read_bytes())}
        with self.serve(path, answers) as server:
            url = f"{server.url}{self.PAGE}"
            check(url, store, hashes=False)
            second = check(url, store)
        assert second.read.outcomes == []
        (item,) = second.unchecked
        assert (item.what, item.files) == ("the sha256", 1)
        assert item.reason.startswith("the store has them from a run that read only")
