"""NV1xx: the structure of a document."""

from __future__ import annotations

from nvidia_variant_provider.metadata.versions import READ_BY_CLIENTS, WRITTEN

from .model import ERROR, WARNING, Rule

__all__ = ["STRUCTURE_RULES"]

_BOTH_REFUSE = "uv fails the whole installation; variantlib raises an exception"
_BOTH_REFUSE_ALL = (
    "uv fails the whole installation, even of the non-variant wheel, and variantlib "
    "raises an exception."
)

STRUCTURE_RULES = (
    Rule(
        code="NV100",
        severity=ERROR,
        title="cannot be read",
        clients=_BOTH_REFUSE,
        what="The file, folder or page cannot be read: it is missing, it is not UTF-8 "
        "or not JSON, it is nested too deeply, or it is larger than 4 MiB.",
        effect=_BOTH_REFUSE_ALL,
        fix="write the file again with a JSON library, or upload it again.",
    ),
    Rule(
        code="NV101",
        severity=ERROR,
        title="byte order mark",
        clients=_BOTH_REFUSE,
        what="The file starts with a byte order mark, which some editors on Windows "
        "write. JSON does not allow one.",
        effect="uv fails the whole installation, and variantlib cannot parse the file.",
        fix="save the file as UTF-8 without a byte order mark. In Python, use "
        '`encoding="utf-8"` and not `"utf-8-sig"`.',
    ),
    Rule(
        code="NV102",
        severity=ERROR,
        title="key given twice",
        clients="uv uses the last of two labels and refuses other keys; variantlib "
        "uses the last",
        what="An object has the same key twice. JSON parsers differ in which of the "
        "two they keep.",
        effect="uv fails for a repeated key of the format and uses the last one of a "
        "repeated label. variantlib always uses the last one.",
        fix="keep one of the two.",
        example='{"variants": {"cu126": {...}, "cu126": {...}}}',
    ),
    Rule(
        code="NV103",
        severity=ERROR,
        title="NaN or Infinity",
        clients="uv fails the whole installation; variantlib accepts it",
        what="`NaN` or `Infinity` stands in place of a value. JSON has neither, and no "
        "key of the format takes a number.",
        effect="uv fails the whole installation. variantlib uses Python's lenient "
        "parser and goes on.",
        fix="remove the value, and write the file with `allow_nan=False`.",
    ),
    Rule(
        code="NV104",
        severity=ERROR,
        title="no $schema",
        clients="uv fails the whole installation; variantlib accepts it",
        what="The key `$schema` is missing, so that tools can only guess the version "
        "of the format.",
        effect="uv fails the whole installation, and variantlib accepts the file.",
        fix="add the URL of the current version.",
        example=f'"$schema": "{WRITTEN.url}"',
    ),
    Rule(
        code="NV105",
        severity=ERROR,
        title="unknown $schema",
        clients="both ignore the URL and read the file as version "
        f"{READ_BY_CLIENTS[-1]}",
        what="`$schema` is not a URL that ends in a version such as "
        f"`/v{WRITTEN}.json`, or it names a major version that is not known.",
        effect="uv 0.13.8 and variantlib 0.2.2 ignore the URL. PEP 825 requires tools "
        "to reject major versions that they do not know.",
        fix="use the URL of the current version.",
        example='"$schema": "https://variants-schema.wheelnext.dev/v0.2.json"   '
        "<- the patch number is missing",
    ),
    Rule(
        code="NV106",
        severity=ERROR,
        title="old schema version",
        clients="no released client selects from the structure of that version",
        what=f"The file says that it is of a version before {READ_BY_CLIENTS[0]}.",
        effect="uv and variantlib read the file as far as it has the structure of "
        f"{READ_BY_CLIENTS[0]}. Without `providers`, uv gives every machine the CPU "
        "build, and variantlib raises an exception.",
        fix="rewrite the file with `nvidia-variant-provider upgrade FILE`, which also "
        "reports what the new version cannot express.",
    ),
    Rule(
        code="NV107",
        severity=ERROR,
        title="key missing",
        clients="uv fails the whole installation or selects the null variant; "
        "variantlib raises an exception",
        what="A key that every document needs is missing, or no namespace is listed.",
        effect="uv fails the whole installation. If only `providers` is missing, uv "
        "gives every machine the CPU build. variantlib raises an exception.",
        fix="add the key. A document needs `$schema`, `default-priorities` with "
        "`namespace`, `providers` and `variants`.",
        example='"default-priorities": {"namespace": ["nvidia"]}',
    ),
    Rule(
        code="NV108",
        severity=ERROR,
        title="wrong type",
        clients=_BOTH_REFUSE,
        what="A value does not have the JSON type that the format requires.",
        effect=_BOTH_REFUSE_ALL,
        fix="correct the type. Values of features are lists of strings, even where "
        "there is only one.",
        example='"cuda_version_lower_bound": "12.6"   <- ["12.6"]',
    ),
    Rule(
        code="NV109",
        severity=ERROR,
        title="unknown key",
        clients="uv fails the whole installation; variantlib accepts it at the top "
        "level",
        what="The version of the format does not have this key. It is often a key of "
        "an older version, such as `enable-if` or `feature` priorities.",
        effect="uv fails the whole installation. variantlib accepts unknown keys at "
        "the top level only.",
        fix="remove the key. For files of older versions, `upgrade` does so.",
        example='"comment": "built on Monday"',
    ),
    Rule(
        code="NV110",
        severity=ERROR,
        title="provider without exactly one source",
        clients="uv fails the whole installation or selects the null variant; "
        "variantlib raises an exception",
        what="A provider needs exactly one of `requires`, `static-properties` and "
        "`builtin`, and it must not be empty.",
        effect="uv fails the whole installation for several sources or for none, and "
        "ignores a provider whose only source is empty. variantlib raises an "
        "exception.",
        fix="keep the key that says where the supported values come from.",
        example='"x86_64": {"requires": ["provider-variant-x86-64"], '
        '"static-properties": {}}',
    ),
    Rule(
        code="NV111",
        severity=ERROR,
        title="namespaces and providers differ",
        clients=_BOTH_REFUSE,
        what="`default-priorities.namespace` and `providers` do not name the same "
        "namespaces.",
        effect=_BOTH_REFUSE_ALL,
        fix="list each namespace in both places, or in neither.",
        example='"default-priorities": {"namespace": ["nvidia", "x86_64"]}, '
        '"providers": {"nvidia": {...}}',
    ),
    Rule(
        code="NV112",
        severity=ERROR,
        title="undeclared namespace",
        clients=_BOTH_REFUSE,
        what="A label uses a namespace that `default-priorities.namespace` does not "
        "list.",
        effect=_BOTH_REFUSE_ALL,
        fix="list the namespace, and add its provider.",
        example='"variants": {"cpu_v3": {"x86_64": {"level": ["v3"]}}}   '
        "<- x86_64 is not listed",
    ),
    Rule(
        code="NV113",
        severity=ERROR,
        title="rules for null broken",
        clients="variantlib raises an exception; uv refuses only a null with "
        "properties",
        what="The label `null` has properties, another label has none, or a namespace "
        "of a label is empty.",
        effect="Both refuse a `null` with properties. uv accepts the other two, and "
        "variantlib raises an exception.",
        fix="use the name `null` for the variant without properties, and for no other.",
        example='"variants": {"cpu": {}}   <- "null": {}',
    ),
    Rule(
        code="NV114",
        severity=WARNING,
        title="no fallback",
        clients="both install nothing on machines that no label fits",
        what="There is neither a null variant nor a non-variant wheel next to the "
        "labelled wheels. Only a folder or a page can show that there is such a wheel.",
        effect="On a machine that no label fits, the installer finds nothing, or an "
        "older release.",
        fix="publish a null variant or a non-variant wheel, for machines without a GPU "
        "and for installers that do not know variants.",
        example='"variants": {"null": {}, "cu126": {...}}',
    ),
    Rule(
        code="NV115",
        severity=WARNING,
        title="same properties twice",
        clients="both select the first of the two labels by name",
        what="Two labels have the same properties. The order of the values does not "
        "matter.",
        effect="Both select the first label by name, so that no machine ever gets the "
        "other one.",
        fix="remove one of the labels, or give it the properties that make it "
        "different.",
    ),
    Rule(
        code="NV116",
        severity=ERROR,
        title="feature-order incomplete",
        clients=_BOTH_REFUSE,
        what="`feature-order` does not list each feature of `static-properties` "
        "exactly once. With a single feature the key may be left out.",
        effect=_BOTH_REFUSE_ALL,
        fix="list all features, the most important one first.",
        example='"static-properties": {"level": ["v3"], "vendor": ["amd"]}, '
        '"feature-order": ["level", "vendor"]',
    ),
    Rule(
        code="NV117",
        severity=ERROR,
        title="key for another kind of provider",
        clients=_BOTH_REFUSE,
        what="`plugin-api` stands without `requires`, or `feature-order` stands "
        "without `static-properties`.",
        effect=_BOTH_REFUSE_ALL,
        fix="remove the key that belongs to another kind of provider.",
        example='"x86_64": {"builtin": "x86_64", "plugin-api": "x:Y"}',
    ),
    Rule(
        code="NV118",
        severity=ERROR,
        title="label that static properties rule out",
        clients="both give every machine another build",
        what="The answer of a provider is in the metadata itself, and it has none of "
        "the values that a label needs. In version 0.0.3 such an answer is easily "
        "forgotten: with `install-time` of `false` no provider is asked, and the "
        "answer is in `static-properties` at the top level. In version 0.0.2, with "
        "`plugin-use` of `none`, it is in `default-priorities.property`.",
        effect="The label fits no machine, and all of them get another build without "
        "any message.",
        fix="add the values to the static properties, the best first.",
        example='"priority": {"install-time": false}   '
        '<- "static-properties": {"priority": {"order": ["1", "2"]}}',
    ),
)
