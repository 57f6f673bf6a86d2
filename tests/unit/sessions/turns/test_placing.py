"""Outputs stand behind the calls of the chain as in a history that comes whole."""

from collections.abc import Sequence

import pytest

from sessions.durable import transcript
from sessions.durable.transcript import Entry, Tail, chain
from sessions.turns.placing import place_outputs
from tests.unit.sessions.durable.test_transcript import entry
from tests.unit.tools_api.test_call_order import items, words
from tools_api.call_order import in_call_order
from tools_api.errors import ApiError


def linked(*turns: tuple[str, str]) -> Entry:
    """A chain of turns, each of its input and its output; a warm-up has no output."""
    parent: Entry | None = None
    waiting = frozenset[str]()
    for asked, said in turns:
        both = (asked + " " + said).split()
        waiting |= {word[1:].partition("=")[0] for word in both if word[0] == "c"}
        waiting -= {word[1:].partition("=")[0] for word in both if word[0] == "o"}
        waiting = frozenset(name for name in waiting if not name.endswith("!"))
        parent = entry(parent, items(asked), items(said), open_calls=waiting)
    assert parent is not None
    return parent


def of(parent: Entry | None) -> str:
    links: Sequence[Entry] = list(chain(parent))[::-1]
    return " | ".join(words((*link.input_items, *link.output_items)) for link in links)


@pytest.mark.parametrize(
    ("turns", "came", "parent", "read"),
    [
        ([("u", "c1 c2")], "o2 o1", "u c1 c2", "o1 o2"),
        ([("u", "c1 c2")], "o1 u o2", "u c1 c2", "o1 u o2"),
        ([("u", "c1 c2")], "u", "u c1 c2", "u"),
        ([("u", "r c1 a c2")], "o2 u o1", "u r c1 a c2", "o1 u o2"),
        ([("u", "c1 c2"), ("u", "")], "o2 o1", "u c1 c2 | u", "o1 o2"),
        ([("u", "c1"), ("", "")], "o1", "u c1 | ", "o1"),
        ([("u", "c1 c2"), ("o2", "")], "o1", "u c1 c2", "o1 o2"),
        ([("u", "c1 c2"), ("o1", "")], "o2", "u c1 c2", "o1 o2"),
        ([("u", "c1 c2 c3"), ("u", ""), ("o3", ""), ("u", "")], "o2 o1",
         "u c1 c2 c3 | u", "o1 u o2 o3"),
        ([("u c1 c2 o2", "")], "o1 u", "", "u c1 c2 o1 o2 u"),
        ([("u", "a"), ("u c1 c2 o2", "")], "o1 u", "u a", "u c1 c2 o1 o2 u"),
        ([("u", "c1"), ("c2 o2", "")], "o1", "u c1", "c2 o1 o2"),
        ([("u", "c1 c2!"), ("o1", "a")], "u o2", "u c1 c2! | o1 a", "u o2"),
        ([("u", "c1 c2!"), ("o1", "c3")], "o3 o2", "u c1 c2!", "o1 o2 c3 o3"),
        ([("u", "c1"), ("o1", "a")], "o1=x", "u c1 | o1 a", "o1=x"),
    ],
)  # fmt: skip
def test_outputs_stand_where_a_whole_history_has_them(
    turns: list[tuple[str, str]], came: str, parent: str, read: str
) -> None:
    put = place_outputs(linked(*turns), items(came), complete=False)
    assert (of(put.parent), words(put.items)) == (parent, read)
    whole = items(" ".join(f"{asked} {said}" for asked, said in turns) + " " + came)
    both = (*_all(put.parent), *put.items)
    assert words(both) == words(in_call_order(whole, complete=False).items)


def _all(parent: Entry | None) -> tuple[transcript.Item, ...]:
    links = list(chain(parent))[::-1]
    return tuple(item for link in links for item in (*link.input_items, *link.output_items))


@pytest.mark.parametrize(
    ("turns", "came", "read"),
    [
        ([("u", "c1 c2")], "c1 c2 o2 o1", "o1 o2"),
        ([("u", "c1"), ("o1", "a")], "o1 u", "u"),
        ([("u", "c1 c2"), ("o1 o2", "a")], "o2", ""),
    ],
)
def test_what_the_chain_has_already_counts_once(
    turns: list[tuple[str, str]], came: str, read: str
) -> None:
    parent = linked(*turns)
    put = place_outputs(parent, items(came), complete=True)
    assert put.parent is parent
    assert words(put.items) == read
    assert "count once" in put.warnings[0]


@pytest.mark.parametrize(
    ("turns", "came", "message"),
    [
        ([("u", "c1")], "o2", "No tool call found .* call_id '2'"),
        ([("u", "c1"), ("o1", "a")], "o1 o7", "No tool call found .* call_id '7'"),
        ([("u", "c1")], "c1=x o1", "a call with the id '1' waits"),
        ([("u", "c1 c2"), ("o1 o2", "a")], "o2=x", "the call '2' has another output already"),
        ([("u", "c1"), ("o1", "c2")], "o1=x o2", "the call '1' has another output already"),
    ],
)
def test_what_fits_nowhere_is_refused(
    turns: list[tuple[str, str]], came: str, message: str
) -> None:
    with pytest.raises(ApiError, match=message) as refused:
        place_outputs(linked(*turns), items(came), complete=True)
    assert refused.value.param == "input"


def test_without_a_chain_every_output_needs_its_call_before_it() -> None:
    assert place_outputs(None, items("u c1 o1"), complete=True).parent is None
    with pytest.raises(ApiError, match="No tool call found"):
        place_outputs(None, items("u o1 c1"), complete=True)


def test_of_a_long_chain_no_more_is_looked_at_than_the_calls_need(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[Entry] = []

    def noted(at: Entry | None) -> list[Entry]:
        class Noting(list[Entry]):
            def __iter__(self):  # type: ignore[no-untyped-def]
                for link in list.__iter__(self):
                    seen.append(link)
                    yield link

        return Noting(chain(at))

    parent = linked(*[("u", "a")] * 500, ("u", "c1 c2"))
    monkeypatch.setattr("sessions.turns.placing.chain", noted)
    assert words(place_outputs(parent, items("o2 o1"), complete=True).items) == "o1 o2"
    assert len(seen) == 1
    assert parent.tail is not Tail.START
