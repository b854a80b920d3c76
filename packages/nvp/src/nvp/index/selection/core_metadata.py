"""METADATA that is read here, to be sent.

An installer that finds no METADATA on an index (PEP 658) downloads the whole wheel to
learn what it requires. The page announces METADATA of large wheels instead, which is
read out of the wheel by ranges when an installer asks for it. pip and uv end when
METADATA that a page announces does not come: no status of HTTP leads them to the wheel
itself. So it is announced only where the server of the file sends ranges, which one
request finds out; and where they do not come for this one file, the whole wheel is
read.

PEP 825, "Evaluating variant markers": the markers "MUST NOT take part in selecting a
wheel", and they are evaluated for the label that was selected. An installer that cannot
read them gets METADATA in which they are resolved, and the wheel with that METADATA.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from simple_repository import model
from simple_repository.components.core import SimpleRepository

from nvidia_variant_provider.errors import InputError

from ...wheels.archive import parse_requires, platform_of
from ..http.ranges import Parts, RangeSupport
from ..http.urls import NoRangesError, is_http, server_of
from .pieces import ComparedWheel, CopiedWheel, Settle
from .reader import UNAVAILABLE, Reader
from .renaming import find_label
from .wheel_files import SMALLEST

if TYPE_CHECKING:
    from ...metadata.requirements import SelectedVariant
    from ...wheels.rewriting import RewritePlan

logger = logging.getLogger(__name__)

METADATA_KEY = "_nvidia_variant_provider_metadata"
"""Marks a file whose METADATA is sent from here although the upstream has none."""


class Announcer:
    """Announces METADATA of wheels, and reads it on demand.

    :param reader: reads it.
    :param ranges: knows which servers send parts of files.
    :param platform: the platform of the wheels, such as ``linux_x86_64``.
    """

    def __init__(self, reader: Reader, ranges: RangeSupport, platform: str) -> None:
        self._reader = reader
        self._ranges = ranges
        self._platform = platform
        self._reading: dict[tuple[str, str], asyncio.Task[bytes]] = {}

    async def announce(
        self, files: Sequence[model.File]
    ) -> tuple[list[model.File], dict[str, model.File]]:
        """Return the files of a page; those whose METADATA can be read say so.

        :returns: the files, and those whose METADATA is announced here, by name.
        """
        large = {file.filename: file for file in files if self._is_for_here(file)}
        servers = {server_of(file.url): file.url for file in large.values()}
        replies = await asyncio.gather(*map(self._ranges.has, servers.values()))
        sends = dict(zip(servers, replies, strict=True))
        shown = []
        announced = {}
        for file in files:
            known = self._reader.metadata
            kept = None if file.dist_info_metadata else known.find(file)
            readable = file.filename in large and sends[server_of(file.url)]
            if known.is_refused(file) or (kept is None and not readable):
                shown.append(file)
                continue
            announced[file.filename] = file
            shown.append(_with_metadata(file, None if kept is None else kept.content))
        return shown, announced

    async def read(
        self, index: SimpleRepository, project: str, file: model.File
    ) -> str:
        """Return METADATA of a wheel that was announced.

        :raises InputError: it cannot be read, or is that of another wheel.
        """
        # An installer that has waited for too long asks again: it waits for the same
        # work then, which goes on when its request ends.
        key = file.hashes.get("sha256", ""), file.url
        if key not in self._reading:
            work = asyncio.ensure_future(
                self._reader.read_metadata(
                    index,
                    project,
                    file,
                    without_ranges=lambda: self._ranges.deny(file.url),
                )
            )
            self._reading[key] = work
            work.add_done_callback(lambda _: self._reading.pop(key, None))
        content = await asyncio.shield(self._reading[key])
        self._reader.metadata.hand_out(file)
        return content.decode("utf-8", "replace")

    def _is_for_here(self, file: model.File) -> bool:
        """Return whether METADATA of a file is worth a request.

        Most wheels that run anywhere are small. Those count where the page says that
        they are large.
        """
        name = file.filename
        if file.dist_info_metadata or not name.endswith(".whl"):
            return False
        if (file.size or SMALLEST) < SMALLEST or not is_http(file.url):
            return False
        label = find_label(name)
        tag = name[:-4].removesuffix(f"-{label}").rpartition("-")[2]
        if tag == "any":
            return bool(file.size)
        return platform_of(tag) == self._platform


def _with_metadata(file: model.File, kept: bytes | None) -> model.File:
    # What has not been read has no hash yet: PEP 658 has "true" for that.
    announced: bool | dict[str, str] = (
        True if kept is None else {"sha256": hashlib.sha256(kept).hexdigest()}
    )
    private: Mapping[str, object] = {
        **dict(file.private_metadata.items()),
        METADATA_KEY: True,
    }
    return replace(
        file,
        dist_info_metadata=announced,
        private_metadata=model.PrivateMetadataMapping.from_any_mapping(private),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluatedWheel(model.Resource):
    """A wheel that is rewritten on its way.

    :param original: where the wheel is.
    :param plan: what is written instead.
    :param hashes: those of the original that the page gives, by algorithm.
    :param parts: what was read of it to plan that.
    """

    original: model.Resource
    plan: RewritePlan
    hashes: Mapping[str, str]
    parts: tuple[Parts, ...] = ()
    settle: Settle = lambda _: None
    context: model.Context = field(default_factory=model.Context)
    to_cache: bool = False

    @property
    def place(self) -> str:
        """The URL or the path of the original."""
        original = self.original
        return str(getattr(original, "url", None) or getattr(original, "path", ""))

    @property
    def size(self) -> int | None:
        """The bytes that are sent."""
        return self.plan.size


@dataclass(frozen=True, kw_only=True, slots=True)
class HeldWheel(ComparedWheel):
    """A wheel whose METADATA can be read only when all of it has arrived.

    :param refusal: why it must not be rewritten, if it must not.
    :param plan: keeps the wheel that has arrived, and returns how it is rewritten;
        ``None`` if it stays as it is.
    """

    refusal: str | None
    plan: Callable[[CopiedWheel], Awaitable[RewritePlan | None]]


class Evaluator:
    """Resolves the variant markers of the wheels of one repository.

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
        from ...wheels.rewriting import evaluate_core_metadata

        metadata = await self._reader.read_metadata(self._index, project, file)
        return parse_requires(evaluate_core_metadata(metadata, variant))

    async def rewrite(
        self,
        project: str,
        file: model.File,
        variant: SelectedVariant,
    ) -> EvaluatedWheel | None:
        """Return the wheel with that METADATA; ``None`` if it stays as it is.

        :raises InputError: the wheel cannot be read.
        """
        from ...wheels.rewriting import evaluate_core_metadata, plan_rewrite

        evaluate = functools.partial(evaluate_core_metadata, variant=variant)
        parts = Parts()
        plan = await self._reader.open(
            self._index,
            project,
            file.filename,
            lambda opened: plan_rewrite(opened, evaluate),
            parts,
        )
        if plan is None:
            return None
        logger.info("%s: its METADATA is rewritten on the way", file.filename)
        read = (parts, *self._reader.metadata.find_parts(file))
        return EvaluatedWheel(
            original=self._reader.find_copy(
                await self._index.get_resource(project, file.filename)
            ),
            plan=plan,
            hashes=file.hashes,
            parts=read,
            settle=functools.partial(self._reader.metadata.settle, file, read),
        )

    async def hold(
        self,
        project: str,
        file: model.File,
        variant: SelectedVariant,
        refusal: str | None,
    ) -> HeldWheel | None:
        """Return a wheel whose server sends no parts of it.

        :param refusal: why a wheel of this index must not be rewritten.
        """
        from ...wheels.rewriting import evaluate_core_metadata, plan_rewrite

        original = await self._index.get_resource(project, file.filename)
        if not isinstance(original, model.HttpResource):
            return None
        evaluate = functools.partial(evaluate_core_metadata, variant=variant)

        async def plan(copy: CopiedWheel) -> RewritePlan | None:
            await self._reader.keep_copy(file, copy)
            return await asyncio.to_thread(
                copy.read, lambda opened: plan_rewrite(opened, evaluate)
            )

        read = tuple(self._reader.metadata.find_parts(file))
        return HeldWheel(
            original=original,
            hashes=file.hashes,
            refusal=refusal,
            plan=plan,
            parts=read,
            settle=functools.partial(self._reader.metadata.settle, file, read),
        )

    async def depends_on_variant(
        self, project: str, file: model.File, variant: SelectedVariant
    ) -> bool | str | None:
        """Return whether a wheel will be rewritten, or why that cannot be known.

        :returns: ``None`` where that is known when the whole wheel has arrived.
        """
        try:
            return await self.evaluate(project, file, variant) is not None
        except NoRangesError:
            return None
        except InputError as error:
            return str(error)
        except UNAVAILABLE:
            # The texts of that library name the request, which says nothing here.
            return "the index does not send it"
