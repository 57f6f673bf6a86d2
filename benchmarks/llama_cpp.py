"""llama.cpp's CPU backend and this engine beside each other, on random weights of one shape.

    python -m benchmarks.llama_cpp --binary BUILD/bin/llama-batched-bench --json

The binary is llama.cpp's own benchmark, built with ``GGML_NATIVE``; the model file for it is
written here with the ``gguf`` package. Both keep bfloat16 weights and run on the same threads,
in turns. llama.cpp decodes bare, without sampling or scheduling; ours is the whole engine
without speculation. Its best of all rounds stands against our best.
"""

import importlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.dense_shape import dense_layer
from benchmarks.engine_loops import BLOCK_SIZE, EngineLoop, load, write_model
from benchmarks.report import Bar, DataMissing, parser, report, report_missing
from runtime.model.config import ModelConfig
from runtime.model.runner import available_cores

CONTEXT = 1024
PREFILL = 2048
NEW_TOKENS = 64
BATCHES = (1, 8)
BARS = {"decode_b1": 0.9, "decode_b8": 1.0, "prefill": 1.0}


def write_gguf(
    path: Path,
    config: ModelConfig,
    *,
    vocabulary: Sequence[str] = (),
    specials: Collection[int] = (),
) -> None:
    """Write seeded random weights of a Qwen3 shape, with tied embeddings. ``vocabulary``: a text
    for each token, in the alphabet of byte-level BPE; of them ``specials`` are control tokens.

    Raises:
        DataMissing: the package ``gguf`` is not installed.
    """
    try:
        gguf: Any = importlib.import_module("gguf")
    except ImportError as error:
        raise DataMissing("the package gguf is missing; pip install gguf") from error
    mixer, mlp, rope = dense_layer(config)
    writer = gguf.GGUFWriter(str(path), "qwen3")
    writer.add_block_count(config.num_layers)
    writer.add_context_length(config.max_context_tokens)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(mlp.size)
    writer.add_head_count(mixer.heads)
    writer.add_head_count_kv(mixer.kv_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_freq_base(rope.theta)
    writer.add_layer_norm_rms_eps(config.norm_eps)
    writer.add_vocab_size(config.vocab_size)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    _add_vocabulary(writer, gguf.TokenType, vocabulary, specials)
    rng = np.random.default_rng(0)
    for name, shape in tensor_shapes(config).items():
        if len(shape) == 1:
            writer.add_tensor(name, np.ones(shape, np.float32))
            continue
        values = rng.standard_normal(shape, dtype=np.float32) * shape[1] ** -0.5
        kind = gguf.GGMLQuantizationType.BF16
        writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_vocabulary(
    writer: Any, types: Any, vocabulary: Sequence[str], specials: Collection[int]
) -> None:
    if not vocabulary:
        writer.add_tokenizer_model("no_vocab")
        return
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(list(vocabulary))
    writer.add_token_types(
        [types.CONTROL if n in specials else types.NORMAL for n in range(len(vocabulary))]
    )
    writer.add_token_merges(["a b"])  # there has to be one; prompts are sent as ids
    if specials:
        writer.add_eos_token_id(min(specials))


def tensor_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """The tensors of a Qwen3 model with tied embeddings, by llama.cpp's names."""
    mixer, mlp, _ = dense_layer(config)
    hidden, query, kv = config.hidden_size, mixer.query_size, mixer.kv_size
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (config.vocab_size, hidden),
        "output_norm.weight": (hidden,),
    }
    for layer in range(config.num_layers):
        prefix = f"blk.{layer}"
        shapes |= {
            f"{prefix}.attn_norm.weight": (hidden,),
            f"{prefix}.ffn_norm.weight": (hidden,),
            f"{prefix}.attn_q_norm.weight": (config.head_dim,),
            f"{prefix}.attn_k_norm.weight": (config.head_dim,),
            f"{prefix}.attn_q.weight": (query, hidden),
            f"{prefix}.attn_k.weight": (kv, hidden),
            f"{prefix}.attn_v.weight": (kv, hidden),
            f"{prefix}.attn_output.weight": (hidden, query),
            f"{prefix}.ffn_gate.weight": (mlp.size, hidden),
            f"{prefix}.ffn_up.weight": (mlp.size, hidden),
            f"{prefix}.ffn_down.weight": (hidden, mlp.size),
        }
    return shapes


