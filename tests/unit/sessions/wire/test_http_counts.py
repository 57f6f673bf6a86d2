"""Prompts are counted behind what memory knows and behind what only the journal has."""

import asyncio
from pathlib import Path
from typing import Any

import orjson
import pytest

from sessions.wire.http_api import HttpApi
from tests.support.exchange import KeptExchange, make_call
from tests.unit.sessions.wire.test_journal_desk import Bench, Client, run


async def counted(bench: Bench, path: str, **fields: Any) -> Any:
    """What a route that counts a prompt answers."""
    routes = HttpApi(hub=bench.hub, service=bench.service).routes()
    (handler,) = (route.calls["POST"] for route in routes if route.path == path)
    exchange = KeptExchange()
    call = make_call(body=orjson.dumps(fields), method="POST", exchange=exchange)
    exchange.play(handler(call))  # type: ignore[arg-type]
    while not exchange.over:
        await asyncio.sleep(0.001)
    return exchange.body


@pytest.mark.parametrize("shared", [False, True])
def test_a_prompt_is_counted_behind_what_only_the_journal_has(tmp_path: Path, shared: bool) -> None:
    path = "/v1/responses/input_tokens"

    async def scenario() -> None:
        ids = iter(range(1000))
        bench = Bench(tmp_path / "j", ids, owner="a", shared=shared)
        first = (await Client(bench).turn(input="x" * 100, keepwarm={"session": "s"}))["response"]
        said = [{"role": "user", "content": "x" * 100}, *first["output"]]
        more: dict[str, Any] = {"model": "m", "input": "more"}
        asked: list[dict[str, Any]] = [
            more | {"previous_response_id": first["id"]},
            more | {"keepwarm": {"session": "s"}},
            more | {"input": [*said, {"role": "user", "content": "more"}]},
        ]
        known = [await counted(bench, path, **fields) for fields in asked]
        assert {count["input_tokens"] for count in known} == {known[0]["input_tokens"]}
        assert known[0]["input_tokens"] > 100
        if not shared:
            await bench.close()
        for fields, count in zip(asked, known, strict=True):  # shared: the session's owner lives
            other = Bench(tmp_path / "j", ids, owner="b", shared=shared)
            assert await counted(other, path, **fields) == count
            assert other.service.store.sessions()[1] == [], "none was made"
            unknown = await counted(other, path, **more, previous_response_id="resp_none")
            assert unknown["error"]["code"] == "previous_response_not_found"
            new = await counted(other, path, **more, keepwarm={"session": "new"})
            assert new["input_tokens"] < 100
            await other.close()
        if not shared:
            bench = Bench(tmp_path / "j", ids)
            await counted(bench, path, **asked[0])
        second = (await Client(bench).turn(**asked[0]))["response"]
        assert second["usage"]["input_tokens"] == known[0]["input_tokens"]
        assert second["keepwarm"]["turn"] == 2, "of the same session"
        await bench.close()

    run(scenario)


def test_a_prompt_that_names_stored_items_is_counted_as_if_it_held_them(tmp_path: Path) -> None:
    path = "/v1/responses/input_tokens"

    async def scenario() -> None:
        ids = iter(range(1000))
        bench = Bench(tmp_path / "j", ids)
        first = (await Client(bench).turn(input="x" * 100))["response"]
        ask: dict[str, Any] = {"role": "user", "content": "x" * 100}
        more = {"role": "user", "content": "more"}
        whole = await counted(bench, path, model="m", input=[ask, *first["output"], more])
        named = [ask, {"type": "item_reference", "id": first["output"][0]["id"]}, more]
        assert await counted(bench, path, model="m", input=named) == whole
        unknown = await counted(bench, path, model="m", input=[{"id": "none"}, more])
        assert unknown["error"]["code"] == "item_not_found"
        assert unknown["error"]["param"] == "input[0].id"
        await bench.close()
        bench = Bench(tmp_path / "j", ids)
        assert await counted(bench, path, model="m", input=named) == whole
        await bench.close()

    run(scenario)


def test_counting_makes_no_session_in_place_of_one_that_fell_out(tmp_path: Path) -> None:
    async def scenario() -> None:
        bench = Bench(tmp_path / "j", iter(range(1000)))
        first = (await Client(bench).turn(keepwarm={"session": "s"}))["response"]
        bench.service.store.tenant("acme").forget_session("s")
        more = {"model": "m", "input": "more", "previous_response_id": first["id"]}
        assert "input_tokens" in await counted(bench, "/v1/responses/input_tokens", **more)
        second = (await Client(bench).turn(**more))["response"]
        assert second["keepwarm"]["turn"] == 2
        await bench.close()

    run(scenario)
