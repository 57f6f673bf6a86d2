"""Compaction items: sealed for one tenant and model, and opened as they were sealed."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sessions.durable.compaction import MAX_IN_A_ROW, Seal, opened_input, standing
from sessions.durable.transcript import expanded
from tools_api.errors import ApiError
from tools_api.item_reading import parse_items
from tools_api.items import Compaction, CompactionKind, StandsFor

SEAL = Seal(b"k" * 32, b"model")
TEXT = st.text(max_size=30)
ITEMS = st.lists(
    st.one_of(
        TEXT.map(lambda text: {"role": "user", "content": text}),
        TEXT.map(lambda text: {"role": "assistant", "content": text}),
        TEXT.map(lambda t: {"type": "function_call", "call_id": "c", "name": "f", "arguments": t}),
        TEXT.map(lambda t: {"type": "function_call_output", "call_id": "c", "output": t}),
    ),
    max_size=6,
)


def sealed(told: list[dict[str, Any]], kind: CompactionKind = "whole", seal: Seal = SEAL) -> Any:
    return seal.of("t").sealed(kind, StandsFor(items=parse_items(told)), "cmp_1")


def as_sent(item: Compaction) -> Compaction:
    (sent,) = parse_items([item.to_wire()])
    assert isinstance(sent, Compaction)
    return sent


@given(told=ITEMS)
@settings(max_examples=50, deadline=None, derandomize=True)
def test_what_is_opened_is_what_was_sealed(told: list[dict[str, Any]]) -> None:
    (item,), alone = opened_input((as_sent(sealed(told)),), SEAL.of("t"))
    assert alone
    assert isinstance(item, Compaction)
    assert standing(item).items == parse_items(told) == expanded([item])


@pytest.mark.parametrize(
    ("tenant", "seal"),
    [("u", SEAL), ("t", Seal(b"l" * 32, b"model")), ("t", Seal(b"k" * 32, b"other"))],
)
def test_of_another_tenant_key_or_model_it_is_refused(tenant: str, seal: Seal) -> None:
    sent = as_sent(sealed([{"role": "user", "content": "x"}]))
    with pytest.raises(ApiError, match="another tenant, model or tokenizer"):
        opened_input((sent,), seal.of(tenant))


def test_an_inner_one_is_of_no_client() -> None:
    with pytest.raises(ApiError):
        opened_input((as_sent(sealed([], "inner")),), SEAL.of("t"))


def test_what_is_before_the_newest_whole_one_does_not_count() -> None:
    items = [*parse_items("old"), as_sent(sealed([{"role": "user", "content": "x"}]))]
    kept, alone = opened_input([*items, *items, *parse_items("new")], SEAL.of("t"))
    assert alone
    assert [each.text for each in expanded(kept)] == ["x", "new"]  # type: ignore[union-attr]


def test_what_is_before_a_part_does() -> None:
    items = [*parse_items("old"), as_sent(sealed([{"role": "user", "content": "x"}], "part"))]
    kept, alone = opened_input(items, SEAL.of("t"))
    assert not alone
    assert [each.text for each in expanded(kept)] == ["old", "x"]  # type: ignore[union-attr]


def test_a_row_of_parts_is_bounded() -> None:
    part = as_sent(sealed([], "part"))
    with pytest.raises(ApiError, match="in a row"):
        opened_input([part] * (MAX_IN_A_ROW + 1), SEAL.of("t"))


def test_nothing_that_is_sealed_is_nested() -> None:
    whole = sealed([{"role": "user", "content": "x"}])
    with pytest.raises(ValueError, match="stands in a compaction"):
        SEAL.of("t").sealed("whole", StandsFor(items=(whole,)), None)
