"""Conversations over HTTP, in memory and in a journal: the same answers, and each item once."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from openai.types.conversations import (
    Conversation,
    ConversationDeletedResource,
    ConversationItemList,
)

from tests.support.fake_engine import play
from tests.support.http_bench import HttpBench
from tests.support.sessions_rig import END
from tests.support.speaking_engine import SpeakingEngine
from tools_api.limits import Limits

Scenario = Callable[[HttpBench], Coroutine[Any, Any, None]]
PATH = "/v1/conversations"
KEPT = pytest.mark.parametrize("journal", [False, True], ids=["memory", "journal"])


def run(
    scenario: Scenario,
    path: Path | None,
    *,
    holds: bool = False,
    first_id: int = 1,
    limits: Limits | None = None,
) -> None:
    async def closed(bench: HttpBench) -> None:
        try:
            await scenario(bench)
        finally:
            await bench.close()

    play(
        lambda: HttpBench(SpeakingEngine(holds=holds), path=path, first_id=first_id, limits=limits),
        closed,
    )


def at(tmp_path: Path, journal: bool) -> Path | None:
    return tmp_path / "journal" if journal else None


def user(text: str, **fields: Any) -> dict[str, Any]:
    return {"type": "message", "role": "user", "content": text} | fields


def said(item: dict[str, Any]) -> str:
    text = item["content"][0]["text"] if item["type"] == "message" else item["type"]
    assert isinstance(text, str)
    return text


async def made(bench: HttpBench, *texts: str, **fields: Any) -> str:
    body = fields | ({"items": [user(text) for text in texts]} if texts else {})
    status, conversation = await bench.ask("POST", PATH, body)
    assert status == 200
    Conversation.model_validate(conversation)
    id_ = conversation["id"]
    assert isinstance(id_, str)
    return id_


async def items(bench: HttpBench, id_: str) -> list[dict[str, Any]]:
    """All of them, the oldest first, page by page."""
    found, after = [], ""
    while True:
        status, page = await bench.ask("GET", f"{PATH}/{id_}/items?order=asc&limit=7{after}")
        assert status == 200, page
        if page["data"]:
            ConversationItemList.model_validate(page)
        found += page["data"]
        if not page["has_more"]:
            return found
        after = f"&after={quote(page['last_id'], safe='')}"


async def texts(bench: HttpBench, id_: str) -> list[str]:
    return [said(item) for item in await items(bench, id_)]


async def turn(bench: HttpBench, id_: str, text: str | None = None, **fields: Any) -> Any:
    body = {"model": "m", "conversation": id_} | ({} if text is None else {"input": text}) | fields
    status, response = await bench.ask("POST", "/v1/responses", body)
    assert status == 200, response
    return response


@KEPT
def test_it_is_made_shown_changed_and_deleted(tmp_path: Path, journal: bool) -> None:
    async def scenario(bench: HttpBench) -> None:
        id_ = await made(bench, "one", metadata={"topic": "a"})
        status, shown = await bench.ask("GET", f"{PATH}/{id_}")
        assert (status, shown["metadata"], shown["object"]) == (200, {"topic": "a"}, "conversation")
        status, shown = await bench.ask("POST", f"{PATH}/{id_}", {"metadata": {"topic": "b"}})
        assert (status, shown["metadata"]) == (200, {"topic": "b"})
        assert (await bench.ask("GET", f"{PATH}/{id_}"))[1] == shown
        assert await texts(bench, id_) == ["one"]
        status, deleted = await bench.ask("DELETE", f"{PATH}/{id_}")
        ConversationDeletedResource.model_validate(deleted)
        assert (status, deleted["deleted"]) == (200, True)
        for method, path in (("GET", ""), ("DELETE", ""), ("GET", "/items")):
            status, error = await bench.ask(method, f"{PATH}/{id_}{path}")
            assert (status, error["error"]["code"]) == (404, "conversation_not_found")

    run(scenario, at(tmp_path, journal))


@KEPT
def test_turns_go_on_from_it_and_leave_what_they_said(tmp_path: Path, journal: bool) -> None:
    async def scenario(bench: HttpBench) -> None:
        id_ = await made(bench, "one")
        first = await turn(bench, id_, "two")
        assert (first["conversation"], first["previous_response_id"]) == ({"id": id_}, None)
        assert await texts(bench, id_) == ["one", "two", "Hello"]
        before = await items(bench, id_)
        await bench.ask("POST", f"{PATH}/{id_}/items", {"items": [user("three")]})
        second = await turn(bench, id_)
        after = await items(bench, id_)
        assert [said(item) for item in after] == ["one", "two", "Hello", "three", "Hello"]
        assert after[:3] == before, "an item keeps its id"
        assert second["usage"]["input_tokens_details"]["cached_tokens"] > 0
        assert bench.engine.scripted.requests[-1].base_offset > 0, "the chain goes on"
        assert {item["id"] for item in after} >= {second["output"][0]["id"]}
        for item in after:
            path = f"{PATH}/{id_}/items/{item['id']}"
            assert await bench.ask("GET", path) == (200, item)

    run(scenario, at(tmp_path, journal))


@KEPT
def test_it_is_listed_newest_first_and_in_pages(tmp_path: Path, journal: bool) -> None:
    async def scenario(bench: HttpBench) -> None:
        id_ = await made(bench, *map(str, range(15)))
        _, page = await bench.ask("GET", f"{PATH}/{id_}/items?limit=4")
        assert [said(item) for item in page["data"]] == ["14", "13", "12", "11"]
        assert page["has_more"]
        assert await texts(bench, id_) == list(map(str, range(15)))
        for query in ("limit=0", "limit=x", "order=up", "after=none"):
            status, error = await bench.ask("GET", f"{PATH}/{id_}/items?{query}")
            assert (status, error["error"]["code"]) == (400, "invalid_value")

    run(scenario, at(tmp_path, journal))


@KEPT
def test_an_item_is_taken_out_and_the_next_turn_does_not_read_it(
    tmp_path: Path, journal: bool
) -> None:
    async def scenario(bench: HttpBench) -> None:
        id_ = await made(bench)
        for text in ("one", "two", "three"):
            await turn(bench, id_, text)
        before = await items(bench, id_)
        status, shown = await bench.ask("DELETE", f"{PATH}/{id_}/items/{before[2]['id']}")
        assert (status, shown["id"]) == (200, id_)
        assert await items(bench, id_) == [*before[:2], *before[3:]]
        await turn(bench, id_, "four")
        assert await texts(bench, id_) == [
            *("one", "Hello", "Hello", "three", "Hello", "four", "Hello")
        ]
        assert (await items(bench, id_))[:5] == [*before[:2], *before[3:]]
        path = f"{PATH}/{id_}/items/{before[2]['id']}"
        for method in ("GET", "DELETE"):
            status, error = await bench.ask(method, path)
            assert (status, error["error"]["code"]) == (404, "item_not_found")

    run(scenario, at(tmp_path, journal))


@KEPT
def test_an_item_is_found_whatever_its_client_called_it(tmp_path: Path, journal: bool) -> None:
    names = ["a/b", "ü 1", "100%25", "x:y+z", "?#&=", "", "..", "same", "same"]

    async def scenario(bench: HttpBench) -> None:
        id_ = await made(bench, items=[user("one", id="same")])
        more = {"items": [user(str(n), id=name) for n, name in enumerate(names)]}
        added = (await bench.ask("POST", f"{PATH}/{id_}/items", more))[1]
        assert (await items(bench, id_))[1:] == added["data"]
        await turn(bench, id_, input=[user("and", id="same")])
        await bench.ask("POST", f"{PATH}/{id_}/items", {"items": [user("last", id="a/b")]})
        left = await items(bench, id_)
        assert len({item["id"] for item in left}) == len(left)
        while left:
            path = f"{PATH}/{id_}/items/{quote(left[0]['id'], safe='')}"
            assert await bench.ask("GET", path) == (200, left[0])
            assert (await bench.ask("DELETE", path))[0] == 200
            del left[0]
            now = await items(bench, id_)
            assert [said(item) for item in now] == [said(item) for item in left]
            left = now

    run(scenario, at(tmp_path, journal))


@KEPT
def test_the_end_taken_out_goes_on_from_the_response_before(tmp_path: Path, journal: bool) -> None:
    async def scenario(bench: HttpBench) -> None:
        id_ = await made(bench)
        first = await turn(bench, id_, "one")
        await turn(bench, id_, "two")
        for item in (await items(bench, id_))[2:]:
            await bench.ask("DELETE", f"{PATH}/{id_}/items/{item['id']}")
        again = await turn(bench, id_, "other")
        assert await texts(bench, id_) == ["one", "Hello", "other", "Hello"]
        reports = bench.service.store.tenant("acme").responses
        stored = reports.get(again["id"])
        assert stored is not None
        assert stored.entry.parent is reports.entry(first["id"]), "nothing was rendered again"

    run(scenario, at(tmp_path, journal))


@KEPT
def test_two_turns_at_once_run_one_after_the_other(tmp_path: Path, journal: bool) -> None:
    async def scenario(bench: HttpBench) -> None:
        id_ = await made(bench)
        body = {"model": "m", "conversation": id_}
        both = [bench.begin("POST", "/v1/responses", body | {"input": n}) for n in ("1", "2")]
        for number in (1, 2):
            await bench.until(lambda: bench.engine.waiting)
            assert len(bench.engine.waiting) == 1
            bench.engine.speak()
            await bench.until(lambda number=number: sum(each.over for each in both) == number)
        found = await texts(bench, id_)
        assert found[1::2] == ["Hello", "Hello"]
        inputs = found[::2]  # a journal's threads may have read the second one's past first
        assert inputs == ["1", "2"] or (journal and inputs == ["2", "1"])

    run(scenario, at(tmp_path, journal), holds=True)


@KEPT
def test_what_is_added_while_a_turn_runs_stands_behind_it(tmp_path: Path, journal: bool) -> None:
    async def scenario(bench: HttpBench) -> None:
        id_ = await made(bench, "one")
        running = bench.begin("POST", "/v1/responses", {"model": "m", "conversation": id_})
        await bench.until(lambda: bench.engine.waiting)
        await bench.ask("POST", f"{PATH}/{id_}/items", {"items": [user("later")]})
        bench.engine.speak()
        await bench.until(lambda: running.over)
        assert running.body["status"] == "completed"
        assert await texts(bench, id_) == ["one", "Hello", "later"]

    run(scenario, at(tmp_path, journal), holds=True)


@KEPT
@pytest.mark.parametrize("of", ["input", "output"])
def test_what_is_added_under_an_id_of_the_running_turn_gets_another(
    tmp_path: Path, journal: bool, of: str
) -> None:
    async def scenario(bench: HttpBench) -> None:
        id_ = await made(bench, "one")
        body = {"model": "m", "conversation": id_, "input": [user("two", id="mine")]}
        running = bench.begin("POST", "/v1/responses", body)
        await bench.until(lambda: bench.engine.waiting)
        bench.engine.speak()
        await bench.until(lambda: running.over)
        said_id = running.body["output"][0]["id"]
        body["input"] = [user("three", id="third")]
        running = bench.begin("POST", "/v1/responses", body)
        await bench.until(lambda: bench.engine.waiting)
        under = {"input": "third", "output": said_id}[of]
        body = {"items": [user("later", id=under), user("last", id="own")]}
        told = (await bench.ask("POST", f"{PATH}/{id_}/items", body))[1]["data"]
        bench.engine.speak()
        await bench.until(lambda: running.over)
        listed = await items(bench, id_)
        assert [said(item) for item in listed] == [
            *("one", "two", "Hello", "three", "Hello", "later", "last")
        ]
        assert [listed[n]["id"] for n in (1, 2, 3, 6)] == ["mine", said_id, "third", "own"]
        assert [item["id"] for item in told] == [item["id"] for item in listed[5:]]
        assert len({item["id"] for item in listed}) == len(listed)

    run(scenario, at(tmp_path, journal), holds=True)


@KEPT
def test_a_turn_that_waited_and_was_left_takes_no_id_from_the_running_one(
    tmp_path: Path, journal: bool
) -> None:
    async def scenario(bench: HttpBench) -> None:
        id_ = await made(bench, "one")
        body = {"model": "m", "conversation": id_, "input": [user("two", id="mine")]}
        running = bench.begin("POST", "/v1/responses", body)
        await bench.until(lambda: bench.engine.waiting)
        waiting = bench.begin("POST", "/v1/responses", body)
        for _ in range(200):
            await asyncio.sleep(0)
        waiting.leave()
        for _ in range(200):
            await asyncio.sleep(0)
        told = await bench.ask("POST", f"{PATH}/{id_}/items", {"items": [user("x", id="mine")]})
        assert told[1]["data"][0]["id"] != "mine"
        bench.engine.speak()
        await bench.until(lambda: running.over)
        assert await texts(bench, id_) == ["one", "two", "Hello", "x"]
        assert (await items(bench, id_))[1]["id"] == "mine"

    run(scenario, at(tmp_path, journal), holds=True)


@KEPT
def test_a_turn_fails_that_reads_what_is_taken_out(tmp_path: Path, journal: bool) -> None:
    async def scenario(bench: HttpBench) -> None:
        id_ = await made(bench, "one", "two")
        running = bench.begin("POST", "/v1/responses", {"model": "m", "conversation": id_})
        await bench.until(lambda: bench.engine.waiting)
        first = (await items(bench, id_))[0]["id"]
        assert (await bench.ask("DELETE", f"{PATH}/{id_}/items/{first}"))[0] == 200
        bench.engine.speak()
        await bench.until(lambda: running.over)
        assert running.body["status"] == "failed"
        assert running.body["keepwarm"]["reason"] == "parent_deleted"
        assert await texts(bench, id_) == ["two"]
        bench.engine.holds = False
        await turn(bench, id_)
        assert await texts(bench, id_) == ["two", "Hello"]

    run(scenario, at(tmp_path, journal), holds=True)


@KEPT
def test_a_turn_ends_whose_conversation_is_deleted(tmp_path: Path, journal: bool) -> None:
    async def scenario(bench: HttpBench) -> None:
        id_ = await made(bench, "one")
        running = bench.begin("POST", "/v1/responses", {"model": "m", "conversation": id_})
        await bench.until(lambda: bench.engine.waiting)
        assert (await bench.ask("DELETE", f"{PATH}/{id_}"))[0] == 200
        bench.engine.speak()
        await bench.until(lambda: running.over)
        assert running.body["status"] == "completed"
        assert (await bench.ask("GET", f"{PATH}/{id_}"))[0] == 404
        body = {"model": "m", "conversation": id_, "input": "more"}
        status, error = await bench.ask("POST", "/v1/responses", body)
        assert (status, error["error"]["code"]) == (404, "conversation_not_found")
        path = f"/v1/responses/{running.body['id']}"
        assert (await bench.ask("GET", path))[1]["status"] == "completed"

    run(scenario, at(tmp_path, journal), holds=True)


@KEPT
def test_who_forks_one_of_its_responses_does_not_move_it(tmp_path: Path, journal: bool) -> None:
    async def scenario(bench: HttpBench) -> None:
        id_ = await made(bench)
        first = await turn(bench, id_, "one")
        fork = {"model": "m", "previous_response_id": first["id"], "input": "aside"}
        assert (await bench.ask("POST", "/v1/responses", fork))[1]["status"] == "completed"
        assert await texts(bench, id_) == ["one", "Hello"]
        await turn(bench, id_, "two")
        assert await texts(bench, id_) == ["one", "Hello", "two", "Hello"]

    run(scenario, at(tmp_path, journal))


@KEPT
def test_a_response_at_which_it_stands_is_not_deleted(tmp_path: Path, journal: bool) -> None:
    async def scenario(bench: HttpBench) -> None:
        id_ = await made(bench)
        first, second = await turn(bench, id_, "one"), await turn(bench, id_, "two")
        status, error = await bench.ask("DELETE", f"/v1/responses/{second['id']}")
        assert (status, error["error"]["param"]) == (400, "response_id")
        assert (await bench.ask("DELETE", f"/v1/responses/{first['id']}"))[0] == 200
        await turn(bench, id_, "three")
        assert (await texts(bench, id_))[::2] == ["one", "two", "three"]
        await bench.ask("DELETE", f"{PATH}/{id_}")
        assert (await bench.ask("DELETE", f"/v1/responses/{second['id']}"))[0] == 200

    run(scenario, at(tmp_path, journal))


@KEPT
def test_a_turn_that_fails_leaves_nothing(tmp_path: Path, journal: bool) -> None:
    async def scenario(bench: HttpBench) -> None:
        id_ = await made(bench, "one")
        running = bench.begin("POST", "/v1/responses", {"model": "m", "conversation": id_})
        await bench.until(lambda: bench.engine.waiting)
        bench.engine.die()
        await bench.until(lambda: running.over)
        assert running.body["status"] == "failed"
        assert await texts(bench, id_) == ["one"]

    run(scenario, at(tmp_path, journal), holds=True)


@KEPT
def test_tenants_are_apart(tmp_path: Path, journal: bool) -> None:
    async def scenario(bench: HttpBench) -> None:
        id_ = await made(bench, "one")
        item = (await items(bench, id_))[0]["id"]
        asked: list[tuple[str, str, Any]] = [
            ("GET", "", None),
            ("POST", "", {"metadata": {}}),
            ("DELETE", "", None),
            ("GET", "/items", None),
            ("POST", "/items", {"items": [user("x")]}),
            ("GET", f"/items/{item}", None),
            ("DELETE", f"/items/{item}", None),
        ]
        for method, path, body in asked:
            status, error = await bench.ask(method, f"{PATH}/{id_}{path}", body, tenant="other")
            assert (status, error["error"]["code"]) == (404, "conversation_not_found"), path
        body = {"model": "m", "conversation": id_, "input": "hi"}
        status, error = await bench.ask("POST", "/v1/responses", body, tenant="other")
        assert (status, error["error"]["code"]) == (404, "conversation_not_found")
        assert await texts(bench, id_) == ["one"]

    run(scenario, at(tmp_path, journal))


def test_it_outlasts_its_server(tmp_path: Path) -> None:
    path, kept = tmp_path / "journal", dict[str, Any]()

    async def before(bench: HttpBench) -> None:
        kept["id"] = id_ = await made(bench, "one", metadata={"a": "b"})
        await turn(bench, id_, "two")
        await bench.ask("POST", f"{PATH}/{id_}/items", {"items": [user("three")]})
        kept["items"] = await items(bench, id_)

    async def after(bench: HttpBench) -> None:
        id_ = kept["id"]
        assert await items(bench, id_) == kept["items"]
        assert (await bench.ask("GET", f"{PATH}/{id_}"))[1]["metadata"] == {"a": "b"}
        await turn(bench, id_)
        assert await texts(bench, id_) == ["one", "two", "Hello", "three", "Hello"]
        assert (await items(bench, id_))[:4] == kept["items"]

    run(before, path)
    run(after, path, first_id=1000)


BAD: list[tuple[str, str, Any, str]] = [
    ("POST", "", {"items": "x"}, "items"),
    ("POST", "", {"items": [1]}, "items[0]"),
    ("POST", "", {"items": [{"type": "message", "role": "user"}]}, "items[0].content"),
    ("POST", "", {"items": [{"type": "item_reference", "id": "x"}]}, "items[0].id"),
    ("POST", "", {"items": [{"type": "compaction_trigger"}]}, "items"),
    ("POST", "", {"metadata": {"a": 1}}, "metadata.a"),
    ("POST", "", {"metadata": {str(n): "" for n in range(17)}}, "metadata"),
    ("POST", "", {"input": "x"}, "input"),
    ("POST", "/ID", {}, "metadata"),
    ("POST", "/ID", {"items": []}, "items"),
    ("POST", "/ID/items", {}, "items"),
    ("POST", "/ID/items", {"items": {}}, "items"),
    ("POST", "/ID/items", {"items": [user("a"), {"type": "nothing"}]}, "items[1].type"),
    ("POST", "/ID/items", {"items": [user("a")], "metadata": {}}, "metadata"),
    ("POST", "/ID/items", {"items": [user("x")] * 9}, "items"),
    ("POST", "/ID/items", {"items": [user("x" * 40_000)]}, "items"),
]


def test_bad_bodies_are_refused_by_name_and_change_nothing(tmp_path: Path) -> None:
    limits = Limits(max_input_items=8, max_frame_bytes=32_768)

    async def scenario(bench: HttpBench) -> None:
        id_ = await made(bench, "one")
        for method, path, body, param in BAD:
            status, answer = await bench.ask(method, PATH + path.replace("ID", id_), body)
            assert status == 400, (path, body)
            assert answer["error"]["param"] == param
            assert f"'{param}'" in answer["error"]["message"]
        assert await texts(bench, id_) == ["one"]

    run(scenario, tmp_path / "journal", limits=limits)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"conversation": 7}, "conversation"),
        ({"conversation": {}}, "conversation.id"),
        ({"conversation": {"id": 7}}, "conversation.id"),
        ({"conversation": ""}, "conversation"),
        ({"conversation": "conv_\x00"}, "conversation"),
        ({"conversation": "conv_none"}, "conversation"),
        ({"store": False}, "store"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"keepwarm": {"session": "mine"}}, "keepwarm.session"),
        ({"input": [{"type": "function_call_output", "call_id": "c", "output": ""}]}, "input"),
    ],
)
def test_a_turn_that_cannot_be_in_one_is_refused(fields: dict[str, Any], param: str) -> None:
    async def scenario(bench: HttpBench) -> None:
        id_ = await made(bench, "one")
        body = {"model": "m", "input": "hi", "conversation": {"id": id_}} | fields
        status, answer = await bench.ask("POST", "/v1/responses", body)
        assert status in (400, 404)
        assert answer["error"]["param"] == param
        assert await texts(bench, id_) == ["one"]
        await turn(bench, id_, "two", conversation={"id": id_})

    run(scenario, None)


def test_a_session_that_a_header_names_is_not_the_conversations() -> None:
    async def scenario(bench: HttpBench) -> None:
        id_ = await made(bench, "one")
        body = {"model": "m", "conversation": id_}
        status, answer = await bench.ask("POST", "/v1/responses", body, x_session_id="mine")
        assert (status, answer["keepwarm"]["session"]) == (200, id_)

    run(scenario, None)


@asynccontextmanager
async def _opened(path: Path | None, first_id: int) -> AsyncIterator[HttpBench]:
    bench = HttpBench(path=path, first_id=first_id)
    try:
        yield bench
    finally:
        await bench.close()


@pytest.mark.samples(2)
@KEPT
@pytest.mark.parametrize("seed", range(3))
def test_against_a_list_whatever_is_done(tmp_path: Path, journal: bool, seed: int) -> None:
    """Turns, items added and taken out, restarts, in any order: a list says what is in it."""
    rng, path = random.Random(seed), at(tmp_path, journal)

    async def scenario() -> None:
        model: dict[str, list[tuple[str, str]]] = {}
        steps = 0
        for life in range(3 if journal else 1):
            async with _opened(path, 1 + life * 10**6) as bench:
                while steps < (life + 1) * 25:
                    steps += 1
                    await _step(bench, rng, model, f"text {steps}")
        assert sum(map(len, model.values())) > 5

    asyncio.run(scenario())


async def _step(
    bench: HttpBench, rng: random.Random, model: dict[str, list[tuple[str, str]]], text: str
) -> None:
    if not model or rng.random() < 0.05:
        model[await made(bench)] = []
    id_ = rng.choice(list(model))
    known = model[id_]
    again = {"id": rng.choice(known)[0]} if known and rng.random() < 0.4 else {}
    sent = user(text, **again)  # perhaps under the id of another
    match rng.choice(("turn", "turn", "add", "take", "both", "delete")):
        case "turn":
            await turn(bench, id_, input=[sent])
        case "add":
            await bench.ask("POST", f"{PATH}/{id_}/items", {"items": [sent]})
        case "take" if known:
            gone = rng.choice(known)
            known.remove(gone)
            status, _ = await bench.ask("DELETE", f"{PATH}/{id_}/items/{gone[0]}")
            assert status == 200
            text = ""
        case "both":
            body = {"model": "m", "conversation": id_, "input": [sent]}
            running = bench.begin("POST", "/v1/responses", body)
            await bench.ask("POST", f"{PATH}/{id_}/items", {"items": [sent]})
            await bench.until(lambda: running.over)
            assert running.body["status"] == "completed"
        case "delete" if rng.random() < 0.2:
            await bench.ask("DELETE", f"{PATH}/{id_}")
            del model[id_]
            return
        case _:
            return
    now = [(item["id"], said(item)) for item in await items(bench, id_)]
    assert now[: len(known)] == known, "what was there stays, under its id"
    new = [told for _, told in now[len(known) :]]
    assert new in ([], [text], [text, "Hello"], [text, "Hello", text], [text, text, "Hello"])
    assert len({item_id for item_id, _ in now}) == len(now)
    model[id_] = now


def test_what_two_change_at_once_is_changed_by_both(tmp_path: Path) -> None:
    async def scenario(bench: HttpBench) -> None:
        id_ = await made(bench)
        bodies = [{"items": [user(str(n))]} for n in range(12)]
        asked = [bench.begin("POST", f"{PATH}/{id_}/items", body) for body in bodies]
        for exchange in asked:
            await bench.until(lambda exchange=exchange: exchange.over)
        added = sum(exchange.status == 200 for exchange in asked)
        assert {exchange.status for exchange in asked} <= {200, 409}
        assert len(await texts(bench, id_)) == len(set(await texts(bench, id_))) == added > 0

    run(scenario, tmp_path / "journal")


def test_an_output_answers_the_call_of_the_turn_before(tmp_path: Path) -> None:
    call = '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>' + END
    tools = [{"type": "function", "name": "look", "parameters": {"type": "object"}}]

    async def scenario(bench: HttpBench) -> None:
        id_ = await made(bench)
        bench.engine.script = lambda _: [call]
        first = await turn(bench, id_, "look", tools=tools)
        call_id = first["output"][0]["call_id"]
        bench.engine.script = lambda _: ["Hello" + END]
        output = {"type": "function_call_output", "call_id": call_id, "output": "seen"}
        await bench.ask("POST", f"{PATH}/{id_}/items", {"items": [output]})
        await turn(bench, id_, tools=tools)
        kinds = [item["type"] for item in await items(bench, id_)]
        assert kinds == ["message", "function_call", "function_call_output", "message"]

    run(scenario, tmp_path / "journal")


@KEPT
def test_the_phase_of_a_message_comes_back_as_it_was_sent(tmp_path: Path, journal: bool) -> None:
    async def scenario(bench: HttpBench) -> None:
        id_ = await made(bench)
        before = {"type": "message", "role": "assistant", "content": "so", "phase": "commentary"}
        await bench.ask("POST", f"{PATH}/{id_}/items", {"items": [user("one"), before]})
        await turn(bench, id_, "two")
        phases = [item.get("phase") for item in await items(bench, id_)]
        assert phases == [None, "commentary", None, None]
        wrong = {"items": [before | {"phase": "other"}]}
        status, answer = await bench.ask("POST", f"{PATH}/{id_}/items", wrong)
        assert (status, answer["error"]["param"]) == (400, "items[0].phase")

    run(scenario, at(tmp_path, journal))
