"""Refresh the generated parts of the documentation.

``python -m tools.refresh_docs [PAGE...]`` writes these parts again, by default on all
pages: the output of the commands, and the tables between the comments ``<!-- begin
generated: NAME -->`` and ``<!-- end generated -->``. The tests in ``tests/docs`` fail
while a page differs from what this program would write.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from support import generated, sessions  # noqa: E402  # found by the line above


def main(words: list[str] | None = None) -> int:
    """Refresh the pages and say which of them changed."""
    parser = argparse.ArgumentParser(prog="python -m tools.refresh_docs")
    parser.description = (
        "Run the sessions of pages, and write outputs and tables again."
    )
    parser.add_argument("page", nargs="*", type=Path, help="a page (default: all)")
    options = parser.parse_args(words)
    for page in options.page:
        if not page.is_file():
            parser.error(f"{page} is not a file; name a page such as docs/index.md")
    chosen = [page.resolve() for page in options.page] or sessions.pages()
    for path in chosen:
        text = path.read_text(encoding="utf-8")
        fresh = sessions.refresh(generated.refresh(text))
        if fresh != text:
            path.write_text(fresh, encoding="utf-8")
            print(f"{path.relative_to(ROOT)}: written again")
    return 0


if __name__ == "__main__":
    sys.exit(main())
