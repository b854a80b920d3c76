"""The ``variant.json`` that a build should carry, and how to put it in."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from ..machine.supported import LOWER_BOUND, NAMESPACE, SM_ARCH
from ..metadata.model import PLUGIN_API, REQUIRES, Provider, VariantsMetadata
from ..metadata.versions import WRITTEN
from .claims import TrueClaim

__all__ = ["Suggestion", "suggest"]

_LABELLED = re.compile(r".+-[^-]+-[^-]+-[^-]+-([a-z0-9_.]+)\.whl")
_PYPROJECT = f"""\
[variant.default-priorities]
namespace = ["{NAMESPACE}"]

[variant.providers.{NAMESPACE}]
requires = ["{REQUIRES}"]
plugin-api = "{PLUGIN_API}"
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Suggestion:
    """What to declare of a build.

    :param label: of the wheel, or made of the lower bound, as ``cu129``.
    :param metadata: for `metadata.writing`.
    :param pyproject: what ``variantlib make-variant`` reads of ``pyproject.toml``.
    :param command: ``variantlib make-variant``, as a shell takes it.
    """

    label: str
    metadata: VariantsMetadata
    pyproject: str
    command: str


def suggest(claim: TrueClaim, path: str, kind: str) -> Suggestion | None:
    """What to declare; ``None`` where there is no GPU code to speak of.

    :param path: the wheel, for the command; of a URL the last part, as it is saved.
    :param kind: of the report: only of a wheel the command can name the file.
    """
    # Code for one GPU is declared as plain where it is true of all GPUs so far:
    # without any value the build would go to GPUs that it does not run on.
    values = (*claim.sm_arch, *claim.exact)
    if claim.strict.version is None or not values:
        return None
    features: Mapping[str, tuple[str, ...]] = {
        LOWER_BOUND: (str(claim.strict.version),),
        SM_ARCH: tuple(sorted(values)),
    }
    if path.startswith(("http://", "https://")):
        path = unquote(urlsplit(path).path).rpartition("/")[2]
    is_wheel = kind == "wheel" and path.endswith(".whl")
    match = _LABELLED.fullmatch(re.split(r"[/\\]", path)[-1]) if is_wheel else None
    named = match[1] if match is not None and _is_label(match[0]) else None
    label = named or f"cu{claim.strict.version.major}{claim.strict.version.minor}"
    metadata = VariantsMetadata(
        schema=WRITTEN,
        namespaces=(NAMESPACE,),
        providers={NAMESPACE: Provider(requires=(REQUIRES,), plugin_api=PLUGIN_API)},
        variants={label: {NAMESPACE: features}},
    )
    words = ["variantlib", "make-variant", "-f", path if is_wheel else "WHEEL"]
    words += ["-o", ".", "--variant-label", label]
    for feature, found in features.items():
        for value in found:
            words += ["-p", f"{NAMESPACE} :: {feature} :: {value}"]
    return Suggestion(
        label=label, metadata=metadata, pyproject=_PYPROJECT, command=shlex.join(words)
    )


def _is_label(file_name: str) -> bool:
    """Does the last part of a wheel's name follow its platform?"""
    parts = file_name.split("-")
    build = parts[2][:1].isdigit()
    return len(parts) == 6 + build
