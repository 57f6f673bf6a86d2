"""Matrices of a quantised checkpoint, module by module: found, checked, and brought to codes.

Knows which tensors a layout has and how they have to fit ``config.json``. What they mean bit by bit
is ``runtime.model.code_layouts``' to say.

Always true: what is handed out has scales that are numbers, and every tensor that belongs
to it has been accounted for.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from kernels.codes import Codes
from runtime.model import code_layouts
from runtime.model.config import LoadError
from runtime.model.schemes import Quantisation, Scheme

FLOATS = (torch.float16, torch.bfloat16, torch.float32)
_E4M3, _E8M0 = torch.float8_e4m3fn, torch.float8_e8m0fnu
_LARGEST_SCALE = 2.0**100
"""Larger ones have no use, and products with them no room."""
_MOST_EXPONENT = 227
"""The same, of scales that are kept as exponents."""
NOT_READ = (
    "input_scale",
    "activation_scale",
    "input_global_scale",
    "k_scale",
    "v_scale",
    "q_scale",
    "kv_scale",
)
"""The warning about quantised inputs, keys and values: they are multiplied as they come."""

Matrix = Codes | Tensor


class StoredTensors(Protocol):
    """A checkpoint's tensors as they are kept."""

    @property
    def folder(self) -> Path: ...

    def __contains__(self, name: str) -> bool: ...

    def stored(self, name: str) -> Tensor:
        """The named tensor as it lies in its file, not to be written to. LoadError: none."""
        ...

    def place(self, name: str) -> Path:
        """The file that a tensor is in."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """A linear map, or a stack of them, in a checkpoint."""

    name: str
    outputs: int
    inputs: int
    of: tuple[int, int] | None = None
    """Which of how many in a stack."""
    spelled_apart: bool = False
    """A stack's tensors are called as those of a linear map alone are."""

    def tensor(self, part: str) -> str:
        """The full name of one of the module's tensors."""
        joined = self.of is not None and not self.spelled_apart
        return f"{self.name}{'_' if joined else '.'}{part}"


class QuantisedTensors:
    """Reads a checkpoint's matrices."""

    def __init__(self, stored: StoredTensors, quantisation: Quantisation) -> None:
        self._stored = stored
        self._quantisation = quantisation
        self.read: set[str] = set()
        """Tensors that were read, or belong to those that were and say nothing new."""

    def matrix(self, module: Module) -> Matrix | None:
        """A matrix in few bits as it is kept, or in float32 where it has to be widened; None: the
        module is kept as it is.

        Raises:
            LoadError: tensors contradict ``config.json``, or are damaged.
        """
        scheme = self._quantisation.scheme_of(module.name)
        plain = module.tensor("weight")
        if scheme is None or self._is_plain(module, plain):
            self._check_excluded(module, scheme)
            return None
        taken = _Taken(self._stored, module, scheme, self.read)
        return _READERS[scheme.layout](taken)

    def group(self, module: Module) -> int | None:
        """Neighbouring inputs of a module that cannot be parted at will, as they share a scale or
        bytes; None: any can.

        Raises:
            LoadError: see ``matrix``.
        """
        scheme = self._quantisation.scheme_of(module.name)
        plain = scheme is None or self._is_plain(module, module.tensor("weight"))
        if scheme is None or plain or scheme.layout == "nvfp4":
            return None
        if scheme.block is not None:
            return scheme.block[1]
        return scheme.group or (module.inputs if scheme.bits == 4 else None)

    def is_knowingly_left(self, name: str) -> bool:
        """Whether a tensor that nobody asked for may be there: what belongs to inputs, and biases
        of nothing that GPTQ writes for every module."""
        module, _, part = name.rpartition(".")
        if part in NOT_READ:
            return True
        if part != "bias" or self._quantisation.scheme.layout not in ("gptq", "awq"):
            return False
        return f"{module}.qweight" in self.read and not bool(self._stored.stored(name).any())

    def _is_plain(self, module: Module, name: str) -> bool:
        """Whether a module that should be quantised is not, and that is right."""
        if name not in self._stored or self._stored.stored(name).dtype not in FLOATS:
            return False
        quantisation = self._quantisation
        if quantisation.tensors_decide or module.name.split(".")[-1] == "lm_head":
            return True
        raise LoadError(
            f"{self._stored.place(name)}: tensor {name!r} is in 16 bits or more, and config.json "
            f"says that it is quantised ({quantisation.method}): list {module.name!r} in "
            f"quantization_config.{quantisation.excluded_field}"
        )

    def _check_excluded(self, module: Module, scheme: Scheme | None) -> None:
        """A module that is kept as it is has a weight in 16 bits or more and no scales."""
        parts = ("weight_packed", "weight_scale", "weight_scale_inv", "scale", "qweight", "blocks")
        kept = next((part for part in parts if module.tensor(part) in self._stored), None)
        if kept is None:
            return
        name, field = module.tensor(kept), self._quantisation.excluded_field
        why = f"config.json, where quantization_config.{field} leaves it out"
        if scheme is not None:
            why = f"tensor {module.tensor('weight')!r}, which is not quantised"
        raise LoadError(
            f"{self._stored.place(name)}: tensor {name!r} contradicts {why}; is that the "
            "config.json of these weights?"
        )


