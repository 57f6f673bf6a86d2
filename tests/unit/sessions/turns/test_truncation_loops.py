"""Tool loops of 200 turns in a window that holds some twenty, under ``truncation: auto``."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from tests.support.dialects import cached_of, over_http
from tests.support.journal_rig import FINGERPRINT, JournalRig
from tests.support.memory_journal import MemoryJournal
from tests.support.sessions_rig import END, Client, Rig, call, spelled, tool
from tools_api.dialects.anthropic_messages import MESSAGES
from tools_api.dialects.chat_completions import CHAT_COMPLETIONS

WINDOW = 4096
TURNS = 200
TASK = "What does each of them cost?"
TOOL = tool("g")
PARAMETERS = TOOL["parameters"]

Wire = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What is seen of one."""

    prompt: str
    response: Wire

    @property
    def told(self) -> bool:
        warnings = self.response["keepwarm"]["warnings"]
        return any(each.startswith("truncation: left out") for each in warnings)

    @property
    def size(self) -> int:
        size: int = self.response["usage"]["input_tokens"]
        return size


def price(number: int) -> str:
    return f"item {number} costs {number * 7} crowns"


def outputs(response: Wire, number: int) -> list[Wire]:
    calls = [item for item in response["output"] if item["type"] == "function_call"]
    return [
        {"type": "function_call_output", "call_id": each["call_id"], "output": price(number)}
        for each in calls
    ]


def reply(number: int) -> str:
    """Two calls in every fifth turn."""
    return "\n".join([call("g")] * (2 if number % 5 == 0 else 1)) + END


def asked(client: Client, number: int, **fields: Any) -> Turn:
    response = client.turn(reply(number), tools=[TOOL], truncation="auto", **fields)
    return Turn(prompt=last_prompt(client.rig), response=response)


def last_prompt(rig: Rig) -> str:
    """Without the output that ends it."""
    whole = spelled(rig.engine.sessions[rig.engine.last.branch_id])
    return whole[: whole.rindex("<|im_start|>assistant")]


def by_id(rig: Rig, **fields: Any) -> list[Turn]:
    client, turns = rig.connect(), list[Turn]()
    new: Any = TASK
    for number in range(TURNS):
        if turns:
            fields["previous_response_id"] = turns[-1].response["id"]
        turns.append(asked(client, number, input=new, **fields))
        new = outputs(turns[-1].response, number)
    return turns


def in_private(rig: Rig) -> list[Turn]:
    return by_id(rig, store=False)


def by_session(rig: Rig) -> list[Turn]:
    client, turns = rig.connect(), list[Turn]()
    new: Any = TASK
    for number in range(TURNS):
        turns.append(asked(client, number, input=new, keepwarm={"session": "s"}))
        new = outputs(turns[-1].response, number)
    return turns


def resent(rig: Rig) -> list[Turn]:
    turns = list[Turn]()
    said: list[Wire] = [{"role": "user", "content": TASK}]
    for number in range(TURNS):
        turns.append(asked(rig.connect(), number, input=said))
        response = turns[-1].response
        said = [*said, *response["output"], *outputs(response, number)]
    return turns


def chat(rig: Rig) -> list[Turn]:
    turns, function = list[Turn](), {"name": "g", "parameters": PARAMETERS}
    said: list[Wire] = [{"role": "user", "content": TASK}]
    for number in range(TURNS):
        body = {
            "model": "m",
            "messages": said,
            "tools": [{"type": "function", "function": function}],
            "truncation": "auto",
        }
        response, completion = over_http(rig, CHAT_COMPLETIONS, body, reply(number))
        turns.append(Turn(prompt=last_prompt(rig), response=response))
        assert completion["keepwarm"]["warnings"] == response["keepwarm"]["warnings"]
        answer = completion["choices"][0]["message"]
        said = [*said, answer]
        for each in answer["tool_calls"]:
            said.append({"role": "tool", "tool_call_id": each["id"], "content": price(number)})
    return turns


