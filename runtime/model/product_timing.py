"""Times a model's linear maps in every layout that this machine offers, before it is loaded.

The maps are made up: matrices of the shapes of one layer, a few of them one behind the other,
so that few rows find their weights in memory and not in a cache, as in a step. Layouts take
turns, and the shortest of some rounds counts, because the machine may be shared; where the two
shortest do not agree it is too busy to tell, and nothing is chosen by them.

Knows shapes, a clock and free memory. What follows from the times is ``product_choice``'s.
"""

import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from kernels.native_library import build_name
from kernels.quant_matmul import GROUP
from kernels.tiled_matrix import fits_tiles
from runtime.machine_files import MachineFile, processor
from runtime.model.config import Experts, KeepsKV, ModelConfig
from runtime.model.layers import Linear, WeightBits, make_linear, packs
from runtime.model.product_choice import (
    RANK,
    RULES,
    AllowedLayouts,
    Layout,
    ProductChoice,
    ProductRules,
    choose,
)

_LOG = logging.getLogger(__name__)

_SET_BYTES = 6 << 20
"""For each thread: of bfloat16 matrices that are timed together, a small model's layer or a part
of a large one's."""
_MOST_THREADS = 8
_CACHED_BYTES = 24 << 20
"""Weights that are timed with few rows are this large at least in each layout: layouts take turns,
so that it does not come from a cache."""
_FEW_ROWS = 16
_MANY_MAPS = 2
"""Maps of a set that are timed with many rows: the caches do not matter then, and so many tell
enough."""
_ROUNDS = 24
"""At most; fewer as soon as the two shortest of each layout agree."""
_AGREEMENT = 1.1


def measured_choice(
    config: ModelConfig,
    dtype: torch.dtype,
    device: torch.device,
    bits: WeightBits,
    *,
    free_bytes: int,
    clock: Callable[[], float],
    rules: ProductRules = RULES,
    folder: str | None = None,
) -> ProductChoice | None:
    """The layouts in which a model's linear maps should be kept, found out in ``rules.seconds`` at
    most; None where that is not worth it or could not be told.

    Args:
        free_bytes: memory there is before the model is loaded.
        clock: seconds.
        folder: keeps what was found out, so that later starts choose the same and answer the same
            to the last bit.
    """
    if device.type != "cpu" or dtype != torch.bfloat16 or bits == "fp8":
        return None
    weights = linear_weights(config)
    tiled = fits_tiles(torch.empty(1, config.hidden_size, dtype=dtype))
    if 2 * weights < rules.least_bytes or (bits != 16 and not tiled):
        return None
    started = clock()
    copies = _copies(config, bits, weights, free_bytes, rules)
    kept = MachineFile.of(folder, "products", _facts(config, bits))
    known = None if kept is None else kept.read(_understood)
    if known is not None and _can_be_had(known, copies):
        _LOG.info("products kept choice=%s", known)
        return known
    timer = _Trials(layer_shapes(config), bits, clock, until=started + rules.seconds)
    with torch.inference_mode():
        choice = choose(timer, copies, rules)
    _LOG.info("products measured_s=%.2f choice=%s", clock() - started, choice)
    if kept is not None and choice is not None:
        kept.write({"few": choice.few, "many": choice.many, "from_rows": choice.from_rows})
    return choice


def _facts(config: ModelConfig, bits: WeightBits) -> dict[str, str]:
    """The facts on which a choice depends, but for the memory that is free."""
    return {
        "processor": processor(),
        "threads": str(torch.get_num_threads()),
        "torch": torch.__version__,
        "kernels": build_name(),
        "bits": str(bits),
        "model": hashlib.sha256(repr(config).encode()).hexdigest(),
    }


def _understood(content: Any) -> ProductChoice:
    """Raises ValueError, TypeError or KeyError where it is no choice."""
    few, many, from_rows = content["few"], content["many"], content["from_rows"]
    if few not in RANK or many not in (None, "widened", *RANK) or type(from_rows) is not int:
        raise ValueError(f"no choice of layouts: {content!r}"[:200])
    return ProductChoice(few=few, many=many, from_rows=from_rows)


def _can_be_had(choice: ProductChoice, copies: AllowedLayouts) -> bool:
    """Whether there is what it takes: the layouts, and memory for a second copy."""
    if choice.few not in copies.first:
        return False
    if choice.many is None or choice.many == "widened":
        return True
    return copies.second_size is not None and choice.many in copies.second


