"""Turns that are forced to call tools of every kind: calls are valid, what is loaded callable.

``KEEPWARM_TOOL_TURNS`` sets how many are played (5,000 for a campaign), ``KEEPWARM_TOOL_SEED``
where they begin. Drawn tokens stand in a model's place, bound by the turn's own grammar; the tools
are built into the API, deferred, found by a search of the client's or the server's, or added. A
failure names its seed.
"""

import json
import os
import random
from typing import Any

import jsonschema
import pytest
from openai.types.responses import ResponsesServerEvent
from pydantic import TypeAdapter

from runtime.grammar.compiler import GrammarCompiler
from runtime.grammar.state import GrammarState
from runtime.messages import FinishReason
from tests.support import chat_models
from tests.support.grammars import compiler, random_output
from tests.support.sessions_rig import Client, Rig
from tools_api.built_in_tools import definition
from tools_api.dialects.anthropic_client_tools import CLIENT_TOOLS
from tools_api.tools import hosted_types

TURNS = int(os.environ.get("KEEPWARM_TOOL_TURNS", "70"))
SEED = int(os.environ.get("KEEPWARM_TOOL_SEED", "0"))
FORMATS = ("qwen3", "qwen3-coder", "glm4.5", "harmony", "lfm2", "mistral-v13", "phi4-mini",
           "deepseek-v3", "deepseek-v3.1", "kimi-k2.5", "gemma4", "minimax-m3")  # fmt: skip
LIMIT = 700
PUBLISHED: TypeAdapter[Any] = TypeAdapter(ResponsesServerEvent)
BUILT_IN = ("shell", "local_shell", "apply_patch")
OUTPUTS: dict[str, dict[str, Any]] = {
    "function_call": {"type": "function_call_output", "output": "1"},
    "shell_call": {"type": "shell_call_output", "output": []},
    "local_shell_call": {"type": "local_shell_call_output", "output": "x"},
    "apply_patch_call": {"type": "apply_patch_call_output", "status": "completed"},
}
WORDS = ("red", "green", "blue", "city", "share", "folder", "mail", "warm")


def function(rng: random.Random, name: str, **more: Any) -> dict[str, Any]:
    properties: dict[str, Any] = {
        "n": {"type": "integer", "minimum": 0, "maximum": 99},
        "kind": {"enum": rng.sample(WORDS, 3)},
        "said": {"type": "string", "maxLength": 8},
    }
    schema = {
        "type": "object",
        "properties": properties,
        "required": rng.sample(sorted(properties), rng.randint(0, 3)),
        "additionalProperties": False,
    }
    said = " ".join(rng.sample(WORDS, 3))
    return {"type": "function", "name": name, "description": said, "parameters": schema,
            "strict": True} | more  # fmt: skip


