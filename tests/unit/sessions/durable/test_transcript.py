"""Entries, digests, calls: the parts of a chain."""

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from sessions.durable import transcript
from sessions.durable.shortened import shortened
from sessions.durable.transcript import (
    ROOT_DIGEST,
    Entry,
    Header,
    LeftOut,
    Tail,
    chain,
    chain_ids,
    check_calls,
    holds,
    roll,
    roll_all,
    split_opening,
)
from tests.support.architecture import ROOT
from tools_api.chat_format import TemplateOptions
from tools_api.errors import ApiError
from tools_api.item_identity import normalised
from tools_api.item_reading import parse_items
from tools_api.items import FunctionCall, Item

DEFAULT = ROOT / "runtime" / "assets" / "default_model"
OPTIONS = TemplateOptions()
SPELT, RESPELT = '{"a": "\\u00e9", "b": [1, 2]}', '{"b":[1,2],"a":"é"}'


def items(*raw: Any) -> tuple[Item, ...]:
    return parse_items(list(raw))


def said(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "content": text}


def entry(
    parent: Entry | None,
    input_items: tuple[Item, ...] = (),
    output_items: tuple[Item, ...] = (),
    *,
    open_calls: frozenset[str] = frozenset(),
    ids: tuple[int, int] = (1, 1),
) -> Entry:
    rng = np.random.default_rng(len(list(chain(parent))))
    input_ids = rng.integers(0, 99, ids[0], dtype=np.int32)
    output_ids = rng.integers(0, 99, ids[1], dtype=np.int32)
    header = Header(
        instructions=None,
        opening=None,
        tools=(),
        options=OPTIONS,
        ids=np.array([7, 7], dtype=np.int32),
    )
    before = parent.digest if parent is not None else ROOT_DIGEST
    return Entry(
        parent=parent,
        header=parent.header if parent is not None else header,
        opening=None,
        input_items=input_items,
        input_ids=input_ids,
        output_items=output_items,
        output_ids=output_ids,
        tail=Tail.CLOSED_OUTPUT,
        num_tokens=(parent.num_tokens if parent else 0) + sum(ids),
        open_calls=open_calls,
        digest=roll_all(before, (*input_items, *output_items)),
    )


def test_the_context_is_the_header_then_the_chain_then_what_is_new() -> None:
    first = entry(None, ids=(3, 2))
    second = entry(first, ids=(1, 4))
    new = np.array([1, 2, 3], dtype=np.int32)
    whole = [first.header.ids, first.input_ids, first.output_ids]
    whole += [second.input_ids, second.output_ids, new]
    assert np.array_equal(chain_ids(first.header, second, new), np.concatenate(whole))
    assert len(chain_ids(first.header, second, new)) == 2 + second.num_tokens + 3


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (said("user", "a"), {"type": "message", "id": "msg_1", **said("user", "a")}, True),
        (
            said("assistant", "a"),
            {
                "role": "assistant",
                "status": "completed",
                "content": [{"type": "output_text", "text": "a", "annotations": [{}]}],
            },
            True,
        ),
        (said("user", "a"), said("assistant", "a"), False),
        (said("user", "a"), said("user", "a "), False),
        (
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}", "id": "x"},
            True,
        ),
        (
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            {"type": "function_call", "call_id": "d", "name": "f", "arguments": "{}"},
            False,
        ),
        (
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": SPELT},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": RESPELT},
            True,
        ),
        (
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": SPELT},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": '{"a": 2}'},
            False,
        ),
        (
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": SPELT[:-1]},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": RESPELT[:-1]},
            False,
        ),
        (
            {"type": "function_call_output", "call_id": "c", "output": "1"},
            {
                "type": "function_call_output",
                "call_id": "c",
                "output": [{"type": "input_text", "text": "1"}],
            },
            True,
        ),
    ],
)
def test_ids_status_and_form_do_not_tell_histories_apart(
    one: dict[str, Any], other: dict[str, Any], same: bool
) -> None:
    (a,), (b,) = items(one), items(other)
    assert (normalised(a) == normalised(b)) == same
    assert (roll(ROOT_DIGEST, a) == roll(ROOT_DIGEST, b)) == same


def test_the_digest_depends_on_the_order() -> None:
    a, b = items(said("user", "a"), said("user", "b"))
    assert roll_all(ROOT_DIGEST, (a, b)) != roll_all(ROOT_DIGEST, (b, a))


def test_reasoning_does_not_count_in_a_history() -> None:
    thought = {"type": "reasoning", "summary": []}
    a, b = items(said("user", "a"), thought)
    assert roll_all(ROOT_DIGEST, (a, b)) == roll(ROOT_DIGEST, a)


