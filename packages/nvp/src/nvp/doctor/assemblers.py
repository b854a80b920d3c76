"""The ptxas that Triton makes machine code with, as Triton itself chooses it.

Triton 3.9 brings two: ``ptxas``, and ``ptxas-blackwell`` of a newer CUDA. Which one is
for which GPU stands in its function ``get_ptxas`` and changes from release to release:
3.6 and 3.7 take the newer one from compute capability 10.0 on, 3.9 from 9.0 on. So the
function is read, and not run.

A variable for each, ``TRITON_PTXAS_PATH`` and ``TRITON_PTXAS_BLACKWELL_PATH``, names
another program. Triton falls back to its own where that one does not exist or fails.
"""

from __future__ import annotations

import ast
import operator
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from nvidia_variant_provider.machine.environment import ComputeCapability

from .distributions import Distribution
from .installation import read_head
from .programs import Program, find_program

_COMPILER = "triton/backends/nvidia/compiler.py"
_FOLDERS = ("triton/backends/nvidia/bin", "triton/third_party/cuda/bin")
"""Where the programs are, in releases since 3.0 and in those before."""

_PLAIN, _NEWER = "ptxas", "ptxas-blackwell"
_FIRST_NEWER = 100
_FUNCTION = re.compile(r"^def get_ptxas\(.*\n(?:[ \t)].*\n|\n)*", re.MULTILINE)
_LONGEST_FUNCTION = 16 * 1024
"""The most characters of it; the parser takes a hundred times as much memory."""

_COMPARISONS: Mapping[type[ast.cmpop], Callable[[int, int], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
}
_SUFFIX = ".exe" if sys.platform == "win32" else ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Assembler:
    """One of the programs that Triton uses.

    :param tool: its name, such as ``ptxas-blackwell``.
    :param variable: the environment variable that names another one.
    :param bundled: the one in Triton's distribution.
    :param other: the one that the variable names, or that torch brings.
    :param gpus: the GPUs of the machine that Triton uses it for.
    """

    tool: str
    variable: str
    bundled: Program
    other: Program | None
    gpus: tuple[ComputeCapability, ...]

    @property
    def used(self) -> Program:
        """The program that Triton runs."""
        # Triton: "we still add default as fallback in case the pointed binary isn't
        # accessible". It does so as well where it finds no version in what the program
        # prints, and it fails where the system refuses to run the program.
        if self.other is None or self.other.failure in ("missing", "garbled"):
            return self.bundled
        return self.other

    @property
    def programs(self) -> tuple[Program, ...]:
        """The one that the variable names or torch brings, and the bundled one."""
        return (self.bundled,) if self.other is None else (self.other, self.bundled)

    def to_dicts(self) -> Iterator[dict[str, object]]:
        """Yield each program as it stands in the JSON report."""
        for program in self.programs:
            is_used = program is self.used
            yield {
                "tool": self.tool,
                **program.to_dict(),
                "gpus": [str(gpu) for gpu in self.gpus] if is_used else [],
            }


def find_assemblers(
    triton: Distribution,
    torch: Distribution | None,
    environ: Mapping[str, str],
    capabilities: Iterable[ComputeCapability],
) -> Iterator[Assembler]:
    """Yield the programs that Triton may run, and for which GPUs it does.

    Nothing has asked the programs for their versions yet.

    :param environ: the environment variables that programs of the stack see.
    :param capabilities: the GPUs of the machine.
    """
    folder = next(
        (item for item in _FOLDERS if os.path.isdir(triton.locate(item))), _FOLDERS[0]
    )
    function = _read_function(triton.locate(_COMPILER))
    has_newer = os.path.exists(triton.locate(f"{folder}/{_NEWER}{_SUFFIX}"))
    gpus: dict[str, list[ComputeCapability]] = {_PLAIN: []}
    if has_newer:
        gpus[_NEWER] = []
    for capability in dict.fromkeys(capabilities):
        number = int(capability.sm)
        tool = None if function is None else _tool_in(function.body, number)
        if tool is None:
            tool = _NEWER if has_newer and number >= _FIRST_NEWER else _PLAIN
        gpus.setdefault(tool, []).append(capability)
    for tool, used_for in gpus.items():
        variable = f"TRITON_{tool.upper().replace('-', '_')}_PATH"
        path = triton.locate(f"{folder}/{tool}{_SUFFIX}")
        yield Assembler(
            tool=tool,
            variable=variable,
            bundled=Program(path=path, named_by=triton.name),
            other=_find_other(tool, variable, torch, environ),
            gpus=tuple(used_for),
        )


def _find_other(
    tool: str, variable: str, torch: Distribution | None, environ: Mapping[str, str]
) -> Program | None:
    path = environ.get(variable)
    if path:
        if not os.path.dirname(path):
            # Triton starts it as a shell would.
            path = find_program(path, environ) or path
        return Program(path=path, named_by=variable)
    if tool != _PLAIN or torch is None:
        return None
    # torch.compile sets TRITON_PTXAS_PATH to a ptxas in torch, which some builds have.
    path = torch.locate(f"torch/bin/{tool}")
    if not os.access(path, os.X_OK):
        return None
    return Program(path=path, named_by="torch")


def _read_function(path: str) -> ast.FunctionDef | None:
    """Read the function of Triton that chooses; ``None`` where there is none."""
    match = _FUNCTION.search(read_head(path))
    if match is None or len(match[0]) > _LONGEST_FUNCTION:
        return None
    try:
        (node,) = ast.parse(match[0]).body
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return None
    return node if isinstance(node, ast.FunctionDef) and node.args.args else None


def _tool_in(body: Iterable[ast.stmt], number: int) -> str | None:
    """Return the tool that the function returns for a GPU.

    :param number: the compute capability as Triton writes it, such as 90.
    :returns: ``None`` where the function does something that is not known here.
    """
    for statement in body:
        if isinstance(statement, ast.Return) and statement.value is not None:
            return _tool(statement.value, number)
        if isinstance(statement, ast.If):
            holds = _holds(statement.test, number)
            if holds is None:
                return None
            tool = _tool_in(statement.body if holds else statement.orelse, number)
            if tool is not None:
                return tool
        elif not isinstance(statement, ast.Expr):
            return None
    return None


def _tool(value: ast.expr, number: int) -> str | None:
    """Return ``ptxas-blackwell`` for ``knobs.nvidia.ptxas_blackwell``."""
    if isinstance(value, ast.IfExp):
        holds = _holds(value.test, number)
        if holds is None:
            return None
        return _tool(value.body if holds else value.orelse, number)
    if isinstance(value, ast.Attribute) and value.attr.startswith(_PLAIN):
        return value.attr.replace("_", "-")
    return None


def _holds(test: ast.expr, number: int) -> bool | None:
    """Return whether a comparison such as ``arch >= 100`` holds."""
    if not (isinstance(test, ast.Compare) and isinstance(test.left, ast.Name)):
        return None
    if len(test.ops) != 1 or not isinstance(test.comparators[0], ast.Constant):
        return None
    limit = test.comparators[0].value
    if not isinstance(limit, int):
        return None
    compare = _COMPARISONS.get(type(test.ops[0]))
    return None if compare is None else compare(number, limit)
