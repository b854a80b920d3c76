"""Find the ptxas that Triton uses, by Triton's own rules.

Triton 3.9 bundles two programs: ``ptxas``, and ``ptxas-blackwell`` from a newer CUDA.
Triton's function ``get_ptxas`` maps GPUs to programs, and changes between releases: the
newer program is for compute capability 10.0 and higher in Triton 3.6 and 3.7, and for
9.0 and higher in 3.9. The function is therefore parsed, but never run.

The variables ``TRITON_PTXAS_PATH`` and ``TRITON_PTXAS_BLACKWELL_PATH`` contain the
paths of replacements. Triton falls back to its own program if a replacement does not
exist or prints no version.
"""

from __future__ import annotations

import ast
import operator
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from nvidia_variant_provider.machine.environment import ComputeCapability

from .distributions import Distribution
from .installation import read_head
from .programs import Program, find_program

_COMPILER = "triton/backends/nvidia/compiler.py"
_FOLDERS = ("triton/backends/nvidia/bin", "triton/third_party/cuda/bin")
"""The directories of the programs: the one since Triton 3.0, then the older one."""

_PLAIN, _NEWER = "ptxas", "ptxas-blackwell"
_FIRST_NEWER = 100
_FUNCTION = re.compile(r"^def get_ptxas\(.*\n(?:[ \t)].*\n|\n)*", re.MULTILINE)
_LONGEST_FUNCTION = 16 * 1024
"""The longest function to parse, in characters; parsing needs 100 times the memory."""

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
    """One of the programs with which Triton assembles PTX.

    :param tool: the name of the program, such as ``ptxas-blackwell``.
    :param variable: the environment variable that names a replacement.
    :param bundled: the program in Triton's distribution.
    :param other: the replacement from the variable or from torch, if any.
    :param gpus: the GPUs of the machine for which Triton uses the program.
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
        # accessible". Triton also falls back if the output of the program has no
        # version, but fails if the system cannot run the program.
        if self.other is None or self.other.failure in ("missing", "garbled"):
            return self.bundled
        return self.other

    @property
    def programs(self) -> tuple[Program, ...]:
        """The replacement, if any, and the bundled program."""
        return (self.bundled,) if self.other is None else (self.other, self.bundled)

    def to_dicts(self) -> Iterator[dict[str, object]]:
        """Yield the entry of each program in the JSON report."""
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
    """Yield the programs that Triton may run, with their GPUs.

    The programs are not run, so their versions are not known.

    :param environ: the environment variables of programs that use Triton.
    :param capabilities: the compute capabilities of the machine's GPUs.
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
            # Triton searches PATH for a bare name, as a shell does.
            path = find_program(path, environ) or path
        return Program(path=path, named_by=variable)
    if tool != _PLAIN or torch is None:
        return None
    # torch.compile sets TRITON_PTXAS_PATH to torch's own ptxas, if the build has one.
    path = torch.locate(f"torch/bin/{tool}")
    if not os.access(path, os.X_OK):
        return None
    return Program(path=path, named_by="torch")


def _read_function(path: str) -> ast.FunctionDef | None:
    """Parse Triton's function ``get_ptxas``; ``None`` if missing or malformed."""
    match = _FUNCTION.search(read_head(path))
    if match is None or len(match[0]) > _LONGEST_FUNCTION:
        return None
    try:
        # Python would print the characters of an invalid escape unchanged.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            (node,) = ast.parse(match[0]).body
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return None
    return node if isinstance(node, ast.FunctionDef) and node.args.args else None


def _tool_in(body: Sequence[ast.stmt], number: int) -> str | None:
    """Return the tool that the statements of ``get_ptxas`` select for a GPU.

    :param number: the compute capability in Triton's form, such as 90.
    :returns: ``None`` if the function has an unknown form.
    """
    # Python parses code that is nested more deeply than functions may call themselves.
    waiting: list[ast.AST] = [*reversed(body)]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Return) and node.value is not None:
            waiting = [node.value]
        elif isinstance(node, (ast.If, ast.IfExp)):
            holds = _holds(node.test, number)
            if holds is None:
                return None
            branch = node.body if holds else node.orelse
            waiting += branch[::-1] if isinstance(branch, list) else [branch]
        elif isinstance(node, ast.Attribute) and node.attr.startswith(_PLAIN):
            return node.attr.replace("_", "-")  # such as knobs.nvidia.ptxas_blackwell
        elif not isinstance(node, ast.Expr):
            return None
    return None


def _holds(test: ast.expr, number: int) -> bool | None:
    """Return whether a test such as ``arch >= 100`` holds; ``None`` for other forms."""
    if not (isinstance(test, ast.Compare) and isinstance(test.left, ast.Name)):
        return None
    if len(test.ops) != 1 or not isinstance(test.comparators[0], ast.Constant):
        return None
    limit = test.comparators[0].value
    if not isinstance(limit, int):
        return None
    compare = _COMPARISONS.get(type(test.ops[0]))
    return None if compare is None else compare(number, limit)
