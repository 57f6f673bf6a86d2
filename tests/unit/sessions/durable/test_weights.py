"""Weights are never below half of what the process grows by; what waits is held to three bounds."""

import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from typing import Any, get_args

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sessions.durable.transcript import Entry, Header, Tail
from sessions.durable.weights import open_requests, request_bytes
from tests.support.entries import entry
from tests.support.sessions_rig import END, Rig
from tools_api.chat_format import TemplateOptions
from tools_api.errors import ApiError
from tools_api.items import Item
from tools_api.limits import DEFAULT_LIMITS, Limits
from tools_api.request_reading import parse_create
from tools_api.requests import CreateRequest

COPIES = 40
text = st.one_of(
    st.text(max_size=40),
    st.integers(0, 3000).map(lambda n: "x" * n),
    st.integers(1, 300).map(lambda n: "x" * n + "\U0001f600"),
)
ids = st.one_of(st.just({}), text.map(lambda value: {"id": value[:512]}))
some = st.lists(text, max_size=12)


def parts(kind: str) -> st.SearchStrategy[list[Any]]:
    return some.map(lambda texts: [{"type": kind, "text": each} for each in texts])


def item(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.builds(lambda own, more: own | more, st.fixed_dictionaries(fields), ids)


def functions(texts: list[str]) -> list[dict[str, Any]]:
    return [
        {"type": "function", "name": f"f{n}", "description": each} for n, each in enumerate(texts)
    ]


def chunks(texts: list[str]) -> list[dict[str, Any]]:
    outcome = {"type": "exit", "exit_code": 0}
    return [{"stdout": each, "stderr": "", "outcome": outcome} for each in texts]


def described(told: str) -> dict[str, Any]:
    schema = {"type": "object", "description": told}
    return {"format": {"type": "json_schema", "name": "x", "schema": schema}}


items = st.one_of(
    item(role=st.sampled_from(["user", "system", "developer"]),
         content=st.one_of(text, parts("input_text"))),
    item(role=st.just("assistant"), content=parts("output_text"), status=st.just("completed"),
         phase=st.sampled_from(["commentary", "final_answer"])),
    item(role=st.just("assistant"),
         content=some.map(lambda texts: [{"type": "refusal", "refusal": t} for t in texts])),
    item(type=st.just("reasoning"), summary=parts("summary_text"), content=parts("reasoning_text")),
    item(type=st.just("reasoning"), encrypted_content=text),
    item(type=st.just("compaction"),
         encrypted_content=st.integers(1, 3000).map(lambda n: f"kw1w.{'A' * n}.")),
    item(type=st.just("function_call"), call_id=text.map(lambda t: ("c" + t)[:512]),
         name=text.map(lambda t: "f" + t), arguments=text),
    item(type=st.just("function_call"), call_id=st.just("c"), name=st.just("f"),
         arguments=st.just("{}"), namespace=text.map(lambda t: "n" + t)),
    item(type=st.just("custom_tool_call"), call_id=st.just("c"), name=st.just("f"), input=text),
    item(type=st.just("custom_tool_call"), call_id=st.just("c"), name=text.map(lambda t: "f" + t),
         input=text, namespace=text.map(lambda t: "n" + t)),
    item(type=st.just("function_call_output"), call_id=st.just("c"), output=text),
    item(type=st.just("function_call_output"), call_id=st.just("c"), output=parts("input_text")),
    item(type=st.just("custom_tool_call_output"), call_id=st.just("c"),
         output=st.one_of(text, parts("input_text"))),
    item(type=st.just("shell_call"), call_id=st.just("c"),
         action=some.map(lambda texts: {"commands": texts})),
    item(type=st.just("shell_call_output"), call_id=st.just("c"), output=some.map(chunks)),
    item(type=st.just("apply_patch_call_output"), call_id=st.just("c"), output=text,
         status=st.just("failed")),
    item(type=st.just("additional_tools"), role=st.just("developer"),
         tools=some.map(functions)),
    item(type=st.just("configuration_update"), reasoning=st.just({"effort": "low"}),
         text=text.map(described)),
)  # fmt: skip
schemas = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(0, 1), text),
    lambda inner: st.one_of(
        st.lists(inner, max_size=8), st.dictionaries(st.text(max_size=10), inner, max_size=8)
    ),
    max_leaves=60,
)


