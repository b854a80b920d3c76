"""Parsing requirements, and resolving their variant markers.

Requirements are untrusted. `parse_requirement` returns ``None`` for an invalid one,
even if its marker is nested too deeply for the parser of `packaging`.

A dependency may be conditional on the variant of its wheel (PEP 825, "Environment
markers")::

    nvidia-cudnn-cu12; "nvidia" in variant_namespaces and os_name == "posix"

No released installer can read the four variant markers. They depend only on the
selected label and the machine, so `evaluate_requirement` resolves them and leaves every
other marker to the installer. A CUDA build requires
``nvidia-cudnn-cu12; os_name == "posix"``, and the null variant does not require it.
"""

from __future__ import annotations

import operator
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

from nvidia_variant_provider.errors import InputError, shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from packaging.requirements import Requirement
    from packaging.specifiers import SpecifierSet
    from packaging.version import Version

    from nvidia_variant_provider.resolution.resolver import Resolution

PARSING = threading.Lock()
"""Held while markers are parsed: `packaging` uses `ast`, which fails in several threads
at once (``SystemError: AST constructor recursion depth mismatch`` in Python 3.11)."""

_LONG_NUMBER = re.compile(r"[0-9]{641}")
"""More digits than ``sys.int_info.str_digits_check_threshold``: `packaging` accepts a
version with such a number, but Python may refuse to convert it."""

_NOT_OF_UV = re.compile(r"[0-9]{19}")
_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
# pip 23 refuses ``~=1.0alpha1``, and compares ``2023.03`` in `~=` and `.*` as text.
_NUMBERS = r"(?:0|[1-9][0-9]*)(?:\.(?:0|[1-9][0-9]*))*"
_NORMAL = rf"{_NUMBERS}(?:(?:a|b|rc|\.post|\.dev)[0-9]+)*"
_OTHERS = rf"(?:[=!]= ?{_NUMBERS}\.\*|(?:[=!]=|[<>]=?) ?[0-9][A-Za-z0-9.!+_-]*)"
_CLAUSE = rf"(?:~= ?{_NORMAL}|{_OTHERS})"
_CLAUSES = rf"{_CLAUSE}(?: ?, ?{_CLAUSE})*"

PLAIN_LIMIT = re.compile(rf"(?!.{{500}}){_CLAUSES}")
"""The form of limits that all installers read alike; long ones would take memory."""

_PLAIN = re.compile(
    # uv takes a requirement such as ``other.zip`` for a file.
    rf"{_NAME}(?<!\.(?:whl|zip|tgz|tar))(?<!\.gz)(?: ?\[{_NAME}(?: ?, ?{_NAME})*\])?"
    rf"(?: ?{_CLAUSES}| ?\({_CLAUSES}\))?(?: ?;(?P<marker>.*))?"
)
_STRING = r"""(?:"[ !#-\[\]-~]*"|'[ -&(-\[\]-~]*')"""
_VARIABLE = r"\b(?:extra|(?:os|sys|platform)[._][a-z_]+|\w*implementation(?:_name)?)"
# pip 24.1 to 25.0 refuses to compare a variable such as `os_name` with a version.
_NO_VERSION = r"(?!.[vV]?[0-9.]+(?i:[abcr]|p[or]|dev|[!+*_ '\"-]))(?=.[\w'\"])"
_COMPARISON = re.compile(
    # uv ignores other comparisons, such as ``python_version < "3.*"`` or ``== "x"``.
    r"(?:python_version|python_full_version|implementation_version) ?"
    rf"(?:[=!]= ?(['\"]){_NUMBERS}\.\*\1|(?:[=!]=|[<>]=?) ?(['\"]){_NORMAL}\2)"
    r"|python_version (?:not )?in ?(['\"])[23]\.[0-9]+(?: [23]\.[0-9]+)*\3"
    rf"|{_VARIABLE} ?[=!]= ?{_NO_VERSION}{_STRING}"
    # uv wants white space or a bracket after a joint.
    rf"|{_VARIABLE} (?:not )?in ?{_STRING}|\B{_STRING} ?(?:not )?in {_VARIABLE}"
)
_JOINTS = re.compile(r"(?:[ ()]|and|or){0,99}")  # pip 23 reads about 100 of them

