"""The names of the verbs, what each of them does, and how help groups them.

A verb has a module of its own name in this folder, with ``configure_parser`` and
``execute``. To add a verb, add its line here and its module; the tests in
``tests/cli/test_contracts.py`` name everything else that it needs.
"""

from __future__ import annotations

__all__ = ["GROUPS", "PROGRAM", "SECOND_NAME", "VERBS"]

PROGRAM, SECOND_NAME = "nvp", "nvidia-variant-provider"
"""The two names of the command. Hints use the first one."""

GROUPS = {
    "Install": {
        "pip": "run your own pip, which selects the builds that fit this machine",
        "serve": "serve the index behind pip to other installers",
    },
    "Plan": {
        "releases": "show which releases of a project this machine can run",
        "resolve": "show which build of a release a machine gets, and why",
        "matrix": "show which build of a release each driver and each GPU gets",
        "fleet": "show which build each machine of a fleet gets, and the fewest",
        "diff": "show which machines get another build from a new release",
    },
    "Look after a machine": {
        "detect": "show the driver and the GPUs of this machine",
        "doctor": "check whether the installed stack can use the GPUs",
        "properties": "list the variant properties that this machine supports",
    },
    "Publish": {
        "inspect": "show which GPU code is in wheels and libraries, and what runs it",
        "validate": "check metadata, wheels and index folders before you publish them",
        "upgrade": "rewrite variant metadata in the current schema",
        "census": "record the GPU code of a whole index in one file",
    },
}
"""Titles in the help text, each with its verbs and their summaries."""

VERBS = {verb: text for verbs in GROUPS.values() for verb, text in verbs.items()}
"""The summary of each verb."""
