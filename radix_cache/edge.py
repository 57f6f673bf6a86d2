"""The content of edges: token ids and block ids, in pieces of bounded size.

A piece is a pair of arrays for at most ``PIECE_BLOCKS`` blocks. So appending to a transcript
of a million tokens copies no more than appending to a short one, and cutting it in two moves
pieces instead of bytes. Pieces come from a shop that takes them back, because fresh memory
costs a page fault for every 4 KiB, which is dearer than all the rest of a sequence.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from radix_cache.block_pool import BlockArray

TokenArray = npt.NDArray[np.int32]

PIECE_BLOCKS: Final = 1024
_SMALLEST: Final = 8
_SPARE_PIECES: Final = 16

NO_BLOCKS: Final = np.empty(0, dtype=np.int32)


class Piece:
    """``size`` blocks in arrays with room for ``capacity``."""

    __slots__ = ("blocks", "capacity", "size", "tokens")

    def __init__(self, capacity: int, block_size: int) -> None:
        self.capacity = capacity
        self.tokens: TokenArray = np.empty(capacity * block_size, dtype=np.int32)
        self.blocks: BlockArray = np.empty(capacity, dtype=np.int32)
        self.size = 0


class PieceShop:
    """Hands out pieces and takes them back. Capacities are powers of two and three quarters of
    them, so that what comes back fits again."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.num_bytes = 0
        """Host memory of all pieces, spare ones and spare room included."""
        self._spare: dict[int, list[Piece]] = {}

    def take(self, num_blocks: int) -> Piece:
        """An empty piece for ``num_blocks``, at most PIECE_BLOCKS."""
        capacity = max(_SMALLEST, 1 << (num_blocks - 1).bit_length())
        if 4 * num_blocks <= 3 * capacity and capacity > _SMALLEST:
            capacity -= capacity // 4
        spare = self._spare.get(capacity)
        if spare:
            return spare.pop()
        self.num_bytes += capacity * (self.block_size + 1) * 4
        return Piece(capacity, self.block_size)

    def give(self, piece: Piece) -> None:
        """Take ``piece`` back; nobody else may use it any more."""
        spare = self._spare.setdefault(piece.capacity, [])
        if len(spare) < _SPARE_PIECES:
            piece.size = 0
            spare.append(piece)
        else:
            self.num_bytes -= piece.capacity * (self.block_size + 1) * 4

    def copy(self, piece: Piece, start: int, stop: int, num_blocks: int) -> Piece:
        """A new piece with room for ``num_blocks`` that holds a part of ``piece``."""
        size = self.block_size
        part = self.take(num_blocks)
        part.size = stop - start
        part.tokens[: part.size * size] = piece.tokens[start * size : stop * size]
        part.blocks[: part.size] = piece.blocks[start:stop]
        return part


