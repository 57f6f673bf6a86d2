"""A folder as MiniMax M3's is: attention to chosen blocks, a template whose thinking has a mode.
It is served as it is, and its calls have objects and lists inside."""

import json
from pathlib import Path
from typing import Any

import httpx

from keepwarm.demo.child_server import child_server
from tests.support import judged_templates
from tests.support.chat_models import FORMATS
from tests.support.family_shapes import SHAPES, make
from tests.support.judged_folders import template_folder

LABELS = ["5", "<item>", "]<]minimax[>[</labels>"]
"""Texts that look like something else."""
TOOL = {
    "type": "function",
    "name": "add_order",
    "parameters": {
        "type": "object",
        "properties": {
            "lines": {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {
                        "labels": {
                            "type": "array",
                            "items": {"enum": LABELS},
                            "minItems": 1,
                            "maxItems": 2,
                        },
                        "count": {"type": "integer", "minimum": 1, "maximum": 9},
                    },
                    "required": ["labels", "count"],
                    "additionalProperties": False,
                },
                "minItems": 1,
                "maxItems": 2,
            },
            "paid": {"type": "boolean"},
        },
        "required": ["lines", "paid"],
        "additionalProperties": False,
    },
    "strict": True,
}
BLOCK = 16
"""Tokens; whole ones are found in the cache."""
WITHOUT = {"tool_choice": "none", "max_output_tokens": 20}
OUTPUT = '{"total": 180, "note": "[e~[ is text here"}'


def test_a_folder_of_minimax_m3_is_served_and_its_calls_are_bound(tmp_path: Path) -> None:
    tokens = FORMATS["minimax-m3"]["tokens"]
    model = template_folder(
        tmp_path / "model",
        judged_templates.minimax_m3(tokens),
        specials=tokens,
        ends=("[e~[",),
        model=make("minimax_m3_vl_text", SHAPES["above"], seed=3),
    )
    log = tmp_path / "log"
    words = ["--model", str(model), "--kv-cache-mib", "32", "--threads", "1"]
    with child_server([*words, "--startup-profile-ms", "0"], log=log) as server:
        with httpx.Client(base_url=server.url, timeout=60) as http:

            def create(**fields: Any) -> dict[str, Any]:
                body = {
                    "tools": [TOOL],
                    "tool_choice": "required",
                    "parallel_tool_calls": False,
                    "max_output_tokens": 900,
                }
                told: dict[str, Any] = http.post("/responses", json=body | fields).json()
                assert told.get("status") in ("completed", "incomplete"), told
                return told

            last = create(input="Two lamps, please.")
            for rest in (1, 0):
                (call,) = [item for item in last["output"] if item["type"] == "function_call"]
                arguments = json.loads(call["arguments"])
                assert 1 <= len(arguments["lines"]) <= 2
                assert isinstance(arguments["paid"], bool)
                for line in arguments["lines"]:
                    assert set(line["labels"]) <= set(LABELS)
                    assert line["count"] in range(1, 10)
                output = {"type": "function_call_output", "call_id": call["call_id"]}
                given: list[Any] = [output | {"output": OUTPUT}]
                before = last["usage"]["total_tokens"]
                choice = {"tool_choice": "required"} if rest else WITHOUT
                last = create(input=given, previous_response_id=last["id"], **choice)
                cached = last["usage"]["input_tokens_details"]["cached_tokens"]
                assert before - BLOCK <= cached <= before
            assert {item["type"] for item in last["output"]} <= {"message"}
    assert "Traceback" not in log.read_text()
