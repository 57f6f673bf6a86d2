"""What a grammar binds is whole and legal, or ends as cut with the beginning of something legal.

``KEEPWARM_BOUND_OUTPUTS`` sets how many outputs the drawn part writes (10^5 for a campaign; each is
written in three ways), ``KEEPWARM_BOUND_SEED`` where it begins, ``KEEPWARM_BOUND_TURNS`` how many
turns the served part plays. Drawn tokens stand in a model's place; a failure names its seed.
"""

import asyncio
import json
import os
import random
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest

from keepwarm.demo.child_server import child_server
from runtime.grammar.refusal import GrammarRefused
from runtime.grammar.state import GrammarState
from runtime.messages import FinishReason
from runtime.model.sources import BYTE_TOKENIZER
from runtime.tokenizer import Tokenizer
from tests.support import chat_models, vocabularies
from tests.support.bound_outputs import STOPS, Said, Task, Writer, fault, random_task, read
from tests.support.hf_models import make_model
from tests.support.tokenizers import byte_level_json, sentencepiece_json, write_tokenizer
from tests.support.wire_client import WireClient
from tools_api.errors import ApiError
from tools_api.harmony import HarmonyCalls
from tools_api.python_calls import PythonCalls
from tools_api.raw_calls import RawCalls
from tools_api.tagged_calls import TaggedCalls

OUTPUTS = int(os.environ.get("KEEPWARM_BOUND_OUTPUTS", "500"))
SEED = int(os.environ.get("KEEPWARM_BOUND_SEED", "0"))
PER_TASK = 10
NAMES = (*vocabularies.NAMES, "llama", "mistral")
FORMAT_NAMES = (
    *("qwen3-coder", "qwen3.5-thinking", "glm4.5", "glm4.7-thinking", "minimax-m2", "harmony"),
    *(
        "mistral-v13",
        "lfm2",
        "olmo3",
        "phi4-mini",
        "deepseek-v3",
        "deepseek-v3.1",
        "kimi-k2.5",
        "gemma4",
        "minimax-m3",
    ),
)
LLAMA_SPECIALS = ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
_ROOM_FOR_A_CALL = 40
TURNS = int(os.environ.get("KEEPWARM_BOUND_TURNS", "200"))
CONNECTIONS = 8
TOOLS = Path(__file__).parents[3] / "shared" / "schemas" / "tools.jsonl"
_BEYOND_JSONSCHEMA = ("oneOf", "format", "pattern", "$ref", "not", "contains")


def parameters_in_use(rng: random.Random, most: int) -> list[dict[str, Any]]:
    """Of tools of others, where they are at hand; those whose every keyword both judges read
    alike."""
    if not TOOLS.exists():
        return []
    rows = [json.loads(line)["schema"] for line in TOOLS.read_text("utf-8").splitlines()]
    found = [row.get("parameters", row) for row in rows if isinstance(row, dict)]
    plain = [s for s in found if not any(f'"{k}"' in json.dumps(s) for k in _BEYOND_JSONSCHEMA)]
    objects = [s for s in plain if isinstance(s, dict) and s.get("type") == "object"]
    return rng.sample(objects, min(most, len(objects)))


def vocabulary(name: str, folder: Path) -> Tokenizer:
    """One of three that differ in what their tokens cover, or one with the calls of another
    family: without tags, or in a list."""
    if name in vocabularies.NAMES:
        return vocabularies.vocabulary(name, folder)
    if name == "mistral":
        return Tokenizer.load(write_tokenizer(folder, sentencepiece_json()), model_type="mistral")
    raw = byte_level_json()
    for token, text in zip(raw["added_tokens"], LLAMA_SPECIALS, strict=False):
        token["content"] = text
    raw["added_tokens"] = raw["added_tokens"][: len(LLAMA_SPECIALS)]
    return Tokenizer.load(write_tokenizer(folder, raw), model_type="llama")


def random_limit(rng: random.Random, state: GrammarState) -> int:
    """From the least that is accepted upward; where none of it need be a call, mostly with room
    for one."""
    least = state.least_tokens
    if not state.spec.binds_all and rng.random() < 0.8:
        least = max(len(state.compiled.closing or ()), _ROOM_FOR_A_CALL)
    return least + rng.choice((0, 1, 2, 3, 5, 8, 13, 21, 34, rng.randint(0, 90)))