def layer_shapes(config: ModelConfig) -> list[tuple[int, int]]:
    """(outputs, inputs) of the linear maps of one layer; of experts, of one."""
    hidden = config.hidden_size
    attending = [each for each in config.layers if isinstance(each.mixer, KeepsKV)]
    beside = [each.feed_forward for each in (*attending, *config.layers)]
    found = [mlp for mlp in beside if mlp is not None]
    experts = [mlp for mlp in found[: len(attending)] if isinstance(mlp, Experts)]
    mixer, mlp = config.attention[0], (experts or found)[0]
    size = mlp.each.size if isinstance(mlp, Experts) else mlp.size
    return [*mixer.map_shapes(hidden), (2 * size, hidden), (hidden, size)]


def linear_weights(config: ModelConfig) -> int:
    """Weights of all linear maps, the head's included: nearly all there are."""
    tied = config.tie_embeddings
    looked_up = config.table_parameters + (0 if tied else config.vocab_size * config.hidden_size)
    return config.num_parameters - looked_up


def _copies(
    config: ModelConfig, bits: WeightBits, weights: int, free_bytes: int, rules: ProductRules
) -> AllowedLayouts:
    sample = torch.empty(1, config.hidden_size, dtype=torch.bfloat16)
    offered = {"tiles": fits_tiles(sample), "packed": packs(sample), "plain": True}
    able = [layout for layout in RANK if offered[layout]]
    size = 1.0 if bits == 8 else 0.5 + 4 / GROUP if bits == 4 else 2.0
    fits = 2 * weights <= rules.second_copy_share * (free_bytes - size * weights)
    first = able if bits == 16 else RANK[:1]
    second = able if bits == 16 else [layout for layout in able if layout == "packed"]
    return AllowedLayouts(first=first, second=second, second_size=2 / size if fits else None)


class _Trials:
    """Times made-up maps up to a moment."""

    def __init__(
        self,
        shapes: Sequence[tuple[int, int]],
        bits: WeightBits,
        clock: Callable[[], float],
        *,
        until: float,
    ) -> None:
        self._clock = clock
        self._until = until
        self._bits = bits
        layer_bytes = 2 * sum(outputs * inputs for outputs, inputs in shapes)
        set_bytes = _SET_BYTES * min(torch.get_num_threads(), _MOST_THREADS)
        share = min(1.0, set_bytes / layer_bytes)
        parts = [(max(64, int(share * outputs) // 64 * 64), inputs) for outputs, inputs in shapes]
        self._shapes = parts * max(1, set_bytes // layer_bytes)
        self._num_sets = max(1, -(-_CACHED_BYTES // set_bytes))
        self._weights: list[list[Tensor]] = []
        self._sets: dict[Layout, list[list[Linear]]] = {}

    def times(self, layouts: Sequence[Layout], rows: int) -> Mapping[Layout, float] | None:
        """See ``ProductTimer``."""
        inputs = {size: torch.ones(rows, size, dtype=torch.bfloat16) for _, size in self._shapes}
        seconds: dict[Layout, list[float]] = {layout: [] for layout in layouts}
        few = rows <= _FEW_ROWS
        for number in range(_ROUNDS + 1):
            for layout in layouts:
                # the first round makes what is made once, which one set shows
                sets = self._maps(layout, self._num_sets if few and number else 1)
                if sets is None:
                    return None
                taken = self._run(sets if few else [sets[0][:_MANY_MAPS]], inputs)
                if number:
                    seconds[layout] = sorted([*seconds[layout], taken])[:2]
                if self._clock() > self._until:
                    return None
            if all(len(two) == 2 and two[1] <= _AGREEMENT * two[0] for two in seconds.values()):
                return {layout: shortest for layout, (shortest, _) in seconds.items()}
        return None

    def _maps(self, layout: Layout, sets: int) -> list[list[Linear]] | None:
        """The maps of so many sets; None if time is over before they are made."""
        made = self._sets.setdefault(layout, [])
        while len(made) < sets:
            if self._clock() > self._until:
                return None
            if len(made) == len(self._weights):
                self._weights.append(
                    [torch.ones(shape, dtype=torch.bfloat16) for shape in self._shapes]
                )
            weights = self._weights[len(made)]
            made.append([product_in(layout, weight, self._bits) for weight in weights])
        return made[:sets]

    def _run(self, sets: Sequence[Sequence[Linear]], inputs: Mapping[int, Tensor]) -> float:
        """Seconds of a weight, many of them timed."""
        weights = 0
        started = self._clock()
        for maps in sets:
            for (outputs, size), product in zip(self._shapes, maps, strict=False):
                product(inputs[size])
                weights += outputs * size
        return (self._clock() - started) / weights


def product_in(layout: Layout, weight: Tensor, bits: WeightBits) -> Linear:
    """A map in ``layout``; with fewer bits than 16 if these are tiles."""
    if layout == "widened":
        always = ProductChoice(few="tiles", many="widened", from_rows=2)
        return make_linear(weight, None, bits, always)
    of_tiles = layout == "tiles"
    return make_linear(weight, None, bits if of_tiles else 16, ProductChoice(few=layout))
