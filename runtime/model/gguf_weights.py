"""A GGUF file's weights by the decoder's names.

Q8_0, Q4_0 and MXFP4 stay as they lie; K-quants and other rarer kinds are widened as they are read,
by the ``gguf`` library. Embeddings stay in few bits as well.

Always true: scales are numbers. A scale of 0 stands for a block of zeros, which llama.cpp writes.
"""

import importlib
import importlib.util
import mmap
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from kernels.codes import Codes, float_scales
from runtime.model.adapters import MapPlace
from runtime.model.config import LoadError
from runtime.model.gguf_description import ROPE_FACTORS, name_in_gguf, pairs_rows
from runtime.model.gguf_header import GgufHeader, GgufTensor

_FLOATS = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_ROWS_AT_ONCE = 2048
"""Rows at once of a matrix that is widened."""
_GROUP = 32


class GgufWeights:
    """A ``WeightSource`` over a file."""

    def __init__(
        self,
        header: GgufHeader,
        dtype: torch.dtype,
        device: torch.device,
        *,
        head_dim: int,
        progress: bool = False,
    ) -> None:
        """``head_dim``: of queries and keys, whose rows may be in another order."""
        self._header = header
        self._dtype = dtype
        self._device = device
        self._head_dim = head_dim
        self._read: set[str] = {ROPE_FACTORS}
        with header.path.open("rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        total = len(header.tensors)
        self._bar = tqdm(
            total=total, desc="loading", unit="tensor", disable=not progress, leave=False
        )

    def tensor(
        self,
        name: str,
        shape: tuple[int, ...],
        *,
        wide: bool = False,
        part: Callable[[Tensor], Tensor] | None = None,
    ) -> Tensor:
        """See ``cut_weights.WholeWeights``."""
        dtype = torch.promote_types(self._dtype, torch.float32) if wide else self._dtype
        tensor, raw = self._taken(name, shape)
        values = self._widened(tensor, raw, shape, dtype)
        loaded = values.to(self._device, dtype, copy=True).contiguous()
        total = loaded.sum(dtype=torch.promote_types(dtype, torch.float32))
        if not bool(total.isfinite()):
            raise self._fault(name, f"is not finite in {str(dtype).removeprefix('torch.')}")
        whole = self._in_order(name, loaded)
        return whole if part is None else part(whole).clone(memory_format=torch.contiguous_format)

    def group(self, name: str, shape: tuple[int, int]) -> int | None:
        """See ``cut_weights.StoredWeights``."""
        return _GROUP if self._found(name).kind in CODES else None

    def place(self, name: str, outputs: int, inputs: int) -> MapPlace:
        """See ``PlacesMaps``: an adapter is made of the model's folder, where each map is by itself
        under the decoder's name and has its rows in their order."""
        return MapPlace(module=name, outputs=outputs, own=outputs, inputs=inputs)

    def matrix(self, name: str, shape: tuple[int, int]) -> Tensor | Codes:
        """See ``WeightSource.matrix``."""
        kind = self._found(name).kind
        if kind not in CODES:
            return self.tensor(name, shape)
        _, raw = self._taken(name, shape)
        codes = CODES[kind](raw)
        if not bool(float_scales(codes).isfinite().all()):
            raise self._fault(name, "has a scale that is no number: the file is damaged")
        own = codes.to(self._device)
        if not pairs_rows(self._header, name):
            return own
        return own.rows(self._order(shape[0]).to(self._device))

    def check_all_read(self, *, but: str = "") -> None:
        """Raises LoadError: there is a tensor that nothing was computed with. ``but``: see
        ``FamilyWeights.check_all_read``; experts that other ranks have are in the same tensors."""
        self._bar.close()
        strange = next((name for name in self._header.tensors if name not in self._read), None)
        if strange is not None:
            raise LoadError(
                f"{self._header.path}: tensor {strange[:100]!r} is nothing that this architecture "
                "computes with as its metadata describes it"
            )

    def close(self) -> None:
        """End the progress bar; the file is let go of with the last tensor that lies in it."""
        self._bar.close()

    def _found(self, name: str) -> GgufTensor:
        theirs, _ = name_in_gguf(name)
        tensor = self._header.tensors.get(theirs)
        if tensor is None:
            raise LoadError(f"{self._header.path}: tensor {theirs!r} is missing")
        return tensor

    def _taken(self, name: str, shape: tuple[int, ...]) -> tuple[GgufTensor, Tensor]:
        """A tensor and its bytes, [rows, bytes of a row]; of a stack one expert's."""
        theirs, expert = name_in_gguf(name)
        tensor = self._found(name)
        wanted = tensor.shape if expert is None else tensor.shape[1:]
        if wanted != shape:
            raise self._fault(name, f"has shape {list(wanted)}, {list(shape)} is asked for")
        if theirs not in self._read:
            self._read.add(theirs)
            self._bar.update()
        flat = torch.frombuffer(
            self._map, dtype=torch.uint8, count=tensor.num_bytes, offset=tensor.begin
        )
        if expert is not None:
            flat = flat.view(tensor.shape[0], -1)[expert]
        return tensor, flat.view(shape[0] if len(shape) > 1 else 1, -1)

    def _widened(
        self, tensor: GgufTensor, raw: Tensor, shape: tuple[int, ...], dtype: torch.dtype
    ) -> Tensor:
        if tensor.kind in _FLOATS:
            return raw.clone().view(_FLOATS[tensor.kind]).view(shape)
        library = _library(self._header)
        kind = library.GGMLQuantizationType[tensor.kind]
        parts = [
            torch.from_numpy(library.quants.dequantize(part.numpy(), kind)).to(dtype)
            for part in torch.split(raw, _ROWS_AT_ONCE)
        ]
        return torch.cat(parts).view(shape)

    def _in_order(self, name: str, values: Tensor) -> Tensor:
        if not pairs_rows(self._header, name):
            return values
        return values[self._order(values.shape[0]).to(values.device)]

    def _order(self, rows: int) -> Tensor:
        """Where each row of queries or keys is kept: a head's halves there take turns."""
        places = torch.arange(rows).view(-1, self._head_dim // 2, 2)
        return places.transpose(1, 2).flatten()

    def _fault(self, name: str, what: str) -> LoadError:
        theirs, _ = name_in_gguf(name)
        return LoadError(f"{self._header.path}: tensor {theirs!r} {what}")


def _library(header: GgufHeader) -> Any:
    if importlib.util.find_spec("gguf") is None:
        raise LoadError(
            f"{header.path}: its kinds of numbers need the gguf library: install keepwarm[gguf]"
        )
    return importlib.import_module("gguf")


def _blocks(raw: Tensor, width: int) -> Tensor:
    """[rows, blocks, bytes of a block]"""
    return raw.view(raw.shape[0], -1, width)


def _halves(blocks: Tensor) -> Tensor:
    """The two bytes that each begins with, as float32: [rows, blocks]."""
    return blocks[:, :, :2].contiguous().view(torch.float16)[:, :, 0].float()


def _interleaved(nibbles: Tensor) -> Tensor:
    """[rows, bytes]: of a block, the first half of the numbers is in its bytes' lower halves, the
    second in the upper ones; here neighbours share a byte."""
    codes = torch.cat((nibbles & 15, nibbles >> 4), dim=2)
    return (codes[:, :, 0::2] | codes[:, :, 1::2] << 4).flatten(1)


def q8_0_codes(raw: Tensor) -> Codes:
    """A float16 scale and 32 signed bytes."""
    blocks = _blocks(raw, 34)
    values = blocks[:, :, 2:].contiguous().flatten(1)
    return Codes(kind="int8", values=values, scales=_halves(blocks), group=_GROUP)


def q4_0_codes(raw: Tensor) -> Codes:
    """A float16 scale and 32 numbers of 4 bits, more by 8."""
    blocks = _blocks(raw, 18)
    return Codes(
        kind="int4", values=_interleaved(blocks[:, :, 2:]), scales=_halves(blocks), group=_GROUP
    )


def mxfp4_blocks(raw: Tensor) -> Codes:
    """An exponent and 32 numbers of e2m1."""
    blocks = _blocks(raw, 17)
    return Codes(
        kind="e2m1",
        values=_interleaved(blocks[:, :, 1:]),
        scales=blocks[:, :, 0].contiguous(),
        group=_GROUP,
    )


CODES: dict[str, Callable[[Tensor], Codes]] = {
    "Q8_0": q8_0_codes,
    "Q4_0": q4_0_codes,
    "MXFP4": mxfp4_blocks,
}
