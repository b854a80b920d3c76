"""Log lines on stderr: ``-v`` and ``-vv``."""

from __future__ import annotations

import json
import logging
import threading
from pathlib import Path
from typing import Any

import pytest
from support.builds import machine
from support.command import Run

from nvidia_variant_provider.api import resolve
from nvp.cli import narration
from nvp.cli.log import logging_to_stderr, redact
from nvp.cli.narration import Narration
from nvp.cli.parsers import read_command_line
from nvp.cli.pip import _result
from nvp.cli.render import Result
from nvp.index.selection.shown import ShownRelease


class TestVerbose:
    @pytest.mark.parametrize(
        "arguments", [("-v", "detect"), ("detect", "-v"), ("detect", "--verbose")]
    )
    def test_lines_go_to_stderr_with_level_logger_and_message(
        self, arguments: tuple[str, ...], run: Run
    ) -> None:
        outcome = run(*arguments)
        assert outcome.out == run("detect").out
        assert outcome.err.startswith("INFO nvp.cli.log: running detect: version ")

    def test_nothing_is_logged_by_default(self, run: Run) -> None:
        assert run("detect").err == ""
        run("detect", "-vv")
        assert run("detect").err == ""

    @pytest.mark.parametrize(
        ("arguments", "level"),
        [
            (("-v", "detect"), logging.INFO),
            (("-vv", "detect"), logging.DEBUG),
            (("-v", "detect", "-v"), logging.DEBUG),
            (("detect", "-vvv"), logging.DEBUG),
        ],
    )
    def test_levels(
        self,
        arguments: tuple[str, ...],
        level: int,
        run: Run,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        levels: list[int] = []

        def execute(*_: object) -> Result:
            levels.append(logging.getLogger("nvidia_variant_provider").level)
            return Result()

        monkeypatch.setattr("nvp.cli.detect.execute", execute)
        run(*arguments)
        assert levels == [level]

    def test_vv_says_why_labels_do_not_fit(self, run: Run, torch: Path) -> None:
        words = ("resolve", torch, "--cuda-driver", "12.8", "--sm-arch", "9.0")
        line = (
            "DEBUG nvidia_variant_provider.api: cu129 does not fit: it needs a driver"
        )
        assert line in run("-vv", *words).err
        assert line not in run("-v", *words).err
        assert "4 labels fit, the best is cu128" in run("-v", *words).err

    def test_v_shows_the_properties_of_a_pick(
        self, torch: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        resolution = resolve(torch, environment=machine("12.8", "9.0"))
        pick = ShownRelease(project="torch", version="1", resolution=resolution)
        Narration(aside=False, quiet=False).pick(pick, "cu128")
        assert capsys.readouterr().out == "torch 1 -> cu128\n"
        with logging_to_stderr(1):
            Narration(aside=False, quiet=False).pick(pick, "cu128")
        out = capsys.readouterr().out
        assert "\nVariant-property: nvidia :: sm_arch :: 90_real\n" in out

    def test_other_lines_do_not_wait_for_an_explanation(
        self, torch: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The explanation of a stranger's release may take a second."""
        made = Narration(aside=False, quiet=True)

        def explain(*_: object, **__: object) -> list[str]:
            other = threading.Thread(target=made.warn, args=("one",), daemon=True)
            other.start()
            other.join(5)
            return ["two"]

        monkeypatch.setattr(narration, "why_no_gpu", explain)
        resolution = resolve(torch, environment=machine("11.0", "9.0"))
        shown = ShownRelease(project="torch", version="1", resolution=resolution)
        made.pick(shown, None)
        assert made.warnings == ["one", "two"]

    def test_reasons_are_only_for_a_report(self, torch: Path) -> None:
        """The reasons of twelve releases of a stranger took a gigabyte."""
        resolution = resolve(torch, environment=machine("12.8", "9.0"))
        made = Narration(aside=False, quiet=True)
        shown = ShownRelease(project="torch", version="1", resolution=resolution)
        made.pick(shown, "cu128")
        for as_json, expected in ((True, ["cu129"]), (False, [])):
            data: Any = _result(0, made, as_json=as_json).data
            assert [*data["chosen"][0]["rejected"]] == expected

    def test_the_report_stays_json(self, run: Run) -> None:
        assert json.loads(run("detect", "-vv", "--json").out)["command"] == "detect"

    def test_what_follows_the_command_pip_is_for_pip(self) -> None:
        line = read_command_line(["-v", "pip", "install", "-vv", "torch"])
        assert line == (["-v"], "pip", [], ["install", "-vv", "torch"])

    @pytest.mark.parametrize(
        ("text", "harmless"),
        [
            ("GET https://user:pass@host/simple/", "GET https://****@host/simple/"),
            ("GET https://token@host/", "GET https://****@host/"),
            ("https://u:p@ss@host/", "https://****@host/"),
            ("https://host/a@b", "https://host/a@b"),
            ("https://host/x.whl?X-Amz-Signature=ab1&v=2", None),
            ("Authorization: Basic dTpw", "Authorization: Basic ****"),
            ("{'password': 'x'}", None),
            ("torch-2.8.0-py3-none-any.whl", "torch-2.8.0-py3-none-any.whl"),
        ],
    )
    def test_secrets_are_not_logged(self, text: str, harmless: str | None) -> None:
        if harmless is None:
            assert "ab1" not in redact(text)
            assert "'x'" not in redact(text)
        else:
            assert redact(text) == harmless

    def test_a_long_line_without_secrets_is_searched_in_linear_time(self) -> None:
        line = "key" * 100_000
        assert redact(line) == line

    def test_a_handler_of_the_root_logger_does_not_print_a_second_time(
        self, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
    ) -> None:
        logger = logging.getLogger("nvidia_variant_provider.x")
        with logging_to_stderr(1):
            logger.info("once")
        assert caplog.records == []
        assert capsys.readouterr().err.count("once") == 1
        logger.warning("again")
        assert [record.message for record in caplog.records] == ["again"]

    def test_a_log_line_is_one_line(self, capsys: pytest.CaptureFixture[str]) -> None:
        logger = logging.getLogger("nvidia_variant_provider.x")
        with logging_to_stderr(1):
            logger.info("a\nb \x1b[1m https://u:p@h/")
            logger.debug("no")
        logger.info("no")
        assert logging.getLogger("nvidia_variant_provider").level == logging.NOTSET
        assert capsys.readouterr().err == (
            r"INFO nvidia_variant_provider.x: a\nb \x1b[1m https://****@h/" + "\n"
        )
