"""Why pip finds no release of an ordinary project that the user asked for.

pip lists the versions that it has ignored because they are yanked, without the reasons.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from nvidia_variant_provider.errors import InputError

from ...builds.page import Build, Decision
from ...builds.passing import nearest_refusal, without_source
from ...metadata.requirements import parse_requirement
from ...wheels.names import parse_wheel_name
from .interpreter import Interpreter, find_interpreter
from .taking import FindPages, decided_builds, is_exact, without_options

__all__ = ["explain_refused"]


def explain_refused(
    asked: Iterable[str],
    find_pages: FindPages,
    python: str,
    environ: Mapping[str, str],
) -> tuple[str, ...]:
    """Explain each requirement that only yanked builds satisfy.

    :param asked: the requirements that the user gave.
    :param find_pages: returns the pages of a project that pip has looked at.
    :param python: the interpreter that pip installs for.
    """
    sentences = []
    interpreter: Interpreter | None = None
    for text in asked:
        requirement = parse_requirement(without_options(text))
        # Of a version that is pinned exactly, pip takes yanked files.
        if requirement is None or is_exact(requirement):
            continue
        decided = decided_builds(find_pages(canonicalize_name(requirement.name)))
        if not any(decision.action == "yank" for _, decision in decided):
            continue
        try:
            interpreter = interpreter or find_interpreter(python, environ)
        except InputError:  # pip has ended with the same complaint.
            return ()
        if sentence := _explain(requirement, decided, interpreter):
            sentences.append(sentence)
    return tuple(sentences)


def _explain(
    requirement: Requirement,
    decided: Sequence[tuple[Build, Decision]],
    interpreter: Interpreter,
) -> str | None:
    allowed = [
        (build, decision)
        for build, decision in decided
        if requirement.specifier.contains(build.version)
        and _is_installable(build.file, interpreter)
    ]
    if any(decision.action == "show" for _, decision in allowed):
        return None
    yanked = [(build, d) for build, d in allowed if d.action == "yank"]
    if not yanked:
        return None
    newest, decision = max(yanked, key=lambda pair: pair[0].version)
    refusal = nearest_refusal(b for b, _ in yanked if b.release == newest.release)
    reason = refusal[1] if refusal is not None else decision.reason
    return (
        f"{requirement.name}{requirement.specifier} allows no release that runs here: "
        f"of {newest.release}, {without_source(reason)}; to install it all the same, "
        f"pin {requirement.name}=={newest.version} or give --unchecked"
    )


def _is_installable(file: str, interpreter: Interpreter) -> bool:
    try:
        return interpreter.rank(parse_wheel_name(file).tags) is not None
    except InputError:
        return False