def grown_by(make: Callable[[], Any]) -> int:
    """What is held after ``make``, whose result is kept meanwhile."""
    make()  # what is made once, for the first of its kind
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        kept = make()
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    del kept
    return grown


def read(frame: bytes) -> CreateRequest:
    return parse_create(orjson.loads(frame), None, DEFAULT_LIMITS)


def copies(item: dict[str, Any]) -> list[dict[str, Any]]:
    """Each with a call of its own: the same call twice is one."""
    if "call_id" not in item:
        return [item] * COPIES
    return [item | {"call_id": f"{n:02}" + item["call_id"][:510]} for n in range(COPIES)]


def entry_of(request: CreateRequest) -> Entry:
    plain = entry(size=0)
    header = Header(
        instructions=request.instructions,
        opening=None,
        tools=request.tools,
        options=TemplateOptions(),
        ids=plain.header.ids,
    )
    return Entry(
        parent=None,
        header=header,
        opening=None,
        input_items=request.input,
        input_ids=plain.input_ids,
        output_items=(),
        output_ids=plain.output_ids,
        tail=Tail.CLOSED_OUTPUT,
        num_tokens=0,
        open_calls=frozenset(),
        digest=b"",
    )


@given(item=items)
@settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
def test_an_entry_weighs_at_least_half_of_what_the_process_grows_by(item: dict[str, Any]) -> None:
    frame = orjson.dumps({"input": copies(item)})
    made = entry_of(read(frame))
    grown = grown_by(lambda: read(frame))
    assert made.size_bytes >= grown / 2, (item, made.size_bytes, grown)
    assert request_bytes(read(frame)) >= grown / 2


@pytest.mark.tail
@given(schema=st.dictionaries(st.text(max_size=10), schemas, max_size=8))
@settings(max_examples=25, deadline=None, derandomize=True)
def test_tools_weigh_at_least_half_of_what_the_process_grows_by(schema: dict[str, Any]) -> None:
    schema.pop("type", None)
    tools = [{"type": "function", "name": f"f{n}", "parameters": schema} for n in range(40)]
    frame = orjson.dumps({"input": "", "tools": tools})
    grown = grown_by(lambda: read(frame))
    assert entry_of(read(frame)).size_bytes >= grown / 2
    assert request_bytes(read(frame)) >= grown / 2


named = st.text(st.sampled_from("abc \u00e4\U0001f600"), min_size=1, max_size=60)
functions = st.builds(
    lambda description, schema: {
        "type": "function", "name": "f", "description": description, "parameters": schema,
    },
    text, st.dictionaries(st.text(max_size=10).filter("type".__ne__), schemas, max_size=4),
)  # fmt: skip
customs = st.builds(
    lambda description, rule: {
        "type": "custom", "name": "c", "description": description,
        "format": {"type": "grammar", "syntax": "lark", "definition": f'start: "{rule}"'},
    },
    text, st.integers(1, 3000).map(lambda n: "x" * n),
)  # fmt: skip
namespaces = st.builds(
    lambda name, description, tool: {
        "type": "namespace", "name": name, "description": description, "tools": [tool],
    },
    named, text, st.one_of(functions, customs),
)  # fmt: skip
TOOL_KINDS = {"function": functions, "custom": customs, "namespace": namespaces}


@pytest.mark.tail
@pytest.mark.parametrize("kind", TOOL_KINDS)
@given(data=st.data())
@settings(max_examples=15, deadline=None, derandomize=True)
def test_a_tool_of_each_kind_weighs_at_least_half_of_what_the_process_grows_by(
    kind: str, data: st.DataObject
) -> None:
    drawn = data.draw(TOOL_KINDS[kind])
    tools = [drawn | {"name": f"{drawn['name']}{n}"} for n in range(COPIES)]
    frame = orjson.dumps({"input": "", "tools": tools})
    grown = grown_by(lambda: read(frame))
    assert entry_of(read(frame)).size_bytes >= grown / 2
    assert request_bytes(read(frame)) >= grown / 2


