"""Machine code for desktop GPUs on systems on a chip, as PyTorch's tables have it."""

from __future__ import annotations

import pytest

from nvidia_variant_provider.machine.environment import ComputeCapability, CudaVersion
from nvp.knowledge.tables import (
    gpu_models,
    runs_machine_code,
    tegra_toolkits,
)

CAPABILITIES = list(gpu_models())


class TestTegra:
    @pytest.mark.parametrize(
        ("target", "gpu", "toolkit", "runs"),
        [
            # CUDA 13.2 lets binaries for servers run on Jetson, says PyTorch.
            ("80", "8.7", "13.2", True),
            ("80", "8.7", "13.4", True),
            ("80", "8.7", "13.0", False),
            ("86", "8.7", "13.2", True),
            ("80a", "8.7", "13.2", False),
            ("70", "7.2", "13.2", True),
            # Older Jetsons, Thor and code for a Jetson gain nothing by it.
            ("60", "6.2", "13.2", False),
            ("100", "10.1", "13.2", False),
            ("87", "8.9", "13.2", False),
            ("90", "8.7", "13.2", False),
        ],
    )
    def test_a_jetson_runs_newer_code_for_desktop_gpus(
        self, target: str, gpu: str, toolkit: str, runs: bool
    ) -> None:
        capability, cuda = ComputeCapability.parse(gpu), CudaVersion.parse(toolkit)
        assert runs_machine_code(target, capability, cuda) is runs

    def test_the_table_has_every_pair_of_desktop_code_and_a_jetson(self) -> None:
        models = gpu_models()
        assert set(tegra_toolkits()) == {
            (code, gpu)
            for code in CAPABILITIES
            for gpu in CAPABILITIES
            if code.major == gpu.major >= 5 and code < gpu
            if models[gpu].tegra and not models[code].tegra
        }
