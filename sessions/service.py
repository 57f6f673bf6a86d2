"""What all connections of one server share.

Nothing here changes except inside the store. Clocks and ids are handed in, so that a test
decides both.
"""

from collections.abc import Callable
from dataclasses import dataclass

from runtime.tokenizer import Tokenizer
from sessions.ledger import PriceTable
from sessions.store import Store
from tools_api.chat_format import ChatFormat
from tools_api.limits import Limits


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """The one model a server answers with."""

    name: str
    """Echoed in ``response.model`` when the request names none."""
    aliases: frozenset[str]
    """All ids a request may use, ``name`` included."""
    tokenizer: Tokenizer
    chat_format: ChatFormat
    max_context_tokens: int
    """The smaller of the model's context and the KV capacity."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """Handed to every Connection."""

    model: ServedModel
    store: Store
    prices: PriceTable
    limits: Limits
    clock: Callable[[], float]
    """Monotonic seconds."""
    wall_clock: Callable[[], float]
    """Seconds since the epoch, for ``created_at``."""
    new_id: Callable[[str], str]
    """``new_id("resp")`` -> ``"resp_..."``; unique across the server and unguessable."""
