"""Outcomes of uv 0.13.8 and variantlib 0.2.2 for each fixture of the linter.

``tests/peers/test_lint_peers.py`` compares these tables with the clients.
"""

from __future__ import annotations

from packaging.tags import platform_tags
from support.containers import library
from support.gpu_wheels import PLAIN, PLAIN_SO, Wheel, binary, one, two
from support.outcomes import REFUSED

__all__ = ["CASES", "CONTENT", "ON_PAGES", "OTHER_MACHINES"]

# What uv and variantlib select from documents of fixtures/lint/

REFUSED_BY_BOTH = [
    "NV107-no-namespace-listed",
    "NV108-null",
    "NV108-wrong-type",
    "NV109-unknown-priority",
    "NV109-unknown-provider-key",
    "NV110-empty-second-source",
    "NV110-no-source",
    "NV110-two-sources",
    "NV111-no-provider",
    "NV111-not-in-priorities",
    "NV112-undeclared-namespace",
    "NV113-null-with-properties",
    "NV116-feature-order-incomplete",
    "NV116-feature-order-missing",
    "NV117-feature-order-of-a-plugin",
    "NV117-plugin-api-without-plugin",
    "NV201-dash",
    "NV201-malformed-label",
    "NV203-malformed-namespace",
    "NV204-malformed-feature",
    "NV204-malformed-feature-of-a-label",
    "NV205-malformed-value",
    "NV207-value-twice",
    "NV208-no-value",
    "NV211-malformed-marker",
]

SILENT = {
    "NV115-same-properties": "cu12",
    "NV118-value-not-listed": "null",
    "NV206-not-sorted": "cu12",
    # The other values still match; without them, another build would be selected.
    "NV302-unknown-value": "cu12",
    "NV303-two-lower-bounds": "cu12",
    "NV304-empty-range": "cu12",
    "NV305-upper-bound": "cu12",
    "NV306-no-sm-arch": "cu12",
    "NV308-newer-than-the-named-toolkit": "cu128",
    "NV309-label-says-otherwise": "null",
    "NV310-strict-bound": "cu126",
    "NV311-architecture-specific": "cu12",
    "NV315-shadowed": "cu12",
}

DIFFERENT = {
    "NV104-no-schema": (REFUSED, "cu12"),
    "NV105-unknown-major": ("cu12", "cu12"),
    "NV105-unknown-schema": ("cu12", "cu12"),
    # The document has the shape of 0.2.0 under the URL of another version.
    "NV106-old-version": ("cu12", "cu12"),
    "NV106-without-providers": ("null", REFUSED),
    "NV107-key-missing": ("null", REFUSED),
    "NV109-unknown-key": (REFUSED, "cu12"),
    "NV110-empty-source": ("cu12", REFUSED),
    "NV113-empty-label": ("cu12", REFUSED),
    "NV113-empty-namespace": ("cu12", REFUSED),
    "NV202-label-too-long": ("cu12_with_everything", "cu12_with_everything"),
    "NV207-namespace-twice": (REFUSED, "cu12"),
    "NV208-static-feature": ("cu12", REFUSED),
    "NV209-malformed-plugin-api": ("cu12", REFUSED),
    "NV314-marker": ("null", "cu12"),
    "NV314-optional": ("null", "null"),
    "NV314-plugin-api": ("null", "cu12"),
    "NV314-url": ("null", "cu12"),
    "NV314-version": ("null", "cu12"),
}

CASES: dict[str, tuple[str | None, str | None]] = {
    **dict.fromkeys(REFUSED_BY_BOTH, (REFUSED, REFUSED)),
    **{case: (label, label) for case, label in SILENT.items()},
    **DIFFERENT,
}
"""The labels that uv and variantlib select on an H100 with CUDA 12.9, by document."""

