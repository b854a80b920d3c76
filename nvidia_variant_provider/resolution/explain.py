"""Sentences for people: why a label lost on this machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..machine import reasons
from ..machine.environment import ComputeCapability, Environment
from ..machine.overrides import MINOR_VERSION_COMPATIBILITY
from ..machine.overrides import SM_ARCH as FORCED_SM_ARCH
from ..machine.supported import (
    LOWER_BOUND,
    NAMESPACE,
    OLDEST,
    SM_ARCH,
    UPPER_BOUND,
    all_features,
)
from .ordering import Mismatch
from .providers import Answer

__all__ = ["Reason", "explain"]

_BOUNDS = frozenset(all_features()[0].values)

_THOR = {"11.0": "101", "10.1": "110"}
"""Thor is 10.1 to CUDA 12 and 11.0 from CUDA 13 on; same device, two numbers."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reason:
    """One cause for which a label does not fit.

    :param wanted: the values of the label; one of them would do.
    :param offered: the supported values of that feature, best first.
    :param cause: why, in the words of the machine at hand.
    :param outlook: what minor-version compatibility would make of it; may be empty.
    """

    namespace: str
    feature: str
    wanted: tuple[str, ...]
    offered: tuple[str, ...]
    cause: str
    outlook: str = ""

    @property
    def sentence(self) -> str:
        """Cause and outlook."""
        return self.cause + self.outlook

    def to_dict(self) -> dict[str, object]:
        """The fields as JSON; ``sentence`` for cause and outlook."""
        return {
            "namespace": self.namespace,
            "feature": self.feature,
            "wanted": list(self.wanted),
            "offered": list(self.offered),
            "sentence": self.sentence,
        }


def explain(
    mismatch: Mismatch,
    environment: Environment,
    answers: Mapping[str, Answer],
    *,
    relaxed: Sequence[Mismatch] | None = None,
) -> Reason:
    """The mismatch as a `Reason`, in the words of the machine at hand.

    :param relaxed: what would be left of the label's mismatches under
        minor-version compatibility; ``None`` when that is in force already.
    """
    answer = answers.get(mismatch.namespace, Answer())
    outlook = ""
    if answer.why_not:
        cause = f"{mismatch.namespace} is not supported: {answer.why_not}"
    elif mismatch.namespace == NAMESPACE and answer.own:
        cause = _nvidia(mismatch, environment)
        if mismatch.feature == LOWER_BOUND and relaxed is not None:
            outlook = _outlook(environment, relaxed)
    else:
        cause = _general(mismatch)
    return Reason(
        namespace=mismatch.namespace,
        feature=mismatch.feature,
        wanted=mismatch.wanted,
        offered=mismatch.offered,
        cause=cause,
        outlook=outlook,
    )


def _general(mismatch: Mismatch) -> str:
    name = f"{mismatch.namespace} :: {mismatch.feature}"
    wanted = _listed(mismatch.wanted)
    if not mismatch.offered:
        return f"it needs {name} {wanted}, and this machine supports no value of it"
    offered = _listed(mismatch.offered)
    return f"it needs {name} {wanted}, and this machine supports {offered}"


def _nvidia(mismatch: Mismatch, environment: Environment) -> str:
    driver = environment.cuda_driver_version
    if driver is None:
        sentence, _ = reasons.explain(environment.reason or reasons.NO_DEVICE)
        return f"it needs an NVIDIA driver: {sentence}"
    if driver < OLDEST:
        return f"it needs a newer driver: this one is for CUDA {driver}"
    wanted = _listed(mismatch.wanted)
    if mismatch.feature in (LOWER_BOUND, UPPER_BOUND) and _is_unknown(mismatch):
        return f"it has the bound {wanted}, which no driver supports"
    if mismatch.feature == LOWER_BOUND:
        return f"it needs a driver for CUDA {wanted} or newer, this one is for {driver}"
    if mismatch.feature == UPPER_BOUND:
        return f"it is for drivers older than CUDA {wanted}, this one is for {driver}"
    if mismatch.feature == SM_ARCH:
        return _sm_arch(mismatch, environment)
    return _general(mismatch)


def _is_unknown(mismatch: Mismatch) -> bool:
    return all(value not in _BOUNDS for value in mismatch.wanted)


def _outlook(environment: Environment, relaxed: Sequence[Mismatch]) -> str:
    """What minor-version compatibility would make of a strict lower bound."""
    if not relaxed:
        return (
            "; its machine code would run under CUDA's minor-version compatibility "
            f"({MINOR_VERSION_COMPATIBILITY}=1)"
        )
    features = {item.feature for item in relaxed if item.namespace == NAMESPACE}
    has_ptx_only = SM_ARCH in features and environment.compute_capabilities
    if LOWER_BOUND in features or not has_ptx_only:
        return ""
    return (
        "; minor-version compatibility would not help: it covers machine code, and "
        f"the build has none for {environment.compute_capabilities[0]}"
    )


def _sm_arch(mismatch: Mismatch, environment: Environment) -> str:
    wanted, capabilities = mismatch.wanted, environment.compute_capabilities
    if not wanted:
        return "it does not say for which GPUs it has code"
    if not capabilities:
        why = reasons.explain(environment.reason or reasons.NO_GPU)[0]
        if environment.source == "forced":
            why = f"none is forced ({FORCED_SM_ARCH})"
        return f"it has kernels for {_listed(wanted)}, and no GPU is known: {why}"
    # The answer describes the highest GPU, unless every GPU has to be covered.
    gpu = next(
        (c for c in capabilities if f"{c.sm}_real" in mismatch.offered[:1]),
        capabilities[0],
    )
    sentence = f"it has no kernels for compute capability {gpu}, only {_listed(wanted)}"
    other = _THOR.get(str(gpu))
    if other is not None and f"{other}_real" in wanted:
        return f"{sentence}; Thor is {other} to other CUDA majors, see its builds"
    ptx = [value for value in wanted if _is_older_ptx(value, gpu)]
    if ptx:
        sentence += (
            f"; the driver could compile its PTX ({', '.join(ptx)}), but variant "
            f"properties match that of {gpu.major}.0 only"
        )
    return sentence


def _is_older_ptx(value: str, capability: ComputeCapability) -> bool:
    number, _, kind = value.partition("_")
    if kind != "virtual" or not number.isdigit() or capability.minor > 9:
        return False
    return int(number) <= int(capability.sm)


def _listed(values: tuple[str, ...], limit: int = 8) -> str:
    texts = [
        value if len(value) <= 40 else f"{value[:37]}..." for value in values[:limit]
    ]
    more = f" and {len(values) - limit} more" if len(values) > limit else ""
    return ", ".join(texts) + more