_MOST_SPECIFIERS = 50
"""The maximum number of specifiers of a requirement, which are compared with each
release of its project; real requirements have at most a dozen."""

_LONGEST = 16 * 1024
"""The maximum length of a requirement in characters. `packaging` takes quadratic time
for many specifiers: 5 seconds for 800 KB."""


def parse_requirement(text: str) -> Requirement | None:
    """Return the requirement, or ``None`` if it cannot be parsed."""
    from packaging.requirements import Requirement

    if len(text) > _LONGEST or _LONG_NUMBER.search(text):
        return None
    try:
        with PARSING:
            requirement = Requirement(text)
    except (ValueError, RecursionError):
        return None
    return None if len(requirement.specifier) > _MOST_SPECIFIERS else requirement


def is_clear(text: str) -> bool:
    """Return whether pip and uv read a requirement in the same way.

    Only plain forms of real requirements are clear. uv refuses long numbers, and URLs.
    """
    plain = _PLAIN.fullmatch(text)
    if plain is None or _NOT_OF_UV.search(text):
        return False
    joints = _COMPARISON.sub("", plain["marker"] or "")
    return bool(_JOINTS.fullmatch(joints)) and parse_requirement(text) is not None


def holds(requirement: Requirement, variables: Mapping[str, str]) -> bool:
    """Return whether a requirement has no marker, or its marker holds.

    A marker that cannot be evaluated does not hold: pip refuses the requirement.
    """
    if requirement.marker is None:
        return True
    try:
        return requirement.marker.evaluate(dict(variables))
    except (ValueError, KeyError, RecursionError):
        # Before packaging 26.3, an undefined variable such as `extras` is a KeyError.
        return False


def explain_requirement(text: str) -> str | None:
    """Return why a requirement cannot be parsed, or ``None`` if it can."""
    from packaging.requirements import Requirement

    if len(text) > _LONGEST:
        return f"it has {len(text):,} characters"
    try:
        with PARSING:
            Requirement(text)
    except (ValueError, RecursionError) as error:
        # The other lines of the message only show the position.
        return str(error).partition("\n")[0]
    return None


_LABEL = "variant_label"
_LENGTHS = {"variant_properties": 3, "variant_features": 2, "variant_namespaces": 1}
_NAMES = (_LABEL, *_LENGTHS)

_TOKEN = re.compile(
    r"""
    (?P<space>\s+)
    | (?P<string>"[^"]*"|'[^']*')
    | (?P<bracket>[()])
    | (?P<operator>===|==|~=|!=|<=|>=|<|>|not\s+in\b|in\b)
    | (?P<joint>and\b|or\b)
    | (?P<name>[A-Za-z_][A-Za-z0-9_.]*)
    """,
    re.VERBOSE,
)

_DEEPEST = 100
"""The maximum depth of parentheses. Real metadata has two levels; too many cause a
RecursionError here or in the installer."""


@dataclass(frozen=True, kw_only=True)
class SelectedVariant:
    """The values of the variant markers of one wheel on one machine.

    :param label: the label in the wheel's name; empty for a non-variant wheel.
    :param properties: ``namespace :: feature :: value`` of each property that the
        label has and the machine supports. PEP 825: "The set of expanded triples is
        filtered to the variant properties that the target system supports".
    """

    label: str
    properties: frozenset[tuple[str, str, str]] = frozenset()

    @classmethod
    def of(cls, label: str, resolution: Resolution) -> SelectedVariant:
        """Create the values for a label on the machine of a resolution."""
        supported = resolution.supported
        return cls(
            label=label,
            properties=frozenset(
                (namespace, feature, value)
                for namespace, features in resolution.metadata.variants[label].items()
                for feature, values in features.items()
                for value in frozenset(values).intersection(
                    supported.get(namespace, {}).get(feature, ())
                )
            ),
        )

    @cached_property
    def members(self) -> frozenset[tuple[str, ...]]:
        """The members of the set-valued markers, which differ in length."""
        # PEP 825: features and namespaces "are derived from variant_properties".
        return frozenset(x[:length] for x in self.properties for length in (1, 2, 3))


