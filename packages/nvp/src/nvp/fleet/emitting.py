"""Commands and manifests for one group of machines, to use what was chosen."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence

from nvidia_variant_provider.errors import InputError, printable, redacted, shown
from nvidia_variant_provider.machine.environment import CudaVersion, Environment
from nvidia_variant_provider.machine.overrides import CUDA_DRIVER_VERSION, SM_ARCH

__all__ = ["affinity_lines", "dockerfile_lines", "env_lines"]

_DRIVER_LABELS = ("nvidia.com/cuda.runtime-version", "nvidia.com/cuda.runtime")
"""The CUDA version of the driver, as GPU feature discovery calls it now and before."""

_GPU_LABEL = "nvidia.com/gpu.compute"


def env_lines(environment: Environment) -> list[str]:
    """Return the variables that force the machine, as ``NAME=VALUE``.

    Of several GPUs, the newest one counts, as for the provider's own answer.
    """
    lines = []
    if environment.cuda_driver_version is not None:
        lines.append(f"{CUDA_DRIVER_VERSION}={environment.cuda_driver_version}")
    capabilities = environment.compute_capabilities
    if capabilities:
        lines.append(f"{SM_ARCH}={max(capabilities)}")
    return lines


def dockerfile_lines(
    environment: Environment, requirement: str, index_url: str | None = None
) -> list[str]:
    """Return lines for an image that may be built without a GPU.

    :param requirement: what to install, such as ``torch==2.10.0``.
    :param index_url: where from, if that is no matter of configuration. Its password
        is left out, and a folder is not named, since a build cannot read it.
    :raises InputError: this is no requirement, such as one that the name of a release
        file was made into.
    """
    from packaging.requirements import InvalidRequirement, Requirement

    try:
        wanted = shlex.quote(str(Requirement(requirement)))
    except InvalidRequirement:
        message = f"{shown(requirement)} is not a name with a version"
        hint = "give the file its name again: NAME-VERSION-variants.json"
        raise InputError(message, hint=hint) from None
    lines = [
        "# Select for these machines, whatever machine builds the image.",
        *(f"ARG {line}" for line in env_lines(environment)),
    ]
    index = ""
    if index_url is not None and "://" in index_url:
        public = redacted(index_url)
        index = f" --index-url {shlex.quote(printable(public))}"
        if public != index_url:
            lines.append("# Put the password of the index into a secret of the build.")
    return [
        *lines,
        "RUN pip install --no-cache-dir nvp \\",
        f" && nvp pip install --no-cache-dir{index} {wanted}",
        "# With uv, whose preview knows variants but not ordinary wheels:",
        f"# RUN uv pip install --system --preview-features wheel-variants{index} "
        f"{wanted}",
    ]


def affinity_lines(environments: Iterable[Environment]) -> list[str]:
    """Return the YAML of an affinity for the nodes that are like these machines.

    The terms of a node selector are alternatives, and all expressions of a term have
    to match.

    :param environments: those of all machines that run the build.
    """
    minors: dict[tuple[CudaVersion, int], set[int]] = {}
    for environment in environments:
        cuda = environment.cuda_driver_version
        if cuda is None:
            continue
        for capability in environment.compute_capabilities:
            same = minors.setdefault((cuda, capability.major), set())
            same.add(capability.minor)
    lines = [
        "affinity:",
        "  nodeAffinity:",
        "    requiredDuringSchedulingIgnoredDuringExecution:",
        "      nodeSelectorTerms:",
    ]
    for cuda, major in sorted(minors):
        for driver in _DRIVER_LABELS:
            lines += _term(
                [
                    (f"{driver}.major", [cuda.major]),
                    (f"{driver}.minor", [cuda.minor]),
                    (f"{_GPU_LABEL}.major", [major]),
                    (f"{_GPU_LABEL}.minor", sorted(minors[cuda, major])),
                ]
            )
    return lines


def _term(expressions: Sequence[tuple[str, Sequence[int]]]) -> list[str]:
    lines = ["      - matchExpressions:"]
    for key, values in expressions:
        # Labels are texts: a bare number would be refused.
        listed = ", ".join(f'"{value}"' for value in values)
        lines += [
            f"        - key: {key}",
            "          operator: In",
            f"          values: [{listed}]",
        ]
    return lines
