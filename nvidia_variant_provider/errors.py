"""Exceptions that state the problem, its place in the document, and the next step.

Every exception has the exit code of the command line, so callers of the Python API and
scripts can rely on the same codes.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_PUNCTUATION = {ord(character): "x" for character in "$-._"}
"""The punctuation in keys and labels, in the form that `str.translate` takes.

`join` does not quote a key that has only letters, digits and these characters."""

_CREDENTIALS = (
    r"((?<=[\w+.-]{2}):/{1,2}|(?<=\w)://)"
    r"(?:[^/?#]*|[^\s/?#@:[]*:(?!\d+(?:[/?#\s]|$))[^\s/?#@]*[/?#][^\s@]{0,300})@"
    r"|((?<![^\s'\"=(<])//)[^\s/?#]*@"
    r"|((?<=[\w+.-]{2}):\\[/\\]{0,3})[^\s/?#\\]*@"
)
"""A regular expression for the user and the password at the start of a URL.

One slash is enough, because `pathlib` merges two slashes, but not after one letter, as
after a Windows drive; a URL may also lack its scheme, or have backslashes, which a
quoted text doubles. Text after a colon is a password unless it is a port; a password
may have an unquoted slash.
"""

_VALUE = r"(?<==)[^&;]+|(?<![^&;])[^=&;]+(?![^&;])"
"""A regular expression for a value in a query, or for a part without an equals sign."""


_PIECE = 4096
"""The number of characters that `printable` escapes, and `shown` redacts, at once.

Each takes 75 bytes until they are joined."""


class SelectionWarning(UserWarning):
    """A warning that the user might not get the best build for this machine."""


class ProviderError(Exception):
    """The base class of the exceptions of this package.

    All fields are redacted when they are set: users can give a URL for any argument.

    :param message: the problem, without a final period.
    :param path: the file, environment variable or option that has the problem.
    :param place: the place in the document, such as ``variants.cu126.nvidia``.
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
        self.message = message
        super().__init__(self.message)
        self.path = path
        self.place = place
        self.hint = hint

    if not TYPE_CHECKING:  # mypy would accept any attribute

        def __setattr__(self, name: str, value: object) -> None:
            is_url = isinstance(value, str) and "/" in value
            super().__setattr__(name, redacted(value) if is_url else value)

    def __str__(self) -> str:
        line = ": ".join(part for part in (self.path, self.place, self.message) if part)
        return f"{line}; {self.hint}" if self.hint else line

    def __reduce__(self) -> tuple[object, ...]:
        # The keyword arguments live in __dict__, which pickle restores.
        return type(self), (self.message,), self.__dict__

    def to_dict(self) -> dict[str, object]:
        """Return the fields as the JSON report shows them."""
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
    """A feature needs a missing package, usually a package from an extra."""

    exit_code = 2


class InputError(ProviderError, ValueError):
    """A file or a text cannot be read, or is not valid."""

    exit_code = 3


class NothingFitsError(ProviderError):
    """No requested build fits this machine."""

    exit_code = 1


class ConfigurationError(InputError):
    """The user's ``variants.toml`` cannot be read or is not valid."""


class OverrideError(ProviderError, ValueError):
    """A forced value does not have the form that its variable requires."""

    exit_code = 4


class DetectionError(ProviderError):
    """A driver or a device is present, but could not be queried."""

    exit_code = 4


def shown(text: object, limit: int = 60) -> str:
    """Return ``text`` quoted, in a form that is safe in a one-line message.

    Control characters, terminal escapes, lone surrogates and everything else outside
    ASCII are escaped. Passwords are redacted before long text is cut, because nothing
    marks a part of a password.
    """
    quoted = ascii(text[:_PIECE] if isinstance(text, str) else text)
    if len(quoted) <= limit:
        return redacted(quoted) if ":" in quoted else quoted
    # The part that is cut off may have the @ that marks a password.
    rest = "@" if len(quoted) > _PIECE else ""
    start = redacted(quoted[:_PIECE] + rest)
    return f"{start[: limit - 4]}...{quoted[-1]}"


def printable(text: str) -> str:
    """Return ``text`` as one line of characters that terminals, HTML and XML accept.

    Line ends, terminal escapes, other control characters and lone surrogates are
    replaced by their Python escapes; all other characters stay.
    """
    if text.isprintable():
        return text
    if len(text) > _PIECE:
        starts = range(0, len(text), _PIECE)
        return "".join([printable(text[at : at + _PIECE]) for at in starts])
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def redacted(url: str) -> str:
    """Return a URL or a path without its secrets, for a message.

    The user, the password, and the values after a question mark or a semicolon are
    replaced: the query of a signed URL is as secret as a password.
    """
    import re  # import late, because installers load this module

    def without_values(word: re.Match[str]) -> str:
        # A single pattern would take quadratic time on a malicious URL.
        found = re.search(r":[/\\]", word[0])
        start = word[0][: found.end()] if found else word[0]
        head, *tail = re.split("([?;])", word[0][len(start) :], maxsplit=1)
        values = (tail[0] + re.sub(_VALUE, "****", tail[1])) if tail else ""
        return start + head + values

    start, at, end = url.rpartition("@")  # the pattern is slow on a malicious URL
    bare = re.sub(_CREDENTIALS, r"\1\2\3****@", start + at) + end
    return re.sub(r"[^\s#]+", without_values, bare)


def join(place: str, key: str | int) -> str:
    """Return the place of ``key`` below ``place``, such as ``a.b`` or ``a[2]``."""
    if isinstance(key, int):
        return f"{place}[{key}]"
    plain = len(key) <= 60 and key.isascii() and key.translate(_PUNCTUATION).isalnum()
    name = key if plain else shown(key)
    return f"{place}.{name}" if place else name


def listed(names: Sequence[str], most: int) -> str:
    """Return names as a text for a message, such as ``a, b and 3 more``.

    :param most: the number of names to show.
    """
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{', '.join(names[:most])}{more}"
