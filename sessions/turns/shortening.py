"""Items that are too long beside others: their texts are cut in the middle.

Knows sizes, not what an item is to its history; whoever asks says which items share how much room.

Always true: calls and reasoning stay as they are; of items that share a room the longest are cut,
all to one size, and the same items and room give the same texts.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from sessions.durable.renderer import Renderer
from sessions.durable.shortened import shortened
from sessions.durable.transcript import text_bytes
from tools_api.chat_format import TemplateOptions
from tools_api.items import CallOutput, Item, Message, TextPart, with_output
from tools_api.tool_definitions import defines

_CHARS_PER_TOKEN = 8
"""The most characters for each token that are looked at of a text that is cut."""
_ATTEMPTS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """The room that a prompt has: how many tokens a model reads."""

    max_tokens: int
    longest_token_bytes: int
    reply_tokens: int
    """Tokens that are kept free for the answer."""

    def left_by_cut(self, header_tokens: int) -> int:
        """The length in tokens that a prompt has after a cut, its header included, if what has
        to stay allows it: three quarters of what is beside the header, so that the next turns
        fit too."""
        beside = max(self.max_tokens - header_tokens, 0)
        return min(header_tokens + beside * 3 // 4, self.max_tokens - self.reply_tokens)

    def least_tokens(self, item: Item) -> int:
        """No tokenisation of the item has fewer."""
        return text_bytes(item) // self.longest_token_bytes

    def is_hopeless(self, items: Iterable[Item]) -> bool:
        """Whether texts cannot all fit, so that no seconds should go into tokenising them."""
        return sum(map(self.least_tokens, items)) > self.max_tokens


class Sizes:
    """Tokens of items on their own, counted once for each; of those that are hopelessly long as
    few as they can be."""

    def __init__(self, renderer: Renderer, options: TemplateOptions, room: Room) -> None:
        self._renderer = renderer
        self._options = options
        self._room = room
        self._known: dict[int, tuple[Item, int]] = {}

    def of(self, items: Iterable[Item]) -> int:
        return sum(map(self.of_one, items))

    def of_one(self, item: Item) -> int:
        if id(item) not in self._known:
            least = self._room.least_tokens(item)
            if least <= self._room.max_tokens:
                least = self._renderer.count((item,), self._options)
            self._known[id(item)] = (item, least)
        return self._known[id(item)][1]


class Shortening:
    """A history's items, as far as they have been cut."""

    def __init__(self, items: Sequence[Item], sizes: Sizes) -> None:
        self._whole = items
        self.sizes = sizes
        self.items = list(items)

    def fit(self, places: Sequence[int], room: int) -> None:
        """Cut the longest of the items at ``places`` until all of them have ``room`` tokens
        together, or nothing is left but their notes."""
        if self.size(places) <= room:
            return
        texts = [place for place in places if _can_be_cut(self.items[place])]
        fixed = self.size(places) - self.size(texts)
        most = _level([self.sizes.of_one(self.items[place]) for place in texts], room - fixed)
        for place in texts:
            if self.sizes.of_one(self.items[place]) > most:
                self.items[place] = self._fitting(self._whole[place], most)

    def size(self, places: Iterable[int]) -> int:
        """Tokens of the items at ``places``."""
        return self.sizes.of(self.items[place] for place in places)

    def sentences(self, places: Iterable[int]) -> tuple[str, ...]:
        """A sentence for each cut of the items at ``places``."""
        pairs = ((self._whole[place], self.items[place]) for place in places)
        return tuple(_sentence(item, short) for item, short in pairs if short is not item)

    def _fitting(self, item: Item, most: int) -> Item:
        """``item`` cut until it has at most ``most`` tokens, or nothing but the note; itself if
        that is longer."""
        by_share = len(_text(item)) * most // max(self.sizes.of_one(item), 1)
        keep = min(by_share, most * _CHARS_PER_TOKEN)
        for _ in range(_ATTEMPTS):
            short = _cut(item, keep)
            if self.sizes.of_one(short) <= most:
                return short
            keep = keep * 3 // 4
        short = _cut(item, 0)
        return short if self.sizes.of_one(short) < self.sizes.of_one(item) else item


def _level(sizes: Sequence[int], room: int) -> int:
    """The largest size to which each may be cut so that all together fit into ``room``."""
    left = max(room, 0)
    for position, size in enumerate(sorted(sizes)):
        share = left // (len(sizes) - position)
        if size > share:
            return share
        left -= size
    return max(sizes, default=0)


def _cut(item: Item, keep: int) -> Item:
    """``item`` with ``keep`` characters of its text."""
    text = shortened(_text(item), keep)
    if isinstance(item, Message):
        part = TextPart(type=item.content[0].type, text=text)
        return replace(item, content=(part,))
    assert isinstance(item, CallOutput)
    return with_output(item, text)


def _can_be_cut(item: Item) -> bool:
    if defines(item):
        return False
    return isinstance(item, CallOutput) or (isinstance(item, Message) and bool(item.content))


def _text(item: Item) -> str:
    assert isinstance(item, CallOutput | Message)
    return item.text if isinstance(item, Message) else item.output


def _sentence(item: Item, short: Item) -> str:
    before, after = len(_text(item)), len(_text(short))
    return f"truncation: a {item.type} of {before} characters was cut in the middle to {after}"
