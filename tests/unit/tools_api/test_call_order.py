"""Outputs stand in the order of their calls, whichever came first."""

import itertools
import random
from typing import Any

import pytest

from tools_api.call_order import by_model, in_call_order, with_names
from tools_api.errors import ApiError
from tools_api.item_reading import parse_items
from tools_api.items import (
    CallOutput,
    FunctionCall,
    Item,
    Message,
)


def items(words: str) -> tuple[Item, ...]:
    """``c1`` a call, ``c1!`` one that was cut short, ``c1=x`` one with other arguments, ``o1`` its
    output, ``o1=x`` another one, ``u`` and ``a`` messages, ``r`` reasoning."""
    return parse_items([_raw(word) for word in words.split()])


def _raw(word: str) -> dict[str, Any]:
    kind, (name, _, other) = word[0], word[1:].partition("=")
    match kind:
        case "c":
            cut = name.endswith("!")
            status = "incomplete" if cut else "completed"
            call = {"type": "function_call", "call_id": name.rstrip("!"), "name": "f"}
            return call | {"arguments": f'{{"n": "{other or name}"}}', "status": status}
        case "o":
            text = other or f"of {name}"
            return {"type": "function_call_output", "call_id": name, "output": text}
        case "r":
            return {"type": "reasoning", "summary": []}
    return {"role": "user" if kind == "u" else "assistant", "content": word}


def words(found: tuple[Item, ...]) -> str:
    return " ".join(map(_word, found))


def _word(item: Item) -> str:
    if isinstance(item, FunctionCall):
        return "c" + item.call_id + ("!" if item.status == "incomplete" else "")
    if isinstance(item, CallOutput):
        plain = item.output == f"of {item.call_id}"
        return "o" + item.call_id + ("" if plain else "=" + item.output)
    return item.text if isinstance(item, Message) else "r"


@pytest.mark.parametrize(
    ("came", "read"),
    [
        ("u c1 c2 o2 o1", "u c1 c2 o1 o2"),
        ("u c1 c2 c3 o3 o1 o2 a u", "u c1 c2 c3 o1 o2 o3 a u"),
        ("c1 c2 o2 u o1", "c1 c2 o1 u o2"),
        ("r c1 r c2 a o2 o1", "r c1 r c2 a o1 o2"),
        ("c1 u c2 o2 o1", "c1 o1 u c2 o2"),
        ("c1 c2 o1 c3 o3 o2", "c1 c2 o1 o2 c3 o3"),
        ("c1 c2 o2 u c3 o3 o1", "c1 c2 o1 o2 u c3 o3"),
        ("c1 c2 u a c3 o2 o3 o1", "c1 c2 o1 o2 u a c3 o3"),
        ("c1 a o1 c2 o2", "c1 a o1 c2 o2"),
        ("c1 u a u o1", "c1 u a u o1"),
        ("c1 o1 u c1 o1=x", "c1 o1 u c1 o1=x"),
        ("c1 o1 c2 c1=x o1=x o2", "c1 o1 c2 c1 o2 o1=x"),
        ("c1 c2! o1 u", "c1 c2! o1 u"),
        ("c1 c2! o2 o1", "c1 c2! o1 o2"),
        ("o2 o1 u", "o2 o1 u"),
        ("o2 c3 o3 o1", "o2 c3 o3 o1"),
        ("", ""),
    ],
)
def test_outputs_stand_behind_their_calls_in_the_order_of_these(came: str, read: str) -> None:
    ordered = in_call_order(items(came), complete=True)
    assert (words(ordered.items), ordered.repeated) == (read, 0)
    assert not ordered.warnings()


@pytest.mark.parametrize(
    ("came", "read", "repeated"),
    [
        ("c1 c2 o1 o1 o2", "c1 c2 o1 o2", 1),
        ("c1 c2 o1 o2 o1 u o2 a o1", "c1 c2 o1 o2 u a", 3),
        ("c1 o1 c2 o1 o2", "c1 o1 c2 o2", 1),
        ("c1 c1 o1", "c1 o1", 1),
        ("c1 u c1 c2 o1 o2", "c1 o1 u c2 o2", 1),
        ("o1 o2 o1", "o1 o2", 1),
    ],
)
def test_what_comes_twice_counts_once_and_moves_nothing(
    came: str, read: str, repeated: int
) -> None:
    ordered = in_call_order(items(came), complete=True)
    assert (words(ordered.items), ordered.repeated) == (read, repeated)
    assert str(repeated) in ordered.warnings()[0]


