"""ND5xx: extensions of torch, and the torch that they were built with."""

from __future__ import annotations

from ..model import Check

__all__ = ["ABI_CHECKS"]

_MEND = (
    "Install the build of the extension for the installed torch, or a torch for which "
    "there is a build. Where the project publishes none, build it from source: `pip "
    "install --no-build-isolation --no-binary NAME NAME`."
)

ABI_CHECKS = (
    Check(
        code="ND501",
        title="an extension was built for another C++ ABI than torch",
        meaning="GCC's standard library has two forms of `std::string` and "
        "`std::list`, and `_GLIBCXX_USE_CXX11_ABI` chooses one of them. The names of "
        "functions differ with it, so that an extension that was built with one finds "
        "nothing in a torch that was built with the other. torch has the new form "
        "since release 2.6 or 2.7, depending on the build.",
        seen=(
            "undefined symbol: _ZN3c106detail14torchCheckFailEPKcS2_jRKSs",
            "undefined symbol: "
            "_ZN3c105ErrorC2ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE",
        ),
        mend=_MEND,
    ),
    Check(
        code="ND502",
        title="an extension names another torch, CUDA or ABI than is installed",
        meaning="The version of the extension, or the name of the wheel that it was "
        "installed from, says what it was built for, such as "
        "`+cu12torch2.8cxx11abiTRUE` or `+pt28cu126`. Another minor release of torch, "
        "another CUDA major version or another C++ ABI is installed. Forms that are "
        "not known are passed over.",
        seen=(
            "ImportError: flash_attn_2_cuda.cpython-311-x86_64-linux-gnu.so: "
            "undefined symbol",
            "ImportError: libc10_cuda.so: cannot open shared object file: No such "
            "file or directory",
        ),
        mend=_MEND,
    ),
    Check(
        code="ND503",
        title="an extension needs a symbol that the installed torch does not have",
        meaning="A library of the extension is linked with a function or a class in "
        "the namespaces `c10`, `at`, `torch` or `caffe2`, or with a function of the "
        "stable ABI, and no library of the installed torch defines it. The extension "
        "was built with another release of torch.",
        seen=(
            "undefined symbol: _ZN2at4_ops5zeros4callEN3c108ArrayRef",
            "RuntimeError: operator torchvision::nms does not exist",
        ),
        mend=_MEND,
    ),
)
