"""A folder of Qwen3-Coder's shape over a socket: what the model reads and writes is its template's.

One token is one byte or one special token, so that the tokens that an answer counts say what was
read and written.
"""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from keepwarm.demo.child_server import child_server
from runtime.chat_judge.conversations import (
    Conversation,
    Wants,
    variables,
)
from runtime.chat_judge.template_runs import run_template
from tests.support import judged_templates
from tests.support.byte_tokenizer import SPECIAL_TOKENS
from tests.support.judged_folders import template_folder
from tools_api.chat_format import SegmentWriter
from tools_api.chat_qwen_xml import QWEN_CALLS
from tools_api.item_reading import parse_items
from tools_api.items import FunctionCall
from tools_api.raw_calls import write_raw_calls
from tools_api.tools import parse_tools

TOOL: dict[str, Any] = {
    "type": "function",
    "name": "get_weather",
    "description": "Weather in a city",
    "parameters": {
        "type": "object",
        "properties": {
            "city": {"type": "string", "maxLength": 8},
            "days": {"type": "integer", "minimum": 0, "maximum": 9},
        },
        "required": ["city", "days"],
        "additionalProperties": False,
    },
}
SPECIALS = tuple(name for name in SPECIAL_TOKENS if "tools" not in name)
"""As Qwen's tokenizers have them."""
QUESTION = {"role": "user", "content": "Weather in Oslo?"}


def num_tokens(text: str) -> int:
    """Of a text that holds special tokens."""
    count = 0
    for name in SPECIALS:
        count += text.count(name)
        text = text.replace(name, "")
    return count + len(text.encode())


def prompt(template: str, items: list[dict[str, Any]]) -> str:
    """What the template writes in front of the model's turn."""
    conversation = Conversation(
        name="", tools=parse_tools([TOOL]), items=parse_items(items), instructions="Be brief."
    )
    given = variables(conversation, Wants(special_tokens={}))
    (made,) = run_template(template, [given])
    assert made.text is not None
    return made.text


def call_text(call: dict[str, Any], *, gap: str) -> str:
    """A call as the model has to have written it."""
    out = SegmentWriter(lambda _: True)
    made = FunctionCall(call_id="c", name=call["name"], arguments=call["arguments"])
    write_raw_calls(out, QWEN_CALLS, [made])
    text = "".join(segment.text for segment in out.segments)
    return text.replace("<tool_call>\n", f"<tool_call>{gap}") + "<|im_end|>"


@pytest.mark.parametrize(
    ("template", "gap", "name"),
    [
        ("QWEN3_CODER", "\n", "chat format=Qwen3-Coder"),
        ("NEWLINE_IN_CALL", "\n\n", 'chat format="the folder'),
        ("NEWLINE_AFTER_TURNS", "\n", 'chat format="the folder'),
    ],
)
def test_calls_are_written_as_the_template_writes_them(
    template: str, gap: str, name: str, tmp_path: Path
) -> None:
    text = getattr(judged_templates, template)
    model = template_folder(tmp_path / "m", text, specials=SPECIALS)
    log = tmp_path / "log"
    options = ["--model", str(model), "--kv-cache-mib", "64", "--threads", "1"]
    with child_server(options, log=log) as server, httpx.Client(timeout=120) as client:

        def turn(body: dict[str, Any]) -> dict[str, Any]:
            asked = {"model": "default", "tools": [TOOL], "tool_choice": "required"}
            asked |= {"parallel_tool_calls": False} | body
            answer = client.post(f"{server.url}/responses", json=asked)
            assert answer.status_code == 200, answer.text
            found: dict[str, Any] = answer.json()
            return found

        items: list[dict[str, Any]] = [QUESTION]
        held = 0
        previous: dict[str, Any] = {}
        for number in range(3):
            new = items if not number else items[-1:]
            answer = turn({"instructions": "Be brief.", "input": new, **previous})
            (call,) = answer["output"]
            assert set(json.loads(call["arguments"])) == {"city", "days"}
            assert answer["usage"]["output_tokens"] == num_tokens(call_text(call, gap=gap))
            assert answer["usage"]["input_tokens"] == num_tokens(prompt(text, items))
            assert answer["usage"]["input_tokens_details"]["cached_tokens"] >= held // 16 * 16
            held = answer["usage"]["input_tokens"]
            previous = {"previous_response_id": answer["id"]}
            items += [
                {key: call[key] for key in ("type", "call_id", "name", "arguments")},
                {"type": "function_call_output", "call_id": call["call_id"], "output": "21"},
            ]
    assert name in log.read_text().replace("\\", "")


def test_of_a_template_without_calls_requests_with_tools_are_refused_over_the_socket(
    tmp_path: Path,
) -> None:
    template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}:{{ m.content }}<|im_end|>{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant:{% endif %}"
    )
    model = template_folder(tmp_path / "m", template, specials=SPECIALS)
    options = ["--model", str(model), "--kv-cache-mib", "64", "--threads", "1"]
    with (
        child_server(options, log=tmp_path / "log") as server,
        httpx.Client(timeout=120, base_url=server.url) as client,
    ):
        body = {"model": "default", "input": "Hi", "max_output_tokens": 4}
        answer = client.post("responses", json=body | {"tools": [TOOL]})
        assert answer.status_code == 400
        assert answer.json()["error"]["message"] == "'tools': this model cannot call tools."
        answer = client.post("responses", json=body)
        assert answer.status_code == 200
        asked = "<|im_start|>user:Hi<|im_end|><|im_start|>assistant:"
        assert answer.json()["usage"]["input_tokens"] == num_tokens(asked)
