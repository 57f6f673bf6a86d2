"""An input is taken apart into items and references, and put together again."""

import random
from typing import Any

import pytest

from tools_api.errors import ApiError
from tools_api.item_reading import parse_items
from tools_api.item_references import with_items
from tools_api.items import Item
from tools_api.limits import Limits
from tools_api.request_reading import parse_input


def message(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


@pytest.mark.parametrize("seed", range(20))
def test_what_is_taken_apart_is_put_together_in_its_order(seed: int) -> None:
    rng = random.Random(seed)
    raw = [message(str(n)) for n in range(rng.randrange(30))]
    whole = parse_items(raw)
    stored = {f"id{n}": item for n, item in enumerate(whole) if rng.random() < 0.4}
    named: list[Any] = [{"id": f"id{n}"} if f"id{n}" in stored else raw[n] for n in range(len(raw))]
    items, references = parse_input(named, Limits())
    assert len(items) + len(references) == len(raw)
    found: list[Item] = [stored[reference.id] for reference in references]
    assert with_items(items, references, found) == whole


def test_a_fault_behind_a_reference_has_the_place_that_its_client_gave_it() -> None:
    with pytest.raises(ApiError) as refused:
        parse_input([{"id": "a"}, {"id": "b"}, {"role": "user", "content": 5}], Limits())
    assert refused.value.param == "input[2].content"


def test_a_text_refers_to_nothing() -> None:
    assert parse_input("hello", Limits()) == (parse_items("hello"), ())


def test_references_count_as_items() -> None:
    with pytest.raises(ApiError, match="more than 2 items"):
        parse_input([{"id": "a"}] * 3, Limits(max_input_items=2))


def test_an_item_that_says_its_id_and_more_is_no_reference() -> None:
    items, references = parse_input([message("a") | {"id": "mine"}], Limits())
    assert (items[0].id, references) == ("mine", ())
