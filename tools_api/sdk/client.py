"""Python client: an agent's sessions over one WebSocket, with only what is new on the wire.

A session is a chain of responses. It sends the id of its last response and the new items;
the server holds the rest. Both clients run many turns at once, each in a lane of the same
socket: ``AsyncClient`` in the caller's event loop, ``Client`` (``sync_client``) in a thread of
its own. What a session can do stands in ``tools_api.sdk.session``.

Always true: after any exception a session stands where its last whole turn left it, and may be
used again: a broken socket is reopened, and a server that no longer knows the chain is sent the
whole history once. A turn that is left before its end is cancelled on the server.
"""

from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self, Unpack

from tools_api.sdk.backoff import Retries
from tools_api.sdk.connection import Connection, Endpoint
from tools_api.sdk.environment import KEY_VARIABLE, key_of, server_of, warn_of_strays
from tools_api.sdk.hooks import Hooks
from tools_api.sdk.new_session import equipped, new_session
from tools_api.sdk.options import Budget, TurnOptions
from tools_api.sdk.session import AsyncSession
from tools_api.sdk.sockets import Sockets, SocketsFor
from tools_api.sdk.tool_runner import DEFAULT_MAX_PARALLEL_TOOLS
from tools_api.sdk.tools import Approve
from tools_api.sdk.transport import Transport

DEFAULT_URL = "http://127.0.0.1:8080/v1"
"""Where ``keepwarm serve`` listens when nothing else is said."""
DEFAULT_RETRIES = Retries()


class AsyncClient:
    """Asynchronous client: one socket, up to ``NUM_LANES`` turns at once, or one a session."""

    def __init__(
        self,
        base_url: str | None = None,
        *,
        api_key: str | None = None,
        open_timeout_s: float = 5.0,
        event_timeout_s: float = 600.0,
        retries: Retries = DEFAULT_RETRIES,
        sockets: SocketsFor = "client",
        transport: Transport | None = None,
    ) -> None:
        """Opens nothing yet; the first turn does.

        Args:
            base_url: as stock clients take it, ``http://HOST:PORT/v1``, and it may have a query,
                which goes with every request; None: what the variable
                ``KEEPWARM_URL`` says, else where ``keepwarm serve`` listens by itself.
            api_key: None: what the variable ``KEEPWARM_API_KEY`` says, if anything; "" is no key.
            open_timeout_s: longest wait for the socket to open.
            event_timeout_s: longest silence inside a turn before it counts as lost.
            retries: how often a turn is sent again whose server was lost or overloaded.
            sockets: ``session``, before several servers: each root session has a socket of its own,
                which names it in ``?session=``, so that a balancer finds its home.
            transport: in place of the network, as ``keepwarm.testing`` has one.
        """
        warn_of_strays()
        address, label = server_of(base_url, default=DEFAULT_URL)
        endpoint = Endpoint(
            address,
            label=label,
            api_key=key_of(api_key),
            key_label=KEY_VARIABLE if api_key is None else "api_key",
            open_timeout_s=open_timeout_s,
            event_timeout_s=event_timeout_s,
        )
        self._sockets = Sockets(Connection(endpoint, retries, transport=transport), sockets)
        self._address = endpoint.http_url("")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._address}>"

    def session(
        self,
        *,
        name: str | None = None,
        budget: Budget | None = None,
        labels: Mapping[str, str] | None = None,
        head: str | None = None,
        context: Any = None,
        approve: Approve | None = None,
        max_parallel_tools: int = DEFAULT_MAX_PARALLEL_TOOLS,
        hooks: Hooks | None = None,
        **defaults: Unpack[TurnOptions],
    ) -> AsyncSession:
        """A new session, or one that continues what the server holds. Nothing is sent yet.

        Args:
            name: under which the server keeps the session: it is made at first use and
                continued later, by any process.
            budget: bounds over the whole session, for example ``{"output": 5000}``.
            labels: by which the session is found and its usage is summed up, up to 8, for
                example ``{"team": "search"}``; a name of the session keeps them.
            head: id of a response to continue. Its history is not known here, so it cannot be
                sent again if the server has lost it.
            context: what tools get that have a parameter of type ``ToolContext``.
            approve: asked before a call of a tool that needs approval.
            max_parallel_tools: calls that run at once.
            hooks: what is asked around turns and tools.
            defaults: options of every turn, ``instructions`` and ``tools`` first of all.

        Raises:
            TypeError, ValueError: an option does not exist, or the tools want what is not there.
        """
        return new_session(
            self._sockets.of(name),
            name=name,
            budget=budget,
            labels=labels,
            head=head,
            equipment=equipped(context, approve, max_parallel_tools, hooks),
            defaults=defaults,
        )

    async def close(self) -> None:
        """Close the socket, behind the cancels of turns that were left. Whoever uses the client
        again opens a new one, and so does a turn that another task still plays."""
        await self._sockets.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()
