"""The compiled kernels: built once, found again, and done without where they cannot be."""

import logging
import os
import platform
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from kernels import native_library as module
from kernels.native_library import native_library
from runtime.model.runner import resolve_dtype


def forget() -> None:
    """As if nothing had been loaded yet."""
    module.native_library.cache_clear()
    module.compiled_library.cache_clear()


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    forget()
    yield
    forget()


@pytest.mark.tail
def test_the_result_is_kept_under_a_name_that_is_found_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(module, "FLAGS", ("-O0", *module.FLAGS[1:]))  # it is not run
    if native_library(torch.bfloat16) is None:
        pytest.skip("no C++ compiler here")
    (made,) = tmp_path.rglob("*.so")
    before = made.stat().st_mtime_ns
    forget()
    assert native_library(torch.float32) is not None
    assert [path.stat().st_mtime_ns for path in tmp_path.rglob("*.so")] == [before]


def test_types_without_a_compiled_version_have_none() -> None:
    assert native_library(torch.float64) is None
    assert native_library(torch.float16) is None


def test_the_environment_turns_it_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEEPWARM_NATIVE", "0")
    assert native_library(torch.bfloat16) is None


def test_a_compiler_that_fails_is_reported_and_torch_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("CXX", "/bin/false")
    with caplog.at_level(logging.WARNING):
        assert native_library(torch.bfloat16) is None
    assert "CPU kernels not compiled" in caplog.text
    assert not list(tmp_path.rglob("*.so"))


@pytest.mark.tail
@pytest.mark.skipif(platform.machine() != "x86_64", reason="other processors have other names")
@pytest.mark.parametrize("processor", ["x86-64", "haswell", "cooperlake", "sapphirerapids"])
@pytest.mark.parametrize(
    "source", sorted(module.SOURCES.glob("*.cpp")), ids=lambda source: source.stem
)
def test_the_sources_compile_for_other_processors_than_this_one(
    source: Path, processor: str
) -> None:
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        pytest.skip("no C++ compiler here")
    flags = [flag for flag in module.FLAGS if flag.startswith(("-std", "-fopenmp"))]
    command = [compiler, *flags, f"-march={processor}", "-fsyntax-only", str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("compiled", [True, False])
def test_auto_is_bfloat16_where_something_multiplies_in_it(
    compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def units() -> bool:
        return False

    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", units, raising=False)
    monkeypatch.setattr(module.NativeLibrary, "has_linear", compiled)
    if native_library(torch.bfloat16) is None:
        pytest.skip("no C++ compiler here")
    expected = torch.bfloat16 if compiled else torch.float32
    assert resolve_dtype("auto", torch.device("cpu")) == expected
