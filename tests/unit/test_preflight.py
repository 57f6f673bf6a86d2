"""What is wrong with a model's name or folder is said without torch."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from sessions.command.preflight import fault_of_model
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


def test_no_torch_is_needed_for_it() -> None:
    program = (
        "import sys; from sessions.command.preflight import fault_of_model\n"
        "fault_of_model('random:x'); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False).returncode == 0


@pytest.mark.parametrize("name", ["~/nowhere", "~nobody-of-that-name/x"])
def test_a_home_folder_may_be_meant(name: str) -> None:
    assert "no such folder" in str(fault_of_model(name))