class Edge:
    """A run of whole blocks: its tokens, and the blocks that hold their KV."""

    __slots__ = ("_shop", "pieces")

    def __init__(self, shop: PieceShop) -> None:
        self._shop = shop
        self.pieces: list[Piece] = []

    def append(self, tokens: TokenArray, blocks: BlockArray) -> None:
        """Copy int32 [n] blocks and their int32 [n * block_size] tokens to the end."""
        size = self._shop.block_size
        done, count = 0, len(blocks)
        while done < count:
            if not self.pieces or self.pieces[-1].size == PIECE_BLOCKS:
                self.pieces.append(self._shop.take(min(PIECE_BLOCKS, count - done)))
            piece = self.pieces[-1]
            old = piece.size
            new = min(PIECE_BLOCKS, old + count - done)
            if new > piece.capacity:
                piece = self._replace_last(new)
            part = new - old
            if part == count:
                piece.tokens[old * size : new * size] = tokens
                piece.blocks[old:new] = blocks
            else:
                piece.tokens[old * size : new * size] = tokens[done * size : (done + part) * size]
                piece.blocks[old:new] = blocks[done : done + part]
            piece.size = new
            done += part

    def _replace_last(self, num_blocks: int) -> Piece:
        """Move the last piece to one with room for ``num_blocks``."""
        old = self.pieces[-1]
        piece = self.pieces[-1] = self._shop.copy(old, 0, old.size, num_blocks)
        self._shop.give(old)
        return piece

    def common(
        self, first: int, tokens: TokenArray, position: int, stop: int, table: BlockArray | None
    ) -> int:
        """How many blocks from ``first`` on equal those of ``tokens`` from block ``position``
        to ``stop``; the edge reaches as far. Their ids go to the same positions of ``table``.
        """
        size = self._shop.block_size
        start = position
        for piece in self.pieces:
            if first >= piece.size:
                first -= piece.size
                continue
            count = min(piece.size - first, stop - position)
            end = position + count
            differs = (
                piece.tokens[first * size : (first + count) * size]
                != tokens[position * size : end * size]
            )
            where = int(differs.argmax())
            if differs[where]:
                count = where // size
                stop = end = position + count
            if table is not None:
                table[position:end] = piece.blocks[first : first + count]
            position, first = end, 0
            if position == stop:
                break
        return position - start

    def starts_with(self, block: bytes) -> bool:
        """Whether the first block has these tokens."""
        return self.pieces[0].tokens[: self._shop.block_size].tobytes() == block

    def block_tokens(self, index: int) -> TokenArray:
        """The tokens of one block, int32 [block_size]: a view for the moment."""
        size = self._shop.block_size
        for piece in self.pieces:
            if index < piece.size:
                return piece.tokens[index * size : (index + 1) * size]
            index -= piece.size
        raise IndexError(index)

    def cut(self, count: int) -> "Edge":
        """Take the first ``count`` blocks away and return them as an edge of their own."""
        upper = Edge(self._shop)
        whole = 0
        while count >= self.pieces[whole].size:
            count -= self.pieces[whole].size
            whole += 1
        upper.pieces = self.pieces[:whole]
        del self.pieces[:whole]
        if count:
            piece, size = self.pieces[0], self._shop.block_size
            end = piece.size
            if 2 * count <= end:  # the smaller part moves
                upper.pieces.append(self._shop.copy(piece, 0, count, count))
                piece.tokens[: (end - count) * size] = piece.tokens[count * size : end * size]
                piece.blocks[: end - count] = piece.blocks[count:end]
                piece.size = end - count
            else:
                self.pieces[0] = self._shop.copy(piece, count, end, end - count)
                piece.size = count
                upper.pieces.append(piece)
        return upper

    def trim(self, count: int) -> BlockArray:
        """Remove ``count`` blocks from the end and return their ids, int32, a copy."""
        freed: list[BlockArray] = []
        while count:
            piece = self.pieces[-1]
            part = min(count, piece.size)
            count -= part
            keep = piece.size - part
            freed.append(piece.blocks[keep : piece.size].copy())
            piece.size = keep
            if not keep:
                self._shop.give(self.pieces.pop())
            elif piece.capacity > 4 * keep and piece.capacity > _SMALLEST:
                self._replace_last(2 * keep)
        return freed[0] if len(freed) == 1 else np.concatenate([NO_BLOCKS, *freed[::-1]])

    def token_ids(self) -> TokenArray:
        """All tokens, int32, a copy."""
        size = self._shop.block_size
        return np.concatenate([NO_BLOCKS, *(p.tokens[: p.size * size] for p in self.pieces)])

    def exchange(self, blocks: BlockArray) -> BlockArray:
        """Set all block ids, int32 [n], and return those there were, a copy."""
        old = self.block_ids()
        done = 0
        for piece in self.pieces:
            piece.blocks[: piece.size] = blocks[done : done + piece.size]
            done += piece.size
        return old

    def prepend(self, upper: "Edge") -> None:
        """Take what ``upper`` holds to the front; it is empty afterwards."""
        shop, size = self._shop, self._shop.block_size
        last, first = upper.pieces[-1], self.pieces[0]
        if last.size + first.size <= PIECE_BLOCKS:
            both = shop.copy(last, 0, last.size, last.size + first.size)
            both.tokens[last.size * size : (last.size + first.size) * size] = first.tokens[
                : first.size * size
            ]
            both.blocks[last.size : last.size + first.size] = first.blocks[: first.size]
            both.size += first.size
            self.pieces[0] = both
            upper.pieces.pop()
            shop.give(last)
            shop.give(first)
        self.pieces[:0] = upper.pieces
        upper.pieces = []

    def block_ids(self) -> BlockArray:
        """All block ids, int32, a copy."""
        return np.concatenate([NO_BLOCKS, *(p.blocks[: p.size] for p in self.pieces)])
