"""The data files of this package, also where the package is in a zip file."""

from __future__ import annotations

import os

__all__ = ["read_resource"]

_FOLDER = os.path.dirname(os.path.abspath(__file__))


def read_resource(*names: str) -> str:
    """Return the text of a file of the package.

    :param names: the folders below this one, and the name of the file.
    """
    try:
        with open(os.path.join(_FOLDER, *names), encoding="utf-8") as file:
            return file.read()
    except OSError:
        # The package is in a zip file (zipapp). Otherwise this import would take
        # longer than reading the file.
        from importlib.resources import files

        return files(__package__).joinpath(*names).read_text(encoding="utf-8")
