"""Loading Hugging Face folders: parity with ``transformers``, and what is refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from runtime.messages import TokenArray
from runtime.model import weights
from runtime.model.batch import SequenceInput
from runtime.model.checkpoint import INDEX_NAME
from runtime.model.config import LoadError
from runtime.model.presets import random_model_config
from runtime.model.random_weights import drawn_on_device
from runtime.model.runner import ModelRunner
from runtime.model.weights import load_model
from tests.support.hf_models import FAMILIES, make_model, save
from tests.support.model_shapes import changed

CPU = torch.device("cpu")
PROMPT_TOKENS = 2048


def load(folder: Path, dtype: torch.dtype = torch.float32, num_blocks: int = 160) -> ModelRunner:
    model = load_model(folder, dtype=dtype, device=CPU)
    return ModelRunner(model, num_blocks=num_blocks, block_size=16)


def prompt(count: int, seed: int = 0) -> TokenArray:
    return np.random.default_rng(seed).integers(0, 320, count, dtype=np.int32)


def prefill(runner: ModelRunner, tokens: TokenArray, chunk: int) -> torch.Tensor:
    table = np.arange(runner.num_blocks, dtype=np.int32)[::-1]
    rows = []
    for start in range(0, len(tokens), chunk):
        part = tokens[start : start + chunk]
        rows.append(
            runner.run(
                [SequenceInput(tokens=part, start=start, block_table=table, num_logits=len(part))]
            )
        )
    return torch.cat(rows)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.samples(2)
def test_logits_equal_those_of_transformers(family: str, tmp_path: Path) -> None:
    model = make_model(family)
    runner = load(save(model, tmp_path))
    tokens = prompt(PROMPT_TOKENS)
    with torch.inference_mode():
        expected = model(torch.from_numpy(tokens).long()[None]).logits[0]

    assert (prefill(runner, tokens, len(tokens)) - expected).abs().max() < 1e-4
    assert (prefill(runner, tokens, 333) - expected).abs().max() < 1e-4


@pytest.mark.samples(2)
@pytest.mark.parametrize("family", ["llama2", "llama3", "qwen2", "qwen3", "qwen3-moe", "mistral"])
def test_64_greedy_tokens_equal_those_of_transformers(family: str, tmp_path: Path) -> None:
    model = make_model(family)
    runner = load(save(model, tmp_path))
    tokens = prompt(200)
    ids = torch.from_numpy(tokens).long()[None]
    with torch.inference_mode():
        expected = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=64,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )[0, len(tokens) :].tolist()

    table = np.arange(runner.num_blocks, dtype=np.int32)
    whole = SequenceInput(tokens=tokens, start=0, block_table=table, num_logits=1)
    best = int(runner.run([whole]).argmax())
    generated = [best]
    while len(generated) < 64:
        step = SequenceInput(
            tokens=np.array([best], dtype=np.int32),
            start=len(tokens) + len(generated) - 1,
            block_table=table,
            num_logits=1,
        )
        best = int(runner.run([step]).argmax())
        generated.append(best)
    assert generated == expected


def test_sharded_and_single_files_load_alike(tmp_path: Path) -> None:
    model = make_model("qwen3")
    single = load(save(model, tmp_path / "single"))
    sharded = load(save(model, tmp_path / "sharded", max_shard="200KB"))
    assert len(list((tmp_path / "sharded").glob("*.safetensors"))) > 2
    tokens = prompt(50)
    assert torch.equal(prefill(single, tokens, 50), prefill(sharded, tokens, 50))


def test_older_spellings_of_rope_mean_the_same(tmp_path: Path) -> None:
    model = make_model("llama3")
    folder = save(model, tmp_path)
    tokens = prompt(100)
    new = prefill(load(folder), tokens, 100)
    edit_config(folder, lambda config: config.update(rope_spelled_old(config)))
    assert torch.equal(prefill(load(folder), tokens, 100), new)


def rope_spelled_old(config: dict[str, Any]) -> dict[str, Any]:
    rope = config.pop("rope_parameters")
    return {"rope_theta": rope.pop("rope_theta"), "rope_scaling": rope}


def test_a_head_that_is_not_the_embedding_is_refused_until_the_config_says_so(
    tmp_path: Path,
) -> None:
    """``transformers`` computes with such a head, whatever ``tie_word_embeddings`` says."""
    folder = save(make_model("qwen2"), tmp_path)
    tensors = load_file(folder / "model.safetensors")
    embedding = tensors["model.embed_tokens.weight"]
    torch.manual_seed(1)
    tensors["lm_head.weight"] = torch.randn_like(embedding) / 10
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(LoadError, match=r"'lm_head.weight' has other numbers.*set it to false"):
        load(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokens = prompt(50)
    with torch.inference_mode():
        expected = model(torch.from_numpy(tokens).long()[None]).logits[0]
    edit_config(folder, lambda config: config.update(tie_word_embeddings=False))
    assert (prefill(load(folder), tokens, 50) - expected).abs().max() < 1e-4

    save_file({**tensors, "lm_head.weight": embedding.clone()}, folder / "model.safetensors")
    edit_config(folder, lambda config: config.update(tie_word_embeddings=True))
    load(folder)


def edit_config(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    config = json.loads((folder / "config.json").read_text())
    change(config)
    (folder / "config.json").write_text(json.dumps(config))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(make_model("qwen3"), tmp_path_factory.mktemp("model"), max_shard="200KB")


def copy_of(folder: Path, target: Path) -> Path:
    target.mkdir(exist_ok=True)
    for path in folder.iterdir():
        (target / path.name).write_bytes(path.read_bytes())
    return target


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "gpt2"}, "field model_type is 'gpt2', not one of llama"),
        ({"hidden_size": None}, "field hidden_size is None"),
        ({"hidden_size": "96"}, "field hidden_size is '96', not a whole number"),
        ({"num_hidden_layers": 0}, "field num_hidden_layers is 0"),
        ({"num_key_value_heads": 4}, "num_heads 6 is not a multiple of num_kv_heads 4"),
        ({"hidden_act": "gelu"}, "field hidden_act is 'gelu', not silu"),
        ({"rms_norm_eps": "tiny"}, "field rms_norm_eps is 'tiny', not a number"),
        (
            {"rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4, "factor": 2.0}},
            "field rope_parameters.rope_type is 'longrope'",
        ),
        (
            {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}},
            "field rope_parameters.factor is None",
        ),
        ({"rope_parameters": [1]}, r"field rope_parameters is \[1\], not an object"),
        ({"quantization_config": {"bits": 4}}, "field quantization_config.quant_method is None"),
        (
            {"intermediate_size": 161},
            r"'model.layers.0.mlp.gate_proj.weight' has shape \[160, 96\]",
        ),
        ({"num_hidden_layers": 4}, "'model.layers.3.input_layernorm.weight' is in none"),
    ],
)
def test_a_wrong_config_is_named_by_file_and_field(
    changes: dict[str, Any], message: str, folder: Path, tmp_path: Path
) -> None:
    broken = copy_of(folder, tmp_path)
    edit_config(broken, lambda config: config.update(changes))
    with pytest.raises(LoadError, match=message) as caught:
        load(broken)
    assert str(tmp_path) in str(caught.value)


def test_a_missing_shard_is_named(folder: Path, tmp_path: Path) -> None:
    broken = copy_of(folder, tmp_path)
    shard = sorted(broken.glob("model-*.safetensors"))[1]
    shard.unlink()
    with pytest.raises(LoadError, match=f"{shard.name}: not there, and {INDEX_NAME} names it"):
        load(broken)


def test_a_truncated_shard_is_named(folder: Path, tmp_path: Path) -> None:
    broken = copy_of(folder, tmp_path)
    shard = sorted(broken.glob("model-*.safetensors"))[0]
    shard.write_bytes(shard.read_bytes()[:-100])
    with pytest.raises(LoadError, match=f"{shard.name}: truncated"):
        load(broken)


@pytest.mark.parametrize("text", ["{", "[]", "", "null"])
def test_a_config_that_is_no_json_object_is_refused(
    text: str, folder: Path, tmp_path: Path
) -> None:
    broken = copy_of(folder, tmp_path)
    (broken / "config.json").write_text(text)
    with pytest.raises(LoadError, match=r"config.json"):
        load(broken)


def test_a_shard_outside_the_folder_is_refused(folder: Path, tmp_path: Path) -> None:
    broken = copy_of(folder, tmp_path)
    index = broken / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    name = next(iter(content["weight_map"]))
    content["weight_map"][name] = "../elsewhere.safetensors"
    index.write_text(json.dumps(content))
    with pytest.raises(LoadError, match="not a file name"):
        load(broken)


def test_a_folder_without_weights_or_tokenizer_is_refused(folder: Path, tmp_path: Path) -> None:
    bare = copy_of(folder, tmp_path)
    for path in bare.glob("*.safetensors*"):
        path.unlink()
    with pytest.raises(LoadError, match=r"neither model.safetensors nor"):
        load(bare)
    (bare / "tokenizer.json").unlink()
    with pytest.raises(LoadError, match=r"tokenizer.json: missing"):
        load(bare)
    with pytest.raises(LoadError, match="no such folder"):
        load(tmp_path / "nowhere")


def test_a_model_too_big_for_memory_says_what_would_fit(folder: Path, tmp_path: Path) -> None:
    big = copy_of(folder, tmp_path)
    edit_config(big, lambda config: config.update(hidden_size=1 << 20, intermediate_size=1 << 22))
    with pytest.raises(LoadError, match=r"parameters in float32 take .* GiB are free on cpu"):
        load(big)


@pytest.mark.parametrize(
    ("free_gib", "flag"),
    [
        (1.5, "--dtype bfloat16 would fit"),
        (0.8, "--quantization int8 would fit"),
        (0.4, "--quantization int4 would fit"),
        (0.2, "no number type offered would fit"),
    ],
)
def test_the_flag_that_is_offered_would_do(
    free_gib: float, flag: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model has 0.62G parameters in float32 on a machine with less and less memory."""
    config = changed(random_model_config("qwen3-500m"), count=40)
    monkeypatch.setattr("runtime.model.sources.random_model_config", lambda _: config)
    monkeypatch.setattr(
        "runtime.model.weights.free_memory_bytes", lambda _: int(free_gib * (1 << 30))
    )
    with pytest.raises(LoadError, match=rf"take 2\.3 GiB, {free_gib:.1f} GiB are free.*{flag}"):
        load_model("random:qwen3-500m", dtype=torch.float32, device=CPU)


