"""The names of wheels, with or without a variant label."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import lru_cache

from nvidia_variant_provider.errors import InputError, shown
from nvidia_variant_provider.metadata.fields import GRAMMARS, explain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from packaging.tags import Tag

MAX_LENGTH = 255
"""The most characters of a file name; file systems and indexes have no longer ones."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WheelName:
    """What the name of a wheel file says.

    :param name: the project, as normalized file names spell it (``my_project``).
    :param version: the release, normalized.
    :param label: the variant label; ``None`` for a non-variant wheel.
    :param build: the build tag as `packaging` sorts it; empty when there is none.
    :param tags: the interpreters and platforms that the wheel is for.
    """

    name: str
    version: str
    label: str | None = None
    build: tuple[()] | tuple[int, str] = ()
    tags: frozenset[Tag] = frozenset()


def parse_wheel_name(file_name: str) -> WheelName:
    """Parse ``{name}-{version}(-{build})-{python}-{abi}-{platform}(-{label}).whl``.

    :raises InputError: the name has another form.
    """
    from packaging.utils import InvalidWheelFilename, parse_wheel_filename

    if len(file_name) > MAX_LENGTH:
        message = f"the name has {len(file_name)} characters"
        raise InputError(message, path=shown(file_name), hint="rename the wheel")
    stem, extension = os.path.splitext(file_name)
    parts = stem.split("-")
    # PEP 825: "The Python tag component MUST NOT start with a digit". A build tag
    # starts with one, which tells the two apart.
    has_build = len(parts) > 2 and parts[2][:1].isdigit()
    label = parts.pop() if len(parts) == 6 + has_build else None
    if label is not None and not GRAMMARS["label"].fullmatch(label):
        message = explain(label, "label")
        raise InputError(message, path=file_name, hint="rename the wheel")
    try:
        # packaging does not know labels and refuses a name with one.
        name, version, build, tags = parse_wheel_filename("-".join(parts) + extension)
    except InvalidWheelFilename:
        message = "not the name of a wheel"
        hint = "build the wheel with a standard name"
        raise InputError(message, path=file_name, hint=hint) from None
    return WheelName(
        name=name.replace("-", "_"),
        version=str(version).replace("-", "_"),
        label=label,
        build=build,
        tags=tags,
    )


@lru_cache(maxsize=1024)
def platform_of(text: str) -> str | None:
    """Return the platform of a wheel as the table of builds names it.

    :param text: the platform tag, or the end of a name with it, such as
        ``manylinux_2_28_x86_64.manylinux2014_x86_64.whl``.
    """
    for platform in text.removesuffix(".whl").split("."):
        if platform == "win_amd64":
            return platform
        for machine in ("x86_64", "aarch64"):
            if platform.startswith(("manylinux", "linux")) and platform.endswith(
                f"_{machine}"
            ):
                return f"linux_{machine}"
    return None


@lru_cache(maxsize=1024)
def is_for_platform(text: str, platform: str) -> bool:
    """Return whether a wheel may be for a platform, by its platform tag alone.

    The versions of glibc, musl and macOS do not count.

    :param text: as for `platform_of`.
    :param platform: such as ``linux_x86_64`` or ``win_amd64``.
    """
    system, _, machine = platform.partition("_")
    for tag in text.removesuffix(".whl").split("."):
        if tag in ("any", platform):
            return True
        # manylinux_2_28_x86_64, manylinux2014_x86_64, musllinux_1_2_x86_64
        if system == "linux" and "linux" in tag and tag.endswith(f"_{machine}"):
            return True
        if system == tag.partition("_")[0] == "macosx":
            return True
    return False
