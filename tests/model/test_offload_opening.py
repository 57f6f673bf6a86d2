"""From a configuration to host memory and disk, or to one clear error."""

from dataclasses import replace
from pathlib import Path

import pytest

from runtime.config import EngineConfig
from runtime.model.kv_pool import block_bytes, parted_bytes
from runtime.model.runner import ModelRunner, load_runner
from runtime.offload.disk import slot_bytes
from runtime.offload.opening import identity, open_tiers
from runtime.process.loading import EngineLoadError, load_engine
from tests.support.executors import AtOnce

CONFIG = EngineConfig(
    model="random:qwen3-tiny", dtype="float32", device="cpu", num_blocks=8, threads=1
)


@pytest.fixture(scope="module")
def runner() -> ModelRunner:
    return load_runner(CONFIG)


@pytest.fixture(scope="module")
def size(runner: ModelRunner) -> int:
    return block_bytes(runner.model.config, CONFIG.block_size, runner.model.dtype)


def test_sizes_become_whole_blocks(runner: ModelRunner, size: int, tmp_path: Path) -> None:
    config = replace(
        CONFIG,
        host_kv_bytes=5 * size + 1,
        disk_kv_bytes=3 * slot_bytes(size) + 1,
        disk_kv_folder=str(tmp_path),
    )
    tiers = open_tiers(config, runner, AtOnce())
    assert (tiers.plan.host_blocks, tiers.plan.disk_blocks, list(tiers.stored)) == (5, 3, [])
    tiers.transfer.close()


def test_host_memory_alone_opens_no_folder(runner: ModelRunner, size: int) -> None:
    tiers = open_tiers(replace(CONFIG, host_kv_bytes=size), runner, AtOnce())
    assert (tiers.plan.host_blocks, tiers.plan.disk_blocks) == (1, 0)
    tiers.transfer.close()


@pytest.mark.parametrize(
    ("setting", "complaint"),
    [
        ({"host_kv_bytes": 1}, "host_kv_bytes is 1: a block takes"),
        ({"host_kv_bytes": 1 << 44}, "are free"),
        (
            {"host_kv_bytes": 1 << 22, "host_state_bytes": 1 << 44},
            f"host_kv_bytes is {1 << 22} and host_state_bytes {1 << 44}, ",
        ),
        (
            {"host_kv_bytes": 1 << 22, "disk_kv_bytes": 1, "disk_kv_folder": "{}"},
            "disk_kv_bytes is 1: a block takes",
        ),
        (
            {"host_kv_bytes": 1 << 22, "disk_kv_bytes": 1 << 50, "disk_kv_folder": "{}"},
            "MiB are free; give a smaller disk_kv_bytes",
        ),
        (
            {"host_kv_bytes": 1 << 22, "disk_kv_bytes": 1 << 22, "disk_kv_folder": "{}/file"},
            "disk cache folder",
        ),
    ],
)
def test_what_cannot_be_had_is_one_error_at_the_start(
    setting: dict, complaint: str, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("not a folder")
    folder = tmp_path / "cache"
    if "disk_kv_folder" in setting:
        where = tmp_path if "file" in setting["disk_kv_folder"] else folder
        setting = setting | {"disk_kv_folder": setting["disk_kv_folder"].format(where)}
    with pytest.raises(EngineLoadError, match=complaint):
        load_engine(replace(CONFIG, **setting))


def test_the_folder_of_another_model_is_refused(size: int, tmp_path: Path) -> None:
    config = replace(
        CONFIG, host_kv_bytes=size, disk_kv_bytes=1 << 20, disk_kv_folder=str(tmp_path)
    )
    load_engine(config).close()
    with pytest.raises(EngineLoadError, match="the KV of another model"):
        load_engine(replace(config, seed=1))
    load_engine(config).close()


def test_a_folder_belongs_to_one_way_of_giving_rows_of_windows_back(tmp_path: Path) -> None:
    config = replace(
        CONFIG,
        model="random:gemma3-tiny",
        num_blocks=400,
        max_batch_tokens=64,
        host_kv_bytes=4 << 20,
        disk_kv_bytes=1 << 20,
        disk_kv_folder=str(tmp_path),
    )
    engine = load_engine(config)
    assert engine.memory.cache.windows is not None
    engine.close()
    load_engine(replace(config, window_share=40)).close()
    with pytest.raises(EngineLoadError, match="another model or another layout"):
        load_engine(replace(config, window_share=100))


def test_host_memory_is_divided_where_rows_behind_windows_are_given_back() -> None:
    config = replace(
        CONFIG,
        model="random:gemma3-tiny",
        num_blocks=400,
        max_batch_tokens=64,
        host_kv_bytes=4 << 20,
    )
    runner = load_runner(config)
    tiers = open_tiers(config, runner, AtOnce())
    every, near = parted_bytes(runner.model.config, config.block_size, runner.pool.dtype)
    plan = tiers.plan
    assert 0 < plan.host_window_blocks < plan.host_blocks
    assert plan.host_blocks * every + plan.host_window_blocks * near <= 4 << 20
    assert tiers.transfer.main.rows.shape == (plan.host_blocks, every)
    assert tiers.transfer.near is not None
    assert tiers.transfer.near.rows.shape == (plan.host_window_blocks, near)
    tiers.transfer.close()


def test_the_identity_names_weights_and_arithmetic(runner: ModelRunner, tmp_path: Path) -> None:
    model = runner.model
    own = identity(CONFIG, model)
    assert own == identity(replace(CONFIG, num_blocks=9), model)
    assert own != identity(replace(CONFIG, seed=1), model)
    assert own != identity(replace(CONFIG, quantization="int8"), model)
    file = tmp_path / "model.safetensors"
    file.write_bytes(bytes(1 << 20))
    folder = replace(model, name=str(tmp_path), tokenizer_folder=tmp_path / "made")
    before = identity(CONFIG, folder)
    assert before == identity(CONFIG, folder) != own
    file.write_bytes(bytes([0, 1] * (1 << 19)))
    assert identity(CONFIG, folder) != before
