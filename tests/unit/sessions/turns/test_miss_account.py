"""Misses add up to what was computed, each with its reason, and no reason names another tenant."""

from typing import Any

import numpy as np
import pytest

from runtime.messages import SequenceStart
from sessions.durable.ledger import TurnReport
from sessions.durable.miss_reasons import Miss, MissReason
from sessions.durable.transcript import Entry, Header, Tail
from sessions.turns.miss_account import PromptFacts, account
from tests.support.sessions_rig import Rig, tool
from tools_api.chat_format import TemplateOptions

LONG = "You are a careful agent of a shop. " * 8


def reasons(report: TurnReport) -> dict[str, int]:
    assert sum(miss.tokens for miss in report.misses) == report.usage.uncached_tokens
    return report.miss_causes


def last(rig: Rig) -> TurnReport:
    return rig.reports[-1]


def test_a_first_turn_is_new_and_a_second_one_adds_its_input() -> None:
    rig = Rig()
    client = rig.connect()
    client.turn(input="Hi", instructions=LONG, keepwarm={"session": "s"})
    assert set(reasons(last(rig))) == {"new_session"}
    client.turn(input="Hi again", instructions=LONG, keepwarm={"session": "s"})
    assert set(reasons(last(rig))) <= {"new_input", "partial_block"}
    assert reasons(last(rig))["new_input"] > 0


@pytest.mark.parametrize(
    ("first", "then", "reason"),
    [
        ({"tools": [tool("a")]}, {"tools": [tool("a"), tool("b")]}, MissReason.TOOLS_CHANGED),
        ({}, {"instructions": LONG + "Be brief."}, MissReason.INSTRUCTIONS_CHANGED),
    ],
)
def test_what_the_client_changed_is_named_with_its_place(
    first: dict[str, Any], then: dict[str, Any], reason: MissReason
) -> None:
    rig = Rig()
    client = rig.connect()
    for fields in (first, then):
        client.turn(**{"input": "Hi", "instructions": LONG, "keepwarm": {"session": "s"}} | fields)
    found = {miss.reason: miss for miss in last(rig).misses}
    reasons(last(rig))
    assert 0 < (found[reason].at_token or 0) < last(rig).usage.input_tokens


def test_what_another_tenant_cached_counts_as_never_seen() -> None:
    rig = Rig()
    rig.connect("other").turn(input="Hi", instructions=LONG)
    rig.connect("acme").turn(input="Hi", instructions=LONG)
    assert set(reasons(last(rig))) == {"new_session"}


def test_a_restarted_engine_is_named_as_the_reason() -> None:
    rig = Rig()
    client = rig.connect()
    client.turn(input="Hi", instructions=LONG, keepwarm={"session": "s"})
    rig.kill_engine()
    client.turn(input="Hi again", instructions=LONG, keepwarm={"session": "s"})
    found = reasons(last(rig))
    assert found["restarted"] > found["new_input"] > 0
    client.turn(input="And again", instructions=LONG, keepwarm={"session": "s"})
    assert "restarted" not in reasons(last(rig))


def test_eviction_says_how_long_the_cache_had_kept_it() -> None:
    rig = Rig()
    client = rig.connect()
    client.turn(input="Hi", instructions=LONG, keepwarm={"session": "s"})
    rig.engine.lost = {"evicted": 3}
    rig.clock.advance(100.0)
    client.turn(input="Hi again", instructions=LONG, keepwarm={"session": "s"})
    assert reasons(last(rig)).get("evicted", 0) <= 3


# By hand, where the turns of a rig do not get there.


def ids(*tokens: int) -> Any:
    return np.array(tokens, dtype=np.int32)


def header(*tokens: int, thinking: bool = False) -> Header:
    options = TemplateOptions(thinking=thinking)
    return Header(instructions=None, opening=None, tools=(), options=options, ids=ids(*tokens))


