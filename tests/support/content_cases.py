"""Wheels that trigger the rules NV5xx, and similar wheels that do not."""

from __future__ import annotations

from support.containers import container, entry, library
from support.cuda_cases import CUDA_CASES, STATIC, Case
from support.gpu_wheels import PLAIN, PLAIN_SO, Wheel, binary, one, two

from nvp.gpu_code.fatbin import MAGIC

__all__ = ["CASES", "STATIC", "Case"]

AARCH64 = "cp312-cp312-manylinux_2_28_aarch64"
ARM = library().replace(b"\x3e\0", b"\xb7\0", 1)
"""A library for aarch64."""

OTHER = library().replace(b"\x3e\0", b"\xf7\0", 1)
"""An ELF file for eBPF, a virtual machine in the Linux kernel."""


CASES = {
    **CUDA_CASES,
    "NV501": Case(
        trigger=Wheel(libraries=one("80_real"), sm=["80_real", "90_real"]),
        says=["90_real", "demo/lib.so"],
        near=[
            # The code for 8.0 runs on the GPUs that get the build.
            Wheel(libraries=one("80_real"), sm=["80_real", "86_real"]),
            Wheel(libraries=one("80_real", "80_virtual"), sm=["80_real", "90_real"]),
        ],
    ),
    "NV501-one of two": Case(
        trigger=Wheel(
            libraries=two(["80_real", "90_real"], ["80_real"]),
            sm=["80_real", "90_real"],
        ),
        says=["90_real", "demo/b.so"],
        near=[Wheel(libraries=two(["80_real"], ["80_real"]), sm=["80_real"])],
    ),
    "NV502": Case(
        trigger=Wheel(libraries=one("80_real", "90_real"), sm=["80_real"]),
        says=["90_real"],
        near=[
            Wheel(libraries=one("80_real", "86_real"), sm=["80_real"]),
            # Only one of the two libraries has the code.
            Wheel(libraries=two(["80_real", "86_real"], ["80_real"]), sm=["80_real"]),
            # NV306 reports a wheel without sm_arch.
            Wheel(libraries=one("80_real", "90_real")),
            # The PTX may be left out on purpose, since older drivers refuse it.
            Wheel(libraries=one("80_real", "90_virtual", isa=(9, 2)), sm=["80_real"]),
        ],
    ),
    "NV502-PTX": Case(
        trigger=Wheel(libraries=one("80_real", "90_virtual"), sm=["80_real"]),
        says=["90_virtual", "9.0"],
        near=[
            Wheel(libraries=one("80_real", "90_virtual"), sm=["80_real", "90_virtual"])
        ],
    ),
    "NV502-exact": Case(
        trigger=Wheel(libraries=one("80_real", "90a_real"), sm=["80_real"]),
        says=["90_real"],
        # Declaring 100_real would give the build to B300, which cannot run it.
        near=[Wheel(libraries=one("80_real", "100a_real"), sm=["80_real"])],
    ),
    "NV503": Case(
        trigger=Wheel(libraries=one("80_real"), sm=["80_real", "86_real"]),
        says=["86_real"],
        near=[
            Wheel(libraries=one("80_real", "86_real"), sm=["80_real", "86_real"]),
            # Code for a family counts as plain code.
            Wheel(libraries=one("100f_real"), sm=["100_real"]),
            # No GPU would match the build by this value.
            Wheel(libraries=one("80_real", "86_virtual"), sm=["80_real"]),
        ],
    ),
    "NV503-one of two": Case(
        trigger=Wheel(
            libraries=two(["75_real", "70_real"], ["70_real"]),
            lower="12.0",
            sm=["70_real", "75_real"],
        ),
        says=["75_real", "demo/b.so"],
        near=[Wheel(libraries=two(["70_real"], ["70_real"]), sm=["70_real"])],
    ),
    "NV503-exact": Case(
        trigger=Wheel(libraries=one("90a_real"), sm=["90_real"]),
        says=["90a", "9.0"],
        near=[Wheel(libraries=one("90a_real", "90_real"), sm=["90_real"])],
    ),
    "NV503-undeclared": Case(
        trigger=Wheel(libraries=one("80_real", "86_real"), sm=["80_real"]),
        says=["86_real"],
        near=[Wheel(libraries=PLAIN_SO, lower="13.5", sm=PLAIN)],
    ),
    "NV504": Case(
        trigger=Wheel(libraries=one("80_real"), sm=["80_real", "90_virtual"]),
        says=["90", "demo/lib.so"],
        near=[
            Wheel(libraries=PLAIN_SO, lower="13.5", sm=PLAIN),
            Wheel(libraries=one("80_real", "80_virtual"), sm=["80_real", "90_virtual"]),
        ],
    ),
    "NV505": Case(
        trigger=Wheel(libraries=PLAIN_SO, sm=PLAIN),
        says=["13.5", "13.0", "demo/plain.so"],
        near=[
            Wheel(libraries=PLAIN_SO, lower="13.5", sm=PLAIN),
            Wheel(libraries=PLAIN_SO, sm=PLAIN[:3]),
            # Drivers older than the PTX do not support the GPU at all.
            Wheel(
                libraries=one("80_real", "120_virtual", isa=(8, 7)),
                sm=["80_real", "120_virtual"],
                lower="12.0",
            ),
            # A program loads the library for its CUDA version.
            Wheel(
                libraries={
                    "demo/lib_cuda126.so": library("80_virtual", isa=(8, 5)),
                    "demo/lib_cuda132.so": library("80_virtual", isa=(9, 2)),
                },
                sm=["80_virtual"],
                lower="12.5",
            ),
        ],
    ),
    "NV505-too new for the GPU": Case(
        trigger=Wheel(
            libraries=one("80_real", "120_virtual", isa=(8, 8)),
            sm=["80_real", "120_virtual"],
            lower="12.0",
        ),
        says=["12.9", "12.0"],
        near=[
            Wheel(
                libraries=one("80_real", "120_virtual", isa=(8, 8)),
                sm=["80_real", "120_virtual"],
                lower="12.9",
            )
        ],
    ),
    "NV505-relied on": Case(
        trigger=Wheel(
            libraries=one("80_virtual", isa=(9, 1)), sm=["80_real"], lower="13.0"
        ),
        says=["13.1"],
        others=frozenset({"NV503"}),
        near=[
            Wheel(libraries=one("80_virtual", isa=(9, 1)), sm=["80_real"], lower="13.1")
        ],
    ),
    "NV505-no sm_arch": Case(
        trigger=Wheel(libraries={"demo/lib.so": binary("ptx-only.so")}),
        says=["13.5"],
        near=[Wheel(libraries={"demo/lib.so": binary("ptx-only.so")}, lower="13.5")],
    ),
    "NV507": Case(
        trigger=Wheel(libraries=one("100a_real"), sm=["100_real"]),
        says=["100_real", "100a", "10.3"],
        near=[Wheel(libraries=one("100a_real", "100f_real"), sm=["100_real"])],
    ),
    "NV507-real library": Case(
        trigger=Wheel(
            libraries={"demo/lib.so": binary("arch-specific.so")},
            sm=["90_real", "100_real"],
            lower="13.5",
        ),
        says=["100_real", "100a"],
        # 90a runs on every GPU that gets the build because of 90_real.
        others=frozenset({"NV503"}),
        near=[
            Wheel(
                libraries={"demo/lib.so": binary("family-specific.so")},
                sm=["100_real", "120_real"],
                lower="13.5",
            )
        ],
    ),
    "NV508": Case(
        trigger=Wheel(
            libraries={"demo/lib.so": binary("host-only.so")}, sm=["80_real"]
        ),
        says=["80_real"],
        near=[Wheel(libraries=one("80_real"), sm=["80_real"])],
    ),
    "NV508-next to kernels": Case(
        trigger=Wheel(
            libraries={
                "demo/a.cubin": binary("new-80.cubin"),
                "demo/b.cubin": binary("new-stub-90.cubin"),
            },
            sm=["80_real", "90_real"],
        ),
        says=["90_real"],
        near=[
            Wheel(
                libraries={
                    "demo/a.cubin": binary("new-80.cubin"),
                    "demo/b.cubin": binary("new-stub-90.cubin"),
                    "demo/c.cubin": binary("old-90.cubin"),
                },
                sm=["80_real", "90_real"],
            )
        ],
    ),
    "NV509": Case(
        trigger=Wheel(
            libraries=two(["80_real", "90_real"], ["80_real"]), sm=["80_real"]
        ),
        says=["demo/b.so", "90_real"],
        near=[
            Wheel(libraries=two(["80_real", "86_real"], ["80_real"]), sm=["80_real"]),
            # A program loads one of the two libraries.
            Wheel(
                libraries={
                    "demo/sm80/ops.so": library("80_real"),
                    "demo/sm90/ops.so": library("90_real"),
                },
                sm=["80_real", "90_real"],
            ),
            Wheel(
                libraries={
                    "demo/a.cubin": binary("new-80.cubin"),
                    "demo/c.cubin": binary("old-90.cubin"),
                },
                sm=["80_real", "90_real"],
            ),
            # A library that was copied into the wheel has targets of its own.
            Wheel(
                libraries={
                    "demo/a.so": library("80_real", "90_real"),
                    "demo.libs/libother-1a2b3c4d.so": library("80_real"),
                },
                sm=["80_real", "90_real"],
            ),
        ],
    ),
    "NV510": Case(
        trigger=Wheel(libraries={"demo/lib.so": library()}, sm=["90_real"]),
        says=["declares GPU code"],
        near=[
            # The kernels of a pure Python wheel are elsewhere, such as in another
            # package.
            Wheel(libraries={}, sm=["90_real"], tag="py3-none-any"),
            # LTO-IR is linked when the program runs.
            Wheel(
                libraries={"demo/lib.so": library() + container(entry(8))},
                sm=["90_real"],
            ),
            # The library calls the kernels of cuBLAS.
            Wheel(
                libraries={
                    "demo/lib.dll": binary("plain.dll").replace(MAGIC, bytes(4))
                },
                sm=["90_real"],
            ),
            # The wheel declares a driver, but no GPUs.
            Wheel(libraries={"demo/lib.so": library()}),
        ],
    ),
    "NV510-copies": Case(
        trigger=Wheel(
            libraries={"demo.libs/libother-1a2b3c4d.so": library("90_real")},
            sm=["90_real"],
        ),
        says=["copied"],
        near=[Wheel(libraries=one("90_real"), sm=["90_real"])],
    ),
    "NV511": Case(
        trigger=Wheel(libraries=PLAIN_SO, label=None),
        says=["80_real"],
        near=[Wheel(libraries={"demo/lib.so": library()}, label=None)],
    ),
    "NV511-null": Case(
        trigger=Wheel(libraries=PLAIN_SO, label="null", variant={}),
        says=["80_real"],
        near=[Wheel(libraries={}, label="null", variant={})],
    ),
    "NV512": Case(
        trigger=Wheel(
            libraries={"demo/lib.so": library("80_real", "90_real")[:-9]}, label=None
        ),
        says=["cut off"],
        near=[Wheel(libraries=one("80_real", "90_real"), label=None)],
    ),
    "NV513": Case(
        trigger=Wheel(libraries={"demo/lib.so": library()}, label=None, tag=AARCH64),
        says=["demo/lib.so", "Linux on x86_64", AARCH64.rpartition("-")[2]],
        near=[
            Wheel(libraries={"demo/lib.so": library()}, label=None),
            Wheel(libraries={"demo/lib.so": ARM}, label=None, tag=AARCH64),
            # The wheel is for any platform, or for a platform whose libraries nvp does
            # not read.
            Wheel(libraries={"demo/lib.so": ARM}, label=None, tag="py3-none-any"),
            Wheel(
                libraries={"demo/lib.so": ARM},
                label=None,
                tag="cp312-cp312-macosx_11_0_arm64",
            ),
            # One of the two platforms is enough.
            Wheel(
                libraries={"demo/lib.so": library()},
                label=None,
                tag="py3-none-linux_aarch64.linux_x86_64",
            ),
            # A file for another machine is data if the wheel also has libraries for its
            # own machine.
            Wheel(
                libraries={"demo/lib.so": ARM, "demo/device/helper.so": library()},
                label=None,
                tag=AARCH64,
            ),
            Wheel(libraries={"demo/code.bin": OTHER}, label=None, tag=AARCH64),
        ],
    ),
    "NV513-extension": Case(
        trigger=Wheel(
            libraries={"demo/a.so": ARM, "demo/_c.cpython-312-x.so": library()},
            label=None,
            tag=AARCH64,
        ),
        says=["demo/_c.cpython-312-x.so"],
        near=[
            Wheel(
                libraries={
                    "demo/_c.cpython-312-aarch64-linux-gnu.so": ARM,
                    "demo/_c.cpython-312-x86_64-linux-gnu.so": library(),
                },
                label=None,
                tag=AARCH64,
            ),
        ],
    ),
    "NV513-kernels for another machine": Case(
        trigger=Wheel(
            libraries={
                "demo/a.so": library("80_real"),
                "demo/b.so": library("80_real", "90_real").replace(
                    b"\x3e\0", b"\xb7\0", 1
                ),
            },
            sm=["80_real"],
        ),
        says=["demo/b.so", "Linux on aarch64"],
        near=[
            Wheel(
                libraries={
                    "demo/x86_64/a.so": library("80_real"),
                    "demo/aarch64/a.so": library("80_real").replace(
                        b"\x3e\0", b"\xb7\0", 1
                    ),
                },
                sm=["80_real"],
            )
        ],
    ),
    "NV513-windows": Case(
        trigger=Wheel(
            libraries={"demo/lib.dll": binary("plain.dll")},
            label=None,
            tag="cp312-cp312-win_arm64",
        ),
        says=["Windows on x86_64"],
        near=[
            Wheel(
                libraries={"demo/lib.dll": binary("plain.dll")},
                label=None,
                tag="cp312-cp312-win_amd64",
            )
        ],
    ),
    "NV514": Case(
        trigger=Wheel(
            libraries=PLAIN_SO,
            label="cu135",
            lower="13.5",
            sm=PLAIN,
            requires=["nvidia-cuda-runtime-cu12==12.8.90", "nvidia-nccl-cu12"],
        ),
        says=["libcudart.so.13", "nvidia-cuda-runtime-cu12==12.8.90", "CUDA 13"],
        near=[
            Wheel(libraries=PLAIN_SO, label=None, requires=[text])
            for text in (
                "nvidia-cudnn-cu13",
                "cuda-toolkit[cublas]==13.0.2",
                "nvidia-nccl-cu12; extra == 'old'",
                "numpy",
            )
        ]
        + [
            # The library that is linked is in the wheel.
            Wheel(
                libraries={**PLAIN_SO, "demo.libs/libcudart.so.13": library()},
                label=None,
                requires=["nvidia-nccl-cu12"],
            ),
            Wheel(
                libraries=PLAIN_SO,
                label=None,
                requires=["nvidia-nccl-cu12", "nvidia-cublas-cu13"],
            ),
        ],
    ),
}
