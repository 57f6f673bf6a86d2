"""The cache as a picture: asked of the engine while somebody looks, made fit for each viewer.

One request at a time and scope (a tenant, or all for operators), at most one in ``ASK_EVERY_S``
seconds. Branches become the sessions that wrote to them, and the first tokens of a node become
text, for its own tenant's eyes and for published prefixes only.

Always true: a tenant's picture was made by the engine for that tenant alone.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import orjson

from runtime.messages import CachePicture, PictureNode, PictureRequest
from sessions.tenants import Principal

MAX_NODES = 240
ASK_EVERY_S = 2.0
MAX_SCOPES = 64
_TIERS = ("device", "host", "disk")
_CLASSES = ("idle", "leased", "queued", "running")
_NOTHING_YET = b'{"nodes":[],"ready":false}'

SessionOfBranch = Callable[[str], tuple[str, str] | None]


class CachePictures:
    """Only the event loop touches it."""

    def __init__(
        self,
        *,
        session_of_branch: SessionOfBranch,
        text_of: Callable[[Sequence[int]], str],
    ) -> None:
        """
        Args:
            session_of_branch: tenant and name of the session that wrote to a branch.
            text_of: what tokens say.
        """
        self._session_of_branch = session_of_branch
        self._text_of = text_of
        self._asked: dict[str | None, float] = {}
        self._due: list[PictureRequest] = []
        self._pictures: OrderedDict[str | None, CachePicture] = OrderedDict()
        self._made: dict[Principal, tuple[CachePicture, bytes]] = {}

    def part(self, principal: Principal, now: float) -> bytes:
        """The newest picture as JSON; asks for one that is newer."""
        scope = None if principal.operator else principal.tenant
        self._ask(scope, now)
        picture = self._pictures.get(scope)
        if picture is None:
            return _NOTHING_YET
        made = self._made.get(principal)
        if made is None or made[0] is not picture:
            made = (picture, self._json(picture, principal))
            if len(self._made) >= MAX_SCOPES:
                self._made.clear()
            self._made[principal] = made
        return made[1]

    def tenant_blocks(self, now: float) -> dict[str, int] | None:
        """Device blocks by tenant, for operators' eyes; asks for newer ones. None: the engine
        has not answered yet."""
        self._ask(None, now)
        picture = self._pictures.get(None)
        return None if picture is None else picture.tenant_blocks

    def _ask(self, scope: str | None, now: float) -> None:
        if now - self._asked.get(scope, -ASK_EVERY_S) >= ASK_EVERY_S:
            if len(self._asked) >= MAX_SCOPES:
                self._asked.clear()
            self._asked[scope] = now
            self._due.append(PictureRequest(tenant=scope, max_nodes=MAX_NODES))

    def take_requests(self) -> list[PictureRequest]:
        """The requests for the engine, each once."""
        due, self._due = self._due, []
        return due

    def arrived(self, picture: CachePicture) -> None:
        """The engine has answered with a picture of its cache."""
        self._pictures[picture.tenant] = picture
        self._pictures.move_to_end(picture.tenant)
        while len(self._pictures) > MAX_SCOPES:
            self._pictures.popitem(last=False)

    def forget(self) -> None:
        """The engine is gone, and its cache with it."""
        self._pictures.clear()

    def _json(self, picture: CachePicture, principal: Principal) -> bytes:
        nodes = [self._node(node, principal) for node in picture.nodes]
        return orjson.dumps({"ready": True, "nodes": nodes, "num_nodes": picture.num_nodes})

    def _node(self, node: PictureNode, principal: Principal) -> dict[str, Any]:
        readable = node.owner in {"", principal.tenant}
        return {
            "parent": node.parent,
            "owner": node.owner,
            "start": node.start,
            "tokens": node.tokens,
            "tier": _TIERS[min(node.tier, 2)],
            "state": _CLASSES[min(node.klass, 3)],
            "age": node.age,
            "children": node.children,
            "holders": node.holders,
            "sessions": self._sessions(node, principal),
            "lease_s": node.lease_s,
            "text": self._text_of(node.head) if readable else None,
        }

    def _sessions(self, node: PictureNode, principal: Principal) -> list[tuple[str, str]]:
        found = {key for key in map(self._session_of_branch, node.branches) if key is not None}
        return sorted(key for key in found if principal.operator or key[0] == principal.tenant)
