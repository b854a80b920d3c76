"""NV5xx: the GPU code in wheels."""

from __future__ import annotations

from .model import ERROR, NOTE, WARNING, Rule

__all__ = ["CONTENT_RULES"]

_NO_CODE = "both install it on GPUs that it has no code for"
_NO_CODE_ALL = "Both install the build on GPUs that it has no code for."

CONTENT_RULES = (
    Rule(
        code="NV501",
        severity=ERROR,
        title="declared code that is not there",
        clients=_NO_CODE,
        what="`sm_arch` has a `_real` value, and a library has nothing that runs on "
        "such a GPU: neither machine code nor PTX that the driver could compile.",
        effect="Both install the build on those GPUs, and its first kernel fails with "
        '"no kernel image is available for execution on the device".',
        fix="build for that target, or drop the value. `inspect --suggest` prints the "
        "values that are true.",
        example='"sm_arch": ["80_real", "90_real"]   '
        "<- the library has machine code for 8.0 only",
    ),
    Rule(
        code="NV502",
        severity=WARNING,
        title="code that is not declared",
        clients="both give those GPUs another build",
        what="All libraries have code for GPUs that no declared value reaches. PTX "
        "that is newer than the lower bound is exempt: it is rightly left out when "
        "the bound is loosened.",
        effect="Both give those GPUs another build, or the CPU build, although this "
        "one runs there.",
        fix="add the value.",
    ),
    Rule(
        code="NV503",
        severity=NOTE,
        title="declared under another name",
        clients="neither checks it",
        what="The declared values differ from the targets of the code, and yet all "
        "GPUs that get the build can run it. For example, `86_real` is declared and "
        "there is code for 8.0; or there is code for 8.6 and only `80_real` is "
        "declared; or `90_real` is declared and there is only `90a` code, which runs "
        "on 9.0 alone. No other GPU of 9.x is known, so that promise holds for now.",
        effect="Neither client checks this. The declared values decide which of two "
        "builds is preferred.",
        fix="declare the targets that the build has. Next to `a` code, build plain "
        "code too.",
    ),
    Rule(
        code="NV504",
        severity=ERROR,
        title="declared PTX that is not there",
        clients=_NO_CODE,
        what="`sm_arch` has a `_virtual` value, and a library has no PTX that compiles "
        "for such GPUs. PTX for a lower target would be enough.",
        effect="Both install the build on GPUs where nothing of it runs, unless it has "
        "machine code for them.",
        fix="build with `code=compute_XY` as well, or drop the value.",
    ),
    Rule(
        code="NV505",
        severity=ERROR,
        title="PTX newer than the lower bound",
        clients="both install it where the driver refuses its PTX",
        what="The PTX was made by a newer toolkit than `cuda_version_lower_bound` "
        "says, and either it is declared or some GPUs have nothing else. A driver "
        "compiles the PTX of toolkits that are not newer than itself; minor-version "
        "compatibility covers machine code only.",
        effect="Both install the build with older drivers, which refuse the PTX: "
        '"the provided PTX was compiled with an unsupported toolchain".',
        fix="declare the CUDA version of the toolkit, or drop the `_virtual` values "
        "and rely on machine code.",
        example='"cuda_version_lower_bound": ["12.6"], '
        '"sm_arch": ["90_real", "120_virtual"]   <- PTX ISA 8.8 is of CUDA 12.9',
    ),
    Rule(
        code="NV506",
        severity=ERROR,
        title="lower bound below the linked CUDA",
        clients="both install it where CUDA refuses the driver",
        what="A library is linked with a newer major version of CUDA than "
        "`cuda_version_lower_bound`, or METADATA requires one (`libcudart.so.13`, "
        "`nvidia-cuda-runtime-cu12`), or there is no lower bound.",
        effect="Both install the build with drivers of an older major, which that CUDA "
        'refuses: "CUDA driver version is insufficient for CUDA runtime version".',
        fix="declare at least the major version, such as `13.0`.",
    ),
    Rule(
        code="NV507",
        severity=ERROR,
        title="architecture-specific code declared as plain",
        clients=_NO_CODE,
        what="A declared value has nothing but code for one GPU behind it, such as "
        "`100a`, and other GPUs get the build through it. `100_real` is for 10.0 and "
        "10.3, but `100a` runs on 10.0 alone. `90a` behind `90_real` is NV503, since "
        "only 9.0 gets that build.",
        effect=_NO_CODE_ALL,
        fix="build for the target as well, plain (`sm_100`) or for its family "
        "(`sm_100f`).",
    ),
    Rule(
        code="NV508",
        severity=ERROR,
        title="declared target of empty cubins",
        clients=_NO_CODE,
        what="The only machine code for a declared target is empty. When nvcc links, "
        "it adds a cubin without a kernel for each target of the command line, or for "
        "its default target.",
        effect=_NO_CODE_ALL,
        fix="pass `-gencode` when compiling, and not only when linking; or drop the "
        "value.",
    ),
    Rule(
        code="NV509",
        severity=WARNING,
        title="libraries that disagree",
        clients="neither checks it",
        what="A library of the project has nothing for GPUs that another library of "
        "the same wheel has code for. Only what all libraries have can be declared.",
        effect="Neither client checks this. Whatever else is declared is NV501.",
        fix="build all libraries for the same targets. If the program can do without "
        "the library on other GPUs, ignore the rule.",
    ),
    Rule(
        code="NV510",
        severity=ERROR,
        title="GPU build without GPU code",
        clients=_NO_CODE,
        what="`sm_arch` is declared, and the libraries of the project hold no GPU "
        "code at all, or a wheel for one platform has no library. Pure Python wheels, "
        "whose kernels come in another way, are exempt, and so are libraries that "
        "call cuBLAS or a similar library.",
        effect=_NO_CODE_ALL,
        fix="check whether the build silently left CUDA out, as many builds do when "
        "they find no compiler; otherwise drop `sm_arch`.",
    ),
    Rule(
        code="NV511",
        severity=NOTE,
        title="GPU code that nothing declares",
        clients="both install it on any machine",
        what="The wheel has GPU code and declares no property of `nvidia`: it is a "
        "non-variant wheel, the null variant, or a build for other namespaces.",
        effect="Both install the wheel on any machine, even on those without a GPU.",
        fix="do nothing where that is intended, such as on an index without variants. "
        "Otherwise build the wheel with the properties that `inspect --suggest` "
        "prints.",
    ),
    Rule(
        code="NV512",
        severity=ERROR,
        title="GPU code that cannot be read",
        clients="neither checks it",
        what="A member of the wheel or a container of GPU code is damaged, cut off, "
        "encrypted or not what it claims to be; or the wheel holds far more containers "
        "or compressed code than any real one, so that not everything was read. "
        "Nothing else is compared then, since what seems to be missing may be in what "
        "could not be read.",
        effect="Neither client notices before the wheel is installed or loaded.",
        fix="build the wheel again, or upload it again.",
    ),
    Rule(
        code="NV513",
        severity=ERROR,
        title="library of another machine",
        clients="neither checks it",
        what="The libraries are for another processor or another system than the "
        "platform tag of the file name says. Where some libraries suit the tag, only "
        "extension modules and what suitable libraries link count, since wheels may "
        "bring files for other machines as data.",
        effect="Both install the wheel, and then it cannot be imported.",
        fix="build the library for the platform of the wheel, or correct the tag.",
        example="demo-1.0-cp312-cp312-manylinux_2_28_aarch64.whl   "
        "<- demo/lib.so is for x86_64",
    ),
    Rule(
        code="NV514",
        severity=ERROR,
        title="requirements of another CUDA",
        clients="neither checks it",
        what="METADATA requires packages of one CUDA major, such as "
        "`nvidia-cublas-cu12`, and all libraries of the project are linked with "
        "another, such as `libcudart.so.13`. Libraries that are in the wheel itself do "
        "not count.",
        effect="Both install the wheel with those packages, and then it fails with "
        '"libcudart.so.13: cannot open shared object file", unless another package '
        "happens to bring the library.",
        fix="require the packages of the CUDA that the build is linked with.",
        example="Requires-Dist: nvidia-cuda-runtime-cu12   "
        "<- demo/lib.so is linked with libcudart.so.13",
    ),
)
