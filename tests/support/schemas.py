"""The JSON Schemas of variant metadata, and a clean document for each of them."""

from __future__ import annotations

import copy
import json
from typing import Any

from jsonschema import Draft202012Validator
from support.paths import SCHEMAS

from .documents import PROVIDER, nvidia

__all__ = [
    "HOST",
    "OLD",
    "PRIORITIES",
    "PROVIDERS",
    "URLS",
    "VALIDATORS",
    "accepts",
    "clean",
]

HOST = "https://variants-schema.wheelnext.dev"
URLS = {
    "0.0.1": f"{HOST}/",
    "0.0.2": f"{HOST}/v0.0.2.json",
    "0.0.3": f"{HOST}/v0.0.3.json",
    "0.1.0": f"{HOST}/peps/825/v0.1.0.json",
    "0.1.1": f"{HOST}/peps/825/v0.1.1.json",
    "0.2.0": f"{HOST}/v0.2.0.json",
}
OLD = ("0.0.1", "0.0.2", "0.0.3")
PRIORITIES = (*OLD, "0.1.0")
PROVIDERS = (*OLD, "0.2.0")

VALIDATORS = {
    version: Draft202012Validator(
        json.loads((SCHEMAS / "variants-json" / f"v{version}.schema.json").read_bytes())
    )
    for version in URLS
}


def accepts(version: str, document: object) -> bool:
    """Return whether the schema of a version accepts a document."""
    return bool(VALIDATORS[version].is_valid(document))


def clean(version: str) -> dict[str, Any]:
    """Return a document that has all keys of its version."""
    document: dict[str, Any] = {
        "$schema": URLS[version],
        "default-priorities": {"namespace": ["nvidia", "blas", "abi_dependency"]},
        "variants": {
            "null": {},
            "cu126": nvidia("12.6", sm=["80_real", "90_real"]),
            "cu126_b": {
                **nvidia("12.6"),
                "blas": {"library": ["mkl", "openblas"], "threads": ["on"]},
                "abi_dependency": {"torch": ["2.9"]},
            },
        },
    }
    if version in PRIORITIES:
        document["default-priorities"] |= {
            "feature": {"nvidia": ["sm_arch"], "blas": []},
            "property": {"nvidia": {"sm_arch": ["90_real"]}, "blas": {"library": []}},
        }
    if version in PROVIDERS:
        blas = {"requires": ["blas-provider"], "optional": True}
        document["providers"] = {"nvidia": dict(PROVIDER), "blas": blas}
    if version in OLD:
        document["variants"]["00000000"] = {}
        document["providers"]["nvidia"]["enable-if"] = "platform_system == 'Linux'"
    if version == "0.0.2":
        document["providers"]["nvidia"]["plugin-use"] = "all"
        document["providers"]["blas"] = {"plugin-use": "none"}
    if version == "0.0.3":
        document["providers"]["nvidia"]["install-time"] = True
        document["providers"]["blas"] = {"install-time": False}
        document["static-properties"] = {"blas": {"library": ["mkl"], "threads": []}}
    if version == "0.2.0":
        document["providers"]["abi_dependency"] = {"builtin": "abi_dependency"}
        document["providers"]["blas"] = {
            "static-properties": {"library": ["mkl", "openblas"], "threads": ["on"]},
            "feature-order": ["threads", "library"],
            "optional": True,
        }
    # Return a copy, because tests change the document.
    return copy.deepcopy(document)
