"""What the table of builds says of a wheel."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from .needs import Code, Evidence, Needs
from .requirements import required_projects

if TYPE_CHECKING:
    from ..knowledge.builds import BuildRecord

__all__ = ["PROJECTS", "find_record", "needs_of_record", "record_of_needs"]


PROJECTS = frozenset(
    {
        *("bitsandbytes", "cupy-cuda12x", "cupy-cuda13x", "faiss-gpu-cu12"),
        *("jax-cuda12-pjrt", "jax-cuda13-pjrt", "onnxruntime-gpu", "tensorflow"),
        *("torch", "torchao", "torchaudio", "torchcodec", "torchvision"),
        *("vllm", "xformers", "xgboost"),
    }
)
"""The projects of the table: requirements on them decide whether a build runs."""


def find_record(
    project: str,
    version: str,
    platform: str,
    *,
    file_name: str | None = None,
    sha256: str | None = None,
) -> BuildRecord | None:
    """Find the record of a wheel.

    :param version: with the local version label, if the wheel has one.
    :param platform: ``linux_x86_64``, ``linux_aarch64`` or ``win_amd64``.
    :param sha256: the wheel's, if it is known. A record of another file with the same
        name says nothing about this one.
    """
    try:
        parsed = Version(version)
    except InvalidVersion:
        return None
    record = _index(canonicalize_name(project)).get(
        (Version(parsed.public), parsed.local, platform)
    )
    if record is None or file_name is None or sha256 is None:
        return record
    return record if record.wheels.get(file_name, sha256) == sha256 else None


@cache
def _index(project: str) -> dict[tuple[Version, str | None, str], BuildRecord]:
    from ..knowledge.builds import build_records

    return {
        (Version(record.version), record.label, record.platform): record
        for record in build_records().get(project, ())
    }


def needs_of_record(
    record: BuildRecord, *, evidence: Evidence = "table", source: str | None = None
) -> Needs:
    """Take the needs of a build from its record.

    :param source: where the record is from; by default, the table of builds.
    """
    return Needs(
        evidence=evidence,
        source=source or f"table of builds, {record.date}",
        cuda=record.cuda,
        pieces=tuple(
            tuple(
                Code(
                    name=item.name,
                    cuda=item.cuda,
                    machine_code=frozenset(item.machine_code),
                    ptx=item.ptx,
                    minor=item.minor,
                )
                for item in piece
            )
            for piece in record.pieces
        )
        or None,
        gpu=record.gpu,
        requires=record.requires,
    )


def record_of_needs(
    needs: Needs,
    *,
    project: str,
    version: str,
    label: str | None,
    platform: str,
    wheels: dict[str, str],
    date: str,
) -> BuildRecord:
    """Make the record of a wheel that was inspected.

    :param wheels: the SHA-256 of each file that was read, by its name.
    :param date: the day of the inspection, such as ``2026-11-21``.
    """
    from ..knowledge.builds import BuildRecord, LibraryRecord

    return BuildRecord(
        project=project,
        version=version,
        label=label,
        platform=platform,
        cuda=needs.cuda,
        pieces=tuple(
            tuple(
                LibraryRecord(
                    name=code.name,
                    cuda=code.cuda,
                    machine_code=tuple(sorted(code.machine_code, key=_by_number)),
                    ptx=dict(sorted(code.ptx.items(), key=lambda i: _by_number(i[0]))),
                    minor=code.minor,
                )
                for code in piece
            )
            for piece in needs.pieces or ()
        ),
        gpu=needs.gpu,
        requires=tuple(required_projects(needs.requires, PROJECTS).values()),
        wheels=wheels,
        source="inspected",
        date=date,
    )


def _by_number(target: str) -> tuple[int, str]:
    return int(target.rstrip("af")), target
