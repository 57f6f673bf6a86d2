"""Whole models on Triton's kernels: the same logits as on torch, recorded steps among them."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import kernels.paged_layout
from kernels.attention import fits_triton
from runtime.config import AdapterSource
from runtime.model import presets
from runtime.model.batch import NO_STATE, SequenceInput, StepBatch
from runtime.model.cuda_graphs import CudaRecorder, Recorder
from runtime.model.decoder import Decoder
from runtime.model.latent import Indexer
from runtime.model.layers import MapLoader
from runtime.model.presets import PRESETS, random_model_config
from runtime.model.random_weights import RandomWeights
from runtime.model.runner import ModelRunner, Recording
from runtime.model.sources import BYTE_TOKENIZER
from runtime.model.state_plan import StatePlan
from runtime.model.step_buckets import buckets_up_to
from runtime.model.weights import LoadedModel, load_model
from tests.support.adapters import adaptable_maps, write_adapter
from tests.support.begun_states import begun_states
from tests.support.preset_kinds import DELTA, EVERY_KIND

NUM_BLOCKS = 24


def steps(slots: Sequence[int] = (NO_STATE, NO_STATE)) -> list[list[SequenceInput]]:
    """A prefill of two sequences, then a chunk beside a decode, then a verification.

    Args:
        slots: where the states of the two are.
    """
    tokens = np.random.default_rng(0).integers(0, 256, (2, 90), dtype=np.int32)
    tables = np.random.default_rng(1).permutation(NUM_BLOCKS).astype(np.int32).reshape(2, -1)

    def part(sequence: int, start: int, stop: int, num_logits: int) -> SequenceInput:
        return SequenceInput(
            tokens=tokens[sequence, start:stop],
            start=start,
            block_table=tables[sequence],
            num_logits=num_logits,
            state_slot=slots[sequence],
        )

    return [
        [part(0, 0, 40, 1), part(1, 0, 7, 1)],
        [part(0, 40, 85, 1), part(1, 7, 8, 1)],
        [part(0, 85, 90, 5), part(1, 8, 9, 1)],
    ]


class Moved:
    """Weights drawn on a CPU, which draws other numbers than a GPU, and moved."""

    def __init__(self, device: torch.device) -> None:
        self._drawn = RandomWeights(0, torch.float32, torch.device("cpu"))
        self._device = device

    def tensor(self, name: str, shape: tuple[int, ...], *, wide: bool = False) -> torch.Tensor:
        return self._drawn.tensor(name, shape, wide=wide).to(self._device)

    def matrix(self, name: str, shape: tuple[int, int]) -> torch.Tensor:
        return self.tensor(name, shape)


def logits_of(family: str, device: torch.device) -> list[torch.Tensor]:
    config = random_model_config(family)
    model = LoadedModel(
        name=family,
        config=config,
        decoder=Decoder(config, MapLoader(source=Moved(device)), device),
        tokenizer_folder=BYTE_TOKENIZER,
        dtype=torch.float32,
        device=device,
        load_s=0.0,
    )
    runner = ModelRunner(model, num_blocks=NUM_BLOCKS, block_size=16)
    for part in itertools.chain.from_iterable(runner.pool.layers):
        part.fill_(torch.nan)
    slots = begun_states(runner, 2)
    return [runner.run(step).cpu() for step in steps(slots)]


@pytest.mark.parametrize("family", EVERY_KIND)
def test_logits_are_those_of_torch(
    family: str, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = logits_of(family, torch.device("cpu"))
    monkeypatch.setattr("kernels.dispatch.SETTING", "triton")
    for found, wanted in zip(logits_of(family, device), expected, strict=True):
        assert torch.allclose(found, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("kind", "own"),
    [
        ("deepseek-v3-tiny", {}),
        ("deepseek-v32-tiny", {"indexer": Indexer(heads=4, dim=20, top_k=30)}),
        ("hy4-tiny", {"indexer": Indexer(heads=4, dim=20, top_k=30, turns_last=True)}),
    ],
)
def test_latents_longer_than_a_tile_give_the_logits_of_torch(
    kind: str, own: dict[str, Indexer], device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a CPU keys and values of the longer chunks are made, here they are not."""
    tiny = presets.PRESETS[kind]
    layers = [
        replace(layer, mixer=replace(layer.mixer, rank=256, rotary_dim=16, **own))
        for layer in tiny.layers[:2]
    ]
    monkeypatch.setitem(presets.PRESETS, "long-latents", replace(tiny, layers=tuple(layers)))
    expected = logits_of("long-latents", torch.device("cpu"))
    monkeypatch.setattr("kernels.dispatch.SETTING", "triton")
    for found, wanted in zip(logits_of("long-latents", device), expected, strict=True):
        assert torch.allclose(found, wanted, rtol=1e-4, atol=1e-4)


