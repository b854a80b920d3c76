"""Checking one metadata document: NV100 to NV118, NV201 to NV211 and NV314.

The reader in `metadata` reads a document once and reports each defect with its kind.
Most rules about structure and grammar correspond to one kind of defect. The other rules
check the parts that could be read.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from nvidia_variant_provider.errors import InputError, join, listed, shown
from nvidia_variant_provider.machine.supported import NAMESPACE
from nvidia_variant_provider.metadata import versions
from nvidia_variant_provider.metadata.fields import Kind
from nvidia_variant_provider.metadata.model import NULL_LABELS, PLUGIN_API, REQUIRES
from nvidia_variant_provider.metadata.versions import SchemaVersion
from nvidia_variant_provider.strict_json import Flaw, parse_lenient

from ..metadata.checking import CheckedDocument, find_unanswered
from ..metadata.checking import check_document as find_defects
from ..metadata.requirements import parse_requirement
from .findings import Checks, Collector, Problem
from .labels import Floor, Told, check_meaning, labels_of, provider_of
from .selection import SELECTION_CHECKS


@dataclass(frozen=True, kw_only=True, slots=True)
class Scope:
    """The context of a document, on which the applicable rules depend.

    :param whole_release: whether the document describes a whole release;
        ``variant.json`` describes only one wheel.
    :param has_plain_wheel: whether the release has a non-variant wheel, for machines
        that no label fits.
    :param yanked: labels that installers skip, since their wheels are yanked.
    :param by_cuda: whether the wheel has copies of a library for several CUDA versions,
        so the lower bound does not identify a toolkit.
    :param floor: returns the oldest driver for the machine code of the wheel, if any.
    :param told: properties of the release that were already checked, so findings about
        them would be repeated; see `labels.tell`.
    """

    whole_release: bool = True
    has_plain_wheel: bool = False
    yanked: Collection[str] = ()
    by_cuda: bool = False
    floor: Floor | None = None
    told: Told = field(default_factory=dict)


CODES: Mapping[Kind, str] = {
    "unknown-schema": "NV105",
    "missing-key": "NV107",
    "wrong-type": "NV108",
    "unknown-key": "NV109",
    "not-one-source": "NV110",
    "providers-differ": "NV111",
    "undeclared-namespace": "NV112",
    "null-rules": "NV113",
    "feature-order": "NV116",
    "misplaced-key": "NV117",
    "label": "NV201",
    "long-label": "NV202",
    "namespace": "NV203",
    "feature": "NV204",
    "value": "NV205",
    "unsorted": "NV206",
    "repeated": "NV207",
    "no-value": "NV208",
    "endpoint": "NV209",
    "requirement": "NV210",
    "marker": "NV211",
}
"""The rule for each kind of defect. If a document is not metadata at all, NV107 reports
the missing keys."""


_FLAWS: Mapping[str, str] = {
    Flaw.BYTE_ORDER_MARK: "NV101",
    Flaw.DUPLICATE_KEY: "NV102",
    Flaw.CONSTANT: "NV103",
}
_RELEASE = Scope()

_MOST_NAMED = 10
"""The maximum number of static properties in a message."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Document:
    """A parsed document, possibly malformed.

    :param fields: the parsed JSON.
    :param checked: the defects, and the parts that could be read.
    :param path: the file of the document; a wheel if it is a ``variant.json``.
    """

    fields: Mapping[str, Any]
    checked: CheckedDocument
    scope: Scope
    path: str

    @property
    def version(self) -> SchemaVersion:
        """The schema version, or the assumed version if the document states none."""
        return self.checked.metadata.schema


DOCUMENT_CHECKS: Checks[Document] = Checks()
"""The checks that need more than one value of a document."""


def check_text(data: bytes, collector: Collector, scope: Scope = _RELEASE) -> Any:
    """Check the bytes of a metadata file.

    :return: the document, or ``None`` if the bytes are not standard JSON.
    """
    try:
        document, flaws = parse_lenient(data)
    except InputError as error:
        if data.lstrip()[:1] == b"<":
            error.hint = "this looks like a page in HTML, such as that of an error"
        collector.add_error("NV100", error, error.place or "")
        return None
    for flaw in flaws:
        place = flaw.place or "top level"
        collector.add(_FLAWS[flaw.kind], place, flaw.message, flaw.hint)
    check_document(document, collector, scope)
    return None if flaws else document


def check_document(
    document: object, collector: Collector, scope: Scope = _RELEASE
) -> None:
    """Check a parsed document with every family of rules that can apply.

    Findings of one family do not prevent the checks of the other families.
    """
    checked = find_defects(document)
    for defect in checked.defects:
        code = CODES.get(defect.kind)
        if code is not None:
            collector.add(code, defect.place, defect.message, defect.hint)
    if not isinstance(document, dict):
        return
    subject = Document(
        fields=document,
        checked=checked,
        scope=scope,
        path=collector.path,
    )
    DOCUMENT_CHECKS.run(subject, collector)
    check_meaning(
        document,
        collector,
        by_cuda=scope.by_cuda,
        floor=scope.floor,
        told=scope.told,
    )
    provider = provider_of(document)
    used = any(NAMESPACE in properties for properties in labels_of(document).values())
    if used and provider and provider != scope.told.get(""):
        PROVIDER_CHECKS.run(provider, collector)
    # The labels of an unreadable document, which has other findings, have no order.
    if scope.whole_release and checked.is_readable:
        SELECTION_CHECKS.run(checked.metadata, collector)


