"""An exchange that keeps what it was given, with nobody behind it."""

from http import HTTPStatus
from typing import Any

import orjson
from websockets.datastructures import Headers

from sessions.http.exchange import Call
from sessions.http.message import HttpRequest, HttpResponse
from sessions.tenants import Principal


class KeptExchange:
    """``unsent`` is what the client has not read; it reads nothing by itself."""

    def __init__(self) -> None:
        self.answered: HttpResponse | None = None
        self.content_type: str | None = None
        self.writes: list[bytes] = []
        self.over = self.was_cut = False
        self.reads = True
        self._unsent = 0

    @property
    def unsent_bytes(self) -> int:
        return self._unsent

    def answer(self, response: HttpResponse) -> None:
        assert not self.over
        assert self.content_type is None, "an answer had begun"
        self.answered, self.over = response, True

    def begin(self, content_type: str) -> None:
        assert not self.over
        assert self.content_type is None, "it begins twice"
        self.content_type = content_type

    def write(self, piece: bytes) -> None:
        assert not self.over
        assert self.content_type is not None
        assert piece, "an empty piece"
        self.writes.append(piece)
        self._unsent += 0 if self.reads else len(piece)

    def finish(self, piece: bytes = b"") -> None:
        assert not self.over
        assert self.content_type is not None
        if piece:
            self.writes.append(piece)
        self.over = True

    def body_read(self) -> None:
        pass

    def cut(self) -> None:
        self.over = self.was_cut = True

    @property
    def status(self) -> int:
        assert self.answered is not None
        return HTTPStatus(self.answered.status).value

    @property
    def body(self) -> Any:
        assert self.answered is not None
        return orjson.loads(self.answered.body)


def make_call(
    argument: str = "",
    *,
    target: str = "/",
    method: str = "GET",
    body: bytes = b"",
    tenant: str = "acme",
    **headers: str,
) -> Call:
    """A request that has been let in; underscores in header names stand for hyphens."""
    given = Headers({name.replace("_", "-"): value for name, value in headers.items()})
    return Call(
        principal=Principal(tenant=tenant),
        request=HttpRequest(method=method, target=target, headers=given),
        argument=argument,
        body=body,
    )