@pytest.mark.parametrize("seed", range(10))
def test_a_history_is_recognised_item_by_item(seed: int) -> None:
    rng, parent = random.Random(seed), None
    said_so_far: list[dict[str, Any]] = []
    for _ in range(rng.randint(1, 6)):
        new = [said("user", rng.choice("ab")) for _ in range(rng.randint(0, 2))]
        answer = [said("assistant", rng.choice("ab"))]
        parent = entry(parent, items(*new), items(*answer))
        said_so_far += new + answer
    assert parent is not None
    assert holds(parent, items(*said_so_far))
    assert roll_all(ROOT_DIGEST, items(*said_so_far)) == parent.digest
    wrong = list(said_so_far)
    place = rng.randrange(len(wrong))
    wrong[place] = wrong[place] | {"content": "c"}
    assert not holds(parent, items(*wrong))
    assert not holds(parent, items(*said_so_far[1:]))


def test_a_history_is_known_by_what_truncation_left_of_it() -> None:
    history = [said("user", "0123456789"), said("assistant", "a"), said("user", "b")]
    history += [said("assistant", "c"), said("user", "d"), said("assistant", "e")]
    short = said("user", shortened("0123456789", 4))
    cut = entry(None, items(short, *history[2:5]), items(history[5]))
    assert not holds(cut, items(*history)), "nothing says that something is missing"
    cut = replace(cut, left_out=LeftOut(turns=1, tokens=5, behind=1))
    assert holds(cut, items(*history))
    other = [said("user", "0123x56789"), *history[1:]]
    assert holds(cut, items(*other)), "its digest tells it apart"
    for place, text in ((0, "x123456789"), (2, "x"), (4, "x"), (5, "x")):
        wrong = list(history)
        wrong[place] = wrong[place] | {"content": text}
        assert not holds(cut, items(*wrong)), place


def call_item(call_id: str, status: str = "completed") -> dict[str, Any]:
    return {
        "type": "function_call",
        "call_id": call_id,
        "name": "f",
        "arguments": "{}",
        "status": status,
    }


def result_item(call_id: str) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": "1"}


@pytest.mark.parametrize(
    ("raw", "complete", "left", "message"),
    [
        ([result_item("old")], True, set(), None),
        ([result_item("x")], True, None, "call_id 'x'"),
        ([], True, None, "No tool output found for function call with call_id 'old'"),
        ([], False, {"old"}, None),
        ([result_item("old"), call_item("n")], True, None, "'n'"),
        ([result_item("old"), call_item("n")], False, {"n"}, None),
        ([result_item("old"), call_item("n"), result_item("n")], True, set(), None),
        ([result_item("old"), result_item("n"), call_item("n")], False, None, "'n'"),
        ([result_item("old"), call_item("n", "incomplete")], True, set(), None),
    ],
)
def test_calls_and_outputs_are_matched(
    raw: list[Any], complete: bool, left: set[str] | None, message: str | None
) -> None:
    (made,) = items(call_item("old"))
    parent = entry(None, (), (made,), open_calls=frozenset({"old"}))
    if left is not None:
        assert check_calls(parent, items(*raw), complete=complete) == left
        return
    with pytest.raises(ApiError, match=message) as error:
        check_calls(parent, items(*raw), complete=complete)
    assert error.value.param == "input"


def test_an_answered_call_of_an_old_turn_is_still_known() -> None:
    (made,) = items(call_item("old"))
    assert isinstance(made, FunctionCall)
    parent = entry(entry(None, (), (made,)))
    assert check_calls(parent, items(result_item("old")), complete=True) == set()


class CountedId(str):
    """A call's id that counts how often it is compared."""

    __slots__ = ()
    compared = 0

    def __eq__(self, other: object) -> bool:
        CountedId.compared += 1
        return str.__eq__(self, other)  # type: ignore[arg-type]

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__


def test_matching_many_calls_takes_a_look_at_each(monkeypatch: pytest.MonkeyPatch) -> None:
    CountedId.compared = 0
    ids = [CountedId(f"call_{n}") for n in range(2000)]
    calls = [replace(made, call_id=i) for i in ids for made in items(call_item("old"))]
    outputs = [replace(made, call_id=i) for i in ids for made in items(result_item("old"))]
    assert check_calls(None, (*calls, *outputs), complete=True) == set()
    assert CountedId.compared < 10 * len(ids)
    walks: list[object] = []

    def noted(at: Entry | None) -> Iterator[Entry]:
        walks.append(at)
        return chain(at)

    monkeypatch.setattr(transcript, "chain", noted)
    parent = entry(None, (), tuple(calls))
    assert check_calls(parent, outputs, complete=True) == set()
    assert len(walks) == 1


@pytest.mark.parametrize("role", ["system", "developer"])
def test_only_a_leading_system_message_opens(role: str) -> None:
    first, second = items(said(role, "a"), said(role, "b"))
    assert split_opening((first, second)) == (first, (second,))
    (user,) = items(said("user", "u"))
    assert split_opening((user, first)) == (None, (user, first))


def test_the_size_of_an_entry_covers_its_ids_and_texts() -> None:
    big = entry(None, items(said("user", "é" * 1000)), ids=(500, 300))
    assert big.size_bytes > 2000 + 800 * 4
    assert entry(big).size_bytes < 1000