OTHER_MACHINES = {
    # Volta gets a build of CUDA 13, whose toolkit does not compile for Volta.
    "NV307-dropped-target": ("13.0", "7.0", "cu13"),
    # Thor is 11.0 for drivers for CUDA 13, and the build declares 101.
    "NV307-thor-renumbered": ("13.0", "11.0", "null"),
    # The label says CUDA 12.8, whose toolkit has no code for B300.
    "NV308-newer-than-the-named-toolkit": ("12.8", "10.3", "cu128"),
    "NV312-generation-left-out": ("13.0", "10.0", "null"),
    "NV313-no-ptx": ("13.0", "12.0", "null"),
}
"""A driver, a GPU, and the label that both clients select there, by document."""

TAG = f"py3-none-{next(iter(platform_tags()))}"

CONTENT: dict[str, tuple[Wheel, tuple[str, str], str | None]] = {
    "NV501": (
        Wheel(libraries=one("80_real"), sm=["80_real", "90_real"], tag=TAG),
        ("13.0", "9.0"),
        "cu130",
    ),
    "NV502": (
        Wheel(libraries=one("80_real", "90_real"), sm=["80_real"], tag=TAG),
        ("13.0", "9.0"),
        None,
    ),
    "NV503": (
        Wheel(libraries=one("80_real"), sm=["80_real", "86_real"], tag=TAG),
        ("13.0", "8.6"),
        "cu130",
    ),
    "NV504": (
        Wheel(libraries=one("80_real"), sm=["80_real", "90_virtual"], tag=TAG),
        ("13.0", "9.0"),
        "cu130",
    ),
    "NV505": (
        # The driver for CUDA 13.0 refuses PTX of CUDA 13.1, and the build has no SASS.
        Wheel(
            libraries=one("80_virtual", isa=(9, 1)),
            sm=["80_real"],
            lower="13.0",
            tag=TAG,
        ),
        ("13.0", "8.0"),
        "cu130",
    ),
    "NV506": (
        Wheel(libraries=PLAIN_SO, lower="12.9", sm=PLAIN[:3], tag=TAG),
        ("12.9", "9.0"),
        "cu130",
    ),
    "NV507": (
        Wheel(libraries=one("100a_real"), sm=["100_real"], tag=TAG),
        ("13.0", "10.3"),
        "cu130",
    ),
    "NV508": (
        Wheel(
            libraries={"demo/lib.so": binary("host-only.so")}, sm=["80_real"], tag=TAG
        ),
        ("13.0", "8.0"),
        "cu130",
    ),
    "NV509": (
        Wheel(
            libraries=two(["80_real", "90_real"], ["80_real"]), sm=["80_real"], tag=TAG
        ),
        ("13.0", "8.0"),
        "cu130",
    ),
    "NV510": (
        Wheel(libraries={"demo/lib.so": library()}, sm=["90_real"], tag=TAG),
        ("13.0", "9.0"),
        "cu130",
    ),
    "NV511": (Wheel(libraries=PLAIN_SO, label=None, tag=TAG), ("11.8", "7.0"), None),
    "NV512": (
        Wheel(
            libraries={"demo/lib.so": library("80_real", "90_real")[:-9]},
            label=None,
            tag=TAG,
        ),
        ("11.8", "7.0"),
        None,
    ),
    "NV513": (
        Wheel(
            libraries={"demo/lib.so": library().replace(b"\x3e\0", b"\xb7\0", 1)},
            label=None,
            tag=TAG,
        ),
        ("13.0", "9.0"),
        None,
    ),
    "NV514": (
        Wheel(
            libraries=PLAIN_SO,
            label=None,
            tag=TAG,
            requires=["nvidia-cuda-runtime-cu12"],
        ),
        ("13.0", "9.0"),
        None,
    ),
}
"""A wheel, a driver, a GPU, and the label that uv installs there, by rule."""

ON_PAGES: dict[str, tuple[str | None, bool]] = {
    "NV417": ("0" * 64, False),
    "NV418": (None, True),
}
"""The hash that a page gives for a wheel, and whether uv accepts the hash, by rule."""
