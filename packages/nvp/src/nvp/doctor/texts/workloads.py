"""ND6xx and ND7xx: workloads and receipts."""

from __future__ import annotations

from ..model import Check

__all__ = ["RECEIPT_CHECKS", "WORKLOAD_CHECKS"]

WORKLOAD_CHECKS = (
    Check(
        code="ND604",
        title="a workload failed",
        meaning="A command that was given with `--workload`, or that a receipt names, "
        "ended with another exit code than 0, was killed by a signal, did not end "
        "within its deadline, or could not be started. The last line of its output "
        "stands in the finding, and the last twenty are in the JSON report.",
        mend="Run the command in the environment and read all of its output. Where the "
        "line names the GPU, a library or a kernel, the other findings of the report "
        "often have the cause.",
    ),
    Check(
        code="ND605",
        title="a workload broke its graph or fell back to eager",
        meaning="`torch.compile` could not trace a piece of the workload. It has split "
        "the graph there, or it runs the whole function without compiling it. The "
        "result is right, but the time is not that of a compiled program. A function "
        "that was compiled anew too often falls back as well.",
        seen=(
            "Graph break from `Tensor.item()`",
            "torch._dynamo hit config.recompile_limit (8)",
            "WON'T CONVERT",
        ),
        mend="Change the code at the place that is named, such as by keeping a value "
        "in a tensor instead of calling `.item()`. `torch.compile(fullgraph=True)` "
        "makes every break an error.",
    ),
)

RECEIPT_CHECKS = (
    Check(
        code="ND701",
        title="the stack differs from the receipt",
        meaning="A fact that `--against` has in its receipt is another one today: the "
        "driver, a GPU, a distribution, an override, the toolchain, the ABI, the live "
        "proof, or what a workload did. "
        "[Keep receipts](../how-to/receipts.md) says which differences matter.",
        mend="Bring the stack back to what the receipt says, or write a new receipt "
        "after the workloads have passed.",
    ),
)
