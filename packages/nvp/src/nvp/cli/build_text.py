"""Text about a build: its properties, and why it has no GPU support."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from nvidia_variant_provider.machine import reasons
from nvidia_variant_provider.machine.environment import is_failure
from nvidia_variant_provider.machine.supported import NAMESPACE

if TYPE_CHECKING:
    from nvidia_variant_provider.machine.environment import Environment
    from nvidia_variant_provider.resolution.resolver import Resolution

_WIDTH = 80

_MOST = 8
"""The maximum number of labels whose reasons are printed, and of reasons of each."""


def block(release: str, label: str, resolution: Resolution | None) -> list[str]:
    """Return the lines that show a label with its properties, in lexical order.

    :param release: such as ``torch==2.8.0``; may be empty.
    :param resolution: ``None`` if the properties are unknown.
    """
    start = f"{release}; " if release else ""
    known = resolution is not None and label in resolution.metadata.variants
    return [
        f" {start}variant_hash={label} ".center(_WIDTH, "#"),
        *(
            f"Variant-property: {item}"
            for item in (resolution.properties(label) if resolution and known else ())
        ),
        "#" * _WIDTH,
    ]


def uses_gpu(label: str | None, resolution: Resolution) -> bool:
    """Return whether a label has properties that only NVIDIA machines have."""
    return label is not None and NAMESPACE in resolution.metadata.variants.get(
        label, {}
    )


def rejected(resolution: Resolution | None) -> dict[str, list[dict[str, object]]]:
    """Return why each label does not fit, as ``{label: reasons}`` for a JSON report."""
    return {
        label: [reason.to_dict() for reason in reasons_of_label]
        for label, reasons_of_label in (
            resolution.rejected if resolution else {}
        ).items()
    }


def why_no_gpu(
    release: str, resolution: Resolution, *, label: str | None = "null"
) -> list[str]:
    """Explain why a machine with a GPU gets no GPU build, and which changes help.

    Return no lines if there is nothing to explain: the machine has no GPU, the release
    has no GPU build, or a GPU build fits but the installer selected another one for a
    different reason, such as a required hash.

    :param label: the selected label; ``None`` for the non-variant wheel, whose use of
        the GPU is unknown.
    """
    if any(uses_gpu(other, resolution) for other in resolution.compatible):
        return []
    environment = resolution.environment
    builds = [
        label
        for label in resolution.metadata.variants
        if uses_gpu(label, resolution) and label in resolution.rejected
    ]
    has_driver = environment.cuda_driver_version is not None
    if not builds or not (has_driver or is_failure(environment.reason)):
        return []
    facts = _facts(environment)
    title = f"{release} comes without GPU support on this machine{facts}"
    if label is None:
        title = f"no variant of {release} for a GPU fits this machine{facts}"
    return [title, *_reasons(builds, resolution)]


def why_nothing(release: str, resolution: Resolution) -> list[str]:
    """Explain why a machine gets no build at all, and which changes help."""
    title = f"{release} has no build for this machine{_facts(resolution.environment)}"
    return [title, *_reasons(list(resolution.rejected), resolution)]


def _reasons(labels: Sequence[str], resolution: Resolution) -> list[str]:
    lines = []
    for label in labels[:_MOST]:
        found = resolution.rejected[label]
        sentences = dict.fromkeys(item.sentence for item in found[:_MOST])
        lines += [f"  {label} does not fit: {sentence}" for sentence in sentences]
        if len(found) > _MOST:
            lines.append(f"  {label} has {len(found) - _MOST} more reasons")
    if len(labels) > _MOST:
        lines.append(f"  and {len(labels) - _MOST} more do not fit")
    return lines + [f"  {line}" for line in _what_helps(resolution)]


def _facts(environment: Environment) -> str:
    facts = []
    if environment.cuda_driver_version is not None:
        facts.append(f"driver for CUDA {environment.cuda_driver_version}")
    highest: Sequence[object] = environment.compute_capabilities[:1]
    facts += [f"compute capability {item}" for item in highest]
    return f" ({', '.join(facts)}):" if facts else ":"


def _what_helps(resolution: Resolution) -> list[str]:
    """Return the smallest changes that would get the machine a GPU build."""
    from ..knowledge.tables import driver_versions

    environment = resolution.environment
    if environment.source == "forced" and not environment.compute_capabilities:
        return ["next step: give the GPU as well (--sm-arch)"]
    if environment.reason:
        _, step = reasons.explain(environment.reason)
        return [f"next step: {step}"]
    driver = environment.cuda_driver_version
    if driver is None:
        return []
    changes = []
    relaxed = resolution.resolve_again(
        environment, minor_version_compatibility=True
    ).selected
    if uses_gpu(relaxed, resolution):
        changes.append(f"--minor-version-compatibility gets {relaxed}")
    for cuda in (c for c in driver_versions() if c > driver):
        newer = environment.replace(cuda_driver_version=cuda)
        label = resolution.resolve_again(newer).selected
        if uses_gpu(label, resolution):
            changes.append(f"a driver for CUDA {cuda} or newer gets {label}")
            break
    if changes:
        return [f"what would change it: {'; '.join(changes)}"]
    gpus = "each GPU" if resolution.options.get("every_gpu") else "this GPU"
    return [f"no newer driver changes that: no build has code for {gpus}"]
