"""What doctor says of a model's memory is what a server with the same options would have."""

import json
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from runtime.config import AdapterSource, EngineConfig
from runtime.model.presets import random_model_config
from runtime.model.runner import load_runner
from runtime.process.model_report import model_report
from tests.support.adapters import adaptable_maps, write_adapter
from tests.support.architecture import ROOT
from tests.support.quantised_folders import FORMATS, edit_config, write_folder
from tests.support.thread_ranks import thread_ranks


@pytest.mark.parametrize(
    "name", ["qwen3-tiny", "gemma3-tiny", "gemma4-tiny", "lfm2-tiny", "deepseek-v4-tiny"]
)
def test_room_for_tokens_is_what_a_runner_has(name: str) -> None:
    config = EngineConfig(
        model=f"random:{name}", kv_cache_bytes=32 << 20, dtype="float32", max_running=8
    )
    report, runner = model_report(config), load_runner(config)
    assert report.fault is None
    assert report.tokens == runner.num_blocks * 16
    near = (runner.window_blocks or 0) * 16
    assert report.near_tokens == near
    taken = report.tokens * report.token_bytes + near * report.near_token_bytes
    assert taken == runner.pool.num_bytes
    assert report.weight_bytes == runner.model.config.num_parameters * 4
    assert report.state_slots == (None if runner.states is None else runner.states.num_slots)
    assert report.context == runner.model.config.max_context_tokens
    below = model_report(replace(config, host_kv_bytes=1 << 22))
    assert (below.host_near_tokens > 0) == (near > 0)
    assert below.host_near_tokens < below.host_tokens
    asked = model_report(replace(config, state_share=20))
    states = 0.2 if report.state_slots else 0.0
    assert asked.state_share == pytest.approx(states, abs=0.001)
    beside = model_report(replace(config, kv_cache_bytes=None, num_blocks=100, state_slots=9))
    assert 0 <= beside.state_share < 1
    assert (beside.state_share > 0) == bool(states)


def test_adapters_are_checked_and_take_memory(tmp_path: Path) -> None:
    maps = adaptable_maps(random_model_config("qwen3-tiny"))
    folder = write_adapter(tmp_path / "red", maps, seed=0)
    config = EngineConfig(
        model="random:qwen3-tiny",
        dtype="float32",
        adapters=(AdapterSource(name="red", folder=str(folder)),),
    )
    report, runner = model_report(config), load_runner(replace(config, num_blocks=8))
    assert report.adapter_bytes == runner.model.adapters[0].num_bytes
    described = folder / "adapter_config.json"
    fields = json.loads(described.read_text(encoding="utf-8")) | {"use_dora": True}
    described.write_text(json.dumps(fields), encoding="utf-8")
    assert "field use_dora is True" in str(model_report(config).fault)


def test_layers_with_a_window_count_by_what_they_keep() -> None:
    """Entries of DeepSeek V4 stay, though each of its layers has a window."""
    config = EngineConfig(model="random:deepseek-v4-tiny", window_share=100)
    kept, apart = model_report(config), model_report(replace(config, window_share=None))
    assert (kept.near_tokens, kept.window_tokens) == (0, 32)
    assert kept.token_bytes == apart.token_bytes + apart.near_token_bytes
    assert kept.windowed_share == pytest.approx(apart.near_token_bytes / kept.token_bytes)
    assert model_report(replace(config, model="random:qwen3-tiny")).windowed_share == 0


