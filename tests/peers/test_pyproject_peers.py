"""The reactions of variantlib and ``validate`` to a section ``[variant]``."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.variantlib_peer import refuses_pyproject

from nvp import api
from nvp.findings import ERROR

GOOD = """
[variant.default-priorities]
namespace = ["nvidia"]

[variant.providers.nvidia]
requires = ["nvidia-variant-provider>=0.0.1,<1.0.0"]
plugin-api = "nvidia_variant_provider.plugin:NvidiaVariantPlugin"
"""
PROVIDER = GOOD[GOOD.index("requires") :]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("", ""),
        ("requires = [", "build-requires = ["),
        ("requires = [", "requirements = ["),
        ('["nvidia"]', '["nvidia", "amd"]'),
        ('["nvidia"]', '["Nvidia"]'),
        ('["nvidia"]', "[]"),
        ('["nvidia"]', '"nvidia"'),
        ("plugin-api", "build-requires = ['b']\nplugin-api"),
        ("plugin-api", "static-properties = {a = ['b']}\nplugin-api"),
        ("plugin-api", "unknown = 1\nplugin-api"),
        ("plugin-api", "optional = 'yes'\nplugin-api"),
        ("NvidiaVariantPlugin", "Nvidia Variant"),
        ("[variant.providers.nvidia]", "[variant.providers.Nvidia]"),
        ("[variant.providers.nvidia]", "[variant.provider.nvidia]"),
        (PROVIDER, "static-properties = {sm_arch = ['90_real']}"),
        (PROVIDER, "static-properties = {sm_arch = ['A']}"),
        (PROVIDER, "feature-order = ['a']"),
        (PROVIDER, "requires = []"),
    ],
)
def test_both_refuse_the_same_sections(old: str, new: str, tmp_path: Path) -> None:
    text = GOOD.replace(old, new) if old else GOOD
    path = tmp_path / "pyproject.toml"
    path.write_text(text, encoding="utf-8")
    errors = [f for f in api.validate([path]) if f.severity == ERROR]
    assert bool(errors) is refuses_pyproject(path), errors
