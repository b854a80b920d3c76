"""All defects of a document, and what could be read of it in spite of them."""

from __future__ import annotations

from dataclasses import dataclass

from .defects import Kind, Reporter
from .document_reader import read_document
from .model import VariantsMetadata

__all__ = ["CheckedDocument", "Defect", "check_document"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Defect:
    """One defect.

    :param place: the place in the document, such as ``variants.cu126.nvidia``.
    :param message: what is wrong.
    :param hint: what to do next.
    :param tolerated: whether reading accepts a document with the defect.
    """

    kind: Kind
    place: str
    message: str
    hint: str
    tolerated: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckedDocument:
    """What a parsed document holds, however wrong it is.

    :param metadata: what could be read of the document.
    :param defects: every defect, in the order of the walk.
    """

    metadata: VariantsMetadata
    defects: tuple[Defect, ...]

    @property
    def is_readable(self) -> bool:
        """Whether `metadata_from_dict` accepts the document."""
        return all(defect.tolerated for defect in self.defects)


def check_document(document: object) -> CheckedDocument:
    """Return all defects of a parsed document, and what could be read of it.

    Labels and providers in which something has the wrong type are left out of the
    metadata. What has any other defect stays in.
    """
    report = _Collector()
    metadata = read_document(document, report)
    return CheckedDocument(metadata=metadata, defects=tuple(report.defects))


class _Collector(Reporter):
    """Collects the defects and lets the walk go on."""

    thorough = True

    def __init__(self) -> None:
        self.defects: list[Defect] = []

    def refuse(self, kind: Kind, place: str, message: str, hint: str) -> None:
        self._add(kind, place, message, hint, tolerated=False)

    def tolerate(self, kind: Kind, place: str, message: str, hint: str) -> None:
        self._add(kind, place, message, hint, tolerated=True)

    def _add(
        self, kind: Kind, place: str, message: str, hint: str, *, tolerated: bool
    ) -> None:
        defect = Defect(
            kind=kind, place=place, message=message, hint=hint, tolerated=tolerated
        )
        self.defects.append(defect)