wide = st.integers(1, 500).map(lambda n: "x" * (n - 1) + "\U0001f600")
"""Of four bytes a character in memory, and of little more than one in a frame."""
fields = st.one_of(
    st.builds(lambda value: {"instructions": value}, text),
    st.builds(lambda value: {"user": value, "safety_identifier": value}, wide),
    st.builds(lambda value: {"prompt_cache_key": value, "model": value}, wide),
    st.builds(lambda value: {"metadata": {f"{n}": value for n in range(16)}}, wide),
    st.builds(lambda value: {"include": ["reasoning.encrypted_content"] * 3, "user": value}, wide),
    st.builds(
        lambda schema, description: {
            "text": {
                "format": {
                    "type": "json_schema", "name": "x", "schema": schema,
                    "description": description,
                }
            }
        },
        st.dictionaries(st.text(max_size=10), schemas, max_size=8), text,
    ),
    st.builds(
        lambda name: {"keepwarm": {"session": name, "parent_session": name, "request_id": name}},
        wide.map(lambda value: value[-250:]),
    ),
)  # fmt: skip


@given(given_fields=fields)
@settings(max_examples=60, deadline=None, derandomize=True)
def test_a_request_with_any_field_weighs_at_least_half_of_what_the_process_grows_by(
    given_fields: dict[str, Any],
) -> None:
    frame = orjson.dumps({"input": "", **given_fields})
    grown = grown_by(lambda: read(frame))
    assert max(request_bytes(read(frame)), len(frame)) >= grown / 2, given_fields


def test_every_kind_of_item_is_among_those_that_are_weighed() -> None:
    kinds: set[str] = set()

    @given(item=items)
    @settings(max_examples=500, database=None, derandomize=True, deadline=None)
    def note(item: dict[str, Any]) -> None:
        (parsed,) = read(orjson.dumps({"input": [item]})).input
        kinds.add(type(parsed).__name__)

    note()
    assert kinds == {kind.__name__ for kind in get_args(Item)}


def test_an_entry_weighs_at_least_its_frame() -> None:
    rig = Rig()
    client = rig.connect()
    client.turn(input="hi", user="u" * 500, unknown="x" * 30_000)
    store = rig.store.tenant("acme").responses
    assert store.num_bytes >= 30_000


def test_each_bound_holds_at_its_limit_and_one_byte_beyond() -> None:
    limits = replace(
        Limits(), max_held_per_connection=10, max_held_per_tenant=20, max_held_bytes=30
    )
    held = open_requests(limits)
    taken = [held.hold("t", "1", 10), held.hold("t", "2", 10), held.hold("u", "3", 10)]
    for tenant, connection, whose in (("t", "1", "connection"), ("t", "9", "tenant")):
        with pytest.raises(ApiError, match=f"of this {whose} hold"):
            held.hold(tenant, connection, 1)
    with pytest.raises(ApiError, match="of this server hold") as caught:
        held.hold("v", "9", 1)
    assert caught.value.code == "server_is_overloaded"
    taken[0].release()
    taken[0].release()
    assert held.total == 20
    held.hold("v", "9", 10)
    assert held.total == 30


def test_what_a_request_holds_is_given_back_when_it_is_answered_or_dropped() -> None:
    rig = Rig()
    client = rig.connect()
    client.turn(input="hi")
    assert rig.store.held.total == 0
    client.create(input="one")
    client.create(input="two")
    client.create(input="three", tools="none")
    assert rig.store.held.total > 0
    rig.reply("ok" + END)
    rig.reply("ok" + END)
    assert rig.store.held.total == 0
    client.create(input="one")
    client.create(input="two")
    client.disconnect()
    assert rig.store.held.total == 0


def test_a_request_too_many_is_refused_and_the_others_run() -> None:
    frame = read(orjson.dumps({"input": "x" * 3000}))
    room = 2 * request_bytes(frame) + 100
    rig = Rig(limits=replace(Limits(), max_held_per_connection=room))
    client = rig.connect()
    client.create(input="x" * 3000)
    client.create(input="x" * 3000)
    (refused,) = client.create(input="x" * 3000)
    assert refused["error"]["code"] == "server_is_overloaded"
    assert refused["status"] == 503
    rig.reply("ok" + END)
    assert client.types().count("completed") == 1