class _Taken:
    """Takes one module's tensors, each checked."""

    def __init__(
        self, stored: StoredTensors, module: Module, scheme: Scheme, read: set[str]
    ) -> None:
        self.module = module
        self.scheme = scheme
        self._stored = stored
        self._read = read

    def fault(self, part: str, what: str) -> LoadError:
        name = self.module.tensor(part)
        place = self._stored.place(name) if name in self._stored else self._stored.folder
        return LoadError(f"{place}: tensor {name!r} {what}")

    def there(self, *parts: str) -> str | None:
        """The first that the module has."""
        return next((part for part in parts if self.module.tensor(part) in self._stored), None)

    def tensor(self, part: str, dtypes: Sequence[torch.dtype], *shapes: tuple[int, ...]) -> Tensor:
        """A part, of one of these dtypes and shapes; of a stack the module's own."""
        name = self.module.tensor(part)
        if name not in self._stored:
            raise self.fault(
                part, f"is missing; quantization_config asks for it ({self.scheme.layout})"
            )
        values = self._stored.stored(name)
        self._read.add(name)
        if values.dtype not in dtypes:
            wanted = " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
            raise self.fault(part, f"is {values.dtype}, not {wanted}".replace("torch.", ""))
        if self.module.of is not None:
            index, count = self.module.of
            shapes = tuple((count, *shape) for shape in shapes)
            if tuple(values.shape) in shapes:
                return values[index]
        if tuple(values.shape) not in shapes:
            wanted = " or ".join(str(list(shape)) for shape in shapes)
            raise self.fault(
                part,
                f"has shape {list(values.shape)}, config.json asks for {wanted}",
            )
        return values

    def scales(self, part: str, *shapes: tuple[int, ...]) -> Tensor:
        """Scales of any width as float32: numbers, none of them 0."""
        values = self.tensor(part, (*FLOATS, _E8M0, torch.uint8), *shapes)
        if values.dtype in (_E8M0, torch.uint8):
            self._check_exponents(part, values.view(torch.uint8))
            bits = (values.view(torch.uint8).int() << 23).clamp(min=1 << 22)
            return bits.view(torch.float32)
        wide = values.float()
        self.check_scales(part, wide)
        return wide

    def check_scales(self, part: str, scales: Tensor) -> None:
        sizes = scales.abs()
        if bool(((sizes > 0) & (sizes <= _LARGEST_SCALE)).all()):
            return
        if bool((sizes == 0).any()):
            raise self.fault(part, "has a scale of 0: the file is damaged, or not this format")
        raise self.fault(
            part, f"has a scale that is not a number up to {_LARGEST_SCALE:.3g}: damaged?"
        )

    def exponents(self, part: str, shape: tuple[int, ...]) -> Tensor:
        values = self.tensor(part, (torch.uint8, _E8M0), shape).view(torch.uint8)
        self._check_exponents(part, values)
        return values

    def _check_exponents(self, part: str, values: Tensor) -> None:
        most = int(values.max()) if values.numel() else 0
        if most > _MOST_EXPONENT:
            raise self.fault(
                part, f"has a scale of {most} (2 ** {most - 127}, or no number): damaged?"
            )

    @property
    def groups(self) -> int:
        """Number of groups of an output."""
        group, inputs = self.scheme.group, self.module.inputs
        if group is None:
            return 1
        if inputs % group:
            raise LoadError(
                f"{self._stored.folder}: quantization_config has groups of {group}, which do not "
                f"divide the {inputs} inputs of {self.module.name!r}; is that the config.json of "
                "these weights?"
            )
        return inputs // group

    def words(self, count: int) -> int:
        """Words of 32 bits that hold so many numbers."""
        return -(-count * self.scheme.bits // 32)

    def whole_words(self, what: str, count: int) -> int:
        """The same where none may be part full."""
        if count * self.scheme.bits % 32:
            raise LoadError(
                f"{self._stored.folder}: the {count} {what} of {self.module.name!r} do not fill "
                f"words of 32 bits, in which {self.scheme.layout} keeps {self.scheme.bits}-bit "
                "numbers"
            )
        return count * self.scheme.bits // 32

    def leave(self, *parts: str) -> None:
        """Tensors that say nothing new are read no more."""
        self._read.update(self.module.tensor(part) for part in parts)


def _fp8(taken: _Taken) -> Codes:
    outputs, inputs = taken.module.outputs, taken.module.inputs
    values = taken.tensor("weight", (_E4M3,), (outputs, inputs))
    if bool(((values.view(torch.uint8) & 0x7F) == 0x7F).any()):
        raise taken.fault("weight", "is not finite: the file is damaged")
    part = taken.there("weight_scale_inv", "weight_scale", "scale") or "weight_scale"
    if taken.scheme.block is not None:
        block = taken.scheme.block
        grid = -(-outputs // block[0]), -(-inputs // block[1])
        return code_layouts.e4m3_codes(values, taken.scales(part, grid), block)
    if taken.scheme.group is not None:
        by_group = taken.scales(part, (outputs, taken.groups))
        return code_layouts.e4m3_codes(values, by_group, (1, taken.scheme.group))
    scales = taken.scales(part, (), (1,), (1, 1), (outputs,), (outputs, 1))
    rows = outputs // scales.numel() if outputs else 1
    return code_layouts.e4m3_codes(values, scales.reshape(-1, 1), (rows, inputs))


def _int8(taken: _Taken) -> Codes:
    outputs, groups = taken.module.outputs, taken.groups
    values = taken.tensor("weight", (torch.int8,), (outputs, taken.module.inputs))
    shapes = ((outputs, groups),) if groups > 1 else ((outputs, 1), (outputs,), (1,), ())
    scales = taken.scales("weight_scale", *shapes).reshape(-1, groups).expand(outputs, groups)
    zeros: Tensor | None = None
    if taken.scheme.has_zeros:
        found = taken.tensor("weight_zero_point", (torch.int8,), *shapes)
        zeros = found.reshape(-1, groups).expand(outputs, groups)
    taken.leave("weight_zero_point")
    return code_layouts.signed_codes(values, scales, zeros)


def _packed(taken: _Taken) -> Codes:
    outputs, inputs, groups = taken.module.outputs, taken.module.inputs, taken.groups
    if inputs * taken.scheme.bits % 32:
        taken.whole_words("inputs", inputs)
    _check_shape(taken)
    words = taken.tensor("weight_packed", (torch.int32,), (outputs, taken.words(inputs)))
    shapes = ((outputs, groups),) if groups > 1 else ((outputs, 1), (outputs,), (1,), ())
    scales = taken.scales("weight_scale", *shapes).reshape(-1, groups).expand(outputs, groups)
    zeros: Tensor | None = None
    if taken.scheme.has_zeros:
        shape = (taken.words(outputs), groups)
        zeros = taken.tensor("weight_zero_point", (torch.int32,), shape)
    _check_order(taken, "weight_g_idx", "actorder group", "actorder weight or null")
    taken.leave("weight_zero_point")
    return code_layouts.packed_codes(words, scales, zeros, bits=taken.scheme.bits, inputs=inputs)


def _check_shape(taken: _Taken) -> None:
    """``weight_shape`` says what ``config.json`` says."""
    if taken.there("weight_shape") is None:
        return
    stated = taken.tensor("weight_shape", (torch.int64, torch.int32), (2,)).tolist()
    own = [taken.module.outputs, taken.module.inputs]
    if stated != own:
        raise taken.fault("weight_shape", f"says {stated}, config.json asks for {own}")


def _check_order(taken: _Taken, part: str, setting: str, other: str) -> None:
    """Inputs that are neighbours share a scale, where it is written which share one."""
    if taken.there(part) is None:
        return
    inputs = taken.module.inputs
    own = taken.tensor(part, (torch.int32, torch.int64), (inputs,))
    in_order = torch.arange(inputs, device=own.device) // (inputs // taken.groups)
    none_said = bool((own == -1).all())
    if not none_said and not torch.equal(own.long(), in_order):
        raise taken.fault(
            part,
            f"has inputs in an order of their own ({setting}), which is not read: quantise with "
            f"{other}",
        )


def _gptq(taken: _Taken) -> Codes:
    outputs, inputs, groups = taken.module.outputs, taken.module.inputs, taken.groups
    rows, columns = taken.whole_words("inputs", inputs), taken.whole_words("outputs", outputs)
    words = taken.tensor("qweight", (torch.int32,), (rows, outputs))
    scales = taken.scales("scales", (groups, outputs))
    zeros = taken.tensor("qzeros", (torch.int32,), (groups, columns))
    _check_order(taken, "g_idx", "desc_act", "desc_act false")
    first = taken.scheme.counts_zeros_from_one
    if first and taken.scheme.bits == 8 and bool((zeros.view(torch.uint8) == 255).any()):
        raise taken.fault("qzeros", "has a zero point of 256, which is beyond 8 bits: damaged?")
    return code_layouts.gptq_codes(
        words, scales, zeros, bits=taken.scheme.bits, first_version=first
    )


def _awq(taken: _Taken) -> Codes:
    outputs, inputs, groups = taken.module.outputs, taken.module.inputs, taken.groups
    columns = taken.whole_words("outputs", outputs)
    words = taken.tensor("qweight", (torch.int32,), (inputs, columns))
    scales = taken.scales("scales", (groups, outputs))
    zeros = taken.tensor("qzeros", (torch.int32,), (groups, columns)) if _zeros(taken) else None
    if inputs % 2:
        taken.whole_words("inputs", inputs)
    return code_layouts.awq_codes(words, scales, zeros)


def _zeros(taken: _Taken) -> bool:
    """Whether there are zero points; a folder that has some says so."""
    has = taken.there("qzeros") is not None
    if has and not taken.scheme.has_zeros:
        raise taken.fault("qzeros", "is there, and quantization_config.zero_point is false")
    return taken.scheme.has_zeros


def _mxfp4(taken: _Taken) -> Codes:
    outputs, inputs, groups = taken.module.outputs, taken.module.inputs, taken.groups
    if taken.module.of is not None and not taken.module.spelled_apart:
        blocks = taken.tensor("blocks", (torch.uint8,), (outputs, groups, 16)).flatten(1)
        return code_layouts.mxfp4_codes(blocks, taken.exponents("scales", (outputs, groups)))
    part = taken.there("weight_packed", "weight") or "weight_packed"
    values = taken.tensor(part, (torch.uint8, torch.int8), (outputs, inputs // 2))
    of_scales = taken.there("weight_scale", "scale") or "weight_scale"
    exponents = taken.exponents(of_scales, (outputs, groups))
    return code_layouts.mxfp4_codes(values.view(torch.uint8), exponents)


def _nvfp4(taken: _Taken) -> Tensor:
    """compressed-tensors divides by its second scale, modelopt multiplies with it."""
    outputs, inputs, groups = taken.module.outputs, taken.module.inputs, taken.groups
    part = taken.there("weight_packed", "weight") or "weight_packed"
    values = taken.tensor(part, (torch.uint8,), (outputs, inputs // 2))
    scales = taken.tensor("weight_scale", (_E4M3,), (outputs, groups))
    if bool(((scales.view(torch.uint8) & 0x7F) == 0x7F).any()):
        raise taken.fault("weight_scale", "has a scale that is not a number: damaged?")
    if taken.there("weight_global_scale") is not None:
        by_group = scales.float() / taken.scales("weight_global_scale", (), (1,))
    else:
        by_group = scales.float() * taken.scales("weight_scale_2", (), (1,))
    return code_layouts.nvfp4_weight(values, by_group)


_READERS: dict[str, Callable[[_Taken], Matrix]] = {
    "fp8": _fp8,
    "int8": _int8,
    "packed": _packed,
    "gptq": _gptq,
    "awq": _awq,
    "mxfp4": _mxfp4,
    "nvfp4": _nvfp4,
}
