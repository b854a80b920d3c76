"""NV4xx: the consistency of the files of a release."""

from __future__ import annotations

from .model import ERROR, NOTE, WARNING, Rule

__all__ = ["RELEASE_RULES"]

RELEASE_RULES = (
    Rule(
        code="NV401",
        severity=ERROR,
        title="file name not normalised",
        clients="neither finds the file",
        what="The file is not named `{name}-{version}-variants.json` with both parts "
        "normalised as in the names of wheels.",
        effect="Both look for the normalised name, and do not find the file.",
        fix="use lower case, write `_` for `-` and `.` in the name, and write the "
        "version as `packaging` does.",
        example="My-Torch-2.9-variants.json   <- my_torch-2.9-variants.json",
    ),
    Rule(
        code="NV402",
        severity=ERROR,
        title="label without wheel",
        clients="uv skips the label; variantlib offers it",
        what="The metadata lists a label that no wheel has.",
        effect="uv skips the label and takes the next best one. variantlib offers it.",
        fix="upload the wheel, or remove the label.",
    ),
    Rule(
        code="NV403",
        severity=ERROR,
        title="wheel whose label is not listed",
        clients="uv does not select the wheel",
        what="A wheel has a label that the metadata does not list.",
        effect="uv does not select the wheel.",
        fix="write the metadata again: `nvidia-variant-provider upgrade --index "
        "FOLDER`.",
    ),
    Rule(
        code="NV404",
        severity=ERROR,
        title="wheel without variant.json",
        clients="uv fails to install the wheel",
        what="A wheel with a label has no `*.dist-info/variant.json`.",
        effect="uv fails to install the wheel.",
        fix="build the wheel with variant metadata, or use `variantlib make-variant`. "
        "Renaming a wheel is not enough.",
    ),
    Rule(
        code="NV405",
        severity=ERROR,
        title="wheel and index differ",
        clients="uv selects by the index, and fails where the wheel does not fit",
        what="`variant.json` in a wheel and the metadata file give a label different "
        "properties.",
        effect="uv selects by the metadata file, and then fails to install a wheel "
        "that says it is not for the machine. Machines that the wheel is for may "
        "never be offered it.",
        fix="write the metadata again from the wheels.",
    ),
    Rule(
        code="NV406",
        severity=ERROR,
        title="metadata that cannot be merged",
        clients="variantlib logs an error and keeps the first",
        what="The wheel has the namespaces in another order, or another provider for "
        "one of them, so that PEP 825 does not allow merging the two.",
        effect="When variantlib makes the metadata file, it logs an error, exits with "
        "0, and leaves out what does not fit.",
        fix="use one list of namespaces and one provider for all wheels. A longer list "
        "has to start with the shorter one.",
    ),
    Rule(
        code="NV407",
        severity=ERROR,
        title="wheels of one label differ",
        clients="variantlib logs an error and keeps the first",
        what="Two wheels of one label, such as those for two platforms, have different "
        "properties. A label has one set of properties in a release.",
        effect="When variantlib makes the metadata file, it logs an error, exits with "
        "0, and uses the properties of the first wheel. uv does not check this.",
        fix="use two labels, or the same targets on both platforms.",
    ),
    Rule(
        code="NV408",
        severity=NOTE,
        title="variant markers in METADATA",
        clients="no installer accepts them today",
        what="METADATA has requirements with variant markers, such as "
        "`variant_properties`.",
        effect="PEP 825 allows them, but no installer evaluates them today. uv and "
        "pip 26.3 reject the wheel when they read its requirements. pip 25.3 installs "
        "it, and then every later command of pip fails. The wheel installs through "
        "`nvidia-variant-provider pip` and `serve`, which evaluate the markers.",
        fix="resolve the marker when the wheel is built, if installers have to take "
        "the wheel by themselves. Each label has requirements of its own.",
        example='Requires-Dist: nvidia-nccl-cu12; "cu126" == variant_label',
    ),
    Rule(
        code="NV409",
        severity=ERROR,
        title="no variants.json",
        clients="uv does not see the variant wheels",
        what="A release has wheels with labels, and no metadata file next to them.",
        effect="uv does not see the variant wheels, so that every machine gets the "
        "non-variant wheel.",
        fix="make the file with `nvidia-variant-provider upgrade --index FOLDER` or "
        "with `variantlib generate-index-json`.",
    ),
    Rule(
        code="NV410",
        severity=WARNING,
        title="variants.json older than wheels",
        clients="neither checks it",
        what="A wheel is newer than the metadata file, which may come from an earlier "
        "upload.",
        effect="Neither client checks this.",
        fix="write the metadata again after the last upload. After a copy that resets "
        "all times, ignore the rule.",
    ),
    Rule(
        code="NV411",
        severity=ERROR,
        title="file that cannot be read as a wheel",
        clients="both fail to install it",
        what="The file is not a wheel: its name is not that of a wheel, it is not an "
        "archive, a member is damaged, encrypted or far too large, or METADATA is "
        "missing.",
        effect="Both fail to install the file.",
        fix="build the wheel again, or upload it again.",
    ),
    Rule(
        code="NV412",
        severity=ERROR,
        title="variant.json of another label",
        clients="variantlib leaves the wheel out; uv fails to install it",
        what="`variant.json` is for a label other than that of the file name, or for "
        "several labels.",
        effect="When variantlib makes the metadata file, it warns and leaves the wheel "
        "out. uv fails to install the wheel.",
        fix="build each label with a `variant.json` of its own, instead of renaming "
        "wheels.",
    ),
    Rule(
        code="NV413",
        severity=ERROR,
        title="METADATA of another release",
        clients="uv and pip fail to install the wheel",
        what="METADATA, or the `*.dist-info` folder that it is in, has another project "
        "or another version than the file name. This happens when wheels are renamed, "
        "such as to add a local version.",
        effect="uv and pip fail to install the wheel. variantlib does not look at it.",
        fix="build the wheel again, with the name and the version that it should have.",
        example="torch-2.9.1+cu126-...whl   <- Version: 2.9.1",
    ),
    Rule(
        code="NV414",
        severity=WARNING,
        title="WHEEL has other tags than the name",
        clients="neither checks it",
        what="The tags in `*.dist-info/WHEEL` are not those of the file name. Tags for "
        "plain Linux, such as `linux_x86_64`, may stand for the `manylinux` tags of "
        "the same machine.",
        effect="Neither client checks this. Installers go by the file name; tools that "
        "look at an installed package go by WHEEL, such as `pip check`, which may say "
        "that it is not supported on this platform.",
        fix="rename wheels with `wheel tags`, or repair them with `auditwheel`, which "
        "both write WHEEL as well.",
        example="demo-1.0-py3-none-manylinux_2_28_aarch64.whl   "
        "<- Tag: py3-none-linux_x86_64",
    ),
    Rule(
        code="NV415",
        severity=WARNING,
        title="wheel name not normalised",
        clients="both accept it",
        what="The project or the version in the file name is not in its normal form: "
        "lower case, `_` for `-` and `.` in the name, the version as `packaging` "
        "writes it.",
        effect="Both accept it. Tools that compare names as texts do not find the "
        "wheel, and the metadata file of its release has the normal form.",
        fix="build the wheel with a current version of its build backend.",
        example="My.Torch-2.09-py3-none-any.whl   <- my_torch-2.9-py3-none-any.whl",
    ),
    Rule(
        code="NV416",
        severity=WARNING,
        title="requirements differ within a label",
        clients="neither checks it",
        what="Two wheels of one label, such as those for two platforms, have different "
        "`Requires-Dist`. The order and the spelling do not matter.",
        effect="Neither client checks this. Resolvers that make a lock for all "
        "platforms, such as `uv lock`, read METADATA of one wheel and take it for "
        "that of the others.",
        fix="give all wheels of a label the same requirements, with markers such as "
        '`platform_system == "Linux"` where they differ.',
    ),
    Rule(
        code="NV417",
        severity=ERROR,
        title="wrong sha256 on the page",
        clients="uv and pip refuse the file",
        what="The page of an index gives another sha256 for a wheel or a metadata file "
        "than the file has. Wheels are read from start to end for it, unless "
        "`--no-hash` is given.",
        effect="uv and pip refuse the wheel. The page is older than the file, or "
        "somebody has replaced the file.",
        fix="find out which of the two is right. A file that was uploaded must not "
        "change: publish a new one under another version or build number.",
    ),
    Rule(
        code="NV418",
        severity=WARNING,
        title="no sha256 on the page",
        clients="both accept it",
        what="The page of an index gives no sha256 for files of a release with "
        "variants.",
        effect="Both accept it, unless the user requires hashes. Nobody notices a file "
        "that is damaged or replaced, and installers cannot tell whether a file in "
        "their cache is the same one.",
        fix="let the index give hashes: `#sha256=` in the links of an HTML page (PEP "
        "503), `hashes` in JSON (PEP 691).",
    ),
)
