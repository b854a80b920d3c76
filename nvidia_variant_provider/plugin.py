"""The endpoint that installers call: ``nvidia_variant_provider.plugin``.

Keep this module and its imports small: an installer loads them in every process.
Never print to stdout: installers read the plugin's result from there.
"""

from __future__ import annotations

import os
import warnings

from .detection import detect
from .errors import SelectionWarning
from .machine.environment import minor_version_compatibility
from .machine.supported import NAMESPACE, all_features, left_out, supported_features

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .machine.supported import VariantFeatureConfig


class NvidiaVariantPlugin:
    """Variant provider plugin for the namespace ``nvidia`` (PEP 817, PEP 850)."""

    namespace = NAMESPACE
    is_aot_plugin = False
    is_build_plugin = False
    all_properties_compatible = False

    @classmethod
    def get_all_configs(cls) -> list[VariantFeatureConfig]:
        """Return all features with every value that a wheel may declare.

        Every call returns new lists.
        """
        return all_features()

    @classmethod
    def get_supported_configs(cls) -> list[VariantFeatureConfig]:
        """Return the features and values that this machine supports, best first.

        The list is empty without an NVIDIA driver. Every call reads the environment
        variables. A `SelectionWarning` names facts that the result leaves out.

        :raises OverrideError: a forced value is malformed.
        """
        environ = os.environ
        environment = detect(environ)
        features, notes = supported_features(
            environment,
            minor_version_compatibility=minor_version_compatibility(environ),
        )
        for note in (*notes, *left_out(environment)):
            warnings.warn(note, SelectionWarning, stacklevel=2)
        return features
