"""The knowledge of a vocabulary that the search for a legal ending needs: which tokens close, open
or go on.

Knows token bytes. Knows no grammar and no matcher: whether a token is legal somewhere, a mask
says.

Always true: tables hold token ids in the order in which they are to be tried.
"""

import re

import numpy as np
import numpy.typing as npt

from runtime.grammar.mask_bits import MaskRow
from runtime.tokenizer import Tokenizer

Ids = npt.NDArray[np.int64]
Way = tuple[int, ...]
Piece = tuple[bytes, int]
"""Bytes and id of one token."""

_CLOSES_STRING = re.compile(rb'"[\]}]*,?[ \n]*["{\[]?')
_STRUCTURE = re.compile(rb'[ \n]*(?:(?:null|true|false)[}\],]*|[{}\[\]",: \n]+)')
_LITERAL_STARTS = frozenset(
    {b"0", b"1", *(word[:n] for word in (b"null", b"true", b"false") for n in range(1, 4))}
)
_MAX_PIECE_BYTES = 16


class ClosingTables:
    """The search's knowledge of a vocabulary. Made once per tokenizer; never changed."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        pieces = [
            (tokenizer.token_bytes(token), token)
            for token in range(tokenizer.vocab_size)
            if tokenizer.is_defined(token) and not tokenizer.is_special(token)
        ]
        self.tokenizer = tokenizer
        closers, separators, openers = _structure(pieces)
        self.structure = _ids(closers)
        """Between values: what closes, and whole literals."""
        self.separators = _ids(separators)
        self.quotes = _ids([p for p in openers if p[0].lstrip()[:1] == b'"'])
        """Tokens that open a string, or close one of which only some texts are legal."""
        self.brackets = _ids([p for p in openers if p[0].lstrip()[:1] != b'"'])
        """Tokens that open an array or an object."""
        self.literals = _ids([p for p in pieces if p[0] in _LITERAL_STARTS])
        """Beginnings of null, true, false and numbers."""
        self.closes_string = _ids(_string_closers(pieces))
        self.letters = _ids([p for p in pieces if p[0] in (b"q", b"Z", b"x")])
        classes = _by_class([p for p in pieces if _is_plain(p[0])])
        self.long_pieces = [_ids(_longest(members)) for members in classes]
        """Pieces of text of several bytes, by the class of their first one."""
        self.single_bytes = [_ids([p for p in m if len(p[0]) == 1]) for m in classes]
        others = [p for p in pieces if not _is_plain(p[0])]
        self.other_pieces = _ids(sorted(others, key=_whole_characters_first))
        self.of_bytes = {p[0]: p[1] for p in reversed(pieces) if len(p[0]) == 1}
        """The token of each byte that has one."""
        self.repairs = _repairs(self.of_bytes)
        """By the last byte written: tokens that finish what it began."""

    def candidate_order(self, token: int) -> tuple[bool, int, int]:
        """Longest first; what asks for more, as a minus sign does, last."""
        piece = self.tokenizer.token_bytes(token)
        return piece[-1:] in (b"-", b"+", b"."), -len(piece), token


def allowed(row: MaskRow, table: Ids, count: int) -> Way:
    """The first ``count`` tokens of the table that the mask allows."""
    hits = np.flatnonzero((row[table >> 5] >> (table & 31)) & 1)[:count]
    return tuple(table[hits].tolist())


def _structure(pieces: list[Piece]) -> tuple[list[Piece], list[Piece], list[Piece]]:
    """Pieces of JSON's structure outside strings: what closes, what goes on, what opens."""
    structure = sorted(
        (p for p in pieces if len(p[0]) <= 8 and _STRUCTURE.fullmatch(p[0]) and p[0].strip()),
        key=lambda p: _rank(p, in_string=False),
    )
    separators = [p for p in structure if p[0].lstrip()[:1] in (b",", b":")]
    rest = [p for p in structure if p not in separators]
    openers = [p for p in rest if _rank(p, in_string=False)[0] > 0]
    return [p for p in rest if p not in openers], separators, openers


def _string_closers(pieces: list[Piece]) -> list[Piece]:
    closing = [p for p in pieces if _CLOSES_STRING.fullmatch(p[0])]
    return sorted(closing, key=lambda p: _rank(p, in_string=True))


def _by_class(plain: list[Piece]) -> list[list[Piece]]:
    return [[p for p in plain if _byte_class(p[0]) == kind] for kind in range(4)]


def _repairs(single: dict[bytes, int]) -> dict[int, tuple[Way, ...]]:
    """Tokens that finish what ends with a certain byte, from one-byte tokens."""

    def ways(*texts: bytes) -> tuple[Way, ...]:
        split = [[text[i : i + 1] for i in range(len(text))] for text in texts]
        return tuple(
            tuple(single[b] for b in way) for way in split if all(b in single for b in way)
        )

    # A UTF-8 lead byte narrows its first continuation byte to one of these (RFC 3629, 4).
    first = (b"\x80", b"\x90", b"\xa0")
    characters = ways(*(b + b"\x80" * more for more in range(3) for b in first))
    hexadecimal = ways(b"0", b"00", b"000", b"0000")
    table = dict.fromkeys(range(128, 256), characters)
    table |= dict.fromkeys(b"u0123456789abcdefABCDEF", hexadecimal)
    return table | {value: ways(b"0") for value in b"-+."} | {ord("\\"): ways(b"n")}


def _ids(pieces: list[Piece]) -> Ids:
    return np.array([token for _, token in pieces], dtype=np.int64)


def _is_plain(piece: bytes) -> bool:
    """Printable ASCII that stands for itself in a JSON string."""
    return all(0x20 <= value < 0x7F and value not in b'"\\' for value in piece)


def _byte_class(piece: bytes) -> int:
    """0 lower case and space, 1 upper case, 2 digits, 3 other signs."""
    first = piece[:1].decode()
    if first.islower() or first == " ":
        return 0
    if first.isupper():
        return 1
    return 2 if first.isdigit() else 3


def _longest(pieces: list[Piece]) -> list[Piece]:
    long = [p for p in pieces if 1 < len(p[0]) <= _MAX_PIECE_BYTES]
    return sorted(long, key=lambda piece: (-len(piece[0]), piece[1]))[:256]


def _whole_characters_first(piece: Piece) -> tuple[bool, int, int]:
    try:
        piece[0].decode()
    except UnicodeDecodeError:
        return True, len(piece[0]), piece[1]
    return False, -len(piece[0]), piece[1]


def _rank(piece: Piece, *, in_string: bool) -> tuple[float, int, int, int]:
    """Closers before whole values before separators before openers; of equals the one that
    covers more."""
    data, token = piece
    depth = _depth(data, in_string)
    if not in_string and data.lstrip()[:1] == b'"':
        # Where only some strings are legal nobody knows whether this quote opens a string or
        # closes one: '", "' would be a whole value, or the way into one more element.
        depth = max(depth, _depth(data, True))
    return (depth, -data.count(b" ") - data.count(b"\n"), len(data), token)


def _depth(data: bytes, in_string: bool) -> float:
    """How much is left to be closed behind ``data``; a separator asks for more than a bracket."""
    depth = 0.0
    for value in data.decode():
        if value == '"':
            in_string = not in_string
        elif not in_string:
            depth += (value in "{[") - (value in "}]") + 1.5 * (value in ",:")
    return depth + 0.5 * in_string
