"""The agent's three tools: a price list in a SQLite file, a calculator, a clock.

The schemas list the products and cities that exist and bound the numbers, so that even a
model that guesses makes calls that can be answered.
"""

import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from keepwarm import Tool, tool

PRICES = {"lamp": 24, "desk": 180, "chair": 75, "shelf": 96, "carpet": 130, "mirror": 58}
HOURS_AHEAD_OF_UTC = {"Oslo": 1, "London": 0, "Tokyo": 9, "Denver": -7}
"""Hours that each city is ahead of UTC in standard time."""

Product = Literal["lamp", "desk", "chair", "shelf", "carpet", "mirror"]
City = Literal["Oslo", "London", "Tokyo", "Denver"]
Number = Annotated[int, Field(ge=0, le=9999)]


def make_shop(path: Path) -> None:
    """Write the price list to a new SQLite file."""
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("CREATE TABLE products (name TEXT PRIMARY KEY, price INTEGER NOT NULL)")
        database.executemany("INSERT INTO products VALUES (?, ?)", PRICES.items())


def shop_tools(path: Path) -> list[Tool]:
    """The tools, over the price list at ``path``."""

    @tool
    def get_price(product: Product) -> dict[str, int]:
        """Get the price of a product."""
        with closing(sqlite3.connect(path)) as database:
            (price,) = database.execute(
                "SELECT price FROM products WHERE name = ?", [product]
            ).fetchone()
        return {"price": price}

    @tool
    def multiply(a: Number, b: Number) -> dict[str, int]:
        """Multiply two numbers."""
        return {"result": a * b}

    @tool
    def get_time(city: City) -> dict[str, str]:
        """Get the time of a city."""
        local = datetime.now(UTC) + timedelta(hours=HOURS_AHEAD_OF_UTC[city])
        return {"time": f"{local:%H:%M}"}

    return [get_price, multiply, get_time]
