"""Loops that ``benchmarks.engine`` times: decode steps, prefill steps and raw machine rates.

Every figure is the best of many short runs, the candidates taking turns, because the
machine may be shared: the best is what the code can do, the median what it got.
"""

import functools
import json
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional

from benchmarks.dense_shape import dense_layer
from runtime.config import EngineConfig
from runtime.engine.engine import Engine
from runtime.messages import GenerationRequest, SamplingParams, TokenArray
from runtime.model.batch import TRIAL_STATE, SequenceInput
from runtime.model.config import ModelConfig
from runtime.model.layers import PackedLinear
from runtime.model.presets import random_model_config
from runtime.model.random_weights import RandomWeights
from runtime.model.runner import ModelRunner, load_runner, share_work
from runtime.model.sources import BYTE_TOKENIZER
from runtime.process.loading import assemble
from runtime.tokenizer import Tokenizer

BLOCK_SIZE = 16

_SETTLES_S = 0.02
"""For so long threads of OpenMP look for more work on the cores that the next call needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Seconds of one call."""

    best: float
    median: float


def take_turns(calls: Mapping[str, Callable[[], object]], *, rounds: int) -> dict[str, Timing]:
    """Time each call once per round, right behind one of its own kind, after one round that does
    not count. Threads of the call before have stopped looking for more by then."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(rounds + 1):
        for name, call in calls.items():
            time.sleep(_SETTLES_S)
            call()
            started = time.perf_counter()
            call()
            if number:
                times[name].append(time.perf_counter() - started)
    return {
        name: Timing(best=min(taken), median=statistics.median(taken))
        for name, taken in times.items()
    }


def as_served(
    runner: ModelRunner, threads: int, call: Callable[[], object]
) -> Callable[[], object]:
    """``call`` in the threads that ``runner`` would have alone in a process: whatever was timed or
    loaded before has its own."""
    compiled = runner.model.decoder.is_compiled

    def run() -> object:
        share_work(threads, compiled=compiled)
        return call()

    return run


def in_torch(threads: int, call: Callable[[], object]) -> Callable[[], object]:
    """``call`` in so many threads of torch's."""

    def run() -> object:
        share_work(threads)
        return call()

    return run


def benchmark_config(size: str) -> ModelConfig:
    """The shape of ``random:qwen3-SIZE``, the embedding tied, nothing ending its turns early."""
    return replace(random_model_config(f"qwen3-{size}"), shaping=None, tie_embeddings=True)


def write_model(folder: Path, size: str) -> ModelConfig:
    """Make a Hugging Face folder of seeded random weights in bfloat16."""
    config = benchmark_config(size)
    write_folder(folder, config, random_tensors(config, torch.device("cpu")))
    return config


def random_tensors(
    config: ModelConfig, device: torch.device, *, seed: int = 0
) -> dict[str, Tensor]:
    """The weights of a dense Qwen3 by Hugging Face's names, bfloat16, drawn on ``device``: a GPU's
    are others than a CPU's. The output has a matrix of its own unless embeddings are tied."""
    mixer, mlp, _ = dense_layer(config)
    hidden, query, kv = config.hidden_size, mixer.query_size, mixer.kv_size
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config.vocab_size, hidden),
        "model.norm.weight": (hidden,),
    }
    if not config.tie_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, hidden)
    for layer in range(config.num_layers):
        prefix = f"model.layers.{layer}"
        shapes |= {
            f"{prefix}.input_layernorm.weight": (hidden,),
            f"{prefix}.post_attention_layernorm.weight": (hidden,),
            f"{prefix}.self_attn.q_proj.weight": (query, hidden),
            f"{prefix}.self_attn.k_proj.weight": (kv, hidden),
            f"{prefix}.self_attn.v_proj.weight": (kv, hidden),
            f"{prefix}.self_attn.o_proj.weight": (hidden, query),
            f"{prefix}.self_attn.q_norm.weight": (config.head_dim,),
            f"{prefix}.self_attn.k_norm.weight": (config.head_dim,),
            f"{prefix}.mlp.gate_proj.weight": (mlp.size, hidden),
            f"{prefix}.mlp.up_proj.weight": (mlp.size, hidden),
            f"{prefix}.mlp.down_proj.weight": (hidden, mlp.size),
        }
    source = RandomWeights(seed, torch.bfloat16, device)
    return {name: source.tensor(name, shape) for name, shape in shapes.items()}


def write_folder(folder: Path, config: ModelConfig, tensors: dict[str, Tensor]) -> None:
    """Write a dense Qwen3 that speaks the byte tokenizer in Hugging Face's layout.
    ``tensors`` move to the host."""
    folder.mkdir(parents=True, exist_ok=True)
    mixer, mlp, rope = dense_layer(config)
    for name, tensor in tensors.items():
        tensors[name] = tensor.cpu()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    fields = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": config.model_type,
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": mixer.heads,
        "num_key_value_heads": mixer.kv_heads,
        "head_dim": config.head_dim,
        "intermediate_size": mlp.size,
        "max_position_embeddings": config.max_context_tokens,
        "rms_norm_eps": config.norm_eps,
        "rope_theta": rope.theta,
        "tie_word_embeddings": config.tie_embeddings,
        "hidden_act": "silu",
        "torch_dtype": "bfloat16",
    }
    (folder / "config.json").write_text(json.dumps(fields))
    for path in BYTE_TOKENIZER.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())


def load(folder: Path, *, num_blocks: int, threads: int, quantization: str) -> ModelRunner:
    """The engine's own way of loading, in bfloat16."""
    settings: dict[str, object] = {
        "quantization": quantization,
        "num_blocks": num_blocks,
        "threads": threads,
    }
    return load_runner(engine_config(folder, settings))


