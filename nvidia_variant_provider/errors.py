"""Exceptions: what went wrong, where in the document, what to do next.

Every exception of this package carries the exit code that the command line
answers with, so that a caller of the Python API and a reader of ``$?`` agree.
"""

from __future__ import annotations

__all__ = [
    "ConfigurationError",
    "DetectionError",
    "InputError",
    "MissingExtraError",
    "OverrideError",
    "ProviderError",
    "SelectionWarning",
    "UsageError",
    "join",
    "printable",
    "shown",
]


_PUNCTUATION = {ord(character): "x" for character in "$-._"}
"""What keys and labels have besides letters and digits."""


class SelectionWarning(UserWarning):
    """Something about this machine may cost the user the best build."""


class ProviderError(Exception):
    """Base of the exceptions of this package.

    :param message: what is wrong, without a final full stop.
    :param path: the file it is in, if any.
    :param place: where in the document, as ``variants.cu126.nvidia.sm_arch[2]``.
    :param hint: what to do next.
    """

    exit_code = 3

    def __init__(
        self,
        message: str,
        *,
        path: str | None = None,
        place: str | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.path = path
        self.place = place
        self.hint = hint

    def __str__(self) -> str:
        line = ": ".join(part for part in (self.path, self.place, self.message) if part)
        return f"{line}; {self.hint}" if self.hint else line

    def __reduce__(self) -> tuple[object, ...]:
        # The keyword arguments live in __dict__, which pickle restores.
        return type(self), (self.message,), self.__dict__

    def to_dict(self) -> dict[str, object]:
        """Keys: ``message``, ``path``, ``place``, ``hint``, ``exit_code``."""
        return {
            "message": self.message,
            "path": self.path,
            "place": self.place,
            "hint": self.hint,
            "exit_code": self.exit_code,
        }


class UsageError(ProviderError):
    """The command line itself is wrong."""

    exit_code = 2


class MissingExtraError(ProviderError):
    """A feature needs packages of an extra that is not installed."""

    exit_code = 2


class InputError(ProviderError, ValueError):
    """A file, or text given in its place, cannot be read or is not valid."""

    exit_code = 3


class ConfigurationError(InputError):
    """The user's ``variants.toml`` cannot be read or is not valid."""


class OverrideError(ProviderError, ValueError):
    """A forced value is not of the form that its variable takes."""

    exit_code = 4


class DetectionError(ProviderError):
    """Something is there that could not be asked."""

    exit_code = 4


def shown(text: object, limit: int = 60) -> str:
    """``text`` as it can stand in a one-line message.

    Control characters, terminal escapes, lone surrogates and anything else
    outside ASCII come back escaped; long text is cut.
    """
    quoted = ascii(text)
    return quoted if len(quoted) <= limit else f"{quoted[: limit - 4]}...{quoted[-1]}"


def printable(text: str) -> str:
    """Return ``text`` on one line that a terminal, HTML and XML can hold.

    Line ends, terminal escapes, other control characters and lone surrogates are
    replaced by their Python escapes; everything else stays as it is.
    """
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def join(place: str, key: str | int) -> str:
    """The place of ``key`` below ``place``: ``a.b``, or ``a[2]`` for an index."""
    if isinstance(key, int):
        return f"{place}[{key}]"
    plain = len(key) <= 60 and key.isascii() and key.translate(_PUNCTUATION).isalnum()
    name = key if plain else shown(key)
    return f"{place}.{name}" if place else name