NON_VARIANT = SelectedVariant(label="")
"""PEP 825: "For non-variant wheels, variant_label is an empty string and the three
set-valued markers are empty sets"."""


_Expression: TypeAlias = "bool | tuple[str, str]"
"""A known result, or ``(operator, text)`` of a marker for the installer. The operator
joins the parts of the text, and is empty for a single comparison."""


def has_variant_markers(requirement: str) -> bool:
    """Return whether a dependency has a variant marker outside quoted strings."""
    _, marker = _split(requirement)
    unquoted = re.sub(r"\"[^\"]*\"|'[^']*'", "", marker)
    return any(re.search(rf"\b{name}\b", unquoted) for name in _NAMES)


def evaluate_requirement(requirement: str, variant: SelectedVariant) -> str | None:
    """Resolve the variant markers of one dependency.

    :param requirement: the value of a ``Requires-Dist`` field (PEP 508).
    :returns: the dependency without variant markers, unchanged if it has none;
        ``None`` if the dependency does not apply.
    :raises InputError: a variant marker is used in a way that PEP 825 does not define.
    """
    if not has_variant_markers(requirement):
        return requirement
    head, marker = _split(requirement)
    expression = _Parser(marker, variant).parse()
    if isinstance(expression, bool):
        return head.rstrip() if expression else None
    # Keep the space before the semicolon, or add one after a URL, which needs it.
    gap = " " if head != head.rstrip() or "@" in head else ""
    return f"{head.rstrip()}{gap}; {expression[1]}"


def _split(requirement: str) -> tuple[str, str]:
    """Split a dependency at its semicolon; the marker may be empty."""
    # A URL may contain semicolons: PEP 508 ends it with white space.
    pattern = r"\s;" if re.match(r"[^;(<>=!~\"']*@", requirement) else ";"
    semicolon = re.search(pattern, requirement)
    if semicolon is None:
        return requirement, ""
    return requirement[: semicolon.end() - 1], requirement[semicolon.end() :]


class _Parser:
    """Parses a marker, and evaluates each comparison with a variant marker."""

    def __init__(self, marker: str, variant: SelectedVariant) -> None:
        self._marker = marker
        self._variant = variant
        self._tokens = list(self._split())
        self._next = 0
        self._depth = 0

    def parse(self) -> _Expression:
        expression = self._alternatives()
        if self._next < len(self._tokens):
            raise self._error("expected the end of the marker")
        return expression

    def _split(self) -> Iterator[tuple[str, str]]:
        start = 0
        while start < len(self._marker):
            match = _TOKEN.match(self._marker, start)
            if match is None:
                raise self._error(f"unexpected {shown(self._marker[start])}")
            start = match.end()
            if match.lastgroup and match.lastgroup != "space":
                yield match.lastgroup, match.group()

    def _alternatives(self) -> _Expression:
        return self._joined("or", lambda: self._joined("and", self._atom))

    def _joined(self, word: str, read: Callable[[], _Expression]) -> _Expression:
        parts = [read()]
        while self._peek() == ("joint", word):
            self._next += 1
            parts.append(read())
        return _join(word, parts) if len(parts) > 1 else parts[0]

    def _atom(self) -> _Expression:
        if self._peek() != ("bracket", "("):
            return self._comparison()
        self._depth += 1
        if self._depth > _DEEPEST:
            raise self._error("parentheses are nested too deeply")
        self._next += 1
        expression = self._alternatives()
        if self._peek() != ("bracket", ")"):
            raise self._error("expected a closing parenthesis")
        self._next += 1
        self._depth -= 1
        return expression

    def _comparison(self) -> _Expression:
        left = self._take("string", "name")
        operation = re.sub(r"\s+", " ", self._take("operator"))
        right = self._take("string", "name")
        if left in _NAMES or right in _NAMES:
            return self._settle(left, operation, right)
        return "", f"{left} {operation} {right}"

    def _settle(self, left: str, operation: str, right: str) -> bool:
        written = f"{left} {operation} {right}"
        name, other = (left, right) if left in _NAMES else (right, left)
        if other[0] not in "\"'":
            raise self._error(f"{written}: compare {name} with a quoted string")
        text = other[1:-1]
        if name == _LABEL:
            compare = _LABEL_OPERATORS.get(operation)
            if compare is None:
                raise self._error(f"{written}: {operation} is not defined for {name}")
            own = self._variant.label
            return compare(own, text) if name == left else compare(text, own)
        if name == left or operation not in ("in", "not in"):
            raise self._error(
                f'{written}: {name} is a set: write "..." in {name} or not in'
            )
        member = tuple(map(str.strip, text.split("::")))
        has = len(member) == _LENGTHS[name] and member in self._variant.members
        return has is (operation == "in")

    def _peek(self) -> tuple[str, str] | None:
        return self._tokens[self._next] if self._next < len(self._tokens) else None

    def _take(self, *kinds: str) -> str:
        token = self._peek()
        if token is None or token[0] not in kinds:
            raise self._error(f"expected {_EXPECTED[kinds]}")
        self._next += 1
        return token[1]

    def _error(self, problem: str) -> InputError:
        return InputError(
            f"the marker {shown(self._marker.strip())} cannot be evaluated: {problem}",
            hint="PEP 825 defines the variant markers",
        )


