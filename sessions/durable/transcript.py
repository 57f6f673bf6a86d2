"""A conversation as items and as the exact token ids the model saw or wrote.

A chain of entries, one per turn, is append-only and shared by all its continuations. The
header (instructions, tools, template options) is not part of the chain: it is rendered for
each turn, so that nothing of an earlier request is inherited, and compared with the one
before. Input items are rendered and tokenised once; model output is never tokenised again.

Always true: the context of an entry is its header's ids followed by the ids of the chain,
and that is what the engine was given and gave back.
"""

import enum
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import orjson

from runtime.messages import TokenArray
from sessions.durable.compaction import standing
from sessions.durable.shortened import is_shortened
from sessions.durable.weights import item_bytes, text_held, tool_bytes
from tools_api import errors
from tools_api.built_in_items import AdditionalTools, BuiltInCall, ConfigurationUpdate
from tools_api.chat_format import TemplateOptions
from tools_api.item_identity import normalised
from tools_api.items import (
    Call,
    CallOutput,
    Compaction,
    CustomToolCall,
    FunctionCall,
    Item,
    Message,
    Reasoning,
)
from tools_api.tool_definitions import defines
from tools_api.tools import FunctionTool

ROOT_DIGEST = b""


class Tail(enum.Enum):
    """How the rendered text of a chain ends; decides how the next items begin."""

    START = "start"
    """The transcript is a header alone."""
    INPUT = "input"
    """The transcript ends with input items, without a generation prompt (a warm-up)."""
    INSIDE = "inside"
    """The same, and its text ends inside the model's turn (``ChatFormat.ends_inside``)."""
    CLOSED_OUTPUT = "closed_output"
    """The transcript ends with model output up to its end-of-turn token."""
    OPENED_CALL_OUTPUT = "opened_call_output"
    """The transcript ends with model output whose last token opens the output of a call
    (``ChatFormat.opens_output``)."""
    OPEN_OUTPUT = "open_output"
    """The transcript ends with model output that was cut short."""

    @property
    def is_input(self) -> bool:
        """Whether no model has answered yet what the transcript ends with."""
        return self in (Tail.INPUT, Tail.INSIDE)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Header:
    """The header before the chain."""

    instructions: str | None
    opening: Message | None
    tools: tuple[FunctionTool, ...]
    options: TemplateOptions
    ids: TokenArray

    @property
    def size_bytes(self) -> int:
        """The header's size in memory, roughly."""
        opening = 0 if self.opening is None else item_bytes(self.opening)
        tools = sum(map(tool_bytes, self.tools))
        return self.ids.nbytes * 2 + text_held(self.instructions) + opening + tools

    def same_tokens(self, other: "Header") -> bool:
        return self is other or np.array_equal(self.ids, other.ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """The part that truncation has taken out of a context, in all its cuts together."""

    turns: int = 0
    tokens: int = 0
    """Tokens of what was left out, each item counted on its own, as truncation counts them."""
    behind: int = 0
    """How many items stand before the gap, those that no cut takes out."""


NOTHING = LeftOut()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Entry:
    """One turn of a chain. Compared by identity; several entries may share a parent."""

    parent: "Entry | None"
    header: Header
    opening: Message | None
    """A system or developer message that led the chain's input; the same in the whole
    chain. Part of the header, not of ``input_items``."""
    input_items: tuple[Item, ...]
    input_ids: TokenArray
    """Rendered input items and the generation prompt, if one was opened."""
    output_items: tuple[Item, ...]
    output_ids: TokenArray
    """The token ids that the model emitted, exactly."""
    tail: Tail
    num_tokens: int
    """Tokens of the chain up to here, header excluded."""
    open_calls: frozenset[str]
    """Complete calls that wait for their output."""
    digest: bytes
    """Rolling digest over all items up to here; see ``roll``."""
    frame_bytes: int = 0
    """Bytes of the frame it came from, unless that repeated what is held already."""
    left_out: LeftOut = NOTHING
    """The part left out of the chain up to here; ``digest`` counts it."""
    loads: bool = field(init=False)
    """Some item up to here may bring tools, or change how the model answers."""

    def __post_init__(self) -> None:
        before = self.parent is not None and self.parent.loads
        own = (*self.input_items, *self.output_items)
        object.__setattr__(self, "loads", before or any(map(_may_define, own)))

    @property
    def own_tokens(self) -> int:
        return len(self.input_ids) + len(self.output_ids)

    @property
    def size_bytes(self) -> int:
        """The size of this entry alone in memory, roughly; not less than its frame."""
        items = (*self.input_items, *self.output_items)
        own_header = self.parent is None or self.parent.header is not self.header
        held = (
            512
            + self.input_ids.nbytes
            + self.output_ids.nbytes
            + sum(map(item_bytes, items))
            + (self.header.size_bytes if own_header else 0)
        )
        return max(held, self.frame_bytes)


def _may_define(item: Item) -> bool:
    """Whether an item brings tools or a configuration, as far as that is known of a compaction
    nobody has opened."""
    if isinstance(item, Compaction):
        return item.stands_for is None or any(map(_may_define, item.stands_for.items))
    return defines(item) or isinstance(item, ConfigurationUpdate)


def header_tools(tools: tuple[FunctionTool, ...]) -> tuple[FunctionTool, ...]:
    """The tools of a request that stand in its header."""
    return tuple(tool for tool in tools if tool.in_header) if tools else ()


def expanded(items: Iterable[Item]) -> tuple[Item, ...]:
    """Items as a model reads them: what a compaction stands for in its place."""
    found = tuple(items)
    for item in found:
        if isinstance(item, Compaction):
            break
    else:
        return found
    return tuple(
        each
        for item in found
        for each in (standing(item).items if isinstance(item, Compaction) else (item,))
    )


def chain(entry: Entry | None) -> Iterator[Entry]:
    """The entries of a chain from the newest to the oldest."""
    while entry is not None:
        yield entry
        entry = entry.parent


def chain_ids(header: Header, entry: Entry | None, new: TokenArray) -> TokenArray:
    """The whole context: header, chain up to ``entry``, then ``new``."""
    parts = [new]
    for link in chain(entry):
        parts += [link.output_ids, link.input_ids]
    parts.append(header.ids)
    return np.concatenate(parts[::-1])


def split_opening(items: tuple[Item, ...]) -> tuple[Message | None, tuple[Item, ...]]:
    """Part a leading system or developer message from the other items of a first turn."""
    if items and isinstance(items[0], Message) and items[0].role in ("system", "developer"):
        return items[0], items[1:]
    return None, items


def by_model(item: Item) -> bool:
    """Whether a model says such items; clients may send them back."""
    if isinstance(item, Message):
        return item.role == "assistant"
    return isinstance(item, Call | Reasoning)


def check_calls(parent: Entry | None, items: Sequence[Item], *, complete: bool) -> frozenset[str]:
    """Match calls and their outputs; returns the calls left open behind ``items``.

    Raises:
        ApiError: an output whose call is not in the context, or (``complete``) a call of
            the context left without output.
    """
    pending = dict.fromkeys(parent.open_calls if parent is not None else ())
    seen = set(pending)
    before: set[str] | None = None
    for item in expanded(items):
        if isinstance(item, Call):
            seen.add(item.call_id)
            if item.status != "incomplete":
                pending[item.call_id] = None
        elif isinstance(item, CallOutput):
            if item.call_id not in seen:
                before = _called_before(parent) if before is None else before
                if item.call_id not in before:
                    raise errors.unknown_call(item.call_id)
            pending.pop(item.call_id, None)
    if complete and pending:
        raise errors.missing_call_output(next(iter(pending)))
    return frozenset(pending)


def _called_before(entry: Entry | None) -> set[str]:
    return {
        item.call_id
        for link in chain(entry)
        for item in expanded((*link.input_items, *link.output_items))
        if isinstance(item, Call)
    }


def roll(digest: bytes, item: Item) -> bytes:
    """The digest one item further. Ids, status, annotations and reasoning do not count, so
    that a client's copy of a history gives the digest of ours; nor what was said before a
    compaction that stands for all of it, which a client may leave out."""
    normal = normalised(item)
    if normal is None:
        return digest
    if isinstance(item, Compaction) and item.kind == "whole":
        digest = ROOT_DIGEST
    return hashlib.blake2b(digest + orjson.dumps(normal), digest_size=16).digest()


def roll_all(digest: bytes, items: Iterable[Item]) -> bytes:
    for item in items:
        digest = roll(digest, item)
    return digest


def holds(entry: Entry, items: Sequence[Item]) -> bool:
    """Whether ``items`` end like the chain up to ``entry``, compared one by one from the end.
    Together with an equal digest: whether they are its history, of which the chain may lack what
    truncation left out, and the middle of what it cut. What is before a compaction is not
    compared: there the digest alone says so."""
    ours = _normals(_since_compaction(entry))
    theirs = _normals(reversed(items))
    if entry.left_out == NOTHING:
        return all(_is_left_of(own, next(theirs, None)) for own in ours)
    return all(any(_is_left_of(own, other) for other in theirs) for own in ours)


def _normals(items: Iterable[Item]) -> Iterator[tuple[str, ...]]:
    return (normal for item in items if (normal := normalised(item)) is not None)


def _since_compaction(entry: Entry) -> Iterator[Item]:
    """Items from the newest back to a compaction that stands for all before it."""
    for link in chain(entry):
        for item in _backwards(link):
            yield item
            if isinstance(item, Compaction) and item.kind != "part":
                return


def _backwards(entry: Entry) -> Iterator[Item]:
    yield from reversed(entry.output_items)
    yield from reversed(entry.input_items)


def _is_left_of(own: tuple[str, ...], other: tuple[str, ...] | None) -> bool:
    """Whether they are equal, or ``own`` was cut out of ``other``."""
    if other is None or own[:-1] != other[:-1]:
        return False
    cut = own[0] in ("message", "output") and is_shortened(own[-1], other[-1])
    return cut or own[-1] == other[-1]


def text_bytes(item: Item) -> int:
    """UTF-8 bytes of an item's own text."""
    match item:
        case Message() | Reasoning():
            text = item.text
        case FunctionCall():
            text = item.full_name + item.arguments
        case CustomToolCall():
            text = item.full_name + item.input
        case BuiltInCall():
            text = item.full_name + item.arguments
        case AdditionalTools():
            text = item.tools
        case ConfigurationUpdate():
            return 0  # no model reads it
        case Compaction():
            opened = () if item.stands_for is None else standing(item).items
            return sum(map(text_bytes, opened))
        case _:
            text = item.output
    return len(text.encode("utf-8", "surrogatepass"))