@pytest.mark.parametrize("model", ["qwen3-tiny-4", "granite-hybrid-tiny", "qwen3.5-tiny"])
def test_room_of_two_ranks_is_what_each_has(model: str) -> None:
    config = EngineConfig(
        model=f"random:{model}",
        kv_cache_bytes=1 << 23,
        max_running=4,
        dtype="float32",
        device="cpu",
        threads=1,
        tensor_parallel=2,
    )
    report, runner = model_report(config), load_runner(config, ranks=thread_ranks(config))
    one = model_report(replace(config, tensor_parallel=1))
    assert report.fault is None
    assert (report.ranks, one.ranks) == (2, 1)
    assert report.tokens == runner.num_blocks * 16
    assert report.token_bytes * 2 == one.token_bytes
    slots = None if runner.states is None else runner.states.num_slots
    assert report.state_slots == slots
    if runner.states is None or runner.tails is None:
        assert report.tokens == 2 * one.tokens
    else:
        tail = runner.tails.num_bytes // runner.states.num_slots
        assert report.state_bytes == runner.states.state_bytes + tail
        assert 2 * report.state_bytes == one.state_bytes
    assert report.weight_bytes == runner.model.config.num_parameters * 4 < one.weight_bytes
    runner.close()


@pytest.mark.samples(6)
@pytest.mark.parametrize("form", FORMATS)
def test_memory_of_a_quantised_folder_is_told_within_a_seventh(form: str, tmp_path: Path) -> None:
    write_folder(tmp_path, FORMATS[form], seed=0)
    config = EngineConfig(model=str(tmp_path), num_blocks=4, dtype="bfloat16")
    report = model_report(config)
    decoder = load_runner(config).model.decoder
    beside = 320 * 128 * 2  # the embedding, of which a step reads a row
    held = decoder.step_weight_bytes + beside
    assert report.weight_bytes == pytest.approx(held, rel=1 / 7)
    assert FORMATS[form].settings["quant_method"] in report.form
    assert report.left == ""


def test_what_is_knowingly_left_is_told_by_kind_and_not_counted(tmp_path: Path) -> None:
    write_folder(tmp_path, FORMATS["fp8 blocks"], seed=0)
    config = EngineConfig(model=str(tmp_path), num_blocks=4)
    before = model_report(config)
    file = tmp_path / "model.safetensors"
    more = {f"mtp.layers.{each}.weight": torch.zeros(500, 500) for each in range(3)}
    more["model.layers.0.self_attn.k_proj.k_scale"] = torch.ones(())
    save_file({**load_file(file), **more}, file)
    after = model_report(config)
    assert after.left == "*.k_scale (1), mtp.* (3)"
    assert after.weight_bytes == before.weight_bytes


@pytest.mark.parametrize(
    ("own", "said"),
    [
        ({"quantization": "int8"}, "quantised already"),
        ({"tensor_parallel": 3}, "4 heads are not a multiple of 3"),
        ({"max_context_tokens": 513}, "512"),
        ({"kv_cache_dtype": "fp8"}, "--kv-cache-dtype int8 is"),
        ({"num_blocks": None, "kv_cache_bytes": 1 << 16, "block_size": 256}, "at least 2 are"),
    ],
)
def test_what_a_server_would_refuse_is_the_reports_fault(
    own: dict[str, object], said: str, tmp_path: Path
) -> None:
    write_folder(tmp_path, FORMATS["fp8 blocks"], seed=0)
    fields = {"model": str(tmp_path), "num_blocks": 4, **own}
    report = model_report(EngineConfig(**fields))  # type: ignore[arg-type]
    assert report.fault is not None
    assert said in report.fault


@pytest.mark.tail
def test_a_damaged_shard_is_the_reports_fault_in_a_process_of_its_own(tmp_path: Path) -> None:
    write_folder(tmp_path, FORMATS["fp8 blocks"], seed=0)
    (tmp_path / "model.safetensors").write_bytes(b"\x01" * 100)
    edit_config(tmp_path, dict(FORMATS["fp8 blocks"].settings))
    config = json.dumps(asdict(EngineConfig(model=str(tmp_path))))
    command = [sys.executable, "-m", "runtime.process.device_report", config]
    asked = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    told = json.loads(asked.stdout)
    assert told["torch"] == torch.__version__
    assert str(tmp_path / "model.safetensors") in told["model"]["fault"]
