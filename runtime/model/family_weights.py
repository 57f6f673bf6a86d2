"""A family's weights by the decoder's names, whatever the checkpoint calls them and keeps together.

Always true: when the decoder has taken what it needs, every tensor of the checkpoint was read or
is one that is knowingly left.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Protocol

import torch
from torch import Tensor

from kernels.codes import Codes
from runtime.model.adapters import MapPlace
from runtime.model.config import Attention, Experts, LoadError, ModelConfig
from runtime.model.family import TensorNames
from runtime.model.quantised_tensors import (
    Matrix,
    Module,
    QuantisedTensors,
    StoredTensors,
)
from runtime.model.recurrent import GatedDelta

_PREFIXES = (
    ("model.", ""),
    ("model.language_model.", ""),
    ("language_model.model.", "language_model."),
    ("model.text_model.", ""),
    ("backbone.", ""),
)
"""Where the text part's tensors are, and its output projection."""

_UNREAD = (
    "*.rotary_emb.inv_freq",  # follows from config.json
    "mtp.*",
    "*.mtp.*",
    "*.mtp_*",
    "*vision_tower.*",
    "*vision_model.*",
    "*vision_encoder.*",
    "*visual.*",
    "*audio_tower.*",
    "*multi_modal_projector.*",
    "*patch_merge_mlp.*",
    "*mm_projector.*",
    "*vit_large_projector.*",
    "*vision_adapter.*",
    "*connector.*",
    "*embed_vision.*",
    "*vision_embedder.*",
    "*embed_audio.*",
)
"""Tensors that no family's decoder computes with: other parts of a wrapper, predictions further
ahead."""

_ROWS_AT_ONCE = 4096
"""Rows at once of matrices that are compared."""
_IN_LAYER = re.compile(r"model\.layers\.(\d+)\.(.+)")
_OF_EXPERT = re.compile(r"mlp\.experts\.(\d+)\.(gate|up|down)_proj\.(weight|bias)")


class NamedTensors(StoredTensors, Protocol):
    """A checkpoint, whose tensors are read by name."""

    def names(self) -> Sequence[str]: ...

    def as_own(self, matrix: Matrix) -> Matrix:
        """A copy on the model's device, of a tensor in the model's dtype."""
        ...

    def tensor(
        self, name: str, shape: tuple[int, ...], *, wide: bool = False, part: "Part | None" = None
    ) -> Tensor:
        """See ``Checkpoint.tensor``."""
        ...