def test_heads_longer_than_a_tile_give_the_logits_of_torch(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Layers of 512 numbers in torch beside others in Triton; such a model is not recorded."""
    tiny = presets.PRESETS["gemma4-tiny"]
    layers = [
        replace(layer, mixer=replace(layer.mixer, head_dim=512, scale=0.05))
        if layer.mixer.window is None
        else layer
        for layer in tiny.layers
    ]
    assert [fits_triton(layer.mixer.head_dim, layer.mixer.head_dim) for layer in layers] == [
        layer.mixer.window is not None for layer in layers
    ]
    monkeypatch.setitem(presets.PRESETS, "long-heads", replace(tiny, layers=tuple(layers)))
    expected = logits_of("long-heads", torch.device("cpu"))
    monkeypatch.setattr("kernels.dispatch.SETTING", "triton")
    for found, wanted in zip(logits_of("long-heads", device), expected, strict=True):
        assert torch.allclose(found, wanted, rtol=1e-4, atol=1e-4)


def as_it_is(call: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
    return call


def decodes(seed: int, start: int, count: int) -> list[SequenceInput]:
    """One token of each of ``count`` sequences that have their first 64 tokens in common."""
    rng = np.random.default_rng(seed)
    return [
        SequenceInput(
            tokens=rng.integers(0, 256, 1, dtype=np.int32),
            start=start + index,
            block_table=np.array([0, 1, 2, 3, 4 + 2 * index, 5 + 2 * index], dtype=np.int32),
            num_logits=1,
        )
        for index in range(count)
    ]


@pytest.mark.parametrize("shared", [True, False])
def test_recorded_decodes_are_the_plain_ones(
    shared: bool, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kernels.dispatch.SETTING", "triton")
    monkeypatch.setattr(kernels.paged_layout, "_WORTH_TOKENS", 64 if shared else 1 << 20)
    record: Recorder = CudaRecorder() if device.type == "cuda" else as_it_is
    model = load_model("random:qwen3-tiny", dtype=torch.float32, device=device)
    recording = ModelRunner(
        model,
        num_blocks=NUM_BLOCKS,
        block_size=16,
        recording=Recording(record=record, max_sequences=4),
    )
    plain = ModelRunner(model, num_blocks=NUM_BLOCKS, block_size=16)
    tokens = np.random.default_rng(0).integers(0, 256, 70, dtype=np.int32)
    for runner in (recording, plain):
        runner.pool.blocks.fill_(torch.nan)
        for index, part in enumerate(decodes(0, 0, 3)):
            start = 64 if index else 0
            runner.run([replace(part, tokens=tokens[start:], start=start, num_logits=0)])
    for start, count in ((65, 3), (66, 3) if shared else (66, 2)):
        step = decodes(start, start, count)
        found = recording.run(step).clone()
        assert torch.allclose(found, plain.run(step), rtol=1e-4, atol=1e-4)
    assert recording.graphs is not None
    assert recording.graphs.counts.replayed >= 2


def test_recorded_decodes_have_their_adapters(
    device: torch.device, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Two adapters and none in one step, then one for all, then none; the logits are torch's."""
    maps = adaptable_maps(random_model_config("qwen3-tiny"))
    sources = [
        AdapterSource(
            name=name, folder=str(write_adapter(tmp_path / name, maps, seed=rank, rank=rank))
        )
        for name, rank in (("red", 3), ("blue", 20))
    ]
    record: Recorder = CudaRecorder() if device.type == "cuda" else as_it_is
    given = {"num_blocks": NUM_BLOCKS, "block_size": 16}
    logits: dict[str, list[torch.Tensor]] = {"torch": [], "triton": []}
    for setting, found in logits.items():
        monkeypatch.setattr("kernels.dispatch.SETTING", setting)
        model = load_model(
            "random:qwen3-tiny", dtype=torch.float32, device=device, adapters=sources
        )
        recording = Recording(record=record, max_sequences=4) if setting == "triton" else None
        runner = ModelRunner(model, **given, recording=recording)
        tokens = np.random.default_rng(0).integers(0, 256, 65, dtype=np.int32)
        numbers = (0, 1, -1), (0, 0, 0), (-1, -1, -1)
        for index, part in enumerate(decodes(0, 0, 3)):
            first = replace(part, tokens=tokens, start=0, num_logits=1, adapter=numbers[0][index])
            found.append(runner.run([first]).cpu())
        for start, adapters in zip((65, 66, 67), numbers, strict=True):
            step = decodes(start, start, 3)
            step = [replace(e, adapter=n) for e, n in zip(step, adapters, strict=True)]
            found.append(runner.run(step).cpu())
        if runner.graphs is not None:
            assert runner.graphs.counts.replayed >= 3
    for one, other in zip(*logits.values(), strict=True):
        assert torch.allclose(one, other, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("family", ["lfm2-tiny", *DELTA])
def test_recorded_steps_of_hybrids_leave_the_states_of_plain_ones(
    family: str, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A prompt longer than a ring beside a short one, a decode, and a prompt that goes on."""
    monkeypatch.setattr("kernels.dispatch.SETTING", "triton")
    few = [each for each in buckets_up_to(2) if each.tokens == 2 or each.tokens == 2 + 128]
    monkeypatch.setattr("runtime.model.cuda_graphs.buckets_up_to", lambda most: few)
    monkeypatch.setattr("runtime.model.cuda_graphs.unrecorded_kinds", lambda most: [])
    whole = PRESETS[family]  # of which one layer with a state and one of attention are enough
    monkeypatch.setitem(PRESETS, family, replace(whole, layers=whole.layers[1:3]))
    model = load_model(f"random:{family}", dtype=torch.float32, device=device)
    runners = [
        ModelRunner(
            model,
            num_blocks=NUM_BLOCKS,
            block_size=16,
            recording=record and Recording(record=record, max_sequences=2),
            states=StatePlan(slots=2, rings=2),
        )
        for record in (CudaRecorder() if device.type == "cuda" else as_it_is, None)
    ]
    for runner in runners:
        assert runner.states is not None
        for slot in range(2):
            runner.states.begin(slot, source=None, position=0)
    tokens = np.random.default_rng(0).integers(0, 256, (2, 180), dtype=np.int32)
    reached = [0, 0]
    for counts in ((70, 1), (1, 1), (100, 1)):
        step = [
            SequenceInput(
                tokens=tokens[sequence, reached[sequence] : reached[sequence] + count],
                start=reached[sequence],
                block_table=np.arange(12 * sequence, 12 * sequence + 12, dtype=np.int32),
                num_logits=1,
                state_slot=sequence,
            )
            for sequence, count in enumerate(counts)
        ]
        found, wanted = (runner.run(step).clone() for runner in runners)
        assert torch.allclose(found, wanted, rtol=1e-4, atol=1e-4)
        reached = [start + count for start, count in zip(reached, counts, strict=True)]
    states = []
    for runner in runners:
        assert runner.states is not None
        for slot, position in enumerate(reached):
            assert runner.states.bring(slot, position=position)
        states.append(runner.states.rows)
    assert torch.allclose(states[0], states[1], rtol=1e-4, atol=1e-4)
    assert runners[0].graphs is not None
    counts_of = runners[0].graphs.counts
    assert (counts_of.replayed, counts_of.replayed_chunks) == (1, 2)


@pytest.mark.parametrize("family", ["gemma3-tiny", "gpt-oss-tiny"])
def test_recorded_steps_of_rows_that_are_given_back_are_the_plain_ones(
    family: str, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A prompt beside a short one, decodes, and a prompt that goes on: layers with a window in few
    blocks of their own, recorded, beside steps as they come that keep all rows."""
    monkeypatch.setattr("kernels.dispatch.SETTING", "triton")
    few = [each for each in buckets_up_to(2) if each.tokens in (2, 2 + 128) and not each.shared]
    chunk = [each for each in buckets_up_to(2) if each.chunk and each.tokens == 2 + 128]
    monkeypatch.setattr("runtime.model.cuda_graphs.buckets_up_to", lambda most: [*few, *chunk])
    monkeypatch.setattr("runtime.model.cuda_graphs.unrecorded_kinds", lambda most: [])
    whole = PRESETS[family]  # of which a layer with a window and one without are enough
    monkeypatch.setitem(PRESETS, family, replace(whole, layers=whole.layers[-2:]))
    model = load_model(f"random:{family}", dtype=torch.float32, device=device)
    window = model.config.window
    assert window is not None
    record: Recorder = CudaRecorder() if device.type == "cuda" else as_it_is
    recording = ModelRunner(
        model,
        num_blocks=NUM_BLOCKS,
        block_size=16,
        recording=Recording(record=record, max_sequences=2),
        window_blocks=20,
    )
    _steps_agree(recording, ModelRunner(model, num_blocks=NUM_BLOCKS, block_size=16), window)
    assert recording.graphs is not None
    counts_of = recording.graphs.counts
    assert (counts_of.replayed, counts_of.replayed_chunks) == (2, 2)


def test_steps_of_rows_that_are_given_back_beside_entries_are_the_plain_ones(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kernels.dispatch.SETTING", "triton")
    model = load_model("random:deepseek-v4-tiny", dtype=torch.float32, device=device)
    window = model.config.window
    assert window is not None
    parted = ModelRunner(model, num_blocks=NUM_BLOCKS, block_size=16, window_blocks=20)
    _steps_agree(parted, ModelRunner(model, num_blocks=NUM_BLOCKS, block_size=16), window)


def _steps_agree(parted: ModelRunner, plain: ModelRunner, window: int) -> None:
    """Steps of two sequences, of which one gives rows back, have the logits of those that keep
    all."""
    for group in (*parted.pool.groups, *plain.pool.groups):
        group.fill_(torch.nan)
    tokens = np.random.default_rng(0).integers(0, 256, (2, 180), dtype=np.int32)
    reached = [0, 0]
    for counts in ((70, 1), (1, 1), (100, 1), (1, 1)):
        step = []
        for at, count in enumerate(counts):
            start, end = reached[at], reached[at] + count
            first = max(0, start - window) // 16
            ring = np.arange(first, -(-end // 16), dtype=np.int32) % 10 + 10 * at
            step.append(
                SequenceInput(
                    tokens=tokens[at, start:end],
                    start=start,
                    block_table=np.arange(12 * at, 12 * at + 12, dtype=np.int32),
                    num_logits=1,
                    window=(first, ring),
                )
            )
            reached[at] = end
        found = parted.run(step).clone()
        wanted = plain.run([replace(entry, window=None) for entry in step])
        assert torch.allclose(found, wanted, rtol=1e-4, atol=1e-4)


def test_recorded_steps_follow_each_other_without_the_host_knowing_a_token(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step is given to the device behind the one before, with its tokens from there, while
    a stream beside it is busy with copies."""
    monkeypatch.setattr("kernels.dispatch.SETTING", "triton")
    record: Recorder = CudaRecorder() if device.type == "cuda" else as_it_is
    model = load_model("random:qwen3-tiny", dtype=torch.float32, device=device)
    said = []
    for ahead in (True, False):
        runner = ModelRunner(
            model,
            num_blocks=NUM_BLOCKS,
            block_size=16,
            recording=Recording(record=record, max_sequences=4) if ahead else None,
        )
        runner.pool.blocks.fill_(torch.nan)
        busy = Busy(device) if ahead else None
        tokens = torch.full((3,), 7, dtype=torch.int64, device=device)
        steps = []
        for at in range(6):
            parts = decodes(0, 0, 3)
            parts = [replace(part, start=at, block_table=part.block_table[4:]) for part in parts]
            if busy is not None:
                busy.copy()
            else:
                parts = [
                    replace(part, tokens=np.array([token], dtype=np.int32))
                    for part, token in zip(parts, tokens.tolist(), strict=True)
                ]
            batch = StepBatch.build(parts, 16)
            logits = runner.forward(batch, tokens) if ahead else runner.forward(batch)
            tokens = logits.argmax(-1)
            steps.append(tokens)
        said.append(torch.stack(steps).tolist())
        assert (runner.graphs is not None) is ahead
    assert said[0] == said[1]
    assert len({tuple(step) for step in said[0]}) > 1


class Busy:
    """Keeps the way from the host to the device busy, so that small copies have to wait."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        if device.type == "cuda":
            self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            self._host = torch.empty(1 << 28, dtype=torch.uint8, pin_memory=True)

    def copy(self) -> None:
        if self._device.type == "cuda":
            with torch.cuda.stream(self._stream):
                self._host.to(self._device, non_blocking=True)
