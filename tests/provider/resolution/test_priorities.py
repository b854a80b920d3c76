"""The file of the user's priorities: ``variants.toml``."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from support.builds import gpu_build, machine, metadata
from support.strangers import ROOT, STRANGER, needs_root

from nvidia_variant_provider import api
from nvidia_variant_provider.errors import (
    ConfigurationError,
    MissingExtraError,
)


class TestVariantsToml:
    builds = metadata(
        {
            "cu126": gpu_build("12.6", "80_real"),
            "cu128": gpu_build("12.8", "80_real"),
            "mkl": {"blas": {"library": ["mkl"]}},
        },
        providers={
            "nvidia": {"requires": ["nvidia-variant-provider"]},
            "blas": {"static-properties": {"library": ["mkl"]}},
        },
    )

    def order(self, text: str | None = None) -> tuple[str, ...]:
        if text is not None:
            Path("variants.toml").write_text(text)
        return api.resolve(self.builds, environment=machine("12.8", "8.0")).compatible

    def test_the_order_of_namespaces(self) -> None:
        assert self.order() == ("cu128", "cu126", "mkl")
        labels = self.order('namespace_priorities = ["blas", "x"]')
        assert labels == ("mkl", "cu128", "cu126")

    def test_the_order_of_features_and_values(self) -> None:
        text = (
            'feature_priorities.nvidia = ["sm_arch"]\n'
            'property_priorities.nvidia.cuda_version_lower_bound = ["12.6"]\n'
        )
        assert self.order(text) == ("cu126", "cu128", "mkl")

    def test_the_working_folder_goes_before_the_user(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("platformdirs.user_config_dir", lambda *_, **__: tmp_path)
        user = tmp_path / "variants.toml"
        user.write_text('namespace_priorities = ["blas"]')
        assert self.order() == ("mkl", "cu128", "cu126")
        assert self.order("") == ("cu128", "cu126", "mkl")

    @needs_root
    @pytest.mark.parametrize(("owner", "mode"), [(STRANGER, 0o644), (ROOT, 0o666)])
    def test_a_file_of_another_user_is_not_read(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: int, mode: int
    ) -> None:
        """The current directory may be /tmp."""
        path = Path("variants.toml")
        path.write_text('namespace_priorities = ["blas"]')
        assert self.order() == ("mkl", "cu128", "cu126")
        os.chown(path, owner, owner)
        path.chmod(mode)
        assert self.order() == ("cu128", "cu126", "mkl")
        # The user's own file counts instead.
        monkeypatch.setattr("platformdirs.user_config_dir", lambda *_, **__: tmp_path)
        (tmp_path / "variants.toml").write_text('namespace_priorities = ["blas"]')
        assert self.order() == ("mkl", "cu128", "cu126")

    @pytest.mark.skipif(sys.platform == "win32", reason="it cannot be removed there")
    def test_a_current_directory_that_is_gone(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("platformdirs.user_config_dir", lambda *_, **__: tmp_path)
        (tmp_path / "variants.toml").write_text('namespace_priorities = ["blas"]')
        (gone := tmp_path / "gone").mkdir()
        monkeypatch.chdir(gone)
        gone.rmdir()
        assert self.order() == ("mkl", "cu128", "cu126")

    @needs_root
    def test_a_link_of_another_user_is_not_followed(self, tmp_path: Path) -> None:
        own = tmp_path / "own.toml"
        own.write_text('namespace_priorities = ["blas"]')
        Path("variants.toml").symlink_to(own)
        assert self.order() == ("mkl", "cu128", "cu126")
        os.lchown("variants.toml", STRANGER, STRANGER)
        assert self.order() == ("cu128", "cu126", "mkl")

    @needs_root
    def test_a_directory_that_another_user_renames_meanwhile(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        Path("variants.toml").write_text('namespace_priorities = ["blas"]')
        os.chown("variants.toml", STRANGER, STRANGER)
        places = iter([os.getcwd()])
        monkeypatch.setattr(os, "getcwd", lambda: next(places, "/renamed"))
        assert self.order() == ("cu128", "cu126", "mkl")

    @needs_root
    def test_a_file_of_another_user_that_cannot_be_read(self) -> None:
        Path("variants.toml").symlink_to("/proc/self/mem")
        with pytest.raises(ConfigurationError, match="cannot be read"):
            self.order()
        os.lchown("variants.toml", STRANGER, STRANGER)
        assert self.order() == ("cu128", "cu126", "mkl")

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("x = ", "not TOML: Invalid value (at end of document)"),
            ("x = " + "[" * 100_000, "not TOML: nested too deeply"),
            ("x = {k = 1, k = 2}".replace("k", "k" * 900), "not TOML: Dup"),
            # The key would take 1.6 GB; Python cannot print the number.
            (f"a{20_000 * '.a'} = 1", "has keys of too many parts"),
            # For Python, a line ends at the character in the quotes.
            (f"{'a.' * 45}'\u2028'." * 200 + "a = 1", "has keys of too many parts"),
            (f'"\\""{".a" * 20_000}."\\"" = 1', "has keys of too many parts"),
            (f"x = 0x{3_600 * 'f'}", "has a number of more than 3500 digits"),
            ("priorities = []", "priorities: unknown key"),
            (
                'namespace_priorities = "nvidia"',
                "namespace_priorities: expected a list",
            ),
            (
                "property_priorities.nvidia.sm_arch = [5]",
                "property_priorities.nvidia.sm_arch[0]: expected a string",
            ),
        ],
    )
    def test_a_broken_file_is_an_error(self, text: str, message: str) -> None:
        with pytest.raises(ConfigurationError) as caught:
            self.order(text)
        assert str(caught.value).startswith(f"{Path.cwd()}/variants.toml: {message}")
        assert "\n" not in str(caught.value)
        assert len(caught.value.message) < 150

    def test_python_310_without_tomli(self, monkeypatch: pytest.MonkeyPatch) -> None:
        modern = sys.version_info >= (3, 11)
        parser = "nvidia_variant_provider.strict_toml"
        monkeypatch.delitem(sys.modules, parser, raising=False)
        monkeypatch.setitem(sys.modules, "tomllib" if modern else "tomli", None)
        with pytest.raises(MissingExtraError) as caught:
            self.order("")
        assert caught.value.hint == "pip install tomli"

    def test_a_file_that_is_not_utf_8_is_an_error(self) -> None:
        Path("variants.toml").write_bytes(b"\xff")
        with pytest.raises(ConfigurationError, match="not TOML"):
            self.order()
