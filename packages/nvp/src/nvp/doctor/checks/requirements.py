"""ND304 and ND403: what is installed is not what METADATA requires."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ..model import Finding, check
from ..stack import Stack

_TRITON = frozenset({"triton", "triton-windows", "pytorch-triton"})


@check("ND304", "error")
def find_wrong_libraries(stack: Stack) -> Iterator[Finding]:
    """An NVIDIA distribution is not of the version that METADATA requires."""
    yield from _find_unmet(stack, "ND304", _is_cuda)


@check("ND403", "error")
def find_wrong_triton(stack: Stack) -> Iterator[Finding]:
    """Triton is not of the version that torch requires."""
    yield from _find_unmet(stack, "ND403", _TRITON.__contains__)


def _is_cuda(name: str) -> bool:
    return name.startswith(("nvidia-", "cuda-"))


def _find_unmet(
    stack: Stack, code: str, counts: Callable[[str], bool]
) -> Iterator[Finding]:
    for need in stack.requirements:
        if not counts(need.name):
            continue
        installed = stack.distributions.get(need.name)
        if installed is not None and need.allows(installed.version):
            continue
        state = "not installed" if installed is None else installed.version
        yield Finding.of(
            code=code,
            distribution=need.name,
            path=need.user.folder if installed is None else installed.folder,
            message=f"{need.user.title} requires {need.text}, and "
            f"{need.name} is {state}",
            hint=stack.pip("install", need.text),
        )
