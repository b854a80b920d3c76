"""The targets of an installation: the tags of pip, markers, and choices in markers."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvidia_variant_provider.errors import UsageError
from nvp.pins.targets import find_target, tags_of

PLATFORMS = (
    "manylinux_2_28_x86_64",
    "manylinux_2_17_aarch64",
    "manylinux2014_x86_64",
    "win_amd64",
    "macosx_12_0_arm64",
    "linux_x86_64",
)


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("version", ["3.11", "3.12.4", "313"])
def test_the_wheels_are_those_that_pip_takes(platform: str, version: str) -> None:
    from pip._internal.utils.compatibility_tags import get_supported

    own = find_target(platforms=[platform], python_version=version)
    short = version.replace(".", "")[:3]
    tags = [str(tag) for tag in get_supported(version=short, platforms=[platform])]
    if platform.startswith("linux"):
        # pip uses this name only for its own platform; here it is any Linux of that
        # machine.
        assert tags[0] in own.ranks
        assert "cp311-abi3-manylinux_2_17_x86_64" in own.ranks
        return
    order = [tag for tag in own.ranks if not tag.endswith("-linux_x86_64")]
    order = [tag for tag in order if not tag.endswith("-linux_aarch64")]
    ranked = [tag for tag in tags if tag in own.ranks]
    # The other tags of pip are older names of manylinux and of macOS.
    assert [tag for tag in order if tag in set(tags)] == ranked
    assert tags[0] in own.ranks


def test_name_with_a_billion_tags_has_no_rank() -> None:
    many = ".".join(f"a{number}" for number in range(1000))
    name = f"torch-2.8.0-{many}-{many}-{many}.whl"
    assert tags_of(name) == ((),)
    assert find_target().rank(name) is None


def test_this_machine_is_the_default() -> None:
    from packaging.tags import sys_tags

    own = find_target()
    assert str(next(sys_tags())) in own.ranks
    assert own.platform


@pytest.mark.parametrize(
    ("requires", "expected"),
    [
        (">=3.30", "3.30"),
        ("<3.9", "3.8"),
        ("==3.9.*", "3.9"),
        (">=3.29,<3.30", "3.29"),
        ("nonsense", None),
    ],
)
def test_a_file_for_another_python(requires: str, expected: str | None) -> None:
    here = f"{sys.version_info[0]}.{sys.version_info[1]}"
    assert find_target(requires).python == (expected or here)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"platforms": ["amiga"]}, "is not a platform"),
        ({"platforms": [""]}, "is not a platform"),
        ({"python_version": "2.7"}, "is not a version of Python 3"),
        ({"python_version": "3.x"}, "is not a version of Python 3"),
    ],
)
def test_what_is_no_target(words: dict[str, list[str]], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        find_target(**words)  # type: ignore[arg-type]


def test_markers_of_a_platform() -> None:
    nothing: frozenset[str] = frozenset()
    windows = find_target(platforms=["win_amd64"], python_version="3.12")
    arm = find_target(platforms=["linux_aarch64"], python_version="3.13.2")
    cases = {
        "sys_platform == 'win32' and platform_machine == 'AMD64'": (True, False),
        "platform_machine == 'aarch64' and sys_platform == 'linux'": (False, True),
        "os_name == 'nt' or platform_system == 'Darwin'": (True, False),
        "python_version < '3.13'": (True, False),
        "python_full_version >= '3.13.1'": (False, True),
        "": (True, True),
        "no marker at all": (True, True),
    }
    for marker, expected in cases.items():
        found = tuple(x.holds(marker, nothing, nothing) for x in (windows, arm))
        assert found == expected, marker


EXTRAS = ("cpu", "cu12", "cu-13")
TARGET = find_target()
"""One target for all examples: its cache has markers, which may depend on the
selection."""


@given(
    chosen=st.frozensets(st.sampled_from(EXTRAS)),
    groups=st.frozensets(st.sampled_from(["dev", "gpu"])),
    name=st.sampled_from(EXTRAS),
    sign=st.sampled_from(["==", "!="]),
    kind=st.sampled_from(["plain", "behind", "uv", "pylock"]),
)
def test_extras_in_markers(
    chosen: frozenset[str], groups: frozenset[str], name: str, sign: str, kind: str
) -> None:
    texts = {
        "plain": f"extra {sign} '{name}'",
        "behind": f'"{name}" {sign} extra',
        "uv": f"extra {sign} 'extra-10-my-project-{name}'",
        "pylock": f"'{name}' {'in' if sign == '==' else 'not in'} extras",
    }
    marker = f"({texts[kind]}) and python_version >= '3'"
    expected = (name in chosen) is (sign == "==")
    assert TARGET.holds(marker, chosen, groups) is expected
    of_group = f"extra == 'group-3-abc-{name}' or '{name}' in dependency_groups"
    assert TARGET.holds(of_group, chosen, groups) is (name in groups)


@given(st.text(max_size=40))
def test_any_name_of_a_file(name: str) -> None:
    find_target().best([name])
    assert isinstance(tags_of(name + ".whl"), tuple)