def test_random_models_depend_on_their_seed_alone() -> None:
    def logits(seed: int) -> torch.Tensor:
        model = load_model("random:qwen3-tiny", dtype=torch.float32, device=CPU, seed=seed)
        return prefill(ModelRunner(model, num_blocks=2, block_size=16), prompt(9) % 256, 9)

    assert torch.equal(logits(1), logits(1))
    assert not torch.equal(logits(1), logits(2))


def test_unknown_random_models_are_refused_with_the_known_ones() -> None:
    with pytest.raises(LoadError, match=r"no random model 'x'; there are: .*qwen3-tiny"):
        load_model("random:x", dtype=torch.float32, device=CPU)


def test_what_a_gpu_draws_has_the_same_law_and_hangs_on_seed_and_name_alone() -> None:
    cpu = torch.device("cpu")
    first = drawn_on_device([0, 5], (400, 100), 0.3, torch.float32, cpu)
    assert torch.equal(first, drawn_on_device([0, 5], (400, 100), 0.3, torch.float32, cpu))
    assert first.abs().max() <= 0.3001
    assert abs(float(first.std()) - 0.3 / 3**0.5) < 0.003
    for other in ([1, 5], [0, 6]):
        assert not torch.equal(first, drawn_on_device(other, (400, 100), 0.3, torch.float32, cpu))


@pytest.mark.parametrize(("name", "billions"), [("qwen3-0.6b", 0.596), ("qwen3-8b", 8.19)])
def test_large_random_models_have_the_sizes_of_their_names(name: str, billions: float) -> None:
    config = random_model_config(name)
    mixer, mlp = config.layers[0].mixer, config.layers[0].feed_forward
    attention = (mixer.heads * 2 + mixer.kv_heads * 2) * mixer.head_dim
    layer = config.hidden_size * (attention + 3 * mlp.size)
    embeddings = config.vocab_size * config.hidden_size * (1 if config.tie_embeddings else 2)
    assert abs((config.num_layers * layer + embeddings) / 1e9 - billions) < 0.01


def test_what_loading_let_go_of_goes_back_once_the_model_stands(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given_back: list[bool] = []
    monkeypatch.setattr(weights, "give_back_heap", lambda: given_back.append(True))
    load_model("random:qwen3-tiny", dtype=torch.float32, device=CPU)
    assert given_back == [True]