class Agent:
    """One client that plays a chain of turns."""

    def __init__(self, name: str, rng: random.Random) -> None:
        self.rng = rng
        self.rig = Rig(model=chat_models.served(name))
        self.client: Client = self.rig.connect()
        self.compiler: GrammarCompiler = compiler(self.rig.model.tokenizer)
        names = [f"f{n}" for n in range(6)]
        self.schemas: dict[str, dict[str, Any]] = {
            kind: definition({"type": kind}, "x").parameters for kind in (*BUILT_IN, "tool_search")
        }
        self.functions = {name: function(rng, name) for name in names}
        for kind, own in rng.sample(sorted(CLIENT_TOOLS.items()), 2):
            self.functions[kind] = function(rng, kind, parameters=own.schema)
        self.schemas |= {name: entry["parameters"] for name, entry in self.functions.items()}
        self.tools = self._tools()
        self.callable = {
            tool.get("name", tool["type"]) for tool in self.tools if not tool.get("defer_loading")
        }
        self.last: dict[str, Any] | None = None
        self.seen: set[str] = set()
        """Types of events that were looked at, which costs more than to write them."""

    def _tools(self) -> list[dict[str, Any]]:
        rng = self.rng
        search = {"type": "tool_search"}
        if rng.random() < 0.5:
            search["execution"] = "client"
        chosen = rng.sample(sorted(self.functions), 5)
        listed = [self.functions[n] | {"defer_loading": rng.random() < 0.6} for n in chosen]
        listed += [{"type": kind} for kind in rng.sample(BUILT_IN, rng.randint(1, 3))]
        rng.shuffle(listed)
        assert not hosted_types(listed)
        return [search, *listed]

    def play(self) -> None:
        """One turn, and the answers to its calls as the next one's input."""
        fields: dict[str, Any] = {"tools": self.tools, "input": self._input()}
        if self.last is not None:
            fields["previous_response_id"] = self.last["id"]
        name = self.rng.choice(sorted(self.callable))
        named = {"type": name} if name in (*BUILT_IN, "tool_search") else None
        named = named or {"type": "function", "name": name}
        choice = self.rng.choice(("required", named))
        seen = len(self.client.events)
        self.client.create(tool_choice=choice, max_output_tokens=LIMIT * 20, **fields)
        while self.client.events[-1]["type"] not in ("response.completed", "response.incomplete"):
            assert self.client.events[-1]["type"] not in ("error", "response.failed"), (
                self.client.events[-1]
            )
            self._speak()
        for event in self.client.events[seen:]:
            bare = dict(event)
            if isinstance(bare.get("response"), dict):
                bare["response"] = {k: v for k, v in bare["response"].items() if k != "keepwarm"}
            if (kind := event["type"]) not in self.seen or "item" in kind:
                self.seen.add(kind)
                PUBLISHED.validate_python(bare)
        self.last = self.client.response
        self._check(self.last, named if choice is named else None)

    def _speak(self) -> None:
        request = self.rig.engine.last
        assert request.grammar is not None
        state = GrammarState(self.compiler.compile(request.grammar), self.rig.model.tokenizer)
        tokens = random_output(state, self.rig.model.tokenizer, LIMIT, self.rng)
        finish = FinishReason.STOP if state.ended else FinishReason.LENGTH
        self.rig.deliver(self.rig.engine.output(request, tokens, finish))

    def _input(self) -> list[dict[str, Any]]:
        given: list[dict[str, Any]] = []
        for item in [] if self.last is None else self.last["output"]:
            if item["type"] == "tool_search_call" and item["execution"] == "client":
                found = self.rng.sample(sorted(self.functions), 2)
                given.append({"type": "tool_search_output", "call_id": item["call_id"],
                              "tools": [self.functions[name] for name in found]})  # fmt: skip
                self.callable |= set(found)
            elif item["type"] in OUTPUTS and item["status"] == "completed":
                given.append(OUTPUTS[item["type"]] | {"call_id": item["call_id"]})
        if self.rng.random() < 0.3:
            added = self.rng.choice(sorted(self.functions))
            tools = [self.functions[added]]
            given.append({"type": "additional_tools", "role": "developer", "tools": tools})
            self.callable.add(added)
        return [*given, {"role": "user", "content": "go on"}]

    def _check(self, response: dict[str, Any], named: dict[str, Any] | None) -> None:
        for item in response["output"]:
            if item["type"] == "tool_search_output":
                self.callable |= {tool["name"] for tool in item["tools"]}
            if not item["type"].endswith("_call") or item["status"] != "completed":
                continue
            name, arguments = _called(item)
            assert name in self.callable
            jsonschema.validate(arguments, self.schemas[name])
        if response["status"] == "completed":
            kinds = [item["type"] for item in response["output"]]
            assert any(kind.endswith("_call") for kind in kinds)
            if named is not None:
                first = next(item for item in response["output"] if item["type"].endswith("_call"))
                assert _called(first)[0] == named.get("name", named["type"])


def _called(item: dict[str, Any]) -> tuple[str, Any]:
    """The tool and its arguments, as its schema has them."""
    match item["type"]:
        case "function_call":
            return item["name"], json.loads(item["arguments"])
        case "shell_call":
            return "shell", item["action"]
        case "local_shell_call":
            action = {k: v for k, v in item["action"].items() if k != "type"}
            return "local_shell", action
        case "apply_patch_call":
            return "apply_patch", {"operation": item["operation"]}
    return "tool_search", item["arguments"]


@pytest.mark.parametrize("name", FORMATS)
def test_forced_calls_are_valid_in_every_way_of_writing_them(name: str) -> None:
    turns, completed = max(TURNS // len(FORMATS), 1), 0
    for number in range(0, turns, 5):
        seed = SEED * 1_000_000 + number
        agent = Agent(name, random.Random(f"{name} {seed}"))
        for turn in range(min(5, turns - number)):
            try:
                agent.play()
            except (AssertionError, jsonschema.ValidationError) as error:
                raise AssertionError(f"{name}, seed {seed}, turn {turn}: {error}") from error
            assert agent.last is not None
            completed += agent.last["status"] == "completed"
    print(f"{name}: {completed} of {turns} completed")
    assert completed * 2 > turns
