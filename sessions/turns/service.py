"""State that all connections of one server share.

Nothing here changes except inside the store. Clocks and ids are handed in, so that a test
decides both.
"""

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field

from runtime.tokenizer import Tokenizer
from sessions.durable.compaction import KEY_BYTES, Seal
from sessions.durable.renderer import Renderer
from sessions.durable.store import Store
from sessions.durable.tenant import Tenant
from sessions.ground import Ground
from sessions.turns.commits import Commits
from sessions.turns.reading import ReadContext
from tools_api import errors
from tools_api.chat_format import ChatFormat
from tools_api.limits import Limits


def unguessable_id(prefix: str) -> str:
    """An id that is unique, and nobody's to guess."""
    return f"{prefix}_{secrets.token_hex(16)}"


class ServedModel:
    """The one model a server answers with."""

    def __init__(
        self,
        *,
        name: str,
        aliases: frozenset[str],
        tokenizer: Tokenizer,
        chat_format: ChatFormat,
        max_context_tokens: int,
        seal: Seal | None = None,
        adapters: frozenset[str] = frozenset(),
    ) -> None:
        """
        Args:
            name: echoed in ``response.model`` when the request names none.
            aliases: all ids a request may use for the model without an adapter.
            max_context_tokens: the smaller of the model's context and the KV capacity.
            seal: of compaction items; None: one that ends with this object.
            adapters: their names, by which a request asks for them.
        """
        self.name = name
        self.aliases = aliases | {name}
        self.adapters = adapters
        self.told_to_all = None if adapters else self.aliases
        """The names that requests may use, where that is the same for everybody whom the model is
        not kept from; None: it is not, so that a faulty request is not to tell whether there is an
        adapter."""
        self.tokenizer = tokenizer
        self.chat_format = chat_format
        self.max_context_tokens = max_context_tokens
        self.longest_token_bytes = tokenizer.most_bytes_per_token
        """Bytes of the longest token: no text has fewer tokens than its bytes divided by this."""
        self.seal = seal or Seal(secrets.token_bytes(KEY_BYTES), name.encode())
        self.renderer = Renderer(tokenizer, chat_format, max_tokens=max_context_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """What all connections of a server share, handed to each."""

    model: ServedModel
    store: Store
    limits: Limits
    clock: Callable[[], float]
    """A clock in monotonic seconds."""
    wall_clock: Callable[[], float]
    """Seconds since the epoch, for ``created_at``."""
    new_id: Callable[[str], str]
    """``new_id("resp")`` -> ``"resp_..."``; unique across the server and unguessable."""
    commits: Commits | None = None
    """The records of turns, where there is a journal that lasts."""
    label_sources: tuple[str, ...] = ()
    """Fields of requests that become labels of their sessions."""
    ground: Ground = field(default_factory=Ground)
    """The ground under the server."""

    def fault_of_model(self, tenant: Tenant, asked: str | None) -> errors.ApiError | None:
        """Why a tenant's requests may not name that model, or None where they name none: there is
        no such, or not for this tenant, which it is not told. Who is limited to some models may use
        the adapters among them alone. None: they may."""
        model, names = self.model, self.model.aliases
        if asked is not None and asked in model.adapters:
            names = frozenset((asked,))
        known = asked is None or asked in names
        if known and tenant.quota.allows_model(names):
            return None
        return errors.model_not_found(asked or model.name)

    @property
    def read_context(self) -> ReadContext:
        """The facts of the server that reading a frame needs."""
        return ReadContext(
            limits=self.limits, models=self.model.told_to_all, chat_format=self.model.chat_format
        )
