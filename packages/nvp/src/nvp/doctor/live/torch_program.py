"""Run torch on the GPUs. The interpreter of the stack runs this file as a program.

The program imports only torch and the standard library. Each line of its output is a
JSON object, as in `child`: ``{"begin": STEP}`` before a step, and ``{"end": STEP,
"error": null, "seconds": 1.5, ...}`` after it, and finally ``{"done": true}``.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

_SIZE = 64


def main() -> None:
    """Run the steps, and end the process."""
    # Remove the directory of this program from the path: torch must not import from it.
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [item for item in sys.path if os.path.abspath(item or ".") != here]
    # Libraries print to descriptor 1; see `child`.
    pipe = os.dup(1)
    os.dup2(2, 1)

    def say(**line: Any) -> None:
        data = (json.dumps(line) + "\n").encode()
        while data:
            data = data[os.write(pipe, data) :]

    outcome: dict[str, Any] = {}
    for name, act in (("import", _load), ("arch_list", _list), ("available", _ask)):
        outcome = _try(name, act, say)
        if outcome["error"]:
            break
    if outcome.get("available"):
        _run(say)
    say(done=True)
    os._exit(0)


def _try(name: str, act: Any, say: Any) -> dict[str, Any]:
    say(begin=name)
    started = time.monotonic()
    outcome: dict[str, Any] = {"error": None}
    try:
        outcome.update(act())
    except BaseException as error:  # noqa: BLE001  # a library may even exit
        outcome["error"] = _line(error)
    say(end=name, seconds=round(time.monotonic() - started, 6), **outcome)
    return outcome


def _line(error: BaseException) -> str:
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}"[:500]


def _load() -> dict[str, Any]:
    import torch

    return {"version": str(torch.__version__), "cuda": torch.version.cuda}


def _list() -> dict[str, Any]:
    import torch

    return {"arch_list": list(torch.cuda.get_arch_list())}


def _ask() -> dict[str, Any]:
    import torch

    available = bool(torch.cuda.is_available())
    why = None
    if not available and torch.version.cuda:
        # `is_available` hides the reason, but `init` raises it.
        try:
            torch.cuda.init()
        except Exception as error:  # noqa: BLE001  # the driver may raise anything
            why = _line(error)
    return {"available": available, "why": why}


def _run(say: Any) -> None:
    import torch

    for index in range(torch.cuda.device_count()):
        _try(f"matmul {index}", lambda index=index: _multiply(index), say)
    _try("compile", _compile, say)


def _multiply(index: int) -> dict[str, Any]:
    """Multiply two matrices of small integers, which are exact in every format."""
    import torch

    left = (torch.arange(_SIZE * _SIZE) % 7).reshape(_SIZE, _SIZE).float()
    right = (torch.arange(_SIZE * _SIZE) % 5).reshape(_SIZE, _SIZE).float()
    place = f"cuda:{index}"
    product = left.to(place) @ right.to(place)
    torch.cuda.synchronize(index)
    if not torch.equal(product.cpu(), left @ right):
        raise ArithmeticError("wrong result")
    return {"gpu": torch.cuda.get_device_name(index)}


def _compile() -> dict[str, Any]:
    import torch

    def sum_of_squares(values: Any) -> Any:
        return (values.sin() ** 2 + values.cos() ** 2).sum(-1)

    values = torch.linspace(0, 1, _SIZE * _SIZE, device="cuda").reshape(_SIZE, _SIZE)
    compiled = torch.compile(sum_of_squares)(values)
    torch.cuda.synchronize()
    if not torch.allclose(compiled, sum_of_squares(values), rtol=1e-4):
        raise ArithmeticError("wrong result")
    return {}


if __name__ == "__main__":
    main()
