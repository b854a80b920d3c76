"""Requirements of projects, as `packaging` reads them.

Other people write these texts. A text that cannot be read gives ``None`` here and
never an exception, even when it is nested too deeply for the parser.
"""

from __future__ import annotations

import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from packaging.requirements import Requirement

_LONG_NUMBER = re.compile(r"[0-9]{641}")
"""More digits than Python has to convert (``sys.int_info.str_digits_check_threshold``).

`packaging` accepts such a version, and fails when it is compared.
"""


def parse_requirement(text: str) -> Requirement | None:
    """Return the requirement, or ``None`` when it cannot be read."""
    from packaging.requirements import InvalidRequirement, Requirement

    if _LONG_NUMBER.search(text):
        return None
    try:
        return Requirement(text)
    except (InvalidRequirement, RecursionError):
        return None


def explain_requirement(text: str) -> str | None:
    """Return why a requirement cannot be read, or ``None`` when it can."""
    from packaging.requirements import InvalidRequirement, Requirement

    try:
        Requirement(text)
    except (InvalidRequirement, RecursionError) as error:
        # The further lines of the parser's message point at the place in the text.
        return str(error).partition("\n")[0]
    return None
