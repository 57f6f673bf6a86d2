"""The live page's endpoints: its stream of events, and the items of a response.

Same origin and same keys as everything else. Streams are bounded in number, for all and for each
tenant, so that pages left open take nothing from agents; each is looked at once a second by the
connection it lives on, and made anew in its tenant's turn. Items are shown to keys of their own
tenant only.
"""

from collections import Counter
from collections.abc import Callable
from functools import partial
from http import HTTPStatus

from sessions.durable.store import Store
from sessions.http.exchange import Call
from sessions.http.message import HttpResponse, http_error, json_response
from sessions.pages.event_stream import CONTENT_TYPE, EventStream, Parts
from sessions.pages.past import LEVELS
from sessions.pages.session_list import read_query
from sessions.pages.views import Views, Wish
from sessions.tenants import Principal
from tools_api import errors
from tools_api.limits import Limits

VIEWS = ("sessions", "session", "curves", "cache", "tenants")


class LivePages:
    """Handlers of ``/dashboard/events`` and ``/dashboard/items/{id}``."""

    def __init__(
        self,
        *,
        views: Views,
        store: Store,
        limits: Limits,
        clock: Callable[[], float],
        turns: Callable[[str, Callable[[], None]], None],
        ending: Callable[[], bool],
    ) -> None:
        """
        Args:
            turns: makes a tenant's call when it is its turn.
            ending: the server takes its leave, and streams with it.
        """
        self._views = views
        self._store = store
        self._limits = limits
        self._clock = clock
        self._turns = turns
        self._ending = ending
        self._open: Counter[str] = Counter()

    @property
    def num_streams(self) -> int:
        """Number of pages that are open."""
        return self._open.total()

    async def events(self, call: Call) -> HttpResponse | None:
        """``GET /dashboard/events``: a view that stays true.

        Raises:
            ApiError: a parameter makes no sense, or too many pages are open.
        """
        principal, wish = call.principal, _wish(call)
        self._check_room(principal)
        if call.request.method == "HEAD":  # a page whose stream has failed asks why
            return HttpResponse(status=HTTPStatus.OK, content_type=CONTENT_TYPE, body=b"")
        self._open[principal.tenant] += 1
        try:
            stream = EventStream(
                call.exchange,
                parts=partial(self._parts, principal, wish),
                in_turn=partial(self._turns, principal.tenant),
                now=self._clock(),
            )
            call.exchange.look_at_clock(stream.tick)
            await stream.ended()
        finally:
            self._ended(principal.tenant)
        return None

    def items(self, call: Call) -> HttpResponse:
        """``GET /dashboard/items/{id}``: what was said in one turn.

        Raises:
            ApiError: the tenant has no such response, or it was not stored.
        """
        stored = self._store.tenant(call.principal.tenant).responses.get(call.argument)
        if stored is None:
            raise errors.no_such_response(call.argument)
        entry = stored.entry
        return json_response(
            {
                "response": stored.id,
                "instructions": entry.header.instructions,
                "tools": [tool.name for tool in entry.header.tools],
                "input": [item.to_wire() for item in entry.input_items],
                "output": [item.to_wire() for item in entry.output_items],
            }
        )

    def _parts(self, principal: Principal, wish: Wish) -> Parts | None:
        return None if self._ending() else self._views.parts(principal, wish)

    def _check_room(self, principal: Principal) -> None:
        most, most_own = self._limits.max_pages, self._limits.max_pages_per_tenant
        if self.num_streams >= most or self._open[principal.tenant] >= most_own:
            raise http_error(
                HTTPStatus.TOO_MANY_REQUESTS,
                f"Too many pages are open: at most {most_own} for a tenant and {most} in all.",
            )

    def _ended(self, tenant: str) -> None:
        self._open[tenant] -= 1
        if not self._open[tenant]:
            del self._open[tenant]


def _wish(call: Call) -> Wish:
    request = call.request
    view = request.query("view") or VIEWS[0]
    if view not in VIEWS:
        raise errors.invalid_value("view", f"not one of {', '.join(VIEWS)}")
    level = request.query("level") or "hour"
    if level not in LEVELS:
        raise errors.invalid_value("level", f"not one of {', '.join(LEVELS)}")
    if view == "tenants" and not call.principal.operator:
        raise http_error(HTTPStatus.FORBIDDEN, "This view needs an operator's key.")
    if view == "sessions":
        return Wish(view=view, query=read_query(request))
    if view == "session":
        tenant, name = request.query("tenant") or "", request.query("name") or ""
        return Wish(view=view, tenant=tenant, session=name)
    return Wish(view=view, level=level)
