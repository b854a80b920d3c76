"""Wheel variant provider for NVIDIA GPUs.

The module itself is a plugin endpoint: if metadata has no ``plugin-api``, PEP 850
infers the endpoint from the name of the distribution. The public Python API is in
`nvidia_variant_provider.api`.
"""

from __future__ import annotations

from .plugin import NvidiaVariantPlugin

__all__ = [
    "__version__",
    "all_properties_compatible",
    "get_all_configs",
    "get_supported_configs",
    "is_aot_plugin",
    "is_build_plugin",
    "namespace",
]

__version__ = "0.2.0"

namespace = NvidiaVariantPlugin.namespace
is_aot_plugin = NvidiaVariantPlugin.is_aot_plugin
is_build_plugin = NvidiaVariantPlugin.is_build_plugin
all_properties_compatible = NvidiaVariantPlugin.all_properties_compatible
get_all_configs = NvidiaVariantPlugin.get_all_configs
get_supported_configs = NvidiaVariantPlugin.get_supported_configs