def messages(rig: Rig) -> list[Turn]:
    turns = list[Turn]()
    said: list[Wire] = [{"role": "user", "content": TASK}]
    for number in range(TURNS):
        body = {
            "model": "m",
            "max_tokens": 500,
            "messages": said,
            "tools": [{"name": "g", "input_schema": PARAMETERS}],
            "truncation": "auto",
        }
        response, answer = over_http(rig, MESSAGES, body, reply(number))
        turns.append(Turn(prompt=last_prompt(rig), response=response))
        assert answer["keepwarm"]["warnings"] == response["keepwarm"]["warnings"]
        results = [
            {"type": "tool_result", "tool_use_id": block["id"], "content": price(number)}
            for block in answer["content"]
            if block["type"] == "tool_use"
        ]
        said = [*said, {"role": "assistant", "content": answer["content"]}]
        said.append({"role": "user", "content": results})
    return turns


def cuts_of(turns: list[Turn]) -> list[int]:
    """Where a prompt does not go on from the one before."""
    return [
        number
        for number in range(1, len(turns))
        if not turns[number].prompt.startswith(turns[number - 1].prompt)
    ]


def paired(prompt: str) -> bool:
    """Every call in it has its output and every output its call."""
    _, loop = prompt.split("<|im_start|>user", 1)
    calls, results = loop.count("<tool_call>"), loop.count("<tool_response>")
    return calls == results and loop.find("<tool_response>") >= loop.find("<tool_call>")


@pytest.mark.tail
@pytest.mark.parametrize("play", [by_id, in_private, by_session, resent, chat, messages])
@pytest.mark.samples(2)
def test_a_loop_of_200_turns_keeps_its_task_and_its_cache(
    play: Callable[[Rig], list[Turn]],
) -> None:
    rig = Rig(max_context_tokens=WINDOW)
    turns = play(rig)
    assert [turn.response["status"] for turn in turns] == ["completed"] * TURNS
    assert all(f"<|im_start|>user\n{TASK}<|im_end|>" in turn.prompt for turn in turns)
    assert all(paired(turn.prompt) for turn in turns)
    for number in range(1, TURNS):
        assert price(number - 1) in turns[number].prompt
    cuts = cuts_of(turns)
    assert 5 < len(cuts) <= 30
    assert [number for number, turn in enumerate(turns) if turn.told] == cuts
    others = [turn for number, turn in enumerate(turns[1:], 1) if number not in cuts]
    cached = sum(cached_of(turn.response) for turn in others)
    assert cached >= 0.9 * sum(turn.size for turn in others)
    for number in cuts:
        kv = turns[number].response["keepwarm"]["kv"]
        assert kv["miss"]["truncated"] > 0
        assert "header_changed" not in kv["miss"]
        assert sum(kv["miss"].values()) == kv["written"]


def test_the_warnings_count_what_was_left_out() -> None:
    turns = by_id(Rig(max_context_tokens=WINDOW))
    left_out = 0
    for number in cuts_of(turns):
        (warning,) = turns[number].response["keepwarm"]["warnings"]
        before, now = turns[number - 1].prompt, turns[number].prompt
        calls = before.count("<tool_response>") + before.count("<tool_call>")
        assert calls > now.count("<tool_response>") + now.count("<tool_call>")
        words = warning.split()
        assert words[:3] == ["truncation:", "left", "out"]
        left_out += int(words[3])
        if "so far" in warning:
            assert f"; {left_out} turns of " in warning
        assert oldest(now) == left_out, "so many turns' outputs are gone"


@pytest.mark.tail
def test_a_server_that_starts_again_reads_what_it_read_before() -> None:
    def play(rig: JournalRig, *, restarts: bool) -> list[str]:
        prompts, fields = list[str](), Wire()
        new: Any = TASK
        for number in range(TURNS):
            if restarts and number % 7 == 0:
                rig.restart()
            turn = asked(rig.connect(), number, input=new, **fields)
            prompts.append(turn.prompt)
            fields["previous_response_id"] = turn.response["id"]
            new = outputs(turn.response, number)
        return prompts

    def rig() -> JournalRig:
        return JournalRig(MemoryJournal(FINGERPRINT), max_context_tokens=WINDOW)

    assert play(rig(), restarts=True) == play(rig(), restarts=False)


