"""Resolving the releases of an index with the options of a `Selection`."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from nvidia_variant_provider import detection
from nvidia_variant_provider.machine.environment import Environment
from nvidia_variant_provider.machine.overrides import minor_version_compatibility

from .options import Selection

if TYPE_CHECKING:
    from nvidia_variant_provider.metadata import VariantsMetadata
    from nvidia_variant_provider.resolution.priorities import Priorities
    from nvidia_variant_provider.resolution.resolver import Resolution

__all__ = ["ReleaseResolver"]

logger = logging.getLogger(__name__)


class ReleaseResolver:
    """Resolves releases; it detects the machine and reads the priorities once."""

    def __init__(self, selection: Selection) -> None:
        self._selection = selection
        self._environment: Environment | None = None
        self._priorities: Priorities | None = selection.priorities
        self._preparing = asyncio.Lock()

    async def resolve(self, metadata: VariantsMetadata) -> Resolution:
        """Order the labels of a release.

        :raises ProviderError: the machine or ``variants.toml`` cannot be read.
        """
        from nvidia_variant_provider.resolution.resolver import resolve_metadata

        async with self._preparing:
            environment, priorities = await asyncio.to_thread(self._prepare)
        return await asyncio.to_thread(
            resolve_metadata,
            metadata,
            environment,
            every_gpu=self._selection.every_gpu,
            minor_version_compatibility=minor_version_compatibility(
                self._selection.environ
            ),
            priorities=priorities,
        )

    def _prepare(self) -> tuple[Environment, Priorities]:
        if self._environment is None:
            environ, machine = self._selection.environ, self._selection.machine
            self._environment = machine() if machine else detection.detect(environ)
            logger.info("selecting for %s", self._environment.to_dict())
        if self._priorities is None:
            from nvidia_variant_provider.resolution.priorities import load_priorities

            self._priorities = load_priorities()
        return self._environment, self._priorities
