"""What is wrong with a model's name or folder is said without torch."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sessions.command.preflight import fault_of_context, fault_of_model, known_source
from tests.support.architecture import ROOT

CONFIG = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "vocab_size": 256,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
}


def folder(path: Path, *files: str, **fields: object) -> str:
    (path / "config.json").write_text(json.dumps(CONFIG | fields))
    for name in files:
        (path / name).write_text("")
    return str(path)


def test_nothing_is_wrong_with_what_can_be_served(tmp_path: Path) -> None:
    assert fault_of_model("default") is None
    assert fault_of_model("random:qwen3-tiny") is None
    whole = folder(tmp_path, "tokenizer.json", "model.safetensors")
    assert fault_of_model(whole) is None


def test_a_fault_is_told(tmp_path: Path) -> None:
    assert "no such folder" in str(fault_of_model("/nowhere/model"))
    assert "no random model 'x'" in str(fault_of_model("random:x"))
    assert "config.json" in str(fault_of_model(str(tmp_path)))
    assert "tokenizer.json: missing" in str(fault_of_model(folder(tmp_path)))
    assert "no weights" in str(fault_of_model(folder(tmp_path, "tokenizer.json")))
    assert "model_type" in str(fault_of_model(folder(tmp_path, model_type="gpt9")))


@pytest.mark.parametrize("name", ["x" * 300, f"{'x' * 300}.gguf", f"{'x' * 300}/model"])
def test_a_folder_that_cannot_be_looked_at_is_a_fault(name: str) -> None:
    """As one in a folder of somebody else's: such names are longer than the system's may be."""
    assert str(fault_of_model(name)).startswith("x" * 300)


def test_no_torch_is_needed_for_it() -> None:
    program = (
        "import sys; from sessions.command.preflight import fault_of_model\n"
        "fault_of_model('random:x'); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False).returncode == 0


@pytest.mark.parametrize("name", ["~/nowhere", "~nobody-of-that-name/x"])
def test_a_home_folder_may_be_meant(name: str) -> None:
    assert "no such folder" in str(fault_of_model(name))


def test_a_context_that_a_model_does_not_have_is_a_fault(tmp_path: Path) -> None:
    whole = folder(tmp_path, "tokenizer.json", "model.safetensors")
    for asked in (None, 16, 128):
        assert fault_of_context(whole, asked) is None
    assert "max_context_tokens is 129, and" in str(fault_of_context(whole, 129))
    scaling = {"rope_scaling": {"type": "yarn", "factor": 2.0}}
    stretched = folder(tmp_path, "tokenizer.json", "model.safetensors", **scaling)
    assert fault_of_context(stretched, 256) is None
    assert "of 256 tokens" in str(fault_of_context(stretched, 257))


def test_a_folder_that_has_to_be_waited_for_is_the_loaders(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "config.json")
    assert known_source(str(tmp_path)) is None
    assert fault_of_context(str(tmp_path), 1 << 20) is None
    (tmp_path / "model.safetensors").write_text("")
    assert fault_of_model(str(tmp_path)) is None