def test_another_model_goes_on_behind_a_cut() -> None:
    journal = MemoryJournal(FINGERPRINT)
    rig = JournalRig(journal, max_context_tokens=WINDOW)
    rig.retokenise = True
    fields, new, so_far = Wire(), TASK, 0
    for number in range(TURNS // 2):
        if number == TURNS // 4:
            rig.fingerprint = journal.fingerprint = b"other"
            rig.restart()
        turn = asked(rig.connect(), number, input=new, **fields)
        assert TASK in turn.prompt
        assert paired(turn.prompt)
        for warning in turn.response["keepwarm"]["warnings"]:
            before, so_far = so_far, int(warning.split("; ")[-1].split(" turn")[0].split()[-1])
            assert so_far > before
        fields["previous_response_id"] = turn.response["id"]
        new = outputs(turn.response, number)
    assert so_far > TURNS // 4


def test_a_resent_history_finds_its_cut_chain_after_a_restart() -> None:
    rig = JournalRig(MemoryJournal(FINGERPRINT), max_context_tokens=WINDOW)
    said: list[Wire] = [{"role": "user", "content": TASK}]
    before = None
    for number in range(TURNS // 4):
        if number % 5 == 0:
            rig.restart()
        turn = asked(rig.connect(), number, input=said)
        assert turn.response["previous_response_id"] == before
        before = turn.response["id"]
        said = [*said, *turn.response["output"], *outputs(turn.response, number)]


def test_forks_of_a_chain_are_cut_alike() -> None:
    rig = Rig(max_context_tokens=WINDOW)
    turns = by_id(rig)
    client = rig.connect()
    for number in cuts_of(turns)[:5]:
        parent = turns[number - 1].response
        new = outputs(parent, number - 1)
        new.append({"role": "user", "content": "Or another way?"})
        fork = asked(client, number, input=new, previous_response_id=parent["id"])
        assert fork.told
        assert fork.prompt.startswith(turns[number].prompt)


@pytest.mark.tail
def test_servers_that_know_nothing_cut_a_history_where_it_was_cut_before() -> None:
    """A history that is resent turn by turn, each time to a server that has not seen it."""
    known = resent(Rig(max_context_tokens=WINDOW))[: TURNS // 2]
    said: list[Wire] = [{"role": "user", "content": TASK}]
    turns = list[Turn]()
    for number, turn in enumerate(known):
        turns.append(asked(Rig(max_context_tokens=WINDOW).connect(), number, input=said))
        said = [*said, *turn.response["output"], *outputs(turn.response, number)]
    assert all(TASK in turn.prompt and paired(turn.prompt) for turn in turns)
    cuts = cuts_of(turns)
    assert 3 < len(cuts) <= 15
    assert all(turns[number].told for number in cuts)
    # A chain holds what the template puts before each of the model's turns and no history says
    # again, so it is cut some turns earlier or later, but not in another place.
    theirs, ours = (
        [oldest(each[number].prompt) for number in cuts_of(each)] for each in (known, turns)
    )
    common = min(len(theirs), len(ours))
    assert theirs[:common] == ours[:common]


def oldest(prompt: str) -> int:
    """The number of the first turn whose output it has."""
    return next(number for number in range(TURNS) if price(number) in prompt)


def test_a_task_and_results_that_are_too_long_are_cut_once_and_stay_so() -> None:
    rig = Rig(max_context_tokens=WINDOW)
    client = rig.connect()
    long = "<<" + "x" * 3000 + ">>"
    fields: Wire = {"tools": [TOOL], "truncation": "auto"}
    said: list[Wire] = [{"role": "user", "content": long}]
    prompts, cuts, before = list[str](), list[str](), None
    for number in range(40):
        response = client.turn(reply(number), input=said, **fields)
        assert response["previous_response_id"] == before, "it is known by what was cut of it"
        before = response["id"]
        prompts.append(last_prompt(rig))
        cuts += response["keepwarm"]["warnings"]
        result = outputs(response, number)
        if number in (10, 20):
            result[0]["output"] = "<<" + "y" * 50_000 + ">>"
        said = [*said, *response["output"], *result]
    assert sum("a message of" in each for each in cuts) == 1
    assert sum("a function_call_output of 50004" in each for each in cuts) == 2
    heads = {prompt.split("<|im_end|>")[1] for prompt in prompts[1:]}
    assert len(heads) <= 2, json.dumps(sorted(heads))
    assert all("\n<<xx" in prompt and "xx>>" in prompt for prompt in prompts)
