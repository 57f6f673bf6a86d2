"""Metadata of GGUF files as decoders: what is read, and what is refused by name."""

import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runtime.model.config import Experts, LoadError
from runtime.model.gguf_description import name_in_gguf, pairs_rows, read_gguf_config
from runtime.model.gguf_header import GgufHeader, GgufTensor

LLAMA: dict[str, Any] = {
    "embedding_length": 64,
    "block_count": 2,
    "feed_forward_length": 96,
    "context_length": 512,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "attention.layer_norm_rms_epsilon": 1e-5,
    "rope.freq_base": 1e6,
    "rope.dimension_count": 16,
    "vocab_size": 100,
}


def header(
    architecture: str = "llama",
    tensors: dict[str, tuple[str, tuple[int, ...]]] | None = None,
    **own: Any,
) -> GgufHeader:
    values = LLAMA | {name.replace("__", "."): value for name, value in own.items()}
    metadata = {f"{architecture}.{name}": v for name, v in values.items() if v is not None}
    kept = {"token_embd.weight": ("F16", (100, 64)), "output.weight": ("F16", (100, 64))}
    return GgufHeader(
        path=Path("a.gguf"),
        metadata={"general.architecture": architecture, **metadata},
        tensors={
            name: GgufTensor(kind=kind, shape=shape, begin=0, num_bytes=1)
            for name, (kind, shape) in (kept if tensors is None else tensors).items()
        },
        num_bytes=0,
    )


def test_a_decoder_is_described() -> None:
    found = read_gguf_config(header())
    assert (found.model_type, found.vocab_size, found.hidden_size) == ("llama", 100, 64)
    assert (found.num_layers, found.attention[0].kv_heads, found.head_dim) == (2, 2, 16)
    assert (found.norm_eps, found.max_context_tokens, found.tie_embeddings) == (1e-5, 512, False)
    assert found.layers[0].mixer.rope is not None
    assert found.layers[0].mixer.rope.theta == 1e6
    assert found.quantisation is None


def test_few_bits_make_it_quantised_and_no_head_ties_it() -> None:
    found = read_gguf_config(header(tensors={"token_embd.weight": ("Q8_0", (100, 64))}))
    assert found.quantisation is not None
    assert found.quantisation.method == "gguf"
    assert found.tie_embeddings


def test_positions_are_stretched_as_the_metadata_says() -> None:
    found = read_gguf_config(
        header(rope__scaling__type="yarn", rope__scaling__factor=4.0,
               rope__scaling__original_context_length=512)
    )  # fmt: skip
    rope = found.layers[0].mixer.rope
    assert rope is not None
    assert (rope.kind, rope.factor, rope.original_max_position) == ("yarn", 4.0, 512)
    assert found.max_context_tokens == 2048


def test_a_factor_alone_stretches_positions_linearly() -> None:
    """As llama.cpp reads it."""
    rope = read_gguf_config(header(rope__scaling__factor=4.0)).layers[0].mixer.rope
    assert rope is not None
    assert (rope.kind, rope.factor) == ("linear", 4.0)
    none = header(rope__scaling__factor=4.0, rope__scaling__type="none")
    assert read_gguf_config(none) == read_gguf_config(header())


def test_experts_are_described() -> None:
    found = read_gguf_config(
        header("qwen3moe", attention__key_length=16, expert_count=8, expert_used_count=2,
               expert_feed_forward_length=32)
    )  # fmt: skip
    experts = found.layers[0].feed_forward
    assert isinstance(experts, Experts)
    assert (experts.router.num_experts, experts.router.per_token, experts.each.size) == (8, 2, 32)
    assert experts.router.normalise


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"architecture": "mamba"}, "general.architecture is 'mamba', not one of llama"),
        ({"attention__sliding_window": 64}, "llama.attention.sliding_window is not known"),
        ({"embedding_length": "64"}, "hidden_size is '64'"),
        ({"block_count": 0}, "num_hidden_layers is 0"),
        ({"block_count": 10**6}, "num_hidden_layers is 1000000, not at most"),
        ({"expert_count": 4, "expert_used_count": 2}, "num_experts is 4"),
        ({"attention__head_count": [4, 4]}, "num_attention_heads is [4, 4]"),
        ({"rope__scaling__type": "magic"}, "rope_type is 'magic'"),
        ({"rope__dimension_count": 8}, "llama.rope.dimension_count is 8, not 16"),
        ({"rope__dimension_count": [16]}, "llama.rope.dimension_count is [16], not 16"),
        ({"attention__value_length": 32}, "llama.attention.value_length is 32, not 16"),
        ({"tensors": {}}, "tensor 'token_embd.weight' is missing"),
    ],
)
def test_what_is_not_known_is_refused_by_name(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(LoadError) as caught:
        read_gguf_config(header(**changed))
    assert message in str(caught.value)
    assert str(caught.value).startswith("a.gguf: ")


def test_tensors_have_the_files_names() -> None:
    assert name_in_gguf("lm_head.weight") == ("output.weight", None)
    assert name_in_gguf("model.layers.7.self_attn.q_proj.bias") == ("blk.7.attn_q.bias", None)
    assert name_in_gguf("model.layers.7.mlp.gate.weight") == ("blk.7.ffn_gate_inp.weight", None)
    name = "model.layers.7.mlp.experts.3.up_proj.weight"
    assert name_in_gguf(name) == ("blk.7.ffn_up_exps.weight", 3)


def test_only_llama_keeps_rows_by_pairs() -> None:
    name = "model.layers.0.self_attn.k_proj.weight"
    assert pairs_rows(header(), name)
    assert not pairs_rows(header(), name.replace("k_proj", "v_proj"))
    assert not pairs_rows(header("qwen3"), name)


def with_factors(path: Path, numbers: list[float]) -> GgufHeader:
    path.write_bytes(struct.pack(f"<{len(numbers)}f", *numbers))
    own = header()
    tensor = GgufTensor(kind="F32", shape=(len(numbers),), begin=0, num_bytes=4 * len(numbers))
    return replace(own, path=path, tensors={**own.tensors, "rope_freqs.weight": tensor})


def test_pairs_turn_more_slowly_by_the_files_factors(tmp_path: Path) -> None:
    """Llama 3.1 and later: llama.cpp works them out beforehand."""
    factors = [1.0, 1.0, 1.5, 2.0, 4.0, 8.0, 8.0, 8.0]
    found = read_gguf_config(with_factors(tmp_path / "a.gguf", factors))
    ropes = {layer.mixer.rope for layer in found.layers}
    (rope,) = ropes
    assert rope is not None
    assert (rope.kind, rope.factors, rope.attention_factor) == ("longrope", tuple(factors), 1.0)
    assert rope.theta == 1e6


@pytest.mark.parametrize("numbers", [[1.0] * 7, [0.0] * 8, [float("nan")] * 8])
def test_factors_that_are_none_are_refused(numbers: list[float], tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=r"tensor 'rope_freqs.weight' has"):
        read_gguf_config(with_factors(tmp_path / "a.gguf", numbers))
