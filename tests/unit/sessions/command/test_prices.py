"""A price file is taken whole, to the nano-dollar, or refused by the entry that is wrong."""

from dataclasses import replace
from pathlib import Path

import pytest

from sessions.command.prices import PriceError, check_budgets, read_price_file
from sessions.durable.budgets import TenantTerms
from sessions.durable.ledger import PriceTable
from sessions.tenants import BudgetTerms, TenantPolicy, TokenPrices
from tests.support.architecture import ROOT
from tools_api.requests import Bounds

GOOD = "[models.m]\ninput = 1\ncached = 0.1\noutput = 2.000000001\n"


def write(folder: Path, text: str) -> Path:
    path = folder / "prices.toml"
    path.write_text(text)
    return path


def refusal(folder: Path, text: str) -> str:
    path = write(folder, text)
    with pytest.raises(PriceError) as caught:
        read_price_file(path)
    message = str(caught.value)
    assert message.startswith(str(path))
    assert "\n" not in message
    return message


def test_prices_are_exactly_what_stands_there(tmp_path: Path) -> None:
    prices = read_price_file(write(tmp_path, GOOD + "reasoning = 0.3\n"))
    assert prices.of(["other", "m"]) == PriceTable(
        input_uncached=10**9, input_cached=10**8, output=2 * 10**9 + 1, reasoning=3 * 10**8
    )
    assert read_price_file(write(tmp_path, GOOD)).of(["m"]).reasoning is None


def test_the_example_is_one_that_can_be_used(tmp_path: Path) -> None:
    blocks = (ROOT / "docs/commands.md").read_text().split("```")
    (example,) = (block for block in blocks if "[models." in block)
    assert "The figures are invented" in example
    prices = read_price_file(write(tmp_path, example.removeprefix("toml")))
    assert prices.of(["any"]).output == 10**9


def test_a_model_without_prices_is_named(tmp_path: Path) -> None:
    prices = read_price_file(write(tmp_path, GOOD))
    with pytest.raises(PriceError, match=r"no prices of the model a or b; it has those of m$"):
        prices.of(["a", "b", "a"])
    both = read_price_file(write(tmp_path, GOOD + GOOD.replace("models.m", "models.default")))
    assert both.of(["a", "b"]) == both.tables["default"]


def test_adapters_have_prices_of_their_own_but_for_kv(tmp_path: Path) -> None:
    text = GOOD + "residency = 3\n" + GOOD.replace("models.m", "models.sql")
    prices = read_price_file(write(tmp_path, text))
    model = prices.of(["m"])
    found = prices.with_adapters(model, ["sql", "law"])
    assert found.adapters == {"sql": prices.tables["sql"]}
    assert replace(found, adapters={}) == model
    priced = read_price_file(write(tmp_path, text + "residency = 4\n"))
    with pytest.raises(PriceError, match=r"prices.toml: models.sql.residency: KV has the model's"):
        priced.with_adapters(model, ["sql"])


def test_a_server_that_prices_an_adapter_alone_is_not_free() -> None:
    assert not PriceTable(adapters={"sql": PriceTable(output=1)}).free
    assert PriceTable(adapters={"sql": PriceTable()}).free


def test_a_tenants_budget_of_money_needs_prices() -> None:
    policies = {"acme": TenantPolicy(budget=Bounds(cost=1.0)), "b": TenantPolicy()}
    with pytest.raises(PriceError, match=r"^tenants acme: a budget of money needs prices"):
        check_budgets(policies, PriceTable())
    check_budgets(policies, PriceTable(output=1))
    month = BudgetTerms(bounds=Bounds(cost=1.0), every="month")
    output = BudgetTerms(bounds=Bounds(output=1), every="day")
    for refused, place in (
        (TenantPolicy(periods=(output, month)), "tenants acme"),
        (TenantPolicy(keys={"fine": (output,), "ci": (output, month)}), "key ci"),
    ):
        with pytest.raises(PriceError, match=f"^{place}: a budget of money needs prices"):
            check_budgets({"acme": refused}, PriceTable())
        check_budgets({"acme": refused}, PriceTable(output=1))
    check_budgets({"acme": TenantPolicy(periods=(output,))}, PriceTable())
    own = TokenPrices(input_uncached=1, input_cached=0, output=2)
    check_budgets({"acme": TenantPolicy(budget=Bounds(cost=1.0), prices=own)}, PriceTable())
    free = TenantPolicy(
        budget=Bounds(cost=1.0), prices=TokenPrices(input_uncached=0, input_cached=0, output=0)
    )
    with pytest.raises(PriceError, match="tenants acme"):
        check_budgets({"acme": free}, PriceTable(output=1))


def test_a_tenants_own_prices_stand_for_the_servers() -> None:
    own = TokenPrices(input_uncached=1, input_cached=2, output=3, reasoning=4)
    table = PriceTable(input_uncached=1, input_cached=2, output=3, reasoning=4)
    policy = TenantPolicy(prices=own)
    assert TenantTerms(lambda: policy, PriceTable(output=9)).prices == table
    assert TenantTerms(TenantPolicy, PriceTable(output=9)).prices == PriceTable(output=9)
    priced = TenantTerms(lambda: policy, PriceTable(output=9, residency=5)).prices
    assert priced == replace(table, residency=5), "KV has the server's price"
    check_budgets({"b": TenantPolicy(budget=Bounds(output=1))}, PriceTable())


@pytest.mark.parametrize("number", ["0", "1000000", "0.000000001"])
def test_a_price_at_the_limit_is_taken(tmp_path: Path, number: str) -> None:
    read_price_file(write(tmp_path, GOOD.replace("0.1", number)))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "expected tables"),
        ("models = 5\n", "expected tables"),
        ("[models]\n", "expected tables"),
        (GOOD + "[other]\n", "expected tables"),
        ("[models]\nm = 5\n", "models.m is no table"),
        (GOOD.replace("cached = 0.1\n", ""), "models.m.cached is missing"),
        (GOOD + "cache = 1\n", "models.m.cache is unknown; known: input, cached, output"),
        (GOOD.replace("0.1", "-0.1"), "models.m.cached is not from 0 to 1000000 dollars"),
        (GOOD.replace("0.1", "1000000.1"), "models.m.cached is not from 0 to 1000000 dollars"),
        (GOOD.replace("0.1", "inf"), "models.m.cached is not from 0"),
        (GOOD.replace("0.1", "nan"), "models.m.cached is not from 0"),
        (GOOD.replace("0.1", "true"), "models.m.cached is not a number"),
        (GOOD.replace("0.1", '"1"'), "models.m.cached is not a number"),
        (GOOD.replace("0.1", "0.0000000001"), "models.m.cached is finer than"),
        ("[models.m\n", "cannot be read"),
        (f"x = {'9' * 5_000}\n", "cannot be read"),
        (f"x = {'[' * 5_000}\n", "cannot be read"),
    ],
)
def test_a_bad_entry_is_named(tmp_path: Path, text: str, reason: str) -> None:
    assert reason in refusal(tmp_path, text)


def test_a_file_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(PriceError, match=r"none\.toml cannot be read"):
        read_price_file(tmp_path / "none.toml")
