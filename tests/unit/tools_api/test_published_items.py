"""Each input item that ``openai`` publishes works, is read as a note, or is refused by its type."""

from collections.abc import Iterator
from typing import Any, get_args, get_type_hints

import pytest
from openai.types.conversations import ConversationItem
from openai.types.responses.response_input_item_param import ResponseInputItemParam
from openai.types.responses.response_item import ResponseItem
from pydantic import TypeAdapter

from tools_api.dialects.conversations import item_object
from tools_api.errors import ApiError
from tools_api.item_identity import normalised
from tools_api.item_reading import parse_items
from tools_api.items import Item
from tools_api.limits import DEFAULT_LIMITS
from tools_api.noted_items import NOTED
from tools_api.request_reading import parse_create

CALL = {"call_id": "c", "name": "f"}
WORKING: dict[str, dict[str, Any]] = {
    "message": {"role": "user", "content": "x"},
    "function_call": CALL | {"arguments": "{}"},
    "function_call_output": {"call_id": "c", "output": "x"},
    "custom_tool_call": CALL | {"input": "x"},
    "custom_tool_call_output": {"call_id": "c", "output": "x"},
    "reasoning": {"summary": []},
    "shell_call": {"call_id": "c", "action": {"commands": ["ls"]}},
    "shell_call_output": {"call_id": "c", "output": []},
    "local_shell_call": {"call_id": "c", "action": {"command": ["ls"]}},
    "local_shell_call_output": {"id": "c", "output": "x"},
    "apply_patch_call": {"call_id": "c", "operation": {"type": "delete_file", "path": "a"}},
    "apply_patch_call_output": {"call_id": "c", "status": "completed"},
    "tool_search_call": {"arguments": {}},
    "tool_search_output": {"tools": []},
    "configuration_update": {"reasoning": {"effort": "low"}, "text": {"format": {"type": "text"}}},
    "additional_tools": {"role": "developer", "tools": []},
    "compaction": {"encrypted_content": "kw1w.AAAA.AAAA"},
    "compaction_trigger": {},
    "item_reference": {"id": "msg_1"},
}
"""By type, with the fields that one needs."""
NO_ITEMS = {"compaction_trigger", "item_reference"}
"""They ask for something, and a model reads nothing of them."""
REFUSED = {
    "program", "program_output",
}  # fmt: skip
"""Named in the error. What is built is taken out here."""


def published() -> Iterator[str]:
    """The types; one of them may be left out, and is then a union."""
    for one in get_args(ResponseInputItemParam):
        for name in get_args(get_type_hints(one)["type"]):
            if isinstance(name, str):
                yield name
            else:
                yield from get_args(name)


BUILT = {
    *("compaction", "compaction_trigger", "tool_search_call", "tool_search_output"),
    *("additional_tools", "configuration_update", "shell_call", "shell_call_output"),
    *("local_shell_call", "local_shell_call_output", "apply_patch_call"),
    *("apply_patch_call_output", "web_search_call", "mcp_call", "code_interpreter_call"),
}
"""What clients send in sessions that compact, run tools of their own or load them later."""


def test_nothing_that_is_built_is_refused() -> None:
    assert {*WORKING, *NOTED} >= BUILT
    assert not BUILT & REFUSED


def test_every_published_item_is_in_one_group() -> None:
    groups = [set(WORKING), set(NOTED), REFUSED]
    assert set().union(*groups) == set(published())
    assert sum(map(len, groups)) == len(set().union(*groups))


@pytest.mark.parametrize("kind", sorted({*WORKING, *NOTED}))
def test_what_works_or_is_noted_is_read(kind: str) -> None:
    item = {"type": kind} | WORKING.get(kind, {})
    request = parse_create({"type": "response.create", "input": [item]}, None, DEFAULT_LIMITS)
    assert request.input or request.references or request.compacts != "no"
    assert bool(request.warnings) is (kind in NOTED)


def read(kind: str) -> tuple[Item, ...]:
    item = {"type": kind} | WORKING.get(kind, {})
    return parse_create({"type": "response.create", "input": [item]}, None, DEFAULT_LIMITS).input


@pytest.mark.samples(18)
@pytest.mark.parametrize("published", [ResponseItem, ConversationItem])
@pytest.mark.parametrize("kind", sorted({*WORKING, *NOTED} - NO_ITEMS))
def test_what_is_read_is_listed_as_it_is_published(kind: str, published: Any) -> None:
    """With a status where its client gave none; sent again it is the same item."""
    for item in read(kind):
        listed = item_object(item) | {"id": "x_1"}
        TypeAdapter(published).validate_python(listed)
        (again,) = parse_items([listed])
        assert normalised(again) == normalised(item)


@pytest.mark.parametrize("kind", sorted(REFUSED))
def test_what_is_refused_is_named(kind: str) -> None:
    raw = {"type": "response.create", "input": [{"type": kind, "call_id": "c"}]}
    with pytest.raises(ApiError) as refused:
        parse_create(raw, None, DEFAULT_LIMITS)
    assert refused.value.param == "input[0].type"
    assert kind in str(refused.value)
