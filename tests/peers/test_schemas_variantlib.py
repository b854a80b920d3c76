"""The JSON Schemas accept the documents that variantlib writes."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
from support.documents import PROVIDER
from support.schemas import URLS, VALIDATORS, accepts, clean
from support.variantlib_peer import run_command
from support.wheels import stub_wheel, variants_json_name
from variantlib.api import (  # type: ignore[import-untyped]
    VariantDescription,
    VariantProperty,
    make_variant_dist_info,
)
from variantlib.errors import ValidationError  # type: ignore[import-untyped]
from variantlib.variants_json import VariantsJson  # type: ignore[import-untyped]

WHEELS: dict[str, tuple[str, ...]] = {
    "null": (),
    "cu128": (
        "nvidia :: cuda_version_lower_bound :: 12.8",
        "nvidia :: sm_arch :: 90_real",
        "nvidia :: sm_arch :: 90_virtual",
    ),
    "cu128_mkl_of_torch_2.9": (
        "abi_dependency :: torch :: 2.9",
        "blas :: library :: mkl",
        "nvidia :: cuda_version_lower_bound :: 12.8",
    ),
}


class TestVariantlib:
    """Documents that variantlib 0.2.2 writes. variantlib always writes version
    0.2.0."""

    def written(self, label: str, *properties: str) -> dict[str, Any]:
        """Return ``variant.json`` of a wheel built with the clean document."""
        info = VariantsJson({**clean("0.2.0"), "variants": {}})
        parsed = [VariantProperty.from_str(text) for text in properties]
        document = make_variant_dist_info(VariantDescription(parsed, label), info)
        return dict(json.loads(document))

    @pytest.mark.parametrize("label", WHEELS)
    def test_variant_json_of_a_wheel(self, label: str) -> None:
        document = self.written(label, *WHEELS[label])
        assert list(VALIDATORS["0.2.0"].iter_errors(document)) == []
        assert list(document["variants"]) == [label]
        # PEP 825 describes the same document without providers.
        del document["providers"]
        document["$schema"] = URLS["0.1.1"]
        assert list(VALIDATORS["0.1.1"].iter_errors(document)) == []

    def test_metadata_file_of_an_index(self, tmp_path: Path) -> None:
        for label, properties in WHEELS.items():
            document = self.written(label, *properties)
            stub_wheel(tmp_path, "torch", "2.9.1", label, variant_json=document)
        run_command("generate-index-json", "--directory", str(tmp_path))
        written = tmp_path / variants_json_name("torch", "2.9.1")
        document = json.loads(written.read_bytes())
        assert list(VALIDATORS["0.2.0"].iter_errors(document)) == []
        assert set(document["variants"]) == set(WHEELS)
        assert json.loads(VariantsJson(document).to_str()) == document

    def test_variant_json_of_make_variant(self, tmp_path: Path) -> None:
        pytest.importorskip("build.env", reason="variantlib make-variant needs build")
        project = tmp_path / "pyproject.toml"
        project.write_text(
            "[variant.default-priorities]\n"
            'namespace = ["nvidia"]\n'
            "[variant.providers.nvidia]\n"
            f"requires = {json.dumps(PROVIDER['requires'])}\n"
            f"plugin-api = {json.dumps(PROVIDER['plugin-api'])}\n"
        )
        wheel, out = stub_wheel(tmp_path, "torch", "2.9.1"), tmp_path / "out"
        out.mkdir()
        command = ["make-variant", "--no-isolation", "-f", str(wheel), "-o", str(out)]
        command += ["--pyproject-toml", str(project)]
        properties = [f"-p{text}" for text in WHEELS["cu128"]]
        run_command(*command, "--null-variant")
        run_command(*command, "--variant-label", "cu128", *properties)
        run_command(*command, *properties)
        assert len(list(out.iterdir())) == 3
        for path in out.iterdir():
            with zipfile.ZipFile(path) as archive:
                text = archive.read("torch-2.9.1.dist-info/variant.json")
            assert accepts("0.2.0", json.loads(text))

    def test_document_without_any_information_is_refused(self) -> None:
        """variantlib writes this document, but its own reader refuses the document."""
        document = json.loads(make_variant_dist_info(VariantDescription([], "null")))
        assert document["default-priorities"] == {"namespace": []}
        assert not accepts("0.2.0", document)
        with pytest.raises(ValidationError):
            VariantsJson(document)
