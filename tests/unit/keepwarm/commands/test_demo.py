"""The example agent's tools and its report."""

import inspect
from pathlib import Path
from typing import Any, get_args

import pytest

from keepwarm.demo.agent import MANY_SESSIONS, ONE_SESSION, PlayedTurn
from keepwarm.demo.child_server import ServerDidNotStart, child_server
from keepwarm.demo.play import is_trained, run_demo
from keepwarm.demo.report import DEED_WIDTH, HEADER, line, shortened, summary
from keepwarm.demo.settings import DEMO_SETTINGS
from keepwarm.demo.shop import HOURS_AHEAD_OF_UTC, PRICES, City, Product, make_shop, shop_tools
from tools_api.sdk.answers import Response, Usage
from tools_api.sdk.tools import Tool


@pytest.fixture
def tools(tmp_path: Path) -> dict[str, Tool]:
    make_shop(tmp_path / "shop.sqlite")
    return {tool.name: tool for tool in shop_tools(tmp_path / "shop.sqlite")}


def test_every_product_that_the_schema_lists_has_its_price_in_the_file(
    tools: dict[str, Tool],
) -> None:
    assert get_args(Product) == tuple(PRICES)
    assert {name: tools["get_price"](name)["price"] for name in PRICES} == PRICES


def test_the_calculator_calculates(tools: dict[str, Tool]) -> None:
    assert tools["multiply"](**tools["multiply"].bind('{"a": 75, "b": 4}')) == {"result": 300}


def test_the_clock_knows_every_city_that_the_schema_lists(tools: dict[str, Tool]) -> None:
    assert get_args(City) == tuple(HOURS_AHEAD_OF_UTC)
    for city in get_args(City):
        hours, minutes = tools["get_time"](city)["time"].split(":")
        assert 0 <= int(hours) < 24
        assert 0 <= int(minutes) < 60


def test_every_question_calls_tools_that_exist(tools: dict[str, Tool]) -> None:
    for script in (ONE_SESSION, *MANY_SESSIONS):
        assert {name for question in script for name in question.calls} <= tools.keys()
    assert {name for question in ONE_SESSION for name in question.calls} == tools.keys()


def played(number: int, *, cost: float, saved: float) -> PlayedTurn:
    keepwarm: dict[str, Any] = {
        "turn": number,
        "timing": {"tokens_per_s": 99.5},
        "tokens": {"forced": 3},
        "cost": {"turn": cost, "saved": saved},
    }
    response = Response(
        id="resp_1",
        status="completed",
        output=(),
        usage=Usage(input_tokens=100, cached_tokens=80, output_tokens=10),
        keepwarm=keepwarm,
        ttft_s=0.0125,
        duration_s=0.5,
        raw={},
    )
    return PlayedTurn(session="s1", response=response, deed="says 'hi'")


def test_a_line_shows_the_turn_under_the_heads_of_its_columns() -> None:
    shown = line(played(2, cost=0.000123, saved=0.0))
    assert shown.split() == [
        *("s1", "2", "100", "80", "10", "80%", "12.5", "99.5", "0.000123", "says", "'hi'"),
    ]
    assert shown.index("says") == HEADER.index("what it did")


def test_the_summary_adds_up_what_the_cache_saved() -> None:
    text = summary([played(1, cost=0.25, saved=0.5), played(2, cost=0.25, saved=1.0)])
    assert "2 turns: 200 input tokens, of which 40 were computed and 160 (80%) came" in text
    assert "20 output tokens, 6 of them forced" in text
    assert "Cost $0.500000; without the cache it would have been $2.000000." in text


def test_noise_of_a_random_model_cannot_break_the_table() -> None:
    assert shortened("a\nb\x1b[0m") == "a\ufffdb\ufffd[0m"
    assert len(shortened("x" * 500)) == DEED_WIDTH


def test_the_default_model_is_trained_and_a_random_one_is_not() -> None:
    assert is_trained("default")
    assert not is_trained("random:qwen3-tiny")


def test_a_users_own_settings_are_not_the_demos_servers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What is found wrong is the model that was asked for, not the port of the environment."""
    monkeypatch.setenv("KEEPWARM_HOST", "not a host")
    monkeypatch.setenv("KEEPWARM_CONFIG", "/nowhere/config.toml")
    with pytest.raises(ServerDidNotStart, match="/nowhere/model: no such folder"):
        child_server(["--model", "/nowhere/model"], log=tmp_path / "log").__enter__()


def test_every_setting_of_the_demo_is_an_argument_of_it() -> None:
    arguments = set(inspect.signature(run_demo).parameters)
    assert {setting.name for setting in DEMO_SETTINGS} == arguments
