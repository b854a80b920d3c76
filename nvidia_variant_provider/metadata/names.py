"""The names of metadata files: ``{name}-{version}-variants.json``."""

from __future__ import annotations

import re

from ..frozen import Frozen

__all__ = ["SUFFIX", "MetadataName", "metadata_name", "parse_metadata_name"]

SUFFIX = "-variants.json"
"""How the name of every metadata file ends."""

# PEP 825: both parts are without dashes.
_FORM = re.compile(r"(?P<name>[^-/]+)-(?P<version>[^-/]+)" + re.escape(SUFFIX))


class MetadataName(Frozen):
    """What the name of a metadata file says.

    :param name: the project, as the file spells it.
    :param version: the release, as the file spells it.
    """

    name: str
    version: str

    def normalized(self) -> MetadataName | None:
        """Return the name as the names of wheels spell it.

        ``None`` means that the version is not a version.
        """
        from packaging.utils import canonicalize_name
        from packaging.version import InvalidVersion, Version

        try:
            version = str(Version(self.version.replace("_", "-")))
        except (InvalidVersion, ValueError):
            return None
        return MetadataName(
            name=canonicalize_name(self.name).replace("-", "_"),
            version=version.replace("-", "_"),
        )


def metadata_name(name: str, version: str) -> str:
    """Return the name of the metadata file of a release.

    :param name: the project as in the names of its wheels.
    :param version: the release as in the names of its wheels.
    """
    return f"{name}-{version}{SUFFIX}"


def parse_metadata_name(file_name: str) -> MetadataName | None:
    """Return the parts of a file name; ``None`` for a name of another form."""
    match = _FORM.fullmatch(file_name)
    if match is None:
        return None
    return MetadataName(name=match["name"], version=match["version"])
