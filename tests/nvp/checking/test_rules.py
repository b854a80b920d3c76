"""The rules of a check, for any input."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nvp.builds.verdicts import Verdict
from nvp.checking.agreement import stem_of
from nvp.checking.comparing import GAINED, LOST, find_change
from nvp.checking.text import marks
from nvp.cli.render import wrap_line

VERDICTS: st.SearchStrategy[Verdict] = st.sampled_from(
    ["runs", "partly", "cannot", "cpu", "unknown"]
)
WORDS = st.text(st.sampled_from("abc-=.1"), min_size=1, max_size=30)
NAMES = st.from_regex(r"[a-z]{1,6}(-[a-z]{1,6}){0,2}", fullmatch=True)
BACKENDS = st.sampled_from(["-gpu", "-cpu", "-cu12", "-cu130", "-cuda12x", "-directml"])


@given(VERDICTS, VERDICTS)
def test_what_is_lost_is_not_lost_again_on_the_way_back(
    before: Verdict, after: Verdict
) -> None:
    change, back = find_change(before, after), find_change(after, before)
    assert (change is None) or before != after
    assert not (change == LOST and back == LOST)
    if change == GAINED:
        assert back == LOST


@given(VERDICTS)
def test_something_new_that_cannot_run_is_a_loss(after: Verdict) -> None:
    assert find_change(None, after) == (LOST if after == "cannot" else None)


@given(st.lists(WORDS, min_size=1, max_size=40), st.integers(20, 120), st.booleans())
def test_lines_are_broken_at_blanks_alone(
    words: list[str], width: int, comment: bool
) -> None:
    line = f"  {'# ' if comment else ''}{' '.join(words)}"
    lines = wrap_line(line, width, hang="    ")
    assert " ".join(lines).replace("#", "").split() == " ".join(words).split()
    for part in lines:
        assert len(part) <= width or len(max(part.split(), key=len)) > width - 10
        assert not comment or part.lstrip().startswith("#")


@given(st.integers(1, 2000))
def test_groups_have_names_of_their_own(count: int) -> None:
    assert len(set(marks(count))) == count


@given(NAMES, st.lists(BACKENDS, max_size=2))
def test_builds_of_one_program_have_one_stem(name: str, backends: list[str]) -> None:
    assert stem_of(name + "".join(backends)) == stem_of(name)
    assert stem_of(stem_of(name)) == stem_of(name)
