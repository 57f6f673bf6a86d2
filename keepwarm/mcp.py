"""Tools of MCP servers, for sessions: programs on stdin and stdout, or streamable HTTP.

``with McpServer.stdio("uvx", "mcp-server-time") as server`` gives ``server.tools``, to be put
among a session's tools like functions of one's own; ``async with`` does the same. The protocol
is the official client's (extra ``mcp``); it runs in a thread of its own, so that both halves of
the SDK can use it.

Always true: a server that dies fails the calls that it has, each with a message that names it,
and is started again, once, by the next call.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pydantic

from tools_api.exact_json import dumps, whole_pairs
from tools_api.sdk.portal import Portal
from tools_api.sdk.tools import Conduct, Tool
from tools_api.tools import FunctionTool

try:
    import httpx2
    from mcp import Client, MCPError, StdioServerParameters
    from mcp.client.streamable_http import streamable_http_client
    from mcp.types import CallToolResult, ContentBlock, TextContent
    from mcp.types import Tool as ListedTool
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        f"MCP servers need a further package (no {missing.name}): pip install 'keepwarm[mcp]'",
        name=missing.name,
    ) from missing

_LOG = logging.getLogger("keepwarm.mcp")
DEFAULT_TIMEOUT_S = 60.0
_ANY: pydantic.TypeAdapter[Any] = pydantic.TypeAdapter(Any)
_CONNECTION_CLOSED = -32000
"""The code with which the client reports that a server went away."""


class McpServerGone(Exception):
    """The server could not be started or reached, or ended while it had the call."""


class McpToolError(Exception):
    """A tool of the server reported an error; the text is its own."""


@dataclass(slots=True, kw_only=True)
class _Life:
    """A server from its start to its end."""

    opened: "asyncio.Future[Client]"
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    task: "asyncio.Task[None] | None" = None

    @property
    def over(self) -> bool:
        return self.stop.is_set() or self.task is None or self.task.done()


class McpServer:
    """A server's tools for as long as its ``with`` block lasts."""

    def __init__(
        self,
        connect: Callable[[], AbstractAsyncContextManager[Client]],
        name: str,
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        open_timeout_s: float = 30.0,
    ) -> None:
        """``connect`` opens it, as often as it has to be started; ``stdio`` and ``http`` make it.

        Args:
            name: for messages.
            timeout_s: longest run of one call.
            open_timeout_s: longest wait for the server to come up.
        """
        self._connect = connect
        self._name = name
        self._timeout_s = timeout_s
        self._open_timeout_s = open_timeout_s
        self._portal = Portal()
        self._life: _Life | None = None
        self._tools: list[Tool] | None = None

    @classmethod
    def stdio(
        cls,
        command: str,
        *arguments: str,
        environment: Mapping[str, str] | None = None,
        folder: Path | str | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> Self:
        """A program that is started and spoken to on its stdin and stdout.

        Args:
            environment: variables beside the few that the client passes on.
            folder: in which it runs.
        """
        program = StdioServerParameters(
            command=command,
            args=list(arguments),
            env=None if environment is None else dict(environment),
            cwd=folder,
        )
        return cls(lambda: Client(program), command, timeout_s=timeout_s)

    @classmethod
    def http(
        cls,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> Self:
        """A server that runs already, at its address (mostly ``http://HOST:PORT/mcp``).

        Args:
            headers: sent with every request, for a key.
        """

        @asynccontextmanager
        async def connect() -> AsyncIterator[Client]:
            async with (
                httpx2.AsyncClient(headers=dict(headers or {}), timeout=timeout_s) as http,
                Client(streamable_http_client(url, http_client=http)) as client,
            ):
                yield client

        return cls(connect, url, timeout_s=timeout_s)

    @property
    def tools(self) -> list[Tool]:
        """The server's tools, as the session's ``tools`` take them.

        Raises:
            RuntimeError: outside the ``with`` block.
        """
        if self._tools is None:
            raise RuntimeError(f"the MCP server {self._name} is not open: use it in a with block")
        return list(self._tools)

    def __enter__(self) -> Self:
        self._portal.call(self._open())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._portal.call(self._close())
        self._portal.close()

    async def __aenter__(self) -> Self:
        await self._portal.result(self._open())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._portal.result(self._close())
        await asyncio.to_thread(self._portal.close)

    async def _open(self) -> None:
        client = await self._client()
        try:
            self._tools = [self._tool(listed) for listed in await _listed(client)]
        except BaseException:
            await self._close()
            raise

    async def _close(self) -> None:
        life, self._life, self._tools = self._life, None, None
        if life is not None and life.task is not None:
            life.stop.set()
            with suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(life.task), self._open_timeout_s)

    async def _client(self) -> Client:
        """The client of a server that lives; one that does not is started anew."""
        if self._life is None or self._life.over:
            if self._life is not None:
                _LOG.info("server started again name=%s", self._name)
            self._life = _Life(opened=asyncio.get_running_loop().create_future())
            self._life.task = asyncio.create_task(self._live(self._life))
        try:
            return await asyncio.wait_for(asyncio.shield(self._life.opened), self._open_timeout_s)
        except TimeoutError:
            self._life.stop.set()
            raise McpServerGone(
                f"the MCP server {self._name} did not answer within {self._open_timeout_s:g} s"
            ) from None

    async def _live(self, life: _Life) -> None:
        """Hold the server open. What it was opened with has to be closed by the same task."""
        try:
            async with self._connect() as client:
                life.opened.set_result(client)
                await life.stop.wait()
        except Exception as error:
            _LOG.info("server lost name=%s reason=%s", self._name, _first(error))
            if not life.opened.done():
                gone = McpServerGone(f"the MCP server {self._name} cannot be used: {_first(error)}")
                life.opened.set_exception(gone)

    def _tool(self, listed: ListedTool) -> Tool:
        hints = listed.annotations
        definition = FunctionTool(
            name=listed.name,
            description=listed.description,
            parameters=listed.input_schema,
            strict=False,
        )
        conduct = Conduct(
            read_only=bool(hints and hints.read_only_hint),
            idempotent=bool(hints and hints.idempotent_hint),
            timeout_s=self._timeout_s,
        )

        async def call(**arguments: Any) -> str:
            return await self._portal.result(self._call(listed.name, arguments))

        return Tool(call, definition, _arguments, conduct)

    async def _call(self, name: str, arguments: dict[str, Any]) -> str:
        client = await self._client()
        life = self._life
        try:
            result = await client.call_tool(name, arguments)
        except MCPError as error:
            if error.code != _CONNECTION_CLOSED:
                raise McpToolError(f"{error.message} (code {error.code})") from error
            raise self._gone(life, name) from error
        except (httpx2.HTTPError, OSError) as error:
            raise self._gone(life, name) from error
        text = _text(result)
        if result.is_error:
            raise McpToolError(text)
        return text

    def _gone(self, life: _Life | None, tool: str) -> McpServerGone:
        if life is not None:
            life.stop.set()
        _LOG.info("server ended in a call name=%s tool=%s", self._name, tool)
        return McpServerGone(f"the MCP server {self._name} ended while it had a call of {tool}")


async def _listed(client: Client) -> list[ListedTool]:
    """The tools of a server, read page by page."""
    page = await client.list_tools()
    found = list(page.tools)
    while page.next_cursor:
        page = await client.list_tools(cursor=page.next_cursor)
        found += page.tools
    return found


def _arguments(text: str) -> dict[str, Any]:
    """The server checks them itself; here they only have to be an object."""
    arguments = _ANY.validate_json(whole_pairs(text.encode()))
    if not isinstance(arguments, dict):
        raise ValueError("the arguments are not an object")
    return arguments


def _text(result: CallToolResult) -> str:
    """The text that a model reads of a result: its texts, or its structured content where it has
    none."""
    texts = [_block(block) for block in result.content]
    if not texts and result.structured_content is not None:
        return dumps(result.structured_content).decode()
    return "\n".join(texts)


def _block(block: ContentBlock) -> str:
    if isinstance(block, TextContent):
        return block.text
    return f"[{block.type}: not shown, this model reads text alone]"


def _first(error: BaseException) -> str:
    """The first cause in words; task groups wrap it."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"
