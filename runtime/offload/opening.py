"""From a configuration to the memory below the device: how many blocks, on which threads.

Says also what a disk's KV belongs to: the bytes of a block mean something only to the very
model that made them.
"""

import os
from collections.abc import Iterable
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
import xxhash

from radix_cache.transfers import StoredRun
from runtime.config import EngineConfig
from runtime.model.config import LoadError
from runtime.model.kv_pool import block_bytes
from runtime.model.presets import PREFIX
from runtime.model.runner import ModelRunner
from runtime.model.sources import folder_of, gguf_file_in
from runtime.model.weights import LoadedModel, free_memory_bytes
from runtime.offload.disk import KVStore, SlotFile, StoreError, slot_bytes
from runtime.offload.transfer import KVTransfer

_SAMPLES = 16
_SAMPLE_BYTES = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class KVTiers:
    """Host memory, and disk if there is one."""

    transfer: KVTransfer
    host_blocks: int
    disk_blocks: int
    stored: Iterable[StoredRun]
    """The blocks that an earlier process has left on the disk."""


def open_tiers(config: EngineConfig, runner: ModelRunner, workers: Executor | None) -> KVTiers:
    """Take the memory and open the folder that ``config`` names; it has host memory at least.

    Args:
        workers: runs copies and the disk's orders, instead of threads of their own.

    Raises:
        LoadError: the memory is not there, the folder cannot be used, or it holds the KV of
            another model.
    """
    model = runner.model
    size = block_bytes(model.config, config.block_size, runner.pool.blocks.dtype)
    free = free_memory_bytes(torch.device("cpu"))
    if not size <= config.host_kv_bytes <= free:
        raise LoadError(
            f"host_kv_bytes is {config.host_kv_bytes}: a block takes {size}, {free} are free"
        )
    host_blocks, disk_blocks = config.host_kv_bytes // size, 0
    store: KVStore | None = None
    stored: Iterable[StoredRun] = ()
    if config.disk_kv_folder is not None:
        disk_blocks = config.disk_kv_bytes // slot_bytes(size)
        if not disk_blocks:
            raise LoadError(
                f"disk_kv_bytes is {config.disk_kv_bytes}: a block takes {slot_bytes(size)}"
            )
        try:
            file = SlotFile(
                Path(config.disk_kv_folder).expanduser(),
                num_blocks=disk_blocks,
                block_size=config.block_size,
                block_bytes=size,
                identity=identity(config, model),
            )
        except StoreError as error:
            raise LoadError(str(error)) from error
        store = KVStore(file, workers or _thread("kv-disk"))
        stored = file.stored()
    transfer = KVTransfer(
        runner.pool,
        host_blocks=host_blocks,
        store=store,
        worker=workers or _thread("kv-copy"),
    )
    return KVTiers(
        transfer=transfer, host_blocks=host_blocks, disk_blocks=disk_blocks, stored=stored
    )


def _thread(name: str) -> Executor:
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)


def identity(config: EngineConfig, model: LoadedModel) -> str:
    """Names the weights and the way they are computed with: KV of equal names is equal."""
    parts = [repr(model.config), str(model.dtype), config.quantization, config.kv_cache_dtype]
    files = _weight_files(model)
    if model.name.startswith(PREFIX) or not files:
        parts += [str(config.seed), model.name]
    else:
        parts += [_file_sample(path) for path in files]
    return xxhash.xxh3_128_hexdigest("\n".join(parts).encode())


def _weight_files(model: LoadedModel) -> list[Path]:
    """The files of its weights; none of them where they are drawn from a seed."""
    if model.name.startswith(PREFIX):
        return []
    folder = folder_of(model.name) or model.tokenizer_folder
    gguf = gguf_file_in(folder)
    return sorted(model.tokenizer_folder.glob("*.safetensors")) if gguf is None else [gguf]


def _file_sample(path: Path) -> str:
    """Name, size and a digest of parts of a file; other weights differ everywhere."""
    size = path.stat().st_size
    digest = xxhash.xxh3_128()
    with open(path, "rb") as file:
        for index in range(_SAMPLES):
            file.seek(index * max(0, size - _SAMPLE_BYTES) // (_SAMPLES - 1), os.SEEK_SET)
            digest.update(file.read(_SAMPLE_BYTES))
    return f"{path.name} {size} {digest.hexdigest()}"
