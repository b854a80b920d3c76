"""NV3xx: what the metadata means for machines with NVIDIA GPUs."""

from __future__ import annotations

from .model import ERROR, NOTE, WARNING, Rule

__all__ = ["MEANING_RULES"]

_SILENT = "both accept it and silently install a different build"
_SILENTLY = "Both accept it and silently install a different build."

MEANING_RULES = (
    Rule(
        code="NV301",
        severity=ERROR,
        title="unknown feature",
        clients=_SILENT,
        what="The `nvidia` provider does not have this feature. It has "
        "`cuda_version_lower_bound`, `cuda_version_upper_bound` and `sm_arch`.",
        effect=f"{_SILENTLY} The label fits no machine at all.",
        fix="use one of the three features.",
        example='"nvidia": {"compute_capability": ["9.0"]}   <- "sm_arch": ["90_real"]',
    ),
    Rule(
        code="NV302",
        severity=ERROR,
        title="unknown value",
        clients=_SILENT,
        what="The provider does not support the value on any machine.",
        effect=f"{_SILENTLY} Next to other values of the feature it makes no "
        "difference; alone, it makes the label useless.",
        fix="use a value that `nvidia-variant-provider properties --all` lists.",
        example='"sm_arch": ["sm_90"]   <- "90_real" or "90_virtual"',
    ),
    Rule(
        code="NV303",
        severity=ERROR,
        title="several values of a single-valued feature",
        clients=_SILENT,
        what="A bound has several values. One matching value is enough, so clients use "
        "the most favourable one.",
        effect=f"{_SILENTLY} Machines whose driver is too old for the build get it.",
        fix="keep the value that the build needs.",
        example='"cuda_version_lower_bound": ["12.0", "12.8"]',
    ),
    Rule(
        code="NV304",
        severity=ERROR,
        title="bounds that exclude each other",
        clients=_SILENT,
        what="The lower bound is not below the upper bound. The upper bound itself is "
        "excluded.",
        effect=f"{_SILENTLY} No driver satisfies both bounds.",
        fix="correct one of the bounds.",
        example='"cuda_version_lower_bound": ["13.0"], '
        '"cuda_version_upper_bound": ["13.0"]',
    ),
    Rule(
        code="NV305",
        severity=WARNING,
        title="upper bound excludes newer drivers",
        clients=_SILENT,
        what="An upper bound excludes newer drivers, although CUDA drivers run what "
        "was built with older toolkits.",
        effect=f"{_SILENTLY} After an update of the driver, users get the CPU build.",
        fix="drop the upper bound. If a newer driver really breaks the build, ignore "
        "the rule for this file.",
        example='"cuda_version_upper_bound": ["13.0"]',
    ),
    Rule(
        code="NV306",
        severity=WARNING,
        title="no sm_arch",
        clients="both install it on GPUs that it has no code for",
        what="A label has a bound and no `sm_arch`.",
        effect="Both select the label by the driver alone, even on GPUs that the build "
        'has no code for. There it fails with "no kernel image is available".',
        fix="declare the targets that the build was made for. "
        "`cuobjdump --list-elf` shows them.",
        example='"nvidia": {"cuda_version_lower_bound": ["13.0"]}',
    ),
    Rule(
        code="NV307",
        severity=ERROR,
        title="target that no such toolkit emits",
        clients=_SILENT,
        what="No toolkit of the lower bound's CUDA major emits code for the target. "
        "CUDA 13 has dropped 50 to 72. Thor is 101 up to CUDA 12, and 110 after it. "
        "A wheel with a library for each of several CUDA versions is exempt.",
        effect=f"{_SILENTLY} The label promises code that cannot be there, or excludes "
        "GPUs that the build has code for.",
        fix="declare what the build has, or correct the lower bound.",
        example='"cuda_version_lower_bound": ["13.0"], "sm_arch": ["70_real"]',
    ),
    Rule(
        code="NV308",
        severity=WARNING,
        title="target that the named toolkit does not emit",
        clients="neither checks it",
        what="The label names a toolkit, such as `cu128`, and a target that only a "
        "later toolkit emits.",
        effect="Neither client checks this. Either the name or the target is wrong; if "
        "it is the target, GPUs get a build without code for them.",
        fix="correct the targets or the label.",
        example='"cu128": {"nvidia": {"sm_arch": ["103_real"], ...}}   '
        "<- CUDA 12.9 and newer emit 103",
    ),
    Rule(
        code="NV309",
        severity=WARNING,
        title="label and lower bound differ",
        clients="neither checks it",
        what="The label names one CUDA version, and the lower bound names another. A "
        "bound of `12.0` for `cu126` is fine, since minor-version compatibility "
        "allows it.",
        effect="Neither client checks this. People who pick a label by its name get "
        "something else.",
        fix="correct one of the two.",
        example='"cu128": {"nvidia": {"cuda_version_lower_bound": ["13.0"], ...}}',
    ),
    Rule(
        code="NV310",
        severity=NOTE,
        title="lower bound stricter than needed",
        clients=_SILENT,
        what="The lower bound asks for the driver of the toolkit itself, although "
        "machine code runs on all drivers of the same CUDA major (minor-version "
        "compatibility).",
        effect=f"{_SILENTLY} Machines with an older driver of the same major get the "
        "CPU build.",
        fix="loosen the bound to the first version of the major, if the build uses no "
        "newer functions of the driver. PTX of a newer toolkit needs the newer driver, "
        "so publish the loose label without it. `inspect` shows which toolkit the PTX "
        "comes from.",
        example='"cuda_version_lower_bound": ["12.6"]   <- ["12.0"]',
    ),
    Rule(
        code="NV311",
        severity=ERROR,
        title="only architecture-specific code",
        clients=_SILENT,
        what="A target ends in `a` or `f`. Such code is for one GPU or one family of "
        "GPUs, which variant properties cannot express.",
        effect=f"{_SILENTLY} The value matches no machine.",
        fix="build for the plain target as well, and declare that.",
        example='"sm_arch": ["90a_real"]   <- "90_real"',
    ),
    Rule(
        code="NV312",
        severity=WARNING,
        title="GPU generation left out",
        clients="both give those GPUs the CPU build",
        what="No label has code for a GPU generation that is newer than the oldest "
        "covered one, although one of the toolkits in use emits it. PTX for a lower "
        "target would be enough.",
        effect="Both give those GPUs the CPU build.",
        fix="add the target, or PTX for a lower one. If the generation is left out on "
        "purpose, ignore the rule.",
        example='"sm_arch": ["90_real", "120_real"]   '
        "<- nothing for 10.x, such as B200",
    ),
    Rule(
        code="NV313",
        severity=NOTE,
        title="no PTX for newer GPUs",
        clients="both give newer GPUs the CPU build",
        what="No label has PTX, which GPUs newer than the newest target would need.",
        effect="Both give newer GPUs the CPU build, until the next release.",
        fix="add PTX for the newest target.",
        example='"sm_arch": ["120_real", "120_virtual"]',
    ),
    Rule(
        code="NV314",
        severity=ERROR,
        title="provider that uv ignores",
        clients="uv treats nvidia as unsupported, so every machine gets the CPU build",
        what="The provider of `nvidia` is not written in the one way that makes uv "
        "0.13.8 use its own NVIDIA provider.",
        effect="uv never runs a plugin: it treats the namespace as unsupported, and "
        "every machine gets the CPU build. variantlib runs the plugin, unless it is "
        "optional.",
        fix="copy the example, which both clients understand.",
        example='"nvidia": {\n'
        '  "requires": ["nvidia-variant-provider>=0.0.1,<1.0.0"],\n'
        '  "plugin-api": "nvidia_variant_provider.plugin:NvidiaVariantPlugin"\n'
        "}",
    ),
    Rule(
        code="NV315",
        severity=WARNING,
        title="label that nothing selects",
        clients=_SILENT,
        what="Wherever the label fits, another label is preferred, or the label fits "
        "nowhere. All drivers are tried with all GPUs that they support.",
        effect=f"{_SILENTLY} The build is made and stored for nothing.",
        fix="give the label what the other one lacks, or remove it. With equal "
        "bounds, a build for more targets is preferred to a build for fewer.",
        example='"cu126": {... "sm_arch": ["80_real", "90_real"]}, '
        '"cu126_sm90": {... "sm_arch": ["90_real"]}',
    ),
)
