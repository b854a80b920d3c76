"""SASS that runs on both systems on a chip and other GPUs, by toolkit and driver."""

from __future__ import annotations

import pytest

from nvidia_variant_provider.machine.environment import ComputeCapability, CudaVersion
from nvp.knowledge.builds import LibraryCode
from nvp.knowledge.tables import gpu_models, runs_machine_code, tegra_code

CAPABILITIES = list(gpu_models())


class TestTegra:
    @pytest.mark.parametrize(
        ("targets", "gpus", "toolkit", "driver", "runs"),
        [
            # A driver for CUDA 13.2 runs code of other GPUs. For older code, only the
            # linker confirms this, and an older driver does not run newer code.
            ("80 86", "8.7 8.8", "13.2", "13.2", True),
            ("80 86", "8.7 8.8", "13.2", "13.4", True),
            ("80 86", "8.7 8.8", "13.4", "13.1", False),
            ("80 86", "8.7 8.8", "13.2", "13.0", False),
            ("80 86", "8.7 8.8", "13.0", "13.2", None),
            ("80 86", "8.7 8.8", "12.4", "13.5", None),
            ("80 86", "8.7 8.8", "13.1", "13.1", False),
            ("80 86", "8.7 8.8", "13.2", None, True),
            ("80 86", "8.7 8.8", "13.0", None, None),
            ("80 86", "8.7 8.8", None, "13.2", None),
            ("80 86", "8.7 8.8", None, "12.9", False),
            ("80 86", "8.7 8.8", None, None, None),
            ("87", "8.8 8.9", "13.2", "13.2", True),
            ("87", "8.8 8.9", "13.2", "13.1", False),
            ("87", "8.8 8.9", "12.6", "13.3", None),
            ("88", "8.9", "13.2", "13.2", True),
            ("88", "8.9", "13.0", "13.0", False),
            ("88", "8.7 8.6", "13.4", "13.4", False),
            ("80a 86a 90", "8.7", "13.2", "13.2", False),
            ("70", "7.2", "13.2", "13.2", True),
            # The rule does not change other Jetsons.
            ("60 61", "6.2", "13.2", "13.2", False),
            ("72", "7.5", "13.2", "13.2", False),
            ("100", "10.1", "13.2", "13.2", False),
            ("101", "10.3 10.7", "13.2", "13.4", False),
            # Thor has two names.
            ("101 101a 101f", "11.0", "12.8", "13.0", True),
            ("101 101a 101f", "11.0", "12.9", "13.5", True),
            ("101 101a 101f", "11.0", None, None, True),
            ("100 100f 103 110a", "10.1", "13.0", "13.0", False),
            ("100 100f", "11.0", "12.9", "13.5", False),
            # Toolkit and driver have no effect on GPUs of desktops and servers.
            ("80 86", "8.9 8.6", "13.0", "12.0", True),
            ("100f", "10.3 10.7", "12.9", "13.0", True),
        ],
    )
    def test_rules(
        self,
        targets: str,
        gpus: str,
        toolkit: str | None,
        driver: str | None,
        *,
        runs: bool | None,
    ) -> None:
        cuda, drives = (v and CudaVersion.parse(v) for v in (toolkit, driver))
        for target in targets.split():
            for gpu in map(ComputeCapability.parse, gpus.split()):
                answer = runs_machine_code(target, gpu, cuda or None, drives or None)
                assert answer is runs, (target, gpu)

    @pytest.mark.parametrize(
        ("code", "driver", "how"),
        [
            ("13.2", "13.2", "native"),
            ("13.2", "13.0", None),
            ("13.0", "13.2", "unknown"),
            ("13.0", "13.1", None),
            ("13.0", "12.9", None),
        ],
    )
    def test_the_driver_counts_for_a_library(
        self, code: str, driver: str, how: str | None
    ) -> None:
        library = LibraryCode(
            name="x", cuda=CudaVersion.parse(code), machine_code=frozenset({"80"})
        )
        orin = ComputeCapability(8, 7)
        assert library.how(orin, CudaVersion.parse(driver)) == how

    def test_the_table_has_every_pair_that_a_source_names(self) -> None:
        models = gpu_models()
        desktop_code_on_jetson = {
            (code, gpu)
            for code in CAPABILITIES
            for gpu in CAPABILITIES
            if code.major == gpu.major >= 5 and code < gpu
            if models[gpu].tegra and not models[code].tegra
        }
        others = {("8.7", "8.8"), ("8.7", "8.9"), ("8.8", "8.9"), ("10.1", "11.0")}
        assert set(tegra_code()) == desktop_code_on_jetson | {
            (ComputeCapability.parse(code), ComputeCapability.parse(gpu))
            for code, gpu in others
        }
