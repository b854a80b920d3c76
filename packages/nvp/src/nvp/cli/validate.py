"""``validate``: check metadata, wheels and whole index directories."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from .arguments import add_options, choice, require_positive
from .parsers import add_examples
from .render import Result, progress_bar

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..lint.findings import Finding

_OPTIONS = """
paths PATH...
  *-variants.json, or - for stdin; wheel; pyproject.toml with a section [variant];
  directory of metadata and wheels, or with one for each project; or URL of a project
  page or an index
--select CODE...
  check only these rules or families, such as NV301,NV5
--ignore CODE...
  skip these rules or families; NV502:cu130_hopper skips a rule for one label,
  NV502:cu130_* for all labels of that form
--strict
  exit with 1 for warnings too
--no-hash
  do not compare the sha256 of wheels on a page; read only the parts that other rules
  need
--jobs
--format
"""


def configure_parser(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    add_options(parser, _OPTIONS, format=choice("text", "json", "sarif", "github"))
    add_examples(
        parser,
        "validate dist/ pyproject.toml",
        "validate https://index.example/simple/torch/",
        "validate dist/ --select NV1,NV2 --format github",
        notes=["The exit code is 1 for errors, including a path that cannot be read."],
    )


def execute(
    options: argparse.Namespace,
    environ: Mapping[str, str],
) -> Result:
    """Check the paths; ``data`` has ``findings``, sorted, and ``unchecked``."""
    from ..findings import fails
    from ..index import connect
    from ..lint.files import UncheckedFiles
    from ..lint.output import as_github, as_sarif, as_text
    from ..lint.runner import check_paths

    require_positive(options, "jobs")
    unchecked = UncheckedFiles()
    findings = check_paths(
        options.paths,
        select=_codes(options.select),
        ignore=_codes(options.ignore),
        jobs=options.jobs,
        watch=progress_bar,
        connect=lambda: connect(environ),
        hashes=not options.no_hash,
        unchecked=unchecked,
    )
    formats: dict[str, Callable[[Sequence[Finding]], list[str]]] = {
        "text": partial(as_text, unchecked=unchecked.all),
        "github": as_github,
        "sarif": as_sarif,
    }
    render = formats.get(options.format)
    as_json = render is None or options.json
    return Result(
        exit_code=1 if fails(findings, strict=options.strict) else 0,
        data={
            # Only the JSON report needs the findings, which may be many.
            "findings": [finding.to_dict() for finding in findings if as_json],
            "unchecked": [item.to_dict() for item in unchecked.all],
        },
        text=render(findings) if render and not as_json else [],
        verbatim=options.format != "text",
        annotations=options.format == "github",
        as_json=render is None,
    )


def _codes(words: list[str]) -> list[str]:
    choices = [
        code.strip().partition(":") for word in words for code in word.split(",")
    ]
    return [f"{code.upper()}{colon}{label}" for code, colon, label in choices]
