"""Environments with small distributions, for tests of `doctor`."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from support.containers import library

from nvidia_variant_provider.machine.environment import Environment
from nvp import api
from nvp.doctor.distributions import find_distributions
from nvp.doctor.installation import find_installation
from nvp.doctor.model import Finding, Stack
from nvp.doctor.runner import diagnose
from nvp.doctor.software import CodeReader

__all__ = ["Installed", "machine", "make_environment", "make_stack", "run_checks"]


@dataclass(frozen=True, kw_only=True)
class Installed:
    """A distribution to install.

    :param files: the contents of its files, by path.
    :param variant: the document of variant.json.
    :param recorded: whether the distribution has a RECORD.
    """

    name: str = "demo"
    version: str = "1.0"
    files: Mapping[str, bytes] = field(default_factory=dict)
    requires: Sequence[str] = ()
    variant: Mapping[str, object] | None = None
    recorded: bool = True

    def write(self, packages: Path) -> Path:
        """Write the files, and return the directory ``*.dist-info``."""
        folder = f"{self.name.replace('-', '_')}-{self.version}.dist-info"
        lines = ["Metadata-Version: 2.1", f"Name: {self.name}"]
        lines += [f"Version: {self.version}"]
        lines += [f"Requires-Dist: {text}" for text in self.requires]
        members = {
            **self.files,
            f"{folder}/METADATA": ("\n".join(lines) + "\n").encode(),
        }
        if self.variant is not None:
            members[f"{folder}/variant.json"] = json.dumps(self.variant).encode()
        rows = []
        for name, data in members.items():
            path = packages / name
            path.parent.mkdir(parents=True, exist_ok=True)
            # A file that is written twice has a new time, and counts as changed.
            if not path.exists() or path.read_bytes() != data:
                path.write_bytes(data)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest())
            rows.append(f"{name},sha256={digest.decode().rstrip('=')},{len(data)}")
        if self.recorded:
            rows.append(f"{folder}/RECORD,,")
            (packages / folder / "RECORD").write_text("\n".join(rows) + "\n")
        return packages / folder


def make_environment(prefix: Path, *installed: Installed) -> Path:
    """Make a virtual environment without an interpreter, and return its packages."""
    packages = prefix / "lib" / "python3.11" / "site-packages"
    packages.mkdir(parents=True, exist_ok=True)
    (prefix / "pyvenv.cfg").write_text("version = 3.11.7\n")
    for item in installed:
        item.write(packages)
    return packages


def machine(driver: str | None, *capabilities: str) -> Environment:
    """Return a machine with a driver and GPUs."""
    return Environment.from_dict(
        {
            "cuda_driver_version": driver,
            "gpus": [
                {"index": index, "compute_capability": capability}
                for index, capability in enumerate(capabilities)
            ],
        }
    )


def make_stack(
    prefix: Path,
    *installed: Installed,
    environment: Environment | None = None,
    environ: Mapping[str, str] | None = None,
    cache: Path | None = None,
    root: Path | None = None,
) -> Stack:
    """Install distributions in a new environment, and return it as a stack.

    The system has the CUDA runtime that the binaries of the fixtures are linked with.

    :param root: the root directory of another system.
    """
    make_environment(prefix, *installed)
    system = prefix / "system"
    (system / "usr/lib").mkdir(parents=True, exist_ok=True)
    (system / "usr/lib/libcudart.so.13").write_bytes(library())
    installation = find_installation(str(prefix), {})
    return Stack(
        environment=environment or api.Environment(),
        installation=installation,
        distributions=find_distributions(installation.folders),
        reader=CodeReader(None if cache is None else str(cache)),
        environ=environ or {},
        root=str(root or system),
    )


def run_checks(stack: Stack) -> list[Finding]:
    """Return the findings of all checks."""
    return list(diagnose(stack).findings)
