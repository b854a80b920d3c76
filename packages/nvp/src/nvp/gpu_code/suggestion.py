"""The ``variant.json`` that a build should carry, and the command that adds it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from nvidia_variant_provider.machine.supported import LOWER_BOUND, NAMESPACE, SM_ARCH
from nvidia_variant_provider.metadata.fields import VALUE
from nvidia_variant_provider.metadata.model import (
    PLUGIN_API,
    REQUIRES,
    Provider,
    VariantsMetadata,
)
from nvidia_variant_provider.metadata.versions import WRITTEN

from ..metadata.writing import to_dict
from .claims import TrueClaim

__all__ = ["Suggestion", "suggest"]

_LABELLED = re.compile(rf".+-[^-]+-[^-]+-[^-]+-({VALUE.pattern})\.whl")
_INSTALL = "pip install 'variantlib[cli]'"
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
        It runs in the environment of this package, where variantlib asks the provider
        whether the properties exist: in an isolated one, it would install the provider
        from an index.
    :param install: the command that installs what ``command`` needs.
    """

    label: str
    metadata: VariantsMetadata
    pyproject: str
    command: str
    install: str = _INSTALL

    def to_dict(self) -> dict[str, object]:
        """Return the fields, with the metadata as ``variant_json``."""
        return {
            "label": self.label,
            "variant_json": to_dict(self.metadata),
            "pyproject": self.pyproject,
            "command": self.command,
            "install": self.install,
        }


def suggest(
    claim: TrueClaim, path: str, kind: str, *, relaxed: bool = False
) -> Suggestion | None:
    """Suggest what to declare; ``None`` if properties can name none of the GPU code.

    :param path: the path or URL of the wheel, which the command names.
    :param kind: the kind of the report; the command names no file of another kind.
    :param relaxed: take the bound of minor-version compatibility, if there is one.
    """
    # The value `90_real` for code for 9.0 alone (`90a`) is true as long as no other GPU
    # gets it. Without any value, the build would go to GPUs that it does not run on.
    values = claim.relaxed_sm_arch if relaxed else (*claim.sm_arch, *claim.exact)
    bound = claim.relaxed.version if relaxed else claim.strict.version
    if bound is None or not values:
        return None
    features: Mapping[str, tuple[str, ...]] = {
        LOWER_BOUND: (str(bound),),
        SM_ARCH: tuple(sorted(values)),
    }
    if path.startswith(("http://", "https://")):  # the name of the downloaded file
        path = unquote(urlsplit(path).path).rpartition("/")[2]
    is_wheel = kind == "wheel" and path.endswith(".whl")
    match = _LABELLED.fullmatch(re.split(r"[/\\]", path)[-1]) if is_wheel else None
    named = match[1] if match is not None and _is_label(match[0]) else None
    label = named or f"cu{bound.major}{bound.minor}"
    metadata = VariantsMetadata(
        schema=WRITTEN,
        namespaces=(NAMESPACE,),
        providers={NAMESPACE: Provider(requires=(REQUIRES,), plugin_api=PLUGIN_API)},
        variants={label: {NAMESPACE: features}},
    )
    file = path if is_wheel else "WHEEL"
    # An option would begin with the same character.
    file = f"./{file}" if file.startswith("-") else file
    # variantlib writes to a file with the name of this one, which it reads meanwhile.
    folder = "relabelled" if named else "."
    words = ["variantlib", "make-variant", "--no-isolation", "-f", file, "-o", folder]
    words += ["--variant-label", label]
    for feature, listed in features.items():
        for value in listed:
            words += ["-p", f"{NAMESPACE} :: {feature} :: {value}"]
    command = shlex.join(words)
    return Suggestion(
        label=label,
        metadata=metadata,
        pyproject=_PYPROJECT,
        command=f"mkdir -p {folder} && {command}" if named else command,
    )


def _is_label(file_name: str) -> bool:
    """Return whether the last part of a wheel's name is a label, not the platform."""
    parts = file_name.split("-")
    build = parts[2][:1].isdigit()
    return len(parts) == 6 + build
