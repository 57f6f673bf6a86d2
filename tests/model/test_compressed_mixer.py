"""Compressed attention over the pool beside the reference's, which makes every entry from the whole
transcript."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from runtime.model.batch import SequenceInput, StepBatch
from runtime.model.compressed import Compressed
from runtime.model.compressed_mixer import CompressedMixer
from runtime.model.config import Gated, Layer, ModelConfig
from runtime.model.kv_pool import KVPool
from runtime.model.latent import Indexer
from runtime.model.layers import MapLoader
from runtime.model.random_weights import RandomWeights
from runtime.model.rope_config import RopeConfig
from runtime.model.rotary import RotaryTable
from runtime.model.windowed_step import WindowedStep
from tests.support.reference import ReferenceModel
from tests.support.reference_compressed import compressed

CPU = torch.device("cpu")
HIDDEN, TOKENS, BLOCK, EPS = 28, 75, 4, 1e-3
PLAIN = Compressed(
    heads=6, dim=10, rotary_dim=4, query_rank=16, near=13, output_groups=3, output_rank=7
)
YARN = RopeConfig(
    kind="yarn", theta=100.0, factor=4.0, original_max_position=20, attention_factor=1.2
)
INDEXER = Indexer(heads=6, dim=8, top_k=5)
KINDS: dict[str, dict[str, Any]] = {
    "a window alone": {},
    "all entries": {"ratio": 8},
    "all entries, stretched": {"ratio": 3, "rope": YARN},
    "entries that no query sees": {"ratio": TOKENS + 1},
    "chosen entries": {"ratio": 4, "indexer": INDEXER},
    "chosen entries, stretched, one group": {
        "ratio": 3,
        "indexer": replace(INDEXER, top_k=2),
        "rope": YARN,
        "output_groups": 1,
    },
    "more to choose than there are": {"ratio": 4, "indexer": replace(INDEXER, top_k=TOKENS)},
    "a window of one token": {"near": 1, "ratio": 2, "indexer": INDEXER},
    "a window longer than the prompt": {"near": 100, "ratio": 16},
    "heads that are rotated whole": {"rotary_dim": 10, "ratio": 8},
}


def config_of(spec: Compressed) -> ModelConfig:
    return ModelConfig(
        model_type="test",
        vocab_size=9,
        hidden_size=HIDDEN,
        layers=(Layer(mixer=spec, feed_forward=Gated(size=8)),),
        max_context_tokens=TOKENS,
        norm_eps=EPS,
    )


def made(spec: Compressed, source: RandomWeights) -> CompressedMixer:
    return CompressedMixer(
        spec, "model.layers.0", HIDDEN, MapLoader(source=source, dtype=torch.float64), eps=EPS
    )


class Contexts:
    """A pool of poisoned blocks, and sequences that are computed into it in steps; with
    ``window_blocks`` these are of rows, and the others of entries alone."""

    def __init__(
        self,
        spec: Compressed,
        mixer: CompressedMixer,
        dtype: torch.dtype,
        window_blocks: int | None = None,
    ) -> None:
        self._mixer = mixer
        self.pool = KVPool(
            config_of(spec),
            num_blocks=80,
            block_size=BLOCK,
            dtype=dtype,
            device=CPU,
            window_blocks=window_blocks,
        )
        for part in self.pool.groups:
            part.fill_(torch.nan)
        self._table = RotaryTable(spec.rope, spec.rotary_dim, dtype, CPU)
        self._ratio = spec.ratio

    def step(
        self,
        *parts: tuple[Tensor, int, np.ndarray],
        window: tuple[int, np.ndarray] | None = None,
    ) -> Tensor:
        """Inputs [count, hidden], from a position on, in blocks; ``window``: the first block with
        rows, and window blocks from there on."""
        inputs = [
            SequenceInput(
                tokens=np.zeros(len(x), dtype=np.int32),
                start=start,
                block_table=blocks,
                num_logits=0,
                window=window,
            )
            for x, start, blocks in parts
        ]
        batch = StepBatch.build(inputs, BLOCK)
        layout, near = batch.layout(CPU), None
        rows = batch
        if batch.window is not None:
            rows, near = batch.window, batch.window.layout(CPU)
        tables = {} if self._ratio is None else {self._ratio: self._table}
        return self._mixer(
            torch.cat([x for x, _, _ in parts]),
            rotation=self._table.at(torch.from_numpy(batch.positions), TOKENS),
            blocks=self.pool.layer(0)[0],
            entries=self.pool.beside(0),
            slots=torch.from_numpy(rows.slots),
            layout=layout if near is None else near,
            step=WindowedStep(layout, BLOCK, tables, near=near, apart=True),
        )


def blocks_from(first: int) -> np.ndarray:
    """Enough of them, in two runs, backwards."""
    return np.arange(first, first + 20, dtype=np.int32)[::-1].copy()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("chunk", [1, 9, TOKENS])
def test_a_prompt_in_chunks_mixes_as_the_reference_does(kind: str, chunk: int) -> None:
    spec = replace(PLAIN, **KINDS[kind])
    source = RandomWeights(0, torch.float64, CPU)
    contexts = Contexts(spec, made(spec, source), torch.float64)
    x = torch.randn(TOKENS, HIDDEN, dtype=torch.float64)
    reference = ReferenceModel(config_of(spec), source.tensor)
    expected = compressed(reference, spec, "model.layers.0.self_attn", x)
    rows = [
        contexts.step((x[start : start + chunk], start, blocks_from(0)))
        for start in range(0, TOKENS, chunk)
    ]
    assert torch.allclose(torch.cat(rows), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("chunk", [1, 9])
def test_rows_behind_the_window_are_not_read(kind: str, chunk: int) -> None:
    """They are poisoned, token by token."""
    spec = replace(PLAIN, **KINDS[kind])
    source = RandomWeights(0, torch.float64, CPU)
    contexts = Contexts(spec, made(spec, source), torch.float64, window_blocks=20)
    x = torch.randn(TOKENS, HIDDEN, dtype=torch.float64)
    reference = ReferenceModel(config_of(spec), source.tensor)
    expected = compressed(reference, spec, "model.layers.0.self_attn", x)
    own, rows = np.random.default_rng(0).permutation(20).astype(np.int32), []
    kept = contexts.pool.layer(0)[0]
    for start in range(0, TOKENS, chunk):
        gone = max(0, start - spec.window + 1)
        for token in range(gone):
            kept[int(own[token // BLOCK]), 0, token % BLOCK] = torch.nan
        first = gone // BLOCK
        rows.append(
            contexts.step(
                (x[start : start + chunk], start, blocks_from(0)), window=(first, own[first:])
            )
        )
    assert torch.allclose(torch.cat(rows), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kind", ["all entries", "chosen entries"])
def test_tokens_that_are_computed_anew_from_anywhere_mix_as_in_a_plain_run(kind: str) -> None:
    """As after rejected drafts, and in a copy of the blocks as after a fork: in the middle of a
    window, at its end and behind it, beside another sequence."""
    spec = replace(PLAIN, **KINDS[kind])
    source = RandomWeights(0, torch.float64, CPU)
    contexts = Contexts(spec, made(spec, source), torch.float64)
    reference = ReferenceModel(config_of(spec), source.tensor)
    x, other = torch.randn(2, TOKENS, HIDDEN, dtype=torch.float64)
    contexts.step((x, 0, blocks_from(0)))
    contexts.step((other[:30], 0, blocks_from(20)))
    for at in (1, 7, 8, 9, 31, 32, 33, 62):
        changed = torch.cat((x[:at], other[at:]))
        expected = compressed(reference, spec, "model.layers.0.self_attn", changed)[at:]
        for group in contexts.pool.groups:
            group[:, :, 40:60] = group[:, :, 0:20]
        count = min(6, TOKENS - at)
        found = [
            contexts.step(
                (changed[at : at + count], at, blocks_from(40)), (other[29:30], 29, blocks_from(20))
            )[:count],
            contexts.step((changed[at + count :], at + count, blocks_from(40))),
        ]
        assert torch.allclose(torch.cat(found), expected, rtol=1e-10, atol=1e-10), at


@pytest.mark.parametrize("kind", ["all entries", "all entries, stretched", "chosen entries"])
@pytest.mark.parametrize("shared", [1, 2, 3, 9])
def test_sequences_that_share_blocks_have_entries_of_their_own(kind: str, shared: int) -> None:
    """Where they part in the middle of a window, which each of them fills."""
    spec = replace(PLAIN, **KINDS[kind])
    source = RandomWeights(0, torch.float64, CPU)
    contexts = Contexts(spec, made(spec, source), torch.float64)
    reference = ReferenceModel(config_of(spec), source.tensor)
    x, other = torch.randn(2, TOKENS, HIDDEN, dtype=torch.float64)
    at, own = shared * BLOCK, blocks_from(0)
    contexts.step((x[:60], 0, own))
    changed = torch.cat((x[:at], other[at:]))
    blocks = np.concatenate((own[:shared], blocks_from(20)[shared:]))
    found = [contexts.step((changed[at:], at, blocks)), contexts.step((x[60:], 60, own))]
    for rows, tokens, start in zip(found, (changed, x), (at, 60), strict=True):
        expected = compressed(reference, spec, "model.layers.0.self_attn", tokens)[start:]
        assert torch.allclose(rows, expected, rtol=1e-10, atol=1e-10)
