"""Wheel variant provider for NVIDIA GPUs.

The module itself is a plugin endpoint: if metadata has no ``plugin-api``, PEP 850
infers the endpoint from the name of the distribution. The public Python API is in
`nvidia_variant_provider.api`.
"""

from __future__ import annotations

import sys

if sys.argv[:1] == ["-m"]:  # Python imports the package for ``python -m``
    # `signal` imports enum, during which Ctrl-C would print a traceback.
    import _signal  # type: ignore[import-not-found]  # a part of CPython
    import atexit
    import os

    def _interrupt(_: int, frame: FrameType | None) -> None:
        """End the program at Ctrl-C, or raise `KeyboardInterrupt` in its main part."""
        while frame is not None and frame.f_code.co_name != "run_interruptibly":
            frame = frame.f_back
        if frame is None:
            os._exit(130)
        raise KeyboardInterrupt

    # A process that was started with an ignored SIGINT keeps ignoring it.
    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, _interrupt)
        # While Python ends, it cannot call the handler.
        atexit.register(_signal.signal, _signal.SIGINT, _signal.SIG_IGN)

from .plugin import NvidiaVariantPlugin

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType

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
