"""Paths in the checkout, which stay valid if a test changes the current directory."""

from __future__ import annotations

from pathlib import Path

__all__ = ["FIXTURES", "NVP", "PROVIDER", "ROOT", "SCHEMAS"]

ROOT = Path(__file__).resolve().parents[2]

FIXTURES = ROOT / "fixtures"
SCHEMAS = ROOT / "schemas"

PROVIDER = ROOT / "nvidia_variant_provider"
"""The source of the provider; tests import the installed copy."""

NVP = ROOT / "packages" / "nvp" / "src" / "nvp"
"""The source of the command line; tests import the installed copy."""
