"""A GGUF file gives the numbers that the format's library reads in it, bit for bit, and a model of
them is the model of these numbers."""

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from torch import Tensor

from kernels.codes import Codes, widen_codes
from runtime.model import gguf_weights
from runtime.model.batch import SequenceInput
from runtime.model.config import LoadError
from runtime.model.gguf_header import read_gguf_header
from runtime.model.gguf_weights import GgufWeights
from runtime.model.runner import ModelRunner
from runtime.model.weights import load_model
from tests.support.gguf_files import ARCHITECTURES, random_blocks, write_gguf

CPU = torch.device("cpu")
KINDS = ("F16", "BF16", "Q8_0", "Q4_0", "MXFP4", "Q4_K", "Q5_K", "Q6_K", "Q2_K", "Q3_K", "Q5_0")
AS_THEY_LIE = {"Q8_0": "int8", "Q4_0": "int4", "MXFP4": "e2m1"}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def logits(path: Path, dtype: torch.dtype = torch.float32) -> Tensor:
    model = load_model(path, dtype=dtype, device=CPU)
    runner = ModelRunner(model, num_blocks=16, block_size=16)
    tokens = np.random.default_rng(0).integers(0, 256, 60, dtype=np.int32)
    table = np.arange(4, dtype=np.int32)
    return runner.run([SequenceInput(tokens=tokens, start=0, block_table=table, num_logits=60)])


def expected(model) -> Tensor:
    tokens = np.random.default_rng(0).integers(0, 256, 60, dtype=np.int32)
    with torch.no_grad():
        return model(torch.from_numpy(tokens).long()[None]).logits[0]


def relative(found: Tensor, exact: Tensor) -> float:
    return float((found - exact).norm() / exact.norm())


@pytest.mark.samples(3)
@pytest.mark.parametrize("kind", KINDS)
def test_the_numbers_are_those_that_the_library_reads(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    model = write_gguf(path, "llama", kind, seed=1)
    weights = GgufWeights(read_gguf_header(path), torch.float32, CPU, head_dim=64)
    for name, exact in model.state_dict().items():
        if exact.ndim == 1:
            assert torch.equal(weights.tensor(name, tuple(exact.shape)), exact), name
            continue
        found = weights.matrix(name, tuple(exact.shape))
        if kind in AS_THEY_LIE:
            assert isinstance(found, Codes)
            assert found.kind == AS_THEY_LIE[kind]
            found = widen_codes(found, torch.float32)
        assert torch.equal(found, exact), name
    weights.check_all_read()


@pytest.mark.samples(2)
@pytest.mark.parametrize("kind", ["Q8_0", "Q4_K"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_model_computes_what_transformers_computes_with_these_numbers(
    architecture: str, kind: str, tmp_path: Path
) -> None:
    for tied in (False, True):
        path = tmp_path / f"{tied}.gguf"
        exact = expected(write_gguf(path, architecture, kind, seed=2, tied=tied))
        assert relative(logits(path), exact) < 1e-5
        assert relative(logits(path, torch.bfloat16), exact) < 0.05


def test_a_folder_with_one_file_is_that_file(tmp_path: Path) -> None:
    model = write_gguf(tmp_path / "a.gguf", "qwen3", "Q8_0", seed=3)
    assert relative(logits(tmp_path), expected(model)) < 1e-5
    (tmp_path / "b.gguf").write_bytes(b"")
    with pytest.raises(LoadError, match="2 GGUF files are there: name one"):
        load_model(tmp_path, dtype=torch.float32, device=CPU)
    with pytest.raises(LoadError, match=r"c.gguf: no such file"):
        load_model(tmp_path / "c.gguf", dtype=torch.float32, device=CPU)


def test_quantising_anew_is_refused(tmp_path: Path) -> None:
    write_gguf(tmp_path / "a.gguf", "qwen3", "Q8_0", seed=3)
    with pytest.raises(LoadError, match=r"quantised already .gguf.*leave out --quantization"):
        load_model(tmp_path, dtype=torch.float32, device=CPU, bits=4)


@pytest.mark.parametrize(
    ("kind", "mutant"),
    [("Q4_0", "_interleaved"), ("Q8_0", "_halves"), ("MXFP4", "_interleaved")],
)
def test_a_reader_that_is_wrong_is_found(
    kind: str, mutant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neighbours that share a byte are not; the scale is the next block's."""
    right = getattr(gguf_weights, mutant)
    wrong = {
        "_interleaved": lambda nibbles: nibbles.flatten(1),
        "_halves": lambda blocks: right(blocks).roll(1, -1),
    }
    raw = torch.from_numpy(random_blocks(gguf.GGMLQuantizationType[kind], (8, 256), seed=4))
    quantised = gguf.GGMLQuantizationType[kind]
    exact = torch.from_numpy(gguf.quants.dequantize(raw.numpy(), quantised))
    read = gguf_weights.CODES[kind]
    assert torch.equal(widen_codes(read(raw), torch.float32), exact)
    monkeypatch.setattr(gguf_weights, mutant, wrong[mutant])
    assert not torch.equal(widen_codes(read(raw), torch.float32), exact)


def test_a_scale_that_is_no_number_is_refused_and_a_block_of_zeros_is_not(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_gguf(path, "qwen3", "Q8_0", seed=5)
    where = read_gguf_header(path).tensors["blk.1.ffn_up.weight"].begin
    content = bytearray(path.read_bytes())
    content[where : where + 2] = b"\x00\x00"
    path.write_bytes(content)
    logits(path)
    content[where : where + 2] = b"\x00\x7e"
    path.write_bytes(content)
    with pytest.raises(LoadError, match=r"model.gguf: tensor 'blk.1.ffn_up.weight' has a scale"):
        logits(path)


def test_without_the_library_k_quants_say_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.gguf"
    write_gguf(path, "qwen3", "Q4_K", seed=6)
    monkeypatch.setattr(gguf_weights.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(LoadError, match=r"install keepwarm\[gguf\]"):
        logits(path)


def test_a_tensor_that_nothing_is_computed_with_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_gguf(path, "qwen3", "F16", seed=7)
    content = path.read_bytes().replace(b"blk.1.ffn_up.weight", b"blk.9.ffn_up.weight")
    path.write_bytes(content)
    with pytest.raises(LoadError, match=r"tensor 'blk.1.ffn_up.weight' is missing"):
        logits(path)
