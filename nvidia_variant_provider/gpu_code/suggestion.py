"""The ``variant.json`` that a build should carry, and the command that adds it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from ..machine.supported import LOWER_BOUND, NAMESPACE, SM_ARCH
from ..metadata.grammar import VALUE
from ..metadata.model import PLUGIN_API, REQUIRES, Provider, VariantsMetadata
from ..metadata.versions import WRITTEN
from .claims import TrueClaim

__all__ = ["Suggestion", "suggest"]

_LABELLED = re.compile(rf".+-[^-]+-[^-]+-[^-]+-({VALUE.pattern})\.whl")
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

    :param label: the label of the wheel, or one made from the lower bound (``cu129``).
    :param metadata: the contents of ``variant.json``.
    :param pyproject: the part of ``pyproject.toml`` that variantlib reads.
    :param command: ``variantlib make-variant`` with its arguments, quoted for a shell.
    """

    label: str
    metadata: VariantsMetadata
    pyproject: str
    command: str


def suggest(claim: TrueClaim, path: str, kind: str) -> Suggestion | None:
    """Suggest what to declare; ``None`` if properties can name none of the GPU code.

    :param path: the path or URL of the wheel, which the command names.
    :param kind: the kind of the report; the command names no file of another kind.
    """
    # The value `90_real` for code for 9.0 alone (`90a`) is true as long as no other GPU
    # gets it. Without any value, the build would go to GPUs that it does not run on.
    values = (*claim.sm_arch, *claim.exact)
    if claim.strict.version is None or not values:
        return None
    features: Mapping[str, tuple[str, ...]] = {
        LOWER_BOUND: (str(claim.strict.version),),
        SM_ARCH: tuple(sorted(values)),
    }
    if path.startswith(("http://", "https://")):  # the name of the downloaded file
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
    for feature, listed in features.items():
        for value in listed:
            words += ["-p", f"{NAMESPACE} :: {feature} :: {value}"]
    return Suggestion(
        label=label, metadata=metadata, pyproject=_PYPROJECT, command=shlex.join(words)
    )


def _is_label(file_name: str) -> bool:
    """Return whether the last part of a wheel's name is a label, not the platform."""
    parts = file_name.split("-")
    build = parts[2][:1].isdigit()
    return len(parts) == 6 + build
