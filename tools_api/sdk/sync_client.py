"""The synchronous client: the asynchronous one with its event loop in a thread.

A module of its own, so that importing ``AsyncClient`` loads neither it nor the synchronous
session. Methods and errors are those of ``tools_api.sdk.client``.

Always true: any number of threads may use one client at once.
"""

from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self, Unpack

from tools_api.sdk.backoff import Retries
from tools_api.sdk.client import DEFAULT_RETRIES, AsyncClient
from tools_api.sdk.hooks import Hooks
from tools_api.sdk.options import Budget, TurnOptions
from tools_api.sdk.portal import Portal
from tools_api.sdk.sockets import SocketsFor
from tools_api.sdk.sync_session import Session
from tools_api.sdk.tool_runner import DEFAULT_MAX_PARALLEL_TOOLS
from tools_api.sdk.tools import Approve
from tools_api.sdk.transport import Transport


class Client:
    """Synchronous client: one socket for all threads, up to ``NUM_LANES`` turns at once."""

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
        """Opens nothing yet; the first turn does. Arguments as for ``AsyncClient``."""
        self._inner = AsyncClient(
            base_url,
            api_key=api_key,
            open_timeout_s=open_timeout_s,
            event_timeout_s=event_timeout_s,
            retries=retries,
            sockets=sockets,
            transport=transport,
        )
        self._portal = Portal(self._inner.close)

    def __repr__(self) -> str:
        return "<" + repr(self._inner).removeprefix("<Async")

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
    ) -> Session:
        """A new session, or one that continues what the server holds. Nothing is sent yet.
        Arguments and errors as for ``AsyncClient.session``."""
        inner = self._inner.session(
            name=name,
            budget=budget,
            labels=labels,
            head=head,
            context=context,
            approve=approve,
            max_parallel_tools=max_parallel_tools,
            hooks=hooks,
            **defaults,
        )
        return Session(self._portal, inner)

    def close(self) -> None:
        """Close the socket, behind the cancels of turns that were left. Whoever uses the client
        again opens a new one, and so does a turn that another thread still plays."""
        self._portal.call(self._inner.close())
        self._portal.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