def engine_config(folder: Path, settings: dict[str, object]) -> EngineConfig:
    """bfloat16 on the CPU, nothing drafted."""
    fixed: dict[str, object] = {
        "model": str(folder),
        "dtype": "bfloat16",
        "device": "cpu",
        "block_size": BLOCK_SIZE,
        "max_draft_tokens": 0,
    }
    return EngineConfig(**(fixed | settings))  # type: ignore[arg-type]


class EngineLoop:
    """A whole engine, inline: scheduler, cache, model and sampler. First come, first served:
    prompts are computed at once, not in small shares beside those that decode already."""

    def __init__(self, runner: ModelRunner, *, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._runner = runner
        model = runner.model
        tokenizer = Tokenizer.load(
            model.tokenizer_folder,
            vocab_size=model.config.vocab_size,
            model_type=model.model_type,
        )
        settings: dict[str, object] = {"num_blocks": runner.num_blocks, "policy": "fcfs"}
        self._engine: Engine = assemble(
            engine_config(model.tokenizer_folder, settings), runner, tokenizer
        )
        self._count = 0

    def random_prompt(self, length: int) -> TokenArray:
        return self._rng.integers(0, 256, length, dtype=np.int32)

    def submit(self, prompt: TokenArray, max_new_tokens: int) -> None:
        self._count += 1
        name = f"turn-{self._count}"
        request = GenerationRequest(
            request_id=name,
            branch_id=name,
            tenant="benchmark",
            base_branch_id=None,
            base_offset=0,
            new_tokens=prompt,
            max_new_tokens=max_new_tokens,
            sampling=SamplingParams(temperature=0.8, seed=self._count),
        )
        self._engine.submit([request])

    def start_decoding(self, *, batch: int, context: int) -> None:
        """Submit ``batch`` turns and step until all of them decode at about ``context``; each
        may write as much again."""
        for _ in range(batch):
            self.submit(self.random_prompt(context - 16), context)
        for _ in range(10 * batch):
            if self.step() == batch:
                return
        raise RuntimeError(f"{batch} turns of {context} tokens do not run beside each other")

    def step(self) -> int:
        """One step of the engine; how many tokens it emitted."""
        output = self._engine.step()
        return 0 if output is None else sum(len(one.new_tokens) for one in output.outputs)

    def prefill(self, length: int) -> None:
        """One new prompt from arrival to its last token's KV."""
        self.submit(self.random_prompt(length), 0)
        while self._engine.has_work:
            self._engine.step()


class RunnerLoop:
    """Decode steps of the model alone, at contexts of random KV placed as one likes."""

    def __init__(self, runner: ModelRunner, *, batch: int, context: int, scattered: bool) -> None:
        self._runner = runner
        each = -(-context // BLOCK_SIZE)
        order = np.arange(batch * each, dtype=np.int32)
        if scattered:
            order = np.random.default_rng(0).permutation(order)
        self.inputs = [
            SequenceInput(
                tokens=np.array([5], dtype=np.int32),
                start=context - 1,
                block_table=order[index * each : (index + 1) * each],
                num_logits=1,
                state_slot=TRIAL_STATE,
            )
            for index in range(batch)
        ]

    def step(self) -> Tensor:
        return self._runner.run(self.inputs)


def fill_pool(runner: ModelRunner) -> None:
    """Random keys and values everywhere."""
    for layer in range(runner.model.config.num_layers):
        for blocks in runner.pool.layer(layer):
            blocks.normal_()


def read_bandwidth() -> float:
    """Bytes per second of summing 512 MiB."""
    values = torch.ones(1 << 27)
    timing = take_turns({"sum": values.sum}, rounds=8)["sum"]
    return values.numel() * 4 / timing.best


def gemm_rate(config: ModelConfig, rows: int) -> float:
    """FLOP/s of bfloat16 products on the layers' own shapes, each the way that is faster:
    ``functional.linear``, or oneDNN's product with a weight packed before."""
    mixer, mlp, _ = dense_layer(config)
    hidden, size = config.hidden_size, mlp.size
    shapes = {
        "qkv": (mixer.query_size + 2 * mixer.kv_size, hidden),
        "output": (hidden, mixer.query_size),
        "gate_up": (2 * size, hidden),
        "down": (hidden, size),
    }
    taken = 0.0
    for outputs, inputs in shapes.values():
        weight = torch.randn(outputs, inputs, dtype=torch.bfloat16)
        x = torch.randn(rows, inputs, dtype=torch.bfloat16)
        calls: dict[str, Callable[[], object]] = {
            "plain": functools.partial(functional.linear, x, weight)
        }
        if torch.ops.mkldnn._is_mkldnn_bf16_supported():
            calls["packed"] = functools.partial(PackedLinear(weight, None), x)
        taken += min(timing.best for timing in take_turns(calls, rounds=6).values())
    return sum(2.0 * rows * outputs * inputs for outputs, inputs in shapes.values()) / taken


def prefill_flops(config: ModelConfig, length: int) -> float:
    """Linear maps of the layers plus causal attention; the head runs for one row only."""
    hidden, (mixer, mlp, _) = config.hidden_size, dense_layer(config)
    per_token = 2.0 * hidden * (2 * mixer.query_size + 2 * mixer.kv_size)
    per_token += 6.0 * hidden * mlp.size
    attention = 2.0 * 2 * mixer.query_size * length * (length + 1) / 2
    return config.num_layers * (length * per_token + attention)
