"""Models in published formats, served: turns over HTTP, each the continuation of the one before."""

import itertools
from pathlib import Path
from typing import Any

import httpx
import pytest

from keepwarm.demo.child_server import ChildServer, ServerDidNotStart, child_server
from tests.support.gguf_files import write_gguf
from tests.support.quantised_folders import FORMATS, gpt_oss_folder, write_folder

BLOCK = 16
"""Tokens; whole ones are found in the cache."""


def options(model: Path) -> list[str]:
    return ["--model", str(model), "--kv-cache-mib", "16", "--threads", "1", "--dtype", "bfloat16"]


def turn(server: ChildServer, **fields: Any) -> dict[str, Any]:
    body = {"model": "default", "max_output_tokens": 8, "temperature": 0} | fields
    answer = httpx.post(f"{server.url}/responses", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def written(name: str, folder: Path) -> Path:
    if name == "gguf":
        write_gguf(folder / "model.gguf", "llama", "Q4_0", seed=1)
        return folder / "model.gguf"
    if name == "gpt-oss":
        gpt_oss_folder(folder, seed=1)
    else:
        write_folder(folder, FORMATS[name], seed=1)
    return folder


@pytest.mark.parametrize("name", ["fp8 blocks", "awq 32", "gpt-oss", "gguf"])
def test_turns_go_on_from_one_another(name: str, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    model = written(name, tmp_path / "model")
    with child_server(options(model), log=tmp_path / "log") as server:
        first = turn(server, input="What is the price of a desk, and of a lamp beside it?")
        told = [first]
        for _ in range(3):
            told.append(turn(server, input="And now?", previous_response_id=told[-1]["id"]))
        again = turn(server, input="What is the price of a desk, and of a lamp beside it?")
    assert all(each["usage"]["output_tokens"] > 0 for each in told)
    for earlier, later in itertools.pairwise(told):
        cached = later["usage"]["input_tokens_details"]["cached_tokens"]
        assert cached >= earlier["usage"]["input_tokens"] // BLOCK * BLOCK
    assert again["output"][0]["content"] == first["output"][0]["content"]


def test_a_folder_that_is_quantised_already_refuses_to_be_quantised(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    model = written("fp8 blocks", tmp_path / "model")
    with (
        pytest.raises(ServerDidNotStart, match=r"quantised already .fp8.*--quantization"),
        child_server([*options(model), "--quantization", "int8"], log=tmp_path / "log"),
    ):
        pass