class Part(Protocol):
    """Takes what is wanted from a whole tensor, without copying."""

    def __call__(self, whole: Tensor) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The tensor that the decoder asks for: its shape, and the part of it that is kept."""

    shape: tuple[int, ...]
    wide: bool
    part: Part | None

    def within(self, taken: Part) -> Part:
        """The part of what is taken of a tensor that several share."""
        part = self.part
        return taken if part is None else lambda whole: part(taken(whole))


class FamilyWeights:
    """A ``WeightSource`` over a checkpoint of a family."""

    def __init__(self, checkpoint: NamedTensors, names: TensorNames, config: ModelConfig) -> None:
        stored = checkpoint.names()
        for part, other in names.others:
            if any(part in each for each in stored):
                names = other
                break
        self._checkpoint = checkpoint
        self._names = names
        self._config = config
        self._prefix, self._head_prefix = _text_prefix(checkpoint, names)
        together = (*names.fused, *names.by_head)
        self._fused = {part: fused for fused, parts in together for part in parts}
        self._or_else = [
            (one, other)
            for one, other in names.or_else
            if any(f".{other}." in each for each in stored)
        ]
        self._read: set[str] = set()
        self._quantised: QuantisedTensors | None = None
        if config.quantisation is not None:
            self._quantised = QuantisedTensors(checkpoint, config.quantisation)
        self._last: tuple[Module, Matrix | None] | None = None

    def matrix(self, name: str, shape: tuple[int, int]) -> Tensor | Codes:
        """See ``WeightSource.matrix``."""
        if self._quantised is None or name == "model.embed_tokens.weight":
            return self.tensor(name, shape)
        if self._of_plain_stack(name):
            return self.tensor(name, shape)
        module, rows = self._module(name.removesuffix(".weight"), *shape)
        if self._last is None or self._last[0] != module:
            self._last = module, self._quantised.matrix(module)
        found = self._last[1]
        if found is None:
            return self.tensor(name, shape)
        own = found[rows] if isinstance(found, Tensor) else found.rows(rows)
        return self._checkpoint.as_own(own)

    def group(self, name: str, shape: tuple[int, int]) -> int | None:
        """See ``cut_weights.StoredWeights``."""
        if self._quantised is None or self._of_plain_stack(name):
            return None
        return self._quantised.group(self._module(name.removesuffix(".weight"), *shape)[0])

    def place(self, name: str, outputs: int, inputs: int) -> MapPlace:
        """See ``PlacesMaps``."""
        module, rows = self._module(name, outputs, inputs)
        return MapPlace(
            module=module.name, outputs=module.outputs, own=outputs, inputs=inputs, rows=rows
        )

    def tensor(
        self, name: str, shape: tuple[int, ...], *, wide: bool = False, part: "Part | None" = None
    ) -> Tensor:
        """See ``cut_weights.WholeWeights``."""
        values = self._taken(name, _Wanted(shape, wide, part))
        if self._names.norms_from_zero and name.endswith("norm.weight"):
            values += 1
        return values

    def _taken(self, name: str, wanted: "_Wanted") -> Tensor:
        within = _IN_LAYER.fullmatch(name)
        if within is None:
            if name == "model.norm.weight":
                name = f"{self._names.last_norm}.weight"
            elif name == "model.embed_tokens.weight":
                name = f"{self._names.embedding}.weight"
            return self._whole(self._outside(name), wanted)
        layer, rest = int(within[1]), within[2]
        expert = _OF_EXPERT.fullmatch(rest)
        if expert is not None and self._names.stacked_experts == "inputs first":
            return self._of_stack(layer, expert, wanted)
        if expert is not None and self._of_plain_stack(name):
            return self._of_outputs_first(layer, expert, wanted)
        stack = None if expert is None else self._stack_of_map(layer, expert)
        if expert is not None and stack is not None:
            return self._of_one_map(layer, expert, stack, wanted)
        module, _, kind = rest.rpartition(".")
        parts = dict(self._names.piled).get(rest)
        if parts is not None:
            return self._of_piled(layer, parts, wanted)
        if module in self._fused:
            return self._of_fused(layer, module, kind, wanted)
        return self._whole(self._in_layer(layer, rest), wanted)

    def _outside(self, name: str) -> str:
        """The name of a tensor in no layer that the checkpoint has, of those that it may have."""
        others = dict(self._names.outside).get(name, ())
        return next((each for each in others if self._named(each) in self._checkpoint), name)

    def _module(self, name: str, outputs: int, inputs: int) -> tuple[Module, slice | Tensor]:
        """The module that holds a linear map of the decoder's, and which of its rows that is."""
        within = _IN_LAYER.fullmatch(name)
        if within is None:
            own = self._named(self._outside(f"{name}.weight").removesuffix(".weight"))
            return Module(name=own, outputs=outputs, inputs=inputs), slice(None)
        layer, rest = int(within[1]), within[2]
        expert = _OF_EXPERT.fullmatch(f"{rest}.weight")
        if expert is not None and self._names.stacked_experts == "inputs first":
            return self._module_of_stack(layer, expert, outputs, inputs)
        stack = None if expert is None else self._stack_of_map(layer, expert)
        if expert is not None and stack is not None:
            of = int(expert[1]), self._experts(layer).router.num_experts
            name = self._named(stack)
            whole = Module(name=name, outputs=outputs, inputs=inputs, of=of, spelled_apart=True)
            return whole, slice(None)
        if rest not in self._fused:
            own = self._named(self._in_layer(layer, rest))
            return Module(name=own, outputs=outputs, inputs=inputs), slice(None)
        total, rows = self._rows_of(layer, rest)
        own = self._named(self._in_layer(layer, self._fused[rest]))
        return Module(name=own, outputs=total, inputs=inputs), rows

    def _rows_of(self, layer: int, module: str) -> tuple[int, slice | Tensor]:
        """How many rows a tensor has that several share, and which are those of one."""
        fused, by_head = self._fused[module], dict(self._names.by_head)
        parts = by_head.get(fused) or dict(self._names.fused)[fused]
        sizes = [_rows(self._config, layer, part) for part in parts]
        place = parts.index(module)
        if fused not in by_head:
            low = sum(sizes[:place])
            return sum(sizes), slice(low, low + sizes[place])
        mixer = self._config.layers[layer].mixer
        assert isinstance(mixer, GatedDelta)
        each = [size // mixer.key_heads for size in sizes]
        by_rows = torch.arange(sum(sizes)).view(mixer.key_heads, sum(each))
        low = sum(each[:place])
        return sum(sizes), by_rows[:, low : low + each[place]].flatten()

    def _module_of_stack(
        self, layer: int, expert: re.Match[str], outputs: int, inputs: int
    ) -> tuple[Module, slice]:
        experts = self._experts(layer)
        down = expert[2] == "down"
        stack = "down_proj" if down else "gate_up_proj"
        module = Module(
            name=self._named(f"model.layers.{layer}.mlp.experts.{stack}"),
            outputs=outputs if down else 2 * outputs,
            inputs=inputs,
            of=(int(expert[1]), experts.router.num_experts),
        )
        return module, slice(None) if down else slice(int(expert[2] == "up"), None, 2)

    def _whole(self, name: str, wanted: "_Wanted") -> Tensor:
        if name.endswith(self._names.may_lack) and self._named(name) not in self._checkpoint:
            return self._zeros(wanted)
        if name.endswith(self._names.of_one_row):
            row = _Wanted((1, *wanted.shape), wanted.wide, wanted.within(lambda one: one[0]))
            return self._checkpoint.tensor(
                self._noted(name), row.shape, wide=row.wide, part=row.part
            )
        return self._checkpoint.tensor(
            self._noted(name), wanted.shape, wide=wanted.wide, part=wanted.part
        )

    def _zeros(self, wanted: "_Wanted") -> Tensor:
        """In the place of a tensor that a checkpoint may leave out."""
        like = self._checkpoint.as_own(torch.zeros(wanted.shape))
        assert isinstance(like, Tensor)
        own = like if wanted.part is None else wanted.part(like)
        return own.to(torch.promote_types(own.dtype, torch.float32)) if wanted.wide else own

    def _noted(self, name: str) -> str:
        """The same of a tensor that is read now."""
        name = self._named(name)
        self._read.add(name)
        return name

    def _named(self, name: str) -> str:
        """The checkpoint's name for one that begins as in a folder without a wrapper."""
        if name.startswith("model."):
            return self._prefix + name.removeprefix("model.")
        return self._head_prefix + name

    def _in_layer(self, layer: int, rest: str) -> str:
        for ours, theirs in self._names.replaced:
            rest = rest.replace(ours, theirs)
        for pattern, theirs in self._names.patterns:
            rest = re.sub(pattern, theirs, rest)
        for one, other in self._or_else:
            rest = rest.replace(one, other)
        for one, other in self._names.either:
            if self._named(f"model.layers.{layer}.{rest}") not in self._checkpoint:
                rest = rest.replace(one, other)
        return f"model.layers.{layer}.{rest}"

    def _of_piled(self, layer: int, parts: Sequence[str], wanted: "_Wanted") -> Tensor:
        """Several tensors, one below the other.

        Raises:
            LoadError: they are not as many rows together as is wanted, or see ``tensor``.
        """
        names = [self._noted(self._in_layer(layer, part)) for part in parts]
        counts = [len(self._checkpoint.stored(name)) for name in names]
        if sum(counts) != wanted.shape[0]:
            raise LoadError(
                f"{self._checkpoint.place(names[0])}: tensors {', '.join(map(repr, names))} have "
                f"{sum(counts)} rows, config.json asks for {wanted.shape[0]}"
            )
        rest = wanted.shape[1:]
        taken = [
            self._checkpoint.tensor(name, (count, *rest), wide=wanted.wide)
            for name, count in zip(names, counts, strict=True)
        ]
        return torch.cat(taken) if wanted.part is None else wanted.part(torch.cat(taken))

    def _of_fused(self, layer: int, module: str, kind: str, wanted: "_Wanted") -> Tensor:
        """Rows of a tensor that several share."""
        total, rows = self._rows_of(layer, module)
        name = self._noted(self._in_layer(layer, f"{self._fused[module]}.{kind}"))
        return self._checkpoint.tensor(
            name,
            (total, *wanted.shape[1:]),
            wide=wanted.wide,
            part=wanted.within(lambda whole: whole[rows]),
        )

    def _of_plain_stack(self, name: str) -> bool:
        """Whether an expert's matrix is in a stack with its outputs first."""
        if self._names.stacked_experts != "outputs first":
            return False
        within = _IN_LAYER.fullmatch(name)
        expert = None if within is None else _OF_EXPERT.fullmatch(within[2])
        if within is None or expert is None:
            return False
        stack = "down_proj" if expert[2] == "down" else "gate_up_proj"
        name = self._in_layer(int(within[1]), f"mlp.experts.{stack}")
        return self._named(name) in self._checkpoint

    def _of_outputs_first(self, layer: int, expert: re.Match[str], wanted: "_Wanted") -> Tensor:
        """One expert's matrix; gates lie before ups."""
        index, which = int(expert[1]), expert[2]
        experts = self._experts(layer)
        halves = 1 if which == "down" else 2
        low = wanted.shape[0] if which == "up" else 0
        stack = "down_proj" if which == "down" else "gate_up_proj"
        return self._checkpoint.tensor(
            self._noted(self._in_layer(layer, f"mlp.experts.{stack}")),
            (experts.router.num_experts, halves * wanted.shape[0], wanted.shape[1]),
            wide=wanted.wide,
            part=wanted.within(lambda whole: whole[index, low : low + wanted.shape[0]]),
        )

    def _experts(self, layer: int) -> Experts:
        experts = self._config.layers[layer].feed_forward
        assert isinstance(experts, Experts)
        return experts

    def _stack_of_map(self, layer: int, expert: re.Match[str]) -> str | None:
        """The module that has one map of all experts; None: a checkpoint has them otherwise."""
        if self._names.stacked_experts != "by map":
            return None
        name = self._in_layer(layer, f"mlp.experts.{expert[2]}_proj")
        parts = "weight", "weight_packed"
        there = any(f"{self._named(name)}.{part}" in self._checkpoint for part in parts)
        return name if there else None

    def _of_one_map(
        self, layer: int, expert: re.Match[str], stack: str, wanted: "_Wanted"
    ) -> Tensor:
        """One expert's matrix, of a stack of one map of all."""
        index = int(expert[1])
        return self._checkpoint.tensor(
            self._noted(f"{stack}.{expert[3]}"),
            (self._experts(layer).router.num_experts, *wanted.shape),
            wide=wanted.wide,
            part=wanted.within(lambda whole: whole[index]),
        )

    def _of_stack(self, layer: int, expert: re.Match[str], wanted: "_Wanted") -> Tensor:
        """One expert's matrix or bias. Gates and ups take turns in theirs; matrices have their
        inputs first."""
        index, which, kind = int(expert[1]), expert[2], expert[3]
        experts = self._experts(layer)
        stack = "down_proj" if which == "down" else "gate_up_proj"
        columns = slice(None) if which == "down" else slice(int(which == "up"), None, 2)
        outputs = wanted.shape[0] if which == "down" else 2 * wanted.shape[0]
        suffix = "_bias" if kind == "bias" else ""
        name = self._noted(f"model.layers.{layer}.mlp.experts.{stack}{suffix}")
        return self._checkpoint.tensor(
            name,
            (experts.router.num_experts, *wanted.shape[1:], outputs),
            wide=wanted.wide,
            part=wanted.within(lambda whole: whole[index][..., columns].movedim(-1, 0)),
        )

    def check_all_read(self, *, but: str = "") -> None:
        """Look at what is left over; ``but``: a pattern of names that other ranks read.

        Raises:
            LoadError: a tensor that this family is not known to have, or a head that is not the
                embedding where ``config.json`` says so.
        """
        self._check_head()
        read = self._read | (self._quantised.read if self._quantised is not None else set())
        names = self._checkpoint.names()
        left = (name for name in names if name not in read and not fnmatchcase(name, but))
        strange = next((name for name in left if self.left_as(name) is None), None)
        if strange is not None:
            raise LoadError(
                f"{self._checkpoint.folder}: tensor {strange!r} is nothing that model_type "
                f"{self._config.model_type!r} computes with as config.json describes it; is that "
                "the config.json of these weights?"
            )

    def _check_head(self) -> None:
        """A head that is kept beside the embedding has its numbers, where both are one."""
        head = f"{self._head_prefix}lm_head.weight"
        embedding = self._named(f"{self._names.embedding}.weight")
        if not self._config.tie_embeddings or head not in self._checkpoint:
            return
        if self._same_numbers(self._checkpoint.stored(head), self._checkpoint.stored(embedding)):
            return
        raise LoadError(
            f"{self._checkpoint.place(head)}: tensor {head!r} has other numbers than {embedding!r},"
            " and tie_word_embeddings in config.json says that they are one: set it to false, or "
            "leave the tensor out"
        )

    def _same_numbers(self, one: Tensor, other: Tensor) -> bool:
        """Whether two matrices are the same in the model's dtype."""
        if one.shape != other.shape:
            return False
        own = self._checkpoint.as_own
        pairs = zip(torch.split(one, _ROWS_AT_ONCE), torch.split(other, _ROWS_AT_ONCE), strict=True)
        return all(_equal(own(rows), own(more)) for rows, more in pairs)

    def left_as(self, name: str) -> str | None:
        """Among which tensors a name of the checkpoint's is knowingly left, as a pattern; None: it
        has to be read."""
        pattern = next((each for each in _UNREAD if fnmatchcase(name, each)), None)
        if pattern is not None:
            return pattern
        if name.endswith(self._names.unused):
            return f"*.{'.'.join(name.split('.')[-2:])}"
        if self._is_of_shared_keys(name):
            return f"*.{name.partition('.self_attn.')[2].partition('.')[0]}.*"
        if self._quantised is not None and self._quantised.is_knowingly_left(name):
            return f"*.{name.rpartition('.')[2]}"
        if self._config.tie_embeddings and name == f"{self._head_prefix}lm_head.weight":
            return name
        further = re.match(re.escape(self._prefix) + r"layers\.(\d+)\.", name)
        behind = further is not None and int(further[1]) >= self._config.num_layers
        if further is None or not (behind and self._names.predicts_more):
            return None
        return f"{further[0]}*"

    def _is_of_shared_keys(self, name: str) -> bool:
        """Whether a tensor would make keys or values in a layer that reads another's; some
        checkpoints have such."""
        pattern = re.escape(self._prefix) + r"layers\.(\d+)\.self_attn\.[kv]_(proj|norm)\."
        found = re.match(pattern, name)
        if found is None or int(found[1]) >= self._config.num_layers:
            return False
        mixer = self._config.layers[int(found[1])].mixer
        return isinstance(mixer, Attention) and mixer.shares is not None


def _equal(one: Matrix, other: Matrix) -> bool:
    return isinstance(one, Tensor) and isinstance(other, Tensor) and torch.equal(one, other)


def _text_prefix(checkpoint: NamedTensors, names: TensorNames) -> tuple[str, str]:
    embedding = f"{names.embedding}.weight"
    called = (embedding, *dict(names.outside).get(embedding, ()))
    for prefixes in (*_PREFIXES, ("", "")) if names.bare else _PREFIXES:
        if any(f"{prefixes[0]}{name.removeprefix('model.')}" in checkpoint for name in called):
            return prefixes
    return _PREFIXES[0]


def _rows(config: ModelConfig, layer: int, module: str) -> int:
    """Outputs of one of the decoder's linear maps."""
    spec = config.layers[layer]
    if isinstance(spec.mixer, Attention) and module.startswith("self_attn."):
        sizes = {
            "self_attn.q_proj": spec.mixer.query_size,
            "self_attn.k_proj": spec.mixer.kv_size,
            "self_attn.v_proj": sum(spec.mixer.made_sizes[1:]),
        }
        return sizes[module]
    if isinstance(spec.mixer, GatedDelta) and module.startswith("linear_attn."):
        key, value, heads = spec.mixer.key_size, spec.mixer.value_size, spec.mixer.value_heads
        of_part = {"q": key, "k": key, "v": value, "z": value, "b": heads, "a": heads}
        return of_part[module.removeprefix("linear_attn.in_proj_")]
    mlp = spec.feed_forward
    assert mlp is not None
    if isinstance(mlp, Experts) and mlp.shared is not None and ".shared_expert." in module:
        return mlp.shared.size
    return mlp.each.size if isinstance(mlp, Experts) else mlp.size
