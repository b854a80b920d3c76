"""URLs and paths in a form that may be shown: without passwords."""

from __future__ import annotations

import re

__all__ = ["redacted"]

_CREDENTIALS = re.compile(r"(?<=[\w+.-]{2})(:/{1,2})([^/?#]*)@")
"""The start of any URL, whatever its scheme; a folder on a drive has one letter.

One slash is enough: `pathlib` makes one of two.
"""

_QUERY = re.compile(r"(:/{1,2}[^\s?#]*\?)([^\s#]*)")
_VALUE = re.compile(r"(?<==)[^&;]+|(?<![^&;])[^=&;]+(?![^&;])")
"""The text after an equals sign, or a part of a query without an equals sign."""


def redacted(url: str) -> str:
    """Return ``url`` in a form that may be shown.

    User, password and the values of the query are replaced: a signed URL is as
    good as a password.
    """
    bare = _CREDENTIALS.sub(r"\1****@", url, count=1)
    return _QUERY.sub(lambda match: match[1] + _VALUE.sub("****", match[2]), bare)
