"""Answers to browsers about pages of other origins: CORS, as the Fetch standard has it.

A page whose origin is allowed may send what a route takes and read what it answers; about any
other origin nothing is said, and the browser keeps the answer from the page. Which origins are
allowed is the front door's decision.

Always true: credentials of the browser (cookies, passwords it remembers) are never asked for. A
page that has a key sends it itself.
"""

import re
from collections.abc import Iterable
from http import HTTPStatus

from sessions.http.message import ANTHROPIC_REQUEST_ID, REQUEST_ID, HttpRequest, HttpResponse

MAX_AGE_S = 600
"""How long a browser may remember the answer to a preflight."""
_NAMES = re.compile(r"[\w-]+(?:[ \t]*,[ \t]*[\w-]+)*", re.ASCII)


def is_preflight(request: HttpRequest) -> bool:
    """A browser asks whether a page may send a request."""
    return request.method == "OPTIONS" and "Access-Control-Request-Method" in request.headers


def preflight(request: HttpRequest, methods: Iterable[str]) -> HttpResponse:
    """The answer for a page of an allowed origin, at a route that takes ``methods``.

    Any header may be sent: what the clients add to say who they are differs from one to the next,
    and a header that means nothing here does nothing here.
    """
    headers = [
        *readable(request),
        ("Access-Control-Allow-Methods", ", ".join(methods)),
        ("Access-Control-Max-Age", str(MAX_AGE_S)),
    ]
    names = request.header("Access-Control-Request-Headers") or ""
    if _NAMES.fullmatch(names):
        headers.append(("Access-Control-Allow-Headers", names))
    return HttpResponse(
        status=HTTPStatus.NO_CONTENT, content_type="", body=b"", headers=tuple(headers)
    )


def readable(request: HttpRequest) -> tuple[tuple[str, str], ...]:
    """Headers that let a page of the request's origin, which is allowed, read the answer."""
    origin = request.header("Origin")
    if origin is None:
        return ()
    return (
        ("Access-Control-Allow-Origin", origin),
        (
            "Access-Control-Expose-Headers",
            f"Retry-After, {REQUEST_ID}, {ANTHROPIC_REQUEST_ID}",
        ),
        ("Vary", "Origin"),
    )