def play(writer: Writer, task: Task, rng: random.Random, seed: int) -> str:
    """One output in all ways; returns how it ended."""
    state = GrammarState(writer.compile(task), writer.tokenizer)
    limit = random_limit(rng, state)
    stops = tuple(rng.sample(STOPS, rng.choice((0, 0, 1, 2))))
    written = writer.write(task, limit=limit, stops=stops, seed=seed, way="runs")
    for way in ("single", "drafts"):
        again = writer.write(
            task, limit=limit, stops=stops, seed=seed, way=way, truth=written.tokens
        )
        assert again == written, way
    assert written.reason is not FinishReason.ERROR, written.message
    whole = written.reason is not FinishReason.LENGTH
    if state.spec.binds_all and state.ends_within(limit):
        assert whole, f"an ending within {limit} tokens was known"
    if written.reason is FinishReason.STOP_STRING:
        assert task.choice == "auto", "a bound output was cut by a stop string"
    said, syntax = read(writer, task, written, stops, seed), writer.format.calls
    wrong = fault(
        task,
        said,
        whole=whole,
        tagged=syntax is not None and syntax.opener is not None,
        ordered=not isinstance(syntax, RawCalls | PythonCalls | TaggedCalls),
        speaks_first=isinstance(syntax, HarmonyCalls),
    )
    assert wrong is None, (limit, stops, written.reason, wrong)
    return written.reason.value