_EXPECTED = {
    ("string", "name"): "a quoted string or a marker's name",
    ("operator",): "an operator",
}


def _join(word: str, parts: list[_Expression]) -> _Expression:
    decides = word == "or"
    if any(part is decides for part in parts):
        return decides
    left = [part for part in parts if not isinstance(part, bool)]
    if len(left) < 2:
        return left[0] if left else not decides
    # "and" binds more tightly than "or".
    texts = (f"({text})" if (word, by) == ("and", "or") else text for by, text in left)
    return word, f" {word} ".join(texts)


_LABEL_OPERATORS: Mapping[str, Callable[[str, str], bool]] = {
    "==": operator.eq,
    "===": operator.eq,
    "!=": operator.ne,
    "in": lambda left, right: left in right,
    "not in": lambda left, right: left not in right,
}
"""The operators that PyPA's specification defines for strings that are not versions."""

_EXTRA = re.compile(r"""extra\s*===?\s*["']([^"']*)["']""")

_MOST_WORK, _FOR_BUILD, _FOR_CLAUSE = 1_000_000, 100, 20
"""The steps of `Work`, the steps that each build adds to them, and those to parse a
clause and keep it. A million steps take about 0.5 seconds."""


class Work:
    """The remaining work for requirements of strangers, in steps.

    A step compares one clause with one version, or evaluates one character of a marker.
    Real requirements need a tenth of the steps. Requirements for which no steps are
    left are ignored, so the work is at most proportional to the size of the page.

    :param builds: the number of builds on the page.
    """

    def __init__(self, builds: int = 0) -> None:
        self._left = _MOST_WORK + _FOR_BUILD * builds

    def take(self, steps: int) -> bool:
        """Use up steps, and return whether that many were left."""
        taken = steps <= self._left
        self._left -= steps if taken else 0
        return taken

    def parses(self, clauses: SpecifierSet, versions: int = 0) -> bool:
        """Use up the steps to parse clauses and compare them with some versions."""
        return self.take((1 + len(clauses)) * _FOR_CLAUSE + _steps(clauses) * versions)

    def allows(self, clauses: SpecifierSet, version: Version) -> bool:
        """Return whether clauses allow a version; ``False`` if no steps are left."""
        taken = self.take(_steps(clauses))
        return taken and clauses.contains(version, prereleases=True)


def _steps(clauses: SpecifierSet) -> int:
    """Return the steps to compare a version, of which ``===`` makes a text."""
    return 1 + sum(50 if each.operator == "===" else 1 for each in clauses)


def extras_of(text: str) -> set[str]:
    """Return the extras in the marker of a requirement, and ``""`` for no extra."""
    return {"", *_EXTRA.findall(text)}
