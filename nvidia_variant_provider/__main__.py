"""Print what the provider answers: ``python -m nvidia_variant_provider [FILE]``.

Without FILE, the program prints the properties that this machine supports. With FILE,
it prints the labels of a variants.json that fit this machine, best first. This program
needs nothing but the provider. The commands for people are in the package nvp.
"""

from __future__ import annotations

import os
import sys
import warnings

from .errors import ProviderError, printable, shown

_USAGE = "usage: python -m nvidia_variant_provider [--json] [FILE]"

_VERBS = frozenset(
    [
        *("census", "detect", "diff", "doctor", "fleet", "inspect", "matrix", "pip"),
        *("properties", "releases", "resolve", "serve", "upgrade", "validate"),
    ]
)
"""What this program did in version 0.1.0, and what is now done by the package nvp."""


def main(words: list[str]) -> int:
    """Run the program, and return its exit code.

    0: fine; 1: no label fits; 2: wrong usage; 3: FILE is unreadable or invalid; 4: an
    override is wrong.
    """
    if {"-h", "--help"} & set(words):
        _print((__doc__ or "").strip(), "", _USAGE)
        return 0
    as_json = "--json" in words
    files = [word for word in words if word != "--json"]
    unknown = [word for word in files if word.startswith("-") and len(word) > 1]
    if unknown or len(files) > 1:
        return _complain(f"{_explain(files, unknown)}; {_USAGE}", code=2)
    if files and files[0] in _VERBS and not os.path.exists(files[0]):
        return _complain(f"this is now: nvp {files[0]}; pip install nvp", code=2)
    warnings.showwarning = _show_warning  # type: ignore[assignment]  # no line of code
    try:
        return _print_labels(files[0], as_json) if files else _print_answer(as_json)
    except ProviderError as error:
        return _complain(str(error), code=error.exit_code)


def _explain(files: list[str], unknown: list[str]) -> str:
    if files[0] in _VERBS:
        return f"this is now: nvp {files[0]}; pip install nvp"
    if unknown:
        return f"unknown option {shown(unknown[0])}"
    return "give one FILE"


def _print_answer(as_json: bool) -> int:
    from .plugin import NvidiaVariantPlugin

    configs = NvidiaVariantPlugin.get_supported_configs()
    if as_json:
        _print_json({config.name: config.values for config in configs})
        return 0
    space = NvidiaVariantPlugin.namespace
    _print(*(f"{space} :: {c.name} :: {value}" for c in configs for value in c.values))
    return 0


def _print_labels(file: str, as_json: bool) -> int:
    from .api import resolve

    # The text of a document may come through a pipe.
    resolution = resolve(sys.stdin.buffer.read() if file == "-" else file)
    if as_json:
        _print_json(list(resolution.compatible))
    else:
        _print(*map(printable, resolution.compatible))
    return 0 if resolution.compatible else 1


def _print_json(document: object) -> None:
    import json

    _print(json.dumps(document))


def _print(*lines: str) -> None:
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()


def _complain(message: str, *, code: int) -> int:
    sys.stderr.write(f"error: {printable(message)}\n")
    return code


def _show_warning(message: Warning | str, *_: object) -> None:
    sys.stderr.write(f"warning: {printable(str(message))}\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
