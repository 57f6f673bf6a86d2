"""What stays of a context that has grown too long: properties over random histories."""

import random
from dataclasses import replace

import pytest

from sessions.turns.recasting import (
    Decision,
    RecastRoom,
    Rules,
    cuts,
    decide,
    is_cleared,
    recast,
    without_summary,
)
from tools_api.call_order import by_model
from tools_api.items import (
    Call,
    CallOutput,
    FunctionCall,
    FunctionCallOutput,
    Item,
    Message,
    Reasoning,
    TextPart,
)


def message(role: str, text: str) -> Message:
    kind = "output_text" if role == "assistant" else "input_text"
    part = TextPart(type=kind, text=text)
    return Message(role=role, content=(part,))  # type: ignore[arg-type]


def history(draw: random.Random) -> tuple[list[Item], list[int]]:
    """Of users, and of loops with one call or several at once, each with its outputs."""
    items: list[Item] = [message("user", "the task")]
    for number in range(draw.randint(0, 20)):
        kind = draw.random()
        if kind < 0.2:
            items += [message("assistant", "said"), message("user", f"and {number}")]
        else:
            ids = [f"{number}.{n}" for n in range(draw.randint(1, 3))]
            if draw.random() < 0.3:
                items.append(Reasoning(content=("hm",)))
            items += [
                FunctionCall(call_id=id_, name=draw.choice("fg"), arguments="{}") for id_ in ids
            ]
            items += [FunctionCallOutput(call_id=id_, output=f"output {id_}") for id_ in ids]
    sizes = [draw.randint(3, 400 if isinstance(item, CallOutput) else 60) for item in items]
    return items, sizes


def drawn(draw: random.Random) -> tuple[list[Item], list[int], RecastRoom, Rules]:
    items, sizes = history(draw)
    room = RecastRoom(target=draw.randint(50, max(sum(sizes), 51)), summary=20, note=15)
    keeps = draw.random()
    rules = Rules(
        clears=draw.random() < 0.8,
        summarises=draw.random() < 0.7,
        keeps_newest=keeps > 0.3,
        keeps_turns=keeps > 0.15,
        exempt=frozenset("g") if draw.random() < 0.2 else frozenset(),
        least=draw.choice([0, 0, 200]),
    )
    return items, sizes, room, rules


def called(items: list[Item]) -> set[str]:
    return {item.call_id for item in items if isinstance(item, Call)}


def answered(items: list[Item]) -> set[str]:
    return {item.call_id for item in items if isinstance(item, CallOutput)}


@pytest.mark.parametrize("seed", range(300))
def test_calls_stay_with_outputs_the_task_and_the_newest_stay_and_it_gets_shorter(
    seed: int,
) -> None:
    items, sizes, room, rules = drawn(random.Random(seed))
    decision = decide(items, sizes, room, rules)
    assert decision == decide(list(items), list(sizes), room, rules)
    if decision is None:
        return
    left = list(recast(items, sizes, decision, rules, summary="so far").items)
    assert called(left) == answered(left)
    assert left[0] is items[0]
    assert decision.saves > 0 or not rules.keeps_newest
    if rules.keeps_newest:
        newest = items[decision.newest :]
        assert newest
        assert left[-len(newest) :] == newest
    stays = [item for item in left if any(item is old for old in items)]
    places = [next(n for n, old in enumerate(items) if old is item) for item in stays]
    assert places == sorted(places)
    if not rules.summarises:
        assert not decision.summarised or not rules.keeps_newest
    for place in decision.cleared:
        assert sizes[place] > room.note
        output = items[place]
        assert isinstance(output, CallOutput)
    notes = [item for item in left if is_cleared(item)]
    assert len(notes) == len(decision.cleared)


@pytest.mark.parametrize("seed", range(100))
def test_newest_turns_stay_up_to_the_target_and_no_further(seed: int) -> None:
    """A cut that goes deeper than asked comes again the sooner, and less is in the cache."""
    draw = random.Random(seed)
    items = [message("user", "the task")]
    for number in range(60):
        items.append(FunctionCall(call_id=f"{number}", name="f", arguments="{}"))
        items.append(FunctionCallOutput(call_id=f"{number}", output="x"))
    sizes = [draw.randint(5, 30) for _ in items]
    room = RecastRoom(target=sum(sizes) // 2, summary=sum(sizes) // 8, note=30)
    decision = decide(items, sizes, room, Rules())
    assert decision is not None
    left = sum(sizes) - sum(sizes[place] for place in decision.summarised) + room.summary
    assert room.target - 60 <= left <= room.target


@pytest.mark.parametrize("seed", range(100))
def test_old_results_go_before_turns_do(seed: int) -> None:
    items, sizes, room, _ = drawn(random.Random(seed))
    rules = Rules()
    cleared = without_summary(items, sizes, room, rules)
    saved = sum(sizes[place] - room.note for place in cleared.cleared)
    decision = decide(items, sizes, room, rules)
    if decision is not None and sum(sizes) - saved <= room.target:
        assert not decision.summarised


@pytest.mark.parametrize("seed", range(100))
def test_without_a_summary_results_are_cleared_whatever_was_to_be_summed_up(seed: int) -> None:
    items, sizes, room, rules = drawn(random.Random(seed))
    cleared = without_summary(items, sizes, room, rules)
    assert cleared == without_summary(items, sizes, room, replace(rules, clears=not rules.clears))
    assert not cleared.summarised
    outputs = [place for place, item in enumerate(items) if isinstance(item, CallOutput)]
    too_long = sum(sizes) > room.target
    worth = [p for p in outputs if sizes[p] > room.note and p < cleared.newest]
    if too_long and worth and not rules.exempt:
        assert cleared.cleared


@pytest.mark.parametrize("seed", range(100))
def test_a_cut_parts_no_call_from_its_output_and_tears_nothing_apart(seed: int) -> None:
    items, _ = history(random.Random(seed))
    for place in cuts(items):
        before, behind = items[:place], items[place:]
        assert called(before) >= answered(before)
        assert not called(before) & answered(behind)
        assert place == 0 or not (by_model(items[place]) and by_model(items[place - 1]))


def test_of_so_many_newest_calls_the_outputs_stay() -> None:
    items, sizes = history(random.Random(3))
    rules = Rules(summarises=False, keeps_uses=2)
    decision = decide(items, sizes, RecastRoom(target=0, summary=1, note=1), rules)
    assert isinstance(decision, Decision)
    outputs = [n for n, item in enumerate(items) if isinstance(item, CallOutput)]
    assert list(decision.cleared) == [n for n in outputs[:-2] if sizes[n] > 1]


@pytest.mark.parametrize(
    ("clears", "left_of_it"),
    [(True, "{}"), (frozenset({"f"}), "{}"), (frozenset({"g"}), '{"a": 1}'), (False, '{"a": 1}')],
)
def test_arguments_are_cleared_with_their_outputs_where_that_is_asked(
    clears: bool | frozenset[str], left_of_it: str
) -> None:
    call = FunctionCall(call_id="c", name="f", arguments='{"a": 1}')
    items: list[Item] = [
        message("user", "x"),
        call,
        FunctionCallOutput(call_id="c", output="y"),
        message("assistant", "z"),
    ]
    rules = Rules(summarises=False, keeps_uses=0, clears_inputs=clears)
    room = RecastRoom(target=0, summary=1, note=1)
    decision = decide(items, [2, 2, 9, 2], room, rules)
    assert decision is not None
    left = recast(items, [2, 2, 9, 2], decision, rules, summary=None).items
    assert isinstance(left[1], FunctionCall)
    assert left[1].arguments == left_of_it
