"""``validate``: check metadata, wheels and whole index folders."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from .result import Result

__all__ = ["configure_parser", "execute"]

_FORMATS = ("text", "json", "sarif", "github")


def configure_parser(parser: argparse.ArgumentParser) -> None:
    """Add the options of the verb."""
    parser.add_argument(
        "paths",
        metavar="PATH",
        nargs="+",
        help="a *-variants.json, or - for stdin; a wheel, a folder of both, or a "
        "project page's URL",
    )
    parser.add_argument(
        "--select",
        metavar="CODE",
        action="append",
        default=[],
        help="only these rules, or families as NV3; again or with commas for more",
    )
    parser.add_argument(
        "--ignore", metavar="CODE", action="append", default=[], help="not these rules"
    )
    parser.add_argument(
        "--strict", action="store_true", help="exit with 1 for warnings as well"
    )
    parser.add_argument(
        "--format",
        choices=_FORMATS,
        default="text",
        help="json is the same as --json; default: %(default)s",
    )


def execute(
    options: argparse.Namespace,
    environ: Mapping[str, str],  # noqa: ARG001
) -> Result:
    """``data``: ``findings``, sorted."""
    from ..lint.output import as_github, as_sarif, as_text
    from ..lint.runner import check_paths, fails

    findings = check_paths(
        options.paths, select=_codes(options.select), ignore=_codes(options.ignore)
    )
    formats = {"text": as_text, "github": as_github, "sarif": as_sarif}
    render = formats.get(options.format)
    return Result(
        exit_code=1 if fails(findings, strict=options.strict) else 0,
        data={"findings": [finding.to_dict() for finding in findings]},
        text=render(findings) if render else [],
        as_json=render is None,
    )


def _codes(words: list[str]) -> list[str]:
    return [code.strip().upper() for word in words for code in word.split(",")]
