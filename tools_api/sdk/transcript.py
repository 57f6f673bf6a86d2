"""A transcript as the server keeps it, read item by item over HTTP.

Knows the two resources that hold it (``GET /v1/responses/{id}`` and its ``input_items``), and
nothing of sockets that stay open.

Always true: a page is fetched when its first item is asked for, so that a long transcript costs
what is read of it.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any
from urllib.parse import quote, urlencode

from tools_api.item_reading import parse_items
from tools_api.items import Item

PAGE = 100
"""Items of a page, as many as the server gives at once."""
Ask = Callable[[str], Awaitable[dict[str, Any]]]
"""Reads what is at a path below ``/v1``, its query with it."""


async def items_of(ask: Ask, response_id: str) -> AsyncGenerator[Item, None]:
    """All that the model had read and said when the response ended, oldest first.

    Raises:
        Refused: the server does not have the response, or the key may not read it.
        ConnectionLost: it could not be reached, or broke off.
    """
    place = f"/responses/{quote(response_id, safe='')}"
    after: dict[str, str] = {}
    while True:
        asked = urlencode({"order": "asc", "limit": PAGE, **after})
        page = await ask(f"{place}/input_items?{asked}")
        for item in parse_items(page["data"]):
            yield item
        if not page["has_more"]:
            break
        after = {"after": page["last_id"]}
    for item in parse_items((await ask(place))["output"]):
        yield item