def entry(head: Header, *tokens: int, parent: Entry | None = None) -> Entry:
    return Entry(
        parent=parent,
        header=head,
        opening=None,
        input_items=(),
        input_ids=ids(*tokens),
        output_items=(),
        output_ids=ids(),
        tail=Tail.INPUT,
        num_tokens=len(tokens) + (parent.num_tokens if parent else 0),
        open_calls=frozenset(),
        digest=b"",
    )


def missed(cached: int, causes: dict[str, int], **fields: Any) -> dict[str, tuple[int, int | None]]:
    given: dict[str, Any] = {
        "continued": None,
        "parent": None,
        "said_before": None,
        "lost_with_engine": False,
        "idle_s": 5.0,
        "input_ids": ids(7, 7),
    }
    prompt = PromptFacts(**given | fields)
    start = SequenceStart(
        input_tokens=len(prompt.ids()),
        cached_tokens=cached,
        queue_s=0.0,
        miss_causes=causes,
        evicted_ago_s=2.0,
    )
    found = account(prompt, start)
    assert sum(miss.tokens for miss in found) == len(prompt.ids()) - cached
    return {miss.reason.value: (miss.tokens, miss.at_token) for miss in found}


HEAD = header(1, 2, 3)
SAID = entry(HEAD, 4, 5, 6)


def test_other_options_of_the_template_are_named() -> None:
    other = header(1, 9, 3, thinking=True)
    found = missed(1, {"header_changed": 5}, continued=SAID, parent=SAID, header=other)
    assert found == {"options_changed": (5, 1), "new_input": (2, None)}


def test_a_truncated_context_is_named() -> None:
    found = missed(3, {"header_changed": 2}, continued=SAID, parent=None, header=HEAD)
    assert found == {"new_input": (2, None)}
    tail = entry(HEAD, 6)
    found = missed(3, {"header_changed": 3}, continued=SAID, parent=tail, header=HEAD)
    assert found == {"truncated": (1, 3), "new_input": (2, None)}


def test_a_resent_history_that_truncation_cut_is_named() -> None:
    resent = ids(4, 9, 6, 7, 7)
    found = missed(4, {"first_sight": 4}, said_before=SAID, header=HEAD, input_ids=resent, cut=True)
    assert found == {"truncated": (2, 4), "new_input": (2, None)}


def test_a_history_that_was_resent_with_a_change_is_named() -> None:
    resent = ids(4, 9, 6, 7, 7)
    found = missed(4, {"first_sight": 4}, said_before=SAID, header=HEAD, input_ids=resent)
    assert found == {"history_changed": (2, 4), "new_input": (2, None)}


def test_what_was_evicted_or_expired_or_forked_is_taken_from_the_caches_account() -> None:
    causes = {"evicted": 2, "expired": 1, "forked": 1, "first_sight": 2}
    found = missed(2, causes, continued=SAID, parent=SAID, header=HEAD)
    assert found == {
        "evicted": (2, None),
        "expired": (1, None),
        "forked": (1, None),
        "new_input": (2, None),
    }


def test_little_that_is_left_is_a_block_that_was_not_full_and_much_is_not_kept() -> None:
    found = missed(4, {"first_sight": 4}, continued=SAID, parent=SAID, header=HEAD)
    assert found == {"partial_block": (2, None), "new_input": (2, None)}
    long = entry(HEAD, *range(100))
    found = missed(0, {"first_sight": 105}, continued=long, parent=long, header=HEAD)
    assert found == {"not_kept": (103, None), "new_input": (2, None)}


def test_what_lies_behind_the_last_state_is_named_and_was_not_evicted() -> None:
    prompt = {"continued": SAID, "parent": SAID, "header": HEAD}
    assert missed(2, {"state_missing": 4, "first_sight": 2}, **prompt) == {
        "state_missing": (4, None),
        "new_input": (2, None),
    }
    words = Miss(reason=MissReason.STATE_MISSING, tokens=4).words()
    assert words == "behind the last state that was kept"
