"""The command line ``nvp`` and its Python API, built on the provider for NVIDIA GPUs.

Installers run `nvidia_variant_provider`, which never imports this package. The public
Python API is in `nvp.api`.
"""

from __future__ import annotations

__all__ = ["__version__"]

__version__ = "0.2.0"
