"""Why a label does not fit a machine, in sentences for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..light import Frozen
from ..machine import reasons
from ..machine.environment import (
    MINOR_VERSION_COMPATIBILITY,
    ComputeCapability,
    Environment,
)
from ..machine.environment import SM_ARCH as FORCED_SM_ARCH
from ..machine.supported import (
    LOWER_BOUND,
    NAMESPACE,
    OLDEST,
    SM_ARCH,
    UPPER_BOUND,
    all_features,
)
from .inputs import Answer
from .ordering import Mismatch

_BOUNDS = frozenset(all_features()[0].values)

_THOR = {"11.0": "101", "10.1": "110"}
"""Thor is 10.1 under CUDA 12, and 11.0 under CUDA 13 and newer. Each key is what one
driver calls it, each value the target of builds for drivers of the other kind."""

_THOR_NAMES = (
    "this GPU is Thor, which is 10.1 under CUDA 12 and 11.0 under CUDA 13 and newer: "
    "look for a build for the CUDA of this driver"
)


class Reason(Frozen):
    """One reason why a label does not fit.

    :param wanted: the values that the label lists; one supported value is enough.
    :param offered: the values of the feature that the machine supports, best first.
    :param cause: a clause that says why, in terms of this machine.
    :param outlook: what minor-version compatibility would change, or an empty string.
    """

    namespace: str
    feature: str
    wanted: tuple[str, ...]
    offered: tuple[str, ...]
    cause: str
    outlook: str = ""

    @property
    def sentence(self) -> str:
        """Cause and outlook, as one sentence without a full stop."""
        return self.cause + self.outlook

    def to_dict(self) -> dict[str, object]:
        """Return the fields as JSON, with cause and outlook joined in ``sentence``."""
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
    """Say in terms of this machine why a mismatch rules a label out.

    :param relaxed: the mismatches that the label would still have under minor-version
        compatibility, or ``None`` if that is in force already.
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
        return f"it needs {name} {wanted}, but this machine supports no value of that"
    offered = _listed(mismatch.offered)
    return f"it needs {name} {wanted}, but this machine supports {offered}"


def _nvidia(mismatch: Mismatch, environment: Environment) -> str:
    driver = environment.cuda_driver_version
    if driver is None:
        sentence, _ = reasons.explain(environment.reason or reasons.NO_DEVICE)
        return f"it needs an NVIDIA driver: {sentence}"
    if driver < OLDEST:
        return f"it needs a newer driver: this driver is for CUDA {driver}"
    wanted = _listed(mismatch.wanted)
    if mismatch.feature in (LOWER_BOUND, UPPER_BOUND) and _is_unknown(mismatch):
        return f"its bound is CUDA {wanted}, which no driver supports"
    if mismatch.feature == LOWER_BOUND:
        return (
            f"it needs a driver for CUDA {wanted} or newer, "
            f"but this driver is for CUDA {driver}"
        )
    if mismatch.feature == UPPER_BOUND:
        return (
            f"it needs a driver that is older than CUDA {wanted}, "
            f"but this driver is for CUDA {driver}"
        )
    if mismatch.feature == SM_ARCH:
        return _sm_arch(mismatch, environment)
    return _general(mismatch)


def _is_unknown(mismatch: Mismatch) -> bool:
    return all(value not in _BOUNDS for value in mismatch.wanted)


def _outlook(environment: Environment, relaxed: Sequence[Mismatch]) -> str:
    """Say whether minor-version compatibility would help with a strict lower bound."""
    if not relaxed:
        return (
            "; its machine code would run under CUDA's minor-version compatibility "
            f"(set {MINOR_VERSION_COMPATIBILITY}=1)"
        )
    features = {item.feature for item in relaxed if item.namespace == NAMESPACE}
    has_ptx_only = SM_ARCH in features and environment.compute_capabilities
    if LOWER_BOUND in features or not has_ptx_only:
        return ""
    return (
        "; minor-version compatibility would not help: it covers only machine code, "
        f"and this build has none for {environment.compute_capabilities[0]}"
    )


def _sm_arch(mismatch: Mismatch, environment: Environment) -> str:
    wanted, capabilities = mismatch.wanted, environment.compute_capabilities
    if not wanted:
        return "it does not say which GPUs it has kernels for"
    if not capabilities:
        why = reasons.explain(environment.reason or reasons.NO_GPU)[0]
        if environment.source == "forced":
            why = f"the driver is forced, but no GPU is (set {FORCED_SM_ARCH})"
        return f"it has kernels for {_listed(wanted)}, but no GPU is known: {why}"
    # The provider's answer describes the highest GPU. Under --every-gpu there is a
    # mismatch for each GPU, and the best value that is offered tells which one.
    gpu = next(
        (c for c in capabilities if f"{c.sm}_real" in mismatch.offered[:1]),
        capabilities[0],
    )
    sentence = f"it has no kernels for compute capability {gpu}, only {_listed(wanted)}"
    other = _THOR.get(str(gpu))
    if other is not None and f"{other}_real" in wanted:
        return f"{sentence}; {_THOR_NAMES}"
    ptx = [value for value in wanted if _is_older_ptx(value, gpu)]
    if ptx:
        sentence += (
            f"; the driver could compile its PTX ({', '.join(ptx)}), but the only PTX "
            f"that variant properties match is that for {gpu.major}.0"
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
