"""The command line ``nvp``, and all that people do with the provider for NVIDIA GPUs.

Installers run `nvidia_variant_provider`, which imports nothing of this package. The
public Python API is in `nvp.api`.
"""

from __future__ import annotations

from ._version import __version__

__all__ = ["__version__"]