@pytest.mark.parametrize("name", NAMES)
def test_a_bound_output_is_legal_or_begins_something_legal(name: str, tmp_path: Path) -> None:
    ended = write_outputs(name, Writer(vocabulary(name, tmp_path)), OUTPUTS // len(NAMES))
    assert ended["refused"] * PER_TASK < OUTPUTS // len(NAMES)
    assert min(ended["stop"], ended["length"]) > OUTPUTS // 40


@pytest.mark.parametrize("name", FORMAT_NAMES)
def test_so_it_is_however_calls_are_written(name: str) -> None:
    model = chat_models.served(name)
    outputs = OUTPUTS // len(FORMAT_NAMES) // 5
    ended = write_outputs(name, Writer(model.tokenizer, model.chat_format), outputs)
    assert ended["stop"] > 0


def write_outputs(name: str, writer: Writer, outputs: int) -> Counter[str]:
    """Some of random tasks each; returns how they ended."""
    in_use = parameters_in_use(random.Random(SEED), 300)
    ended: Counter[str] = Counter()
    for number in range(max(1, outputs // PER_TASK)):
        seed = SEED * 1_000_000 + number
        rng = random.Random(seed)
        task = random_task(rng, in_use, thinks=writer.format.thinking)
        try:
            writer.compile(task)
        except (GrammarRefused, ApiError):
            ended["refused"] += 1
            continue
        for turn in range(PER_TASK):
            try:
                ended[play(writer, task, rng, seed * PER_TASK + turn)] += 1
            except AssertionError as error:
                raise AssertionError(f"seed {seed}, output {turn}, {task}: {error}") from error
    print(f"{name}: {dict(ended)}")
    return ended


def model_folder(folder: Path) -> Path:
    """A random model with the large vocabulary."""
    tokenizer = vocabularies.vocabulary("bpe32k", folder)
    ends = tokenizer.end_of_turn_id
    make_model("qwen3", vocab_size=tokenizer.vocab_size, eos_token_id=ends).save_pretrained(folder)
    template = BYTE_TOKENIZER / "chat_template.jinja"
    (folder / "chat_template.jinja").write_text(template.read_text())
    return folder


def served(name: str, folder: Path) -> list[str]:
    """Options of a server: one without drafts, two with."""
    small = ["--kv-cache-mib", "64", "--threads", "1"]
    if name == "shipped":
        return []
    if name == "bytes":
        return ["--model", "random:qwen3-tiny", "--max-draft-tokens", "0", *small]
    return ["--model", str(model_folder(folder)), "--dtype", "float32", *small]


@pytest.mark.parametrize("name", vocabularies.NAMES)
async def test_what_a_server_calls_complete_is_whole(name: str, tmp_path: Path) -> None:
    """Over WebSocket, Chat Completions and Messages, with limits and budgets near the shortest
    legal output."""
    in_use = parameters_in_use(random.Random(SEED), 300)
    writer = Writer(vocabulary(name, tmp_path / "vocabulary"))
    count = TURNS // len(vocabularies.NAMES) // CONNECTIONS
    ended: Counter[str] = Counter()
    with child_server(served(name, tmp_path / "model"), log=tmp_path / "log") as server:
        async with httpx.AsyncClient(base_url=server.url, timeout=120) as http:

            async def agent(number: int) -> None:
                seed = SEED * 1_000_000 + number
                player = TurnPlayer(await WireClient.open(server.url), http, random.Random(seed))
                for turn in range(count):
                    task = random_task(player.rng, in_use, thinks=writer.format.thinking)
                    wrong = await player.play(task, writer, ended)
                    assert wrong is None, (name, f"agent seed {seed}, turn {turn}", task, wrong)
                await player.socket.close()

            await asyncio.gather(*map(agent, range(CONNECTIONS)))
    print(f"{name}: {dict(ended)}")
    assert min(ended["completed"], ended["incomplete"]) > TURNS // 60


class TurnPlayer:
    """Plays turns of one agent, over the API that it draws."""

    def __init__(self, socket: WireClient, http: httpx.AsyncClient, rng: random.Random) -> None:
        self.socket = socket
        self.rng = rng
        self._http = http
        self._count = 0

    async def play(self, task: Task, writer: Writer, ended: Counter[str]) -> str | None:
        """What is wrong with one turn; None: nothing."""
        rng = self.rng
        try:
            state = GrammarState(writer.compile(task), writer.tokenizer)
        except GrammarRefused:
            ended["refused"] += 1
            return None
        limit, stops = random_limit(rng, state), rng.sample(STOPS, rng.choice((0, 0, 1, 2)))
        if task.schema is None and rng.random() < 0.4:
            return await rng.choice((self._chat, self._messages))(task, limit, stops, ended)
        return await self._responses(task, limit, stops, ended)

    async def _responses(
        self, task: Task, limit: int, stops: list[str], ended: Counter[str]
    ) -> str | None:
        self._count += 1
        fields: dict[str, Any] = {"max_output_tokens": limit}
        extra: dict[str, Any] = {"sampling": {"stop": stops, "seed": self._count}}
        if self.rng.random() < 0.3:
            session = f"{id(self)}-{self._count}"
            fields, extra = {}, extra | {"session": session, "budget": {"output": limit}}
        response = await self.socket.response(input="go", keepwarm=extra, **task.fields(), **fields)
        status = response["status"]
        ended[status] += 1
        if status == "failed":
            return too_small(response["error"]["code"], response["error"]["message"])
        said = Said("", [])
        for item in response["output"]:
            if item["type"] == "message":
                said.text += "".join(part["text"] for part in item["content"])
            elif item["type"] == "function_call":
                said.calls.append((item["name"], item["arguments"], item["status"] == "completed"))
        stopped = response["keepwarm"].get("stop")
        if stopped is not None and (task.choice != "auto" or stopped in said.text):
            return f"ended by the stop string {stopped!r}"
        warned = any("stop" in warning for warning in response["keepwarm"]["warnings"])
        if warned != (bool(stops) and task.choice != "auto"):
            return f"warnings: {response['keepwarm']['warnings']}"
        return fault(task, said, whole=status == "completed")

    async def _chat(
        self, task: Task, limit: int, stops: list[str], ended: Counter[str]
    ) -> str | None:
        fields = task.fields()
        tools = [
            {"type": "function", "function": {k: v for k, v in tool.items() if k != "type"}}
            for tool in fields["tools"]
        ]
        body = {"model": "default", "messages": [{"role": "user", "content": "go"}]}
        body |= {"tools": tools, "tool_choice": task.choice, "max_tokens": limit, "stop": stops}
        answer = (await self._http.post("/chat/completions", json=body)).json()
        if "error" in answer:
            ended["refused"] += 1
            return too_small(answer["error"]["code"], answer["error"]["message"])
        (choice,) = answer["choices"]
        ended[f"chat {choice['finish_reason']}"] += 1
        said = Said(choice["message"]["content"] or "", [])
        whole = choice["finish_reason"] != "length"
        for call in choice["message"].get("tool_calls") or ():
            said.calls.append((call["function"]["name"], call["function"]["arguments"], whole))
        if (choice["finish_reason"] == "tool_calls") != (whole and bool(said.calls)):
            return f"finish_reason {choice['finish_reason']} with {said}"
        return fault(task, said, whole=whole)

    async def _messages(
        self, task: Task, limit: int, stops: list[str], ended: Counter[str]
    ) -> str | None:
        tools = [
            {"name": tool["name"], "input_schema": tool["parameters"]}
            for tool in task.fields()["tools"]
        ]
        choice = {"type": "any" if task.choice == "required" else "auto"}
        body = {"model": "default", "messages": [{"role": "user", "content": "go"}]}
        body |= {"tools": tools, "tool_choice": choice, "max_tokens": limit}
        body |= {"stop_sequences": stops}
        answer = (await self._http.post("/messages", json=body)).json()
        if "error" in answer:
            ended["refused"] += 1
            return too_small(answer["error"]["type"], answer["error"]["message"])
        ended[f"messages {answer['stop_reason']}"] += 1
        blocks = [block for block in answer["content"] if block["type"] == "tool_use"]
        if answer["stop_reason"] == "max_tokens":
            return None  # a block holds what can be read of a call that was cut
        said = Said("".join(b["text"] for b in answer["content"] if b["type"] == "text"), [])
        said.calls += [
            (b["name"], json.dumps(b["input"], ensure_ascii=False), True) for b in blocks
        ]
        if (answer["stop_reason"] == "tool_use") != bool(blocks):
            return f"stop_reason {answer['stop_reason']} with {answer['content']}"
        return fault(task, said, whole=True)


def too_small(code: str, message: str) -> str | None:
    """A turn that its limit or budget cannot hold may be refused, and says so."""
    named = ("a legal output takes at least", "no legal ending of this turn's output is known")
    return None if any(words in message for words in named) else f"{code}: {message}"
