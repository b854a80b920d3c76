"""The language-neutral cases of ``fixtures/provider``, and a runner for programs.

``fixtures/README.md`` describes the files. A program prints one document for a case,
``{"all": [...], "supported": [...]}`` in JSON, in a process of its own that loads the
fake driver libraries of `support.native`.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.native import CUDA_SONAME, NVML_SONAME, Scenario, environment
from support.paths import FIXTURES

__all__ = [
    "Answer",
    "Case",
    "answer_of",
    "differences",
    "expected",
    "read_cases",
    "variables_for",
]

FOLDER = FIXTURES / "provider"

Features = list[dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Case:
    """A case, with the keys of the files.

    :param file: the name of the file without its ending.
    :param driver: the answers of the libraries, or ``None`` without a driver.
    :param catalog: the expected catalog, in the cases that are about it.
    :param error: the expected error, or ``None`` if an answer is expected.
    :param differs: the implementations that are known to differ, each with the id of
        the difference.
    """

    file: str
    name: str
    rule: str
    variables: Mapping[str, str]
    driver: Mapping[str, Any] | None = None
    catalog: Features | None = None
    answer: Features = field(default_factory=list)
    warnings: Sequence[str] = ()
    error: Mapping[str, str] | None = None
    differs: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.file}: {self.name}"


@dataclass(frozen=True)
class Answer:
    """The output of a program: a document, or the reason why the document is
    missing."""

    document: Mapping[str, Features] | None
    error: str = ""


def read_cases(*files: str) -> list[Case]:
    """Return the cases of some files, by default of all."""
    names = files or sorted(path.stem for path in FOLDER.glob("*.json"))
    return [
        Case(file=name, **case)
        for name in names
        for case in json.loads((FOLDER / f"{name}.json").read_bytes())["cases"]
    ]


def variables_for(
    case: Case, folder: Path, compiled: Callable[[tuple[str, ...]], Path]
) -> dict[str, str]:
    """Return the variables that put a program on the machine of a case.

    :param folder: an empty directory for the files of the machine.
    :param compiled: returns a directory with the fake libraries, without some
        functions.
    """
    libraries, scenario = folder / "libraries", folder / "scenario"
    devices = folder / "root" / "dev"
    libraries.mkdir()
    devices.mkdir(parents=True)
    answers: dict[str, Any] = {"nvml": None, "libcuda": None}
    if case.driver is not None:
        (devices / "nvidia0").touch()
        answers.update(case.driver)
    Scenario(nvml=answers["nvml"] or {}, cuda=answers["libcuda"] or {}).write(scenario)
    for library, soname in (("nvml", NVML_SONAME), ("libcuda", CUDA_SONAME)):
        if answers[library] is None:
            # The loader stops at this file, so it does not find a real driver.
            (libraries / soname).touch()
        else:
            source = compiled(tuple(answers.get("without", ())))
            (libraries / soname).symlink_to(source / soname)
    return {
        "NV_VARIANT_PROVIDER_SYSROOT": str(devices.parent),
        "NV_VARIANT_PROVIDER_NO_CACHE": "1",
        **environment(libraries, scenario),
        **case.variables,
    }


def answer_of(command: Sequence[str], variables: Mapping[str, str]) -> Answer:
    """Run a program with the variables of a case, and return its answer."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("CUDA_", "NV_VARIANT_PROVIDER_"))
    }
    try:
        done = subprocess.run(
            command,
            env={**inherited, **variables},
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=60,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Answer(None, "no answer within 60 seconds")
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [""])[-1]
        return Answer(None, f"exit code {done.returncode}: {last}".rstrip(": "))
    try:
        document = json.loads(done.stdout)
    except ValueError:
        document = None
    if not isinstance(document, dict) or {"all", "supported"} - document.keys():
        return Answer(None, f"stdout is not the document: {done.stdout[:60]!r}")
    return Answer(document)


def expected(case: Case) -> str:
    """Return one line that describes the expectation of a case."""
    if case.error is not None:
        return f"error: {case.error['variable']} is {case.error['kind']}"
    return _shown(case.answer)


def differences(case: Case, answer: Answer) -> list[str]:
    """Return the differences from the expectation as lines for people."""
    if answer.document is None:
        return [] if case.error is not None else [f"error: {answer.error}"]
    if case.error is not None:
        return [_shown(answer.document["supported"])]
    lines = []
    for key, features in (("all", case.catalog), ("supported", case.answer)):
        if features is not None and answer.document[key] != features:
            # In cases of the catalog, the catalog or the supported values may differ.
            title = "catalog: " if key == "all" else ""
            lines.append(title + _shown(answer.document[key]))
            lines += _changed(features, answer.document[key])
    return lines


def _shown(features: Features) -> str:
    parts = []
    for feature in features:
        values = feature["values"]
        text = " ".join(values if len(values) < 6 else [*values[:3], "...", values[-1]])
        parts.append(f"{feature['name']} {text} ({len(values)})")
    return "; ".join(parts) or "nothing"


def _changed(wanted: Features, got: Features) -> list[str]:
    """Return the missing values, and the superfluous ones."""
    lines = []
    for title, some, others in (("missing", wanted, got), ("added", got, wanted)):
        known = {(item["name"], value) for item in others for value in item["values"]}
        for item in some:
            values = [x for x in item["values"] if (item["name"], x) not in known]
            if values:
                lines.append(f"  {title}: {_shown([{**item, 'values': values}])}")
    return lines or ["  the same values, in another order or form"]
