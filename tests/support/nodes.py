"""Which nodes of a cluster an affinity selects."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

__all__ = ["selected_nodes"]


def selected_nodes(
    spec: Mapping[str, Any], nodes: Iterable[Mapping[str, Any]]
) -> set[str]:
    """Evaluate the affinity of a Pod's ``spec`` as Kubernetes documents it.

    The terms are alternatives, and all expressions of a term must match.
    """
    affinity = spec["affinity"]["nodeAffinity"]
    required = affinity["requiredDuringSchedulingIgnoredDuringExecution"]
    return {
        node["metadata"]["name"]
        for node in nodes
        if any(
            _matches(term, node["metadata"]["labels"])
            for term in required["nodeSelectorTerms"]
        )
    }


def _matches(term: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    for item in term["matchExpressions"]:
        assert item["operator"] == "In"
        assert all(isinstance(value, str) for value in item["values"])
        if labels.get(item["key"]) not in item["values"]:
            return False
    return True
