"""Contents of a model's files, as far as their headers tell: how matrices are kept, what is not
read, and how much memory the rest will take.

Always true: no weight is looked at. Memory is told from what stays as it lies and what is widened;
the layouts of products add little to it.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from runtime.model.schemes import Quantisation, Scheme

_KEPT_IN_GGUF = ("Q8_0", "Q4_0", "MXFP4")
"""Kinds that stay as they lie; others are widened."""
_SCALE_BYTES = 4
_NVFP4_IN_A_BYTE = 2
_WHAT = {
    "fp8": "e4m3",
    "int8": "int8",
    "packed": "int{bits}",
    "gptq": "int{bits}",
    "awq": "int{bits}",
    "mxfp4": "MXFP4",
    "nvfp4": "NVFP4, widened",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """The extent of one tensor in a file."""

    kind: str
    """The kind of its numbers, as torch calls it."""
    floats: bool
    """Whether its numbers have 16 bits or more, and are brought to the model's dtype."""
    numbers: int
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """The contents of a model's files."""

    form: str
    """How weights are kept, for people."""
    left: str = ""
    """Tensors that are knowingly not read, for people."""
    held_bytes: int
    """Memory of the weights, once they are loaded."""


def held_bytes(name: str, extent: Extent, quantisation: Quantisation | None, width: int) -> int:
    """Memory that a tensor of a safetensors file takes once it is loaded; ``width``: bytes of a
    number in the model's dtype."""
    module, _, part = name.rpartition(".")
    scheme = None if quantisation is None else quantisation.scheme_of(module)
    if scheme is not None and scheme.layout == "nvfp4" and part.startswith("weight_"):
        is_packed = part == "weight_packed"
        return extent.numbers * _NVFP4_IN_A_BYTE * width if is_packed else 0
    if not extent.floats:
        return extent.num_bytes
    is_scale = scheme is not None and "scale" in part
    return extent.numbers * (_SCALE_BYTES if is_scale else width)


def held_of_gguf(kind: str, numbers: int, num_bytes: int, width: int) -> int:
    """The same of a tensor of a GGUF file."""
    return num_bytes if kind in _KEPT_IN_GGUF else numbers * width


def told(quantisation: Quantisation) -> str:
    """How matrices are kept in few bits, for people."""
    own = {_scheme(scheme) for _, scheme in quantisation.own if scheme is not None}
    schemes = dict.fromkeys((_scheme(quantisation.scheme), *sorted(own)))
    return f"{quantisation.method} ({', '.join(schemes)})"


def counted(names: Iterable[str]) -> str:
    """Patterns and how many tensors fell under each, for people."""
    found: Mapping[str, int] = Counter(names)
    return ", ".join(f"{name} ({count})" for name, count in sorted(found.items()))


def _scheme(scheme: Scheme) -> str:
    words = [_WHAT.get(scheme.layout, scheme.layout).format(bits=scheme.bits)]
    if scheme.block is not None:
        words.append(f"in blocks of {scheme.block[0]} x {scheme.block[1]}")
    elif scheme.group is not None:
        words.append(f"in groups of {scheme.group}")
    if scheme.has_zeros:
        words.append("with zero points")
    return " ".join(words)
