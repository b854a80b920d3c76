"""Wheels whose dependencies depend on the variant, with their markers settled.

PEP 825, "Evaluating variant markers": the markers "MUST NOT take part in selecting a
wheel", and they are evaluated for the label that was selected. An installer that cannot
read them gets METADATA in which they are settled, and the wheel with that METADATA.
"""

from __future__ import annotations

import functools
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from simple_repository import model
from simple_repository.components.core import SimpleRepository

from nvidia_variant_provider.errors import InputError

from .reader import UNAVAILABLE, Reader

if TYPE_CHECKING:
    from ...metadata.markers import SelectedVariant
    from ...wheels.rewriting import RewritePlan

__all__ = ["EvaluatedWheel", "Evaluator"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluatedWheel(model.Resource):
    """A wheel that is rewritten on its way.

    :param original: where the wheel is.
    :param plan: what is written instead.
    :param sha256: the hash of the original, if the page gives it.
    """

    original: model.Resource
    plan: RewritePlan
    sha256: str | None
    context: model.Context = field(default_factory=model.Context)
    to_cache: bool = False


class Evaluator:
    """Settles the variant markers of the wheels of one repository.

    :param reader: reads the wheels and their METADATA.
    """

    def __init__(self, index: SimpleRepository, reader: Reader) -> None:
        self._index = index
        self._reader = reader

    async def evaluate(
        self, project: str, file: model.File, variant: SelectedVariant
    ) -> bytes | None:
        """Return METADATA without variant markers; ``None`` if it has none.

        :raises InputError: METADATA cannot be read, or a marker has no meaning.
        """
        from ...wheels.rewriting import evaluate_core_metadata

        metadata = await self._reader.read_metadata(self._index, project, file)
        evaluated = evaluate_core_metadata(metadata, variant)
        return None if evaluated == metadata else evaluated

    async def read_requirements(
        self, project: str, file: model.File, variant: SelectedVariant
    ) -> tuple[str, ...]:
        """Return the requirements of a wheel without variant markers.

        :raises InputError: METADATA cannot be read, or a marker has no meaning.
        """
        from ...wheels.archive import parse_requires
        from ...wheels.rewriting import evaluate_core_metadata

        metadata = await self._reader.read_metadata(self._index, project, file)
        return parse_requires(evaluate_core_metadata(metadata, variant))

    async def rewrite(
        self,
        project: str,
        file: model.File,
        variant: SelectedVariant,
        original: model.Resource,
    ) -> EvaluatedWheel | None:
        """Return the wheel with that METADATA; ``None`` if it stays as it is.

        :raises InputError: the wheel cannot be read.
        """
        if await self.evaluate(project, file, variant) is None:
            return None
        from ...wheels.rewriting import evaluate_core_metadata, plan_rewrite

        evaluate = functools.partial(evaluate_core_metadata, variant=variant)
        plan = await self._reader.open(
            self._index,
            project,
            file.filename,
            lambda opened: plan_rewrite(opened, evaluate),
        )
        if plan is None:
            return None
        logger.info("%s: its METADATA is rewritten on the way", file.filename)
        return EvaluatedWheel(
            original=original, plan=plan, sha256=file.hashes.get("sha256")
        )

    async def depends_on_variant(
        self, project: str, file: model.File, variant: SelectedVariant
    ) -> bool | str:
        """Return whether a wheel will be rewritten, or why that cannot be known."""
        try:
            return await self.evaluate(project, file, variant) is not None
        except InputError as error:
            return str(error)
        except UNAVAILABLE:
            # The texts of that library name the request, which says nothing here.
            return "the index does not send it"
