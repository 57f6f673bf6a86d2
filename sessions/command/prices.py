"""The price file: what tokens of each model cost, in TOML.

    [models.default]
    input = 0.20
    cached = 0.02
    output = 1.00
    residency = 5.00

``residency`` is of a million block-seconds of KV on the device, the others of a million tokens.
Numbers are read as decimals, so that a price is exactly what stands there; whole nano-dollars per
million are the smallest there is.

Always true: a file is taken whole or not at all, and a message names the file and the entry.
"""

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

from runtime.folder_files import UnfitFile, read_named
from sessions.command.settings import OptionError
from sessions.durable.budgets import TenantTerms
from sessions.durable.ledger import PriceTable
from sessions.tenants import TenantPolicy

MAX_DOLLARS = 1_000_000
_NANO = 1_000_000_000
_MOST_BYTES = 4 << 20
_FIELDS = {
    "input": "input_uncached",
    "cached": "input_cached",
    "output": "output",
    "reasoning": "reasoning",
    "residency": "residency",
}
_NEEDED = ("input", "cached", "output")


class PriceError(OptionError):
    """Prices cannot be used; the message is one line for the person who wrote them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceFile:
    """The content of a price file."""

    path: Path
    tables: Mapping[str, PriceTable]
    """Tables of prices, by the name of the model."""

    def of(self, names: Iterable[str]) -> PriceTable:
        """The prices of the model that has these names: of the first that the file has, or else
        of ``default``.

        Raises:
            PriceError: it has none of them.
        """
        names = tuple(dict.fromkeys(names))
        for name in (*names, "default"):
            if name in self.tables:
                return self.tables[name]
        there = ", ".join(sorted(self.tables)) or "none"
        raise PriceError(
            f"{self.path} has no prices of the model {' or '.join(names)}; it has those of {there}"
        )

    def with_adapters(self, prices: PriceTable, names: Iterable[str]) -> PriceTable:
        """The model's prices with those of its adapters that the file has by name.

        Raises:
            PriceError: an adapter has a price of KV, which is the model's.
        """
        own: dict[str | None, PriceTable] = {
            name: self.tables[name] for name in names if name in self.tables
        }
        for name, table in own.items():
            if table.residency not in (0, prices.residency):
                raise PriceError(
                    f"{self.path}: models.{name}.residency: KV has the model's price under every "
                    "adapter: leave it out"
                )
        return replace(prices, adapters=own)


def read_price_file(path: Path) -> PriceFile:
    """Read a price file.

    Raises:
        PriceError: it cannot be read, or an entry is missing, unknown or no price.
    """
    try:
        text = read_named(path, _MOST_BYTES).decode()
        document = tomllib.loads(text, parse_float=Decimal)
    except FileNotFoundError as error:
        raise PriceError(f"{path} cannot be read: {error.strerror}") from error
    except UnfitFile as error:
        raise PriceError(f"{path} cannot be read: {error.reason}") from error
    except UnicodeDecodeError:
        raise PriceError(f"{path} cannot be read: not UTF-8") from None
    except (ValueError, RecursionError) as error:
        raise PriceError(f"{path} cannot be read: not TOML: {error}") from None
    try:
        return PriceFile(path=path, tables=_tables(document))
    except PriceError as error:
        raise PriceError(f"{path}: {error}") from None


def check_budgets(policies: Mapping[str, TenantPolicy], prices: PriceTable) -> None:
    """Refuse a budget of money where nothing costs any: a tenant's, of whatever time, or a key's.

    Raises:
        PriceError: some tenant or key has one.
    """
    for tenant, policy in policies.items():
        terms = TenantTerms(partial(policies.__getitem__, tenant), prices)
        if not terms.prices.free:
            continue
        places = {f"tenants {tenant}": (policy.budget, *(each.bounds for each in policy.periods))}
        for name, own in policy.keys.items():
            places[f"key {name}"] = tuple(each.bounds for each in own)
        for place, budgets in places.items():
            if any(bounds.cost is not None for bounds in budgets):
                raise PriceError(
                    f"{place}: a budget of money needs prices; set --prices or --price, or "
                    "the tenant's own"
                )


def nano_per_million(number: object) -> int:
    """A price in dollars per million as whole nano-dollars.

    Raises:
        PriceError: it is no number from 0 to 1,000,000, or finer than a nano-dollar.
    """
    if not isinstance(number, int | Decimal) or isinstance(number, bool):
        raise PriceError("not a number of dollars")
    exact = Decimal(number)
    if not exact.is_finite() or not 0 <= exact <= MAX_DOLLARS:
        raise PriceError(f"not from 0 to {MAX_DOLLARS} dollars")
    nano = exact * _NANO
    if nano != int(nano):
        raise PriceError("finer than a billionth of a dollar per million")
    return int(nano)


def _tables(document: dict[str, Any]) -> dict[str, PriceTable]:
    models = document.get("models")
    if set(document) != {"models"} or not isinstance(models, dict) or not models:
        raise PriceError("expected tables [models.NAME] and nothing else")
    return {name: _table(name, entry) for name, entry in models.items()}


def _table(name: str, entry: object) -> PriceTable:
    if not isinstance(entry, dict):
        raise PriceError(f"models.{name} is no table")
    for field in entry:
        if field not in _FIELDS:
            raise PriceError(f"models.{name}.{field} is unknown; known: {', '.join(_FIELDS)}")
    for field in _NEEDED:
        if field not in entry:
            raise PriceError(f"models.{name}.{field} is missing")
    prices = dict[str, Any]()
    for field, number in entry.items():
        try:
            prices[_FIELDS[field]] = nano_per_million(number)
        except PriceError as error:
            raise PriceError(f"models.{name}.{field} is {error}") from None
    return PriceTable(**prices)
