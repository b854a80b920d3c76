"""A page of an index next to what the local index shows of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from simple_repository import model

from ..selection.builds import JudgedPage
from ..selection.choice import Choice

__all__ = ["ShownPage"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ShownPage:
    """A page of an index, and what an installer sees of it.

    :param files: the files of the index.
    :param shown: the files that an installer sees.
    :param choices: what is shown of each release with variants.
    :param judged: what is known of ordinary wheels.
    """

    files: Sequence[model.File]
    shown: Sequence[model.File]
    choices: Mapping[str, Choice]
    judged: JudgedPage | None
