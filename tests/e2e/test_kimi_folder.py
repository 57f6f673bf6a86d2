"""A folder as Kimi's are: ranks for ``tiktoken``, a program beside them, a template. It is served
as it is, and a tool loop goes on by the numbers that the model gives its calls."""

import base64
import json
import os
from pathlib import Path
from typing import Any

import httpx
import pytest

from keepwarm.demo.child_server import child_server
from runtime.machine_files import cache_folder
from tests.support import judged_templates
from tests.support.judged_folders import template_folder
from tools_api.chat_kimi import TOKENS

TOOL = {
    "type": "function",
    "name": "get_price",
    "parameters": {
        "type": "object",
        "properties": {"product": {"enum": ["lamp", "desk"]}},
        "required": ["product"],
        "additionalProperties": False,
    },
    "strict": True,
}


def kimi_folder(folder: Path) -> Path:
    """Each byte is a token."""
    template_folder(folder, judged_templates.KIMI_K2, specials=TOKENS, ends=("<|im_end|>",))
    (folder / "tokenizer.json").unlink()
    ranks = b"".join(base64.b64encode(bytes([byte])) + b" %d\n" % byte for byte in range(256))
    (folder / "tiktoken.model").write_bytes(ranks)
    (folder / "tokenization_kimi.py").write_text("raise RuntimeError('nobody runs this')")
    added = {str(256 + i): {"content": text, "special": True} for i, text in enumerate(TOKENS)}
    program = {"AutoTokenizer": ["tokenization_kimi.TikTokenTokenizer", None]}
    settings = {"auto_map": program, "added_tokens_decoder": added}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def test_a_folder_with_ranks_is_served_and_its_calls_go_on_by_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "cache" / "keepwarm"
    own.mkdir(parents=True)
    for kernels in cache_folder(os.environ).glob("cpu_kernels-*"):
        (own / kernels.name).symlink_to(kernels)
    monkeypatch.setenv("XDG_CACHE_HOME", str(own.parent))
    model, log = kimi_folder(tmp_path / "model"), tmp_path / "log"
    words = ["--model", str(model), "--kv-cache-mib", "32", "--threads", "1"]
    with child_server([*words, "--startup-profile-ms", "0"], log=log) as server:
        with httpx.Client(base_url=server.url, timeout=60) as http:

            def create(**fields: Any) -> dict[str, Any]:
                body = {"tools": [TOOL], "tool_choice": "required", "max_output_tokens": 400}
                told: dict[str, Any] = http.post("/responses", json=body | fields).json()
                assert told["status"] in ("completed", "incomplete"), told
                return told

            last, numbers = create(input="What does the desk cost?"), []
            for _ in range(3):
                calls = [item for item in last["output"] if item["status"] == "completed"]
                assert calls
                for call in calls:
                    assert json.loads(call["arguments"])["product"] in ("lamp", "desk")
                    numbers.append(call["call_id"].rpartition("_")[2])
                outputs = [
                    {"type": "function_call_output", "call_id": call["call_id"], "output": "180"}
                    for call in calls
                ]
                last = create(input=outputs, previous_response_id=last["id"])
                assert last["usage"]["input_tokens_details"]["cached_tokens"] > 0
            assert all(number.isdigit() and int(number) < 10_000 for number in numbers)
    assert "Traceback" not in log.read_text()
