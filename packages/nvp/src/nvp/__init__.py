"""The command line ``nvp``, and all that people do with the provider for NVIDIA GPUs.

Installers run `nvidia_variant_provider`, which imports nothing of this package. The
public Python API is in `nvp.api`.
"""

from __future__ import annotations

__all__ = ["__version__"]

__version__ = "0.2.0"