def their_rates(binary: Path, model: Path, threads: int) -> dict[str, float]:
    """Tokens per second of one run of llama.cpp's benchmark."""
    rates: dict[str, float] = {}
    decode = ["-npp", CONTEXT, "-ntg", NEW_TOKENS, "-npl", ",".join(map(str, BATCHES))]
    prefill = ["-npp", PREFILL, "-ntg", 1, "-npl", 1]
    for settings in (decode, prefill):
        command = [binary, "-m", model, "-t", threads, "-fa", "on", "--output-format", "jsonl"]
        room = ["-c", max(BATCHES) * (CONTEXT + NEW_TOKENS) + PREFILL]
        ran = subprocess.run(
            [str(part) for part in [*command, *room, *settings]],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            check=True,
            timeout=600,
        )
        rates |= read_rates(ran.stdout)
    return rates


def read_rates(output: str) -> dict[str, float]:
    """Tokens per second from the benchmark's JSON lines; a run of one new token is a prefill."""
    rates: dict[str, float] = {}
    for line in output.splitlines():
        if line.startswith("{"):
            run = json.loads(line)
            if run["tg"] == 1:
                rates["prefill"] = float(run["speed_pp"])
            else:
                rates[f"decode_b{run['pl']}"] = float(run["speed_tg"])
    return rates


class OurEngine:
    """The loops that stay loaded between rounds."""

    def __init__(self, folder: Path, threads: int, rounds: int) -> None:
        self._loops = {}
        for batch in BATCHES:
            blocks = batch * 2 * CONTEXT // BLOCK_SIZE
            loop = EngineLoop(
                load(folder, num_blocks=blocks, threads=threads, quantization="none"), seed=batch
            )
            loop.start_decoding(batch=batch, context=CONTEXT)
            self._loops[batch] = loop
        assert (rounds + 1) * NEW_TOKENS < CONTEXT
        blocks = 8 * PREFILL // BLOCK_SIZE
        runner = load(folder, num_blocks=blocks, threads=threads, quantization="none")
        self._prefill = EngineLoop(runner, seed=3)

    def rates(self) -> dict[str, float]:
        """Tokens per second of one round."""
        rates: dict[str, float] = {}
        for batch, loop in self._loops.items():
            started = time.perf_counter()
            for _ in range(NEW_TOKENS):
                loop.step()
            seconds = time.perf_counter() - started
            rates[f"decode_b{batch}"] = batch * NEW_TOKENS / seconds
        started = time.perf_counter()
        self._prefill.prefill(PREFILL)
        rates["prefill"] = PREFILL / (time.perf_counter() - started)
        return rates


def measure(binary: Path, size: str, threads: int, rounds: int) -> tuple[dict[str, Any], list[Bar]]:
    """Both engines in turns, after a round of ours that does not count.

    Raises:
        DataMissing: there is no such binary, or no ``gguf``.
    """
    if not binary.is_file():
        raise DataMissing(f"{binary} is missing; build llama.cpp and give --binary PATH")
    found: dict[str, dict[str, list[float]]] = {
        "ours": defaultdict(list),
        "llama.cpp": defaultdict(list),
    }
    with tempfile.TemporaryDirectory() as root:
        config = write_model(Path(root) / size, size)
        model = Path(root) / "model.gguf"
        write_gguf(model, config)
        engine = OurEngine(Path(root) / size, threads, rounds)
        engine.rates()
        for _ in range(rounds):
            for name, rates in (
                ("llama.cpp", their_rates(binary, model, threads)),
                ("ours", engine.rates()),
            ):
                for kind, rate in rates.items():
                    found[name][kind].append(rate)
    figures: dict[str, Any] = {"threads": threads, "model": f"qwen3-{size}", "rounds": rounds}
    for name, kinds in found.items():
        figures[name] = {
            kind: {"best": round(max(r), 1), "median": round(statistics.median(r), 1)}
            for kind, r in kinds.items()
        }
    return figures, bars({k: max(found["ours"][k]) / max(found["llama.cpp"][k]) for k in BARS})


def bars(ratios: dict[str, float]) -> list[Bar]:
    """Ours over theirs, tokens per second."""
    return [
        Bar(name=name, value=ratios.get(name), op=">=", bar=least) for name, least in BARS.items()
    ]


def main() -> int:
    options = parser(__doc__)
    options.add_argument("--binary", type=Path, default=Path("llama-batched-bench"))
    options.add_argument("--size", choices=("100m", "500m"), default="100m")
    options.add_argument("--threads", type=int, default=available_cores())
    options.add_argument("--rounds", type=int, default=5)
    arguments = options.parse_args()
    torch.set_num_threads(arguments.threads)
    try:
        figures, found = measure(
            arguments.binary, arguments.size, arguments.threads, arguments.rounds
        )
    except DataMissing as error:
        return report_missing("llama_cpp", error, bars({}), as_json=arguments.json)
    return report("llama_cpp", figures, found, as_json=arguments.json)


if __name__ == "__main__":
    sys.exit(main())
