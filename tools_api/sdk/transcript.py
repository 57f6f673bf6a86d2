"""A transcript as the server keeps it, read item by item over HTTP.

Knows the two resources that hold it (``GET /v1/responses/{id}`` and its ``input_items``), and
nothing of sockets that stay open.

Always true: a page is fetched when its first item is asked for, so that a long transcript costs
what is read of it.
"""

from collections.abc import AsyncGenerator, Mapping
from typing import Any
from urllib.parse import quote, urlencode

import orjson

from tools_api.items import Item, parse_items
from tools_api.sdk.failures import ConnectionLost, Refused
from tools_api.sdk.threads import in_thread

PAGE = 100
"""Items of a page, as many as the server gives at once."""


async def items_of(
    url: str, headers: Mapping[str, str], response_id: str, timeout_s: float, query: str = ""
) -> AsyncGenerator[Item, None]:
    """All that the model had read and said when the response ended, oldest first.

    Args:
        url: of the responses, ``http://HOST:PORT/v1/responses``.
        timeout_s: of one page.
        query: what every address has behind its question mark.

    Raises:
        Refused: the server does not have the response, or the key may not read it.
        ConnectionLost: it could not be reached, or broke off.
    """
    place, fixed = f"{url}/{quote(response_id, safe='')}", f"&{query}" if query else ""

    async def got(address: str) -> dict[str, Any]:
        found: dict[str, Any] = await in_thread(lambda: _get(address, headers, timeout_s))
        return found

    after: dict[str, str] = {}
    while True:
        asked = urlencode({"order": "asc", "limit": PAGE, **after})
        page = await got(f"{place}/input_items?{asked}{fixed}")
        for item in parse_items(page["data"]):
            yield item
        if not page["has_more"]:
            break
        after = {"after": page["last_id"]}
    for item in parse_items((await got(f"{place}?{query}" if query else place))["output"]):
        yield item


def _get(address: str, headers: Mapping[str, str], timeout_s: float) -> dict[str, Any]:
    # Here, since they cost as much as all of a client that reads no transcript.
    from http.client import HTTPException
    from urllib.error import HTTPError
    from urllib.request import Request, urlopen

    try:
        with urlopen(Request(address, headers=dict(headers)), timeout=timeout_s) as answer:
            body = answer.read()
    except HTTPError as error:
        raise _refusal(address, error.code, error.read()) from error
    except (OSError, HTTPException) as error:
        raise ConnectionLost(f"cannot read {address}: {error}", started=False) from error
    found: dict[str, Any] = orjson.loads(body)
    return found


def _refusal(address: str, status: int, body: bytes) -> Refused:
    try:
        told = orjson.loads(body)["error"]
        message, code = str(told["message"]), told.get("code")
    except (orjson.JSONDecodeError, LookupError, TypeError, AttributeError):
        message, code = f"{address} answered with HTTP {status}", None
    kind = "server_error" if status >= 500 else "invalid_request_error"
    return Refused(message, code=code, status=status, type=kind)
