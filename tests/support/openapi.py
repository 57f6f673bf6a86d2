"""Whether a request and its answer are as ``/openapi.json`` says."""

import json
import re
from collections import Counter
from functools import cache
from typing import Any

import httpx
import orjson
from jsonschema import Draft202012Validator

from sessions.http.front_door import Route
from sessions.http.openapi import components, document


class Contract:
    """A server's document, asked about what went over the wire."""

    def __init__(self, document_: dict[str, Any]) -> None:
        self.document = document_
        self.fitted: Counter[tuple[str, str]] = Counter()
        """Methods and paths, as the document has them, of what was answered as asked and fitted."""

    @classmethod
    def of(cls, routes: list[Route]) -> "Contract":
        """Of a server's route table."""
        return cls(document(routes))

    @classmethod
    def of_server(cls, base_url: str) -> "Contract":
        """As a server tells it."""
        return cls(httpx.get(f"{base_url.removesuffix('/v1')}/openapi.json", timeout=20).json())

    async def look_later(self, response: httpx.Response) -> None:
        """A hook of httpx: raise AssertionError where it, or its request, is not so."""
        self._look(response, None if _is_stream(response) else await response.aread())

    def look(self, response: httpx.Response) -> None:
        """The same of a synchronous client."""
        self._look(response, None if _is_stream(response) else response.read())

    def _look(self, response: httpx.Response, answer: bytes | None) -> None:
        assert "x-request-id" in response.headers, response.request.url
        self.check(
            response.request.method,
            response.request.url.raw_path.decode(),
            response.request.content,
            response.status_code,
            dict(response.headers),
            answer,
        )

    def check(
        self,
        method: str,
        path: str,
        body: bytes,
        status: int,
        headers: dict[str, str],
        answer: bytes | None,
    ) -> None:
        """Raise AssertionError: they are not. ``answer`` None: it was streamed."""
        shown = self._shown(path.partition("?")[0])
        operation = self.document["paths"].get(shown, {}).get(method.lower())
        if operation is None:
            return
        known = operation["responses"]
        if "*/*" in known.get("200", {}).get("content", {}):
            return  # no part of the API: a page, or a route that a test has made up
        told = known.get(str(status)) or known["default"]
        assert (status < 400) == (str(status) in known), (method, path, status)
        kind = headers.get("content-type", "")
        content = told.get("content", {})
        if method != "HEAD" and status not in (101, 204):
            fits = [each for each in content if each == "*/*" or kind.startswith(each)]
            assert fits, (method, path, status, kind)
            schema = content[fits[0]].get("schema")
            if answer is not None and schema is not None:
                assert_fits(schema, json.loads(answer), f"answer of {method} {path}")
        asked = operation.get("requestBody")
        if asked is not None and status < 400 and body:
            schema = asked["content"]["application/json"]["schema"]
            assert_fits(schema, json.loads(body), f"body of {method} {path}")
        if status < 400:
            self.fitted[method, shown] += 1

    def _shown(self, path: str) -> str:
        """The path as the document has it; as it is where there is none."""
        for known in sorted(self.document["paths"], key=lambda each: "{" in each):
            pattern = re.sub(r"\\{id(_\d+)?\\}", "[^/]+", re.escape(known))
            if re.fullmatch(re.sub(r"\\{name\\}", ".+", pattern), path):
                return str(known)
        return path


def _is_stream(response: httpx.Response) -> bool:
    return response.headers.get("content-type") == "text/event-stream"


def assert_fits(schema: dict[str, Any], value: Any, what: str) -> None:
    """Raise AssertionError: the value is not as the schema says."""
    faults = [
        f"{'.'.join(map(str, fault.absolute_path))}: {fault.message[:300]}"
        for fault in _validator(orjson.dumps(schema)).iter_errors(value)
    ]
    assert not faults, f"{what}: {faults[:3]}"


@cache
def _validator(schema: bytes) -> Draft202012Validator:
    whole = {"components": {"schemas": components()}}
    return Draft202012Validator(orjson.loads(schema) | whole)
