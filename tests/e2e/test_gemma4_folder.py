"""A folder as Gemma 4's are: layers of two shapes, inputs of single layers, a template of its own.
It is served as it is, and a tool loop goes on inside the model's turn."""

import json
from pathlib import Path
from typing import Any

import httpx

from keepwarm.demo.child_server import child_server
from tests.support import judged_templates
from tests.support.family_shapes import SHAPES, make
from tests.support.judged_folders import template_folder
from tools_api.chat_gemma4 import TOKENS

COLOURS = ["red", 'a "quoted" one', "blue, light"]
TOOL = {
    "type": "function",
    "name": "get_price",
    "parameters": {
        "type": "object",
        "properties": {
            "product": {"enum": ["lamp", "desk"]},
            "look": {
                "type": "object",
                "properties": {
                    "colours": {
                        "type": "array",
                        "items": {"enum": COLOURS},
                        "minItems": 1,
                        "maxItems": 2,
                    },
                    "polished": {"type": "boolean"},
                },
                "required": ["colours", "polished"],
                "additionalProperties": False,
            },
        },
        "required": ["product", "look"],
        "additionalProperties": False,
    },
    "strict": True,
}
BLOCK = 16
"""Tokens; whole ones are found in the cache."""
WITHOUT = {"tool_choice": "none", "max_output_tokens": 20}
OUTPUT = '{"price": 180, "note": "<turn|> is text here"}'


def test_a_folder_of_gemma_4_is_served_and_its_calls_go_on_in_a_turn(tmp_path: Path) -> None:
    model = template_folder(
        tmp_path / "model",
        judged_templates.GEMMA4_E,
        specials=TOKENS,
        ends=("<turn|>", "<|tool_response>"),
        model=make("gemma4_text with layers' inputs", SHAPES["above"], seed=3),
    )
    settings = model / "tokenizer_config.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"bos_token": "<bos>"}))
    log = tmp_path / "log"
    words = ["--model", str(model), "--kv-cache-mib", "32", "--threads", "1"]
    with child_server([*words, "--startup-profile-ms", "0"], log=log) as server:
        with httpx.Client(base_url=server.url, timeout=60) as http:

            def create(**fields: Any) -> dict[str, Any]:
                body = {
                    "tools": [TOOL],
                    "tool_choice": "required",
                    "parallel_tool_calls": False,
                    "max_output_tokens": 600,
                }
                told: dict[str, Any] = http.post("/responses", json=body | fields).json()
                assert told.get("status") in ("completed", "incomplete"), told
                return told

            last, rest = create(input="What does the desk cost?"), 3
            while rest:
                (call,) = [item for item in last["output"] if item["type"] == "function_call"]
                arguments = json.loads(call["arguments"])
                assert arguments["product"] in ("lamp", "desk")
                assert set(arguments["look"]["colours"]) <= set(COLOURS)
                assert isinstance(arguments["look"]["polished"], bool)
                output = {"type": "function_call_output", "call_id": call["call_id"]}
                given: list[Any] = [output | {"output": OUTPUT}]
                rest, before = rest - 1, last["usage"]["total_tokens"]
                choice = {"tool_choice": "required"} if rest else WITHOUT
                last = create(input=given, previous_response_id=last["id"], **choice)
                cached = last["usage"]["input_tokens_details"]["cached_tokens"]
                assert before - BLOCK <= cached <= before
            assert {item["type"] for item in last["output"]} <= {"message"}
            last = create(input="And in words?", previous_response_id=last["id"], **WITHOUT)
            assert {item["type"] for item in last["output"]} <= {"message"}
    assert "Traceback" not in log.read_text()
