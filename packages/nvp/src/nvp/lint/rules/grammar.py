"""NV2xx: the grammar of labels, names, values, references and requirements."""

from __future__ import annotations

from .model import ERROR, NOTE, Rule

__all__ = ["GRAMMAR_RULES"]

_BOTH_REFUSE = "uv fails the whole installation; variantlib raises an exception"
_BOTH_REFUSE_ALL = (
    "uv fails the whole installation, even of the non-variant wheel, and variantlib "
    "raises an exception."
)

GRAMMAR_RULES = (
    Rule(
        code="NV201",
        severity=ERROR,
        title="malformed label",
        clients=_BOTH_REFUSE,
        what="A label has characters other than `a-z`, `0-9`, `_` and `.`. A label is "
        "the last part of a wheel's file name, where a dash would start another part.",
        effect=_BOTH_REFUSE_ALL,
        fix="rename the label and its wheels.",
        example='"variants": {"cu-126": {...}}   <- cu126',
    ),
    Rule(
        code="NV202",
        severity=ERROR,
        title="label too long",
        clients="neither checks it; clients of that version refuse the label",
        what="Before version 0.1.1 the format limited labels: to 8 characters in files "
        "without a version, and to 16 characters in 0.0.x.",
        effect="uv 0.13.8 and variantlib 0.2.2 have no limit. The clients of that "
        "version refuse the label.",
        fix="upgrade the file, or shorten the label.",
    ),
    Rule(
        code="NV203",
        severity=ERROR,
        title="malformed namespace",
        clients=_BOTH_REFUSE,
        what="A namespace has characters other than `a-z`, `0-9` and `_`.",
        effect=_BOTH_REFUSE_ALL,
        fix="write `_` for other characters.",
        example='"x86-64"   <- "x86_64"',
    ),
    Rule(
        code="NV204",
        severity=ERROR,
        title="malformed feature",
        clients=_BOTH_REFUSE,
        what="The name of a feature has characters other than `a-z`, `0-9` and `_`. "
        "Only values and labels may have dots.",
        effect=_BOTH_REFUSE_ALL,
        fix="write `_` for other characters.",
        example='"cuda.version"   <- "cuda_version_lower_bound"',
    ),
    Rule(
        code="NV205",
        severity=ERROR,
        title="malformed value",
        clients=_BOTH_REFUSE,
        what="A value has characters other than `a-z`, `0-9`, `_` and `.`.",
        effect=_BOTH_REFUSE_ALL,
        fix="write the value as the provider does. "
        "`nvidia-variant-provider properties --all` lists its values.",
        example='"sm_arch": ["90-real"]   <- "90_real"',
    ),
    Rule(
        code="NV206",
        severity=NOTE,
        title="values not sorted",
        clients="neither checks it",
        what="The values of a feature are not in lexical order, which is the order "
        "that PEP 825 wants them written in.",
        effect="Neither client checks the order. The same properties then have two "
        "spellings, and tools that compare files report a change.",
        fix="sort the values as text.",
        example='["75_real", "100_real"]   <- ["100_real", "75_real"]',
    ),
    Rule(
        code="NV207",
        severity=ERROR,
        title="value given twice",
        clients="uv fails the whole installation; variantlib raises an exception, "
        "except for namespaces",
        what="A list contains the same value, namespace or feature twice.",
        effect="Both refuse a value that is given twice. uv also refuses a namespace "
        "that is given twice, and variantlib accepts that.",
        fix="keep one of the two.",
    ),
    Rule(
        code="NV208",
        severity=ERROR,
        title="no value",
        clients="uv fails the whole installation; variantlib raises an exception or "
        "drops the feature",
        what="A feature has an empty list of values, which no machine can support.",
        effect="uv fails the whole installation for an empty feature of a label. "
        "variantlib drops the feature if the label has another one, so that machines "
        "get a build that was not made for them; otherwise it raises an exception.",
        fix="add a value, or drop the feature.",
        example='"nvidia": {"cuda_version_lower_bound": ["12.6"], "sm_arch": []}',
    ),
    Rule(
        code="NV209",
        severity=ERROR,
        title="malformed plugin-api",
        clients="uv ignores the provider; variantlib raises an exception",
        what="`plugin-api` is not of the form `module` or `module:object`.",
        effect="variantlib raises an exception. uv ignores the provider, and every "
        "label that uses its namespace.",
        fix="correct the reference.",
        example='"plugin-api": "nvidia-variant-provider.plugin"   '
        "<- a module name has no dash",
    ),
    Rule(
        code="NV210",
        severity=ERROR,
        title="malformed requirement",
        clients="uv ignores the provider; variantlib raises an exception when it needs "
        "the name",
        what="An entry of `requires` is not a requirement as PEP 508 defines it.",
        effect="uv ignores the provider, and every label that uses its namespace. "
        "variantlib raises an exception when it has to install the plugin.",
        fix="correct the requirement.",
        example='"requires": ["nvidia-variant-provider >> 0.0.1"]',
    ),
    Rule(
        code="NV211",
        severity=ERROR,
        title="malformed marker",
        clients="no released client reads the markers of old versions",
        what="`enable-if`, a key of old versions, is not an environment marker.",
        effect="uv and variantlib refuse `enable-if` altogether. The clients of that "
        "version refuse the marker.",
        fix="upgrade the file, since the current version has no markers; or correct "
        "the marker.",
        example='"enable-if": "platform_system = \'Linux\'"   <- ==',
    ),
)