@pytest.mark.parametrize(
    ("came", "index", "message"),
    [
        ("c1 c2 o1 o1=x o2", 3, "the call '1' has another output already"),
        ("c1 c2 o1 o2 a o2=x", 5, "the call '2' has another output already"),
        ("c1 o1 c2 o1=x o2", 3, "the call '1' has another output already"),
        ("c1 o1 a o1=x o1=y", 4, "the call '1' has another output already"),
        ("o1 o1=x", 1, "the call '1' has another output already"),
        ("o1 a c2 o1=x o2", 3, "the call '1' has another output already"),
        ("c1 c1=x o1", 1, "a call with the id '1' waits for its output"),
    ],
)
def test_what_could_be_of_another_call_is_refused_by_name(
    came: str, index: int, message: str
) -> None:
    with pytest.raises(ApiError, match=message) as refused:
        in_call_order(items(came), complete=True, where=lambda n: f"input[{n}].call_id")
    assert (refused.value.code, refused.value.param) == (
        "invalid_value",
        f"input[{index}].call_id",
    )


@pytest.mark.parametrize(
    "came", ["c1 o1 a o1=x", "c1 o1 a o1=x a o1", "o1 a o1=x", "c1 o1 r o1=x u"]
)
def test_what_a_tool_says_later_stays_where_it_can_be_of_no_other_call(came: str) -> None:
    assert words(in_call_order(items(came), complete=True).items) == came


def test_no_output_stands_in_the_place_of_a_call_that_was_cut_short() -> None:
    cut = items("c1! c2 o2")
    with pytest.raises(ApiError, match="No tool output found for function call with call_id '1'"):
        in_call_order(cut, complete=True)
    assert in_call_order(cut, complete=False).items == cut


def test_what_is_in_order_comes_out_as_it_is() -> None:
    given = items("u r c1 c2 o1 u o2 a c3 o3")
    ordered = in_call_order(given, complete=True)
    assert all(one is other for one, other in zip(given, ordered.items, strict=True))


@pytest.mark.parametrize("seed", range(300))
def test_every_order_of_outputs_gives_one_order_which_stays(seed: int) -> None:
    """Runs of calls; the outputs of each come in any order, some late, some twice."""
    rng = random.Random(seed)
    calls = itertools.count(1)
    runs = [[next(calls) for _ in range(rng.randint(1, 4))] for _ in range(rng.randint(1, 4))]
    plain = " ".join(
        " ".join(["u", *(f"c{n}" for n in run), *(f"o{n}" for n in run)]) for run in runs
    )
    came: list[str] = []
    late: list[str] = []
    for run in runs:
        outputs = [f"o{n}" for n in run] + late
        rng.shuffle(outputs)
        kept = rng.randint(0, len(outputs))
        late = outputs[kept:]
        came += ["u", *(f"c{n}" for n in run), *outputs[:kept]]
    came += late
    if rng.random() < 0.5:
        again = rng.choice([word for word in came if word.startswith("o")])
        came.append(again)
    ordered = in_call_order(items(" ".join(came)), complete=True)
    assert words(ordered.items) == plain, f"seed {seed}: {came}"
    assert in_call_order(ordered.items, complete=True).items == ordered.items


def test_what_the_model_says_is_told_from_what_others_do() -> None:
    told = [by_model(item) for item in items("c1 a r o1 u")]
    assert told == [True, True, True, False, False]
    (custom, system) = parse_items(
        [
            {"type": "custom_tool_call_output", "call_id": "c", "output": "x"},
            {"role": "system", "content": "x"},
        ]
    )
    assert not by_model(custom)
    assert not by_model(system)


def test_outputs_are_told_the_names_of_the_tools_where_the_calls_are_known() -> None:
    given = items("c1 o1 o2")
    known = items("c1")
    named = with_names(given, known)
    assert named == given, "a name makes no other item"
    assert [getattr(item, "name", None) for item in named[1:]] == ["f", None]