@DOCUMENT_CHECKS.rule("NV104")
def check_nv104(document: Document) -> Iterator[Problem]:
    """Report a document that does not state its format version."""
    version = document.version
    if "$schema" not in document.fields:
        message = "$schema is missing"
        hint = f"add {versions.WRITTEN.url}"
        if not versions.is_read_by_clients(version):
            message += f"; by its keys, the document has version {version}"
            hint = _rewrite(document)
        yield Problem("top level", message, hint)


@DOCUMENT_CHECKS.rule("NV106")
def check_nv106(document: Document) -> Iterator[Problem]:
    """Report a format version that released clients no longer read."""
    version = document.version
    if "$schema" in document.fields and not versions.is_read_by_clients(version):
        message = f"version {version} is not read by {versions.CLIENTS}"
        yield Problem("$schema", message, _rewrite(document))


def _rewrite(document: Document) -> str:
    path = document.path
    if path.endswith(".whl"):
        return "build the wheel again, with metadata of a newer version"
    if "://" in path:
        name = shlex.quote(path.rpartition("/")[2])
        return f"download it, and rewrite it: nvp upgrade {name}"
    return f"rewrite it: nvp upgrade {'-' if path == 'stdin' else shlex.quote(path)}"


@DOCUMENT_CHECKS.rule("NV114")
def check_nv114(document: Document) -> Iterator[Problem]:
    """Report a release with neither a null variant nor a non-variant wheel."""
    if not document.scope.whole_release or document.scope.has_plain_wheel:
        return
    variants = document.fields.get("variants", {})
    nulls = NULL_LABELS if document.version.old_null else NULL_LABELS[:1]
    offered = [label for label in nulls if label not in document.scope.yanked]
    if isinstance(variants, dict) and not any(label in variants for label in offered):
        yield Problem(
            "variants",
            "there is no null variant for machines that no other label fits",
            "publish a null variant, or a non-variant wheel",
        )


@DOCUMENT_CHECKS.rule("NV115")
def check_nv115(document: Document) -> Iterator[Problem]:
    """Report labels that have the same properties."""
    first: dict[object, str] = {}
    for label, properties in document.checked.metadata.variants.items():
        if not properties:
            continue
        key = frozenset(
            (namespace, feature, frozenset(values))
            for namespace, features in properties.items()
            for feature, values in features.items()
        )
        if key in first:
            message = f"has the same properties as {first[key]}"
            place = join("variants", label)
            yield Problem(place, message, "keep one of the two labels")
        else:
            first[key] = label


@DOCUMENT_CHECKS.rule("NV118")
def check_nv118(document: Document) -> Iterator[Problem]:
    """Report labels that fit no machine because of static properties."""
    metadata = document.checked.metadata
    for item in find_unanswered(metadata):
        yield Problem(item.place, item.message, item.hint)
    # Other rules report the defects of an unreadable document.
    if not document.checked.is_readable:
        return
    nothing = frozenset[str](), "no value"
    answers = {
        (namespace, name): (frozenset(v), listed([*map(shown, v)], _MOST_NAMED))
        for namespace, provider in metadata.providers.items()
        for name, v in (provider.static_properties or {}).items()
        if v
    }
    for label, properties in metadata.variants.items():
        for namespace, features in properties.items():
            provider = metadata.providers.get(namespace)
            static = None if provider is None else provider.static_properties
            if static is None or not any(static.values()):
                continue
            for feature, values in features.items():
                known, names = answers.get((namespace, feature), nothing)
                if values and known.isdisjoint(values):
                    yield Problem(
                        join(join(join("variants", label), namespace), feature),
                        f"the static properties list {names} of the feature, so that "
                        "the label fits no machine",
                        "correct the value, or add it to the static properties",
                    )


PROVIDER_CHECKS: Checks[Mapping[str, Any]] = Checks()

_PLACE = join("providers", NAMESPACE)
_USE = f'use ["{REQUIRES}"]'


@PROVIDER_CHECKS.rule("NV314")
def check_nv314(provider: Mapping[str, Any]) -> Iterator[Problem]:
    """Report the first reason why uv 0.13.8 does not use its own NVIDIA provider.

    In tests, uv required the exact ``plugin-api``, and a single requirement that admits
    version 0.0.1 and has no marker, extra or URL.
    """
    if provider.get("optional") is True:
        place = join(_PLACE, "optional")
        yield Problem(place, "an optional provider is off by default", "remove the key")
    elif provider.get("plugin-api") != PLUGIN_API:
        yield Problem(
            join(_PLACE, "plugin-api"),
            "uv recognizes its NVIDIA provider by one exact text only",
            f"use {PLUGIN_API}",
        )
    else:
        defect = _requirement_defect(provider.get("requires"))
        if defect is not None:
            yield Problem(join(_PLACE, "requires"), defect, _USE)


def _requirement_defect(requires: object) -> str | None:
    from packaging.utils import canonicalize_name

    if not isinstance(requires, list) or len(requires) != 1:
        return "uv requires exactly one requirement"
    requirement = parse_requirement(str(requires[0]))
    if requirement is None:
        return None  # NV210 reports a malformed requirement.
    unusual = requirement.marker or requirement.extras or requirement.url
    if canonicalize_name(requirement.name) != "nvidia-variant-provider" or unusual:
        return "uv requires nvidia-variant-provider without marker, extra or URL"
    if not requirement.specifier.contains("0.0.1", prereleases=True):
        return "uv counts its provider as version 0.0.1, which the requirement excludes"
    return None
