"""From a configuration to the memory below the device: how many blocks, on which threads.

Says also what a disk's KV belongs to: the bytes of a block mean something only to the very
model that made them.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
import xxhash

from radix_cache.snapshots import StoredState
from radix_cache.transfers import StoredRun
from runtime.config import EngineConfig
from runtime.model.config import LoadError
from runtime.model.kv_pool import block_bytes, parted_bytes
from runtime.model.presets import PREFIX
from runtime.model.rank_link import RoomBelow
from runtime.model.runner import ModelRunner
from runtime.model.sources import folder_of, gguf_file_in
from runtime.model.state_plan import StatePlan
from runtime.model.weights import LoadedModel, free_memory_bytes
from runtime.offload.below_plan import WindowParts, plan_below
from runtime.offload.disk import SlotFile, StoreError
from runtime.offload.disk_orders import KVStore
from runtime.offload.rank_moves import RankMoves
from runtime.offload.state_copies import StateCopies
from runtime.offload.state_file import StateFile
from runtime.offload.transfer import KVTransfer

_SAMPLES = 16
_SAMPLE_BYTES = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class KVTiers:
    """Host memory, and disk if there is one."""

    transfer: KVTransfer
    plan: RoomBelow
    stored: Iterable[StoredRun]
    """The blocks that an earlier process has left on the disk."""
    state_transfer: KVTransfer | None
    """Moves states between tiers; None for a model without recurrent layers."""
    stored_states: Iterable[StoredState]


Ended = Callable[[int, bool, bool], None]
"""Is told the number of a move from or to the disk that is over, whether all is well, and whether
states were moved; by the thread that carried it out."""


def open_tiers(
    config: EngineConfig,
    runner: ModelRunner,
    workers: Executor | None,
    *,
    ended: Ended = lambda number, ok, of_states: None,
) -> KVTiers:
    """Take the memory and open the folder that ``config`` names; it has host memory at least. Of
    several ranks each has its own, one with another number than 0 in a folder inside; the leading
    one has the others do the same.

    Args:
        workers: runs copies and the disk's orders, instead of threads of their own.

    Raises:
        LoadError: the memory is not there, the folder cannot be used, or it holds the KV of
            another model; here or on another rank.
    """
    size = block_bytes(runner.model.config, config.block_size, runner.pool.dtype)
    wanted, free = config.host_kv_bytes, free_memory_bytes(torch.device("cpu"))
    states = config.host_state_bytes or 0
    if wanted + states > free and runner.leads:
        beside = f" and host_state_bytes {states}" if states else f": a block takes {size}"
        raise LoadError(f"host_kv_bytes is {wanted}{beside}, {free} are free")
    near = _near_rows(config, runner)
    plan = plan_below(config, _states_of(runner), size, near)
    copying, writing = workers or _thread("kv-copy"), workers or _thread("kv-disk")
    store: KVStore | None = None
    stored: Iterable[StoredRun] = ()
    if config.disk_kv_folder is not None:
        near_bytes = 0 if near is None else near.parts[1]
        file = _slot_file(config, runner, plan, (size, near_bytes))
        store = KVStore(file, writing, ended=partial(_told, ended, False))
        stored = file.stored()
    transfer = KVTransfer(
        runner.pool,
        host_blocks=plan.host_blocks,
        near_rows=plan.host_window_blocks,
        store=store,
        worker=copying,
        others=_others(config, runner, of_states=False),
    )
    state_transfer: KVTransfer | None = None
    stored_states: Iterable[StoredState] = ()
    if plan.host_states:
        threads = copying, writing
        state_transfer, stored_states = _open_states(config, runner, plan, threads, ended)
    if runner.followers is not None:
        runner.followers.send_below(plan)
    return KVTiers(
        transfer=transfer,
        plan=plan,
        stored=stored,
        state_transfer=state_transfer,
        stored_states=stored_states,
    )


def _told(ended: Ended, of_states: bool, number: int, ok: bool) -> None:
    ended(number, ok, of_states)


def _others(config: EngineConfig, runner: ModelRunner, *, of_states: bool) -> RankMoves | None:
    """The other ranks, where this one leads any."""
    if runner.followers is None:
        return None
    return RankMoves(runner.followers, ranks=config.tensor_parallel, of_states=of_states)


def _folder(config: EngineConfig, runner: ModelRunner) -> Path:
    """Where this rank's part is on disk."""
    assert config.disk_kv_folder is not None
    folder = Path(os.path.expanduser(config.disk_kv_folder))
    return folder if runner.leads else folder / f"rank-{runner.rank}"


def _near_rows(config: EngineConfig, runner: ModelRunner) -> WindowParts | None:
    """The memory of layers with a window, where a runner gives back what is behind it."""
    model, window = runner.model.config, runner.model.config.window
    if runner.window_blocks is None or window is None:
        return None
    parts = parted_bytes(model, config.block_size, runner.pool.dtype)
    return WindowParts(window=window, parts=parts)


def _states_of(runner: ModelRunner) -> StatePlan:
    """The slots that a runner has on the device."""
    states, tails = runner.states, runner.tails
    if states is None or tails is None or not states.num_slots:
        return StatePlan()
    tail = tails.num_bytes // tails.num_blocks
    taken = states.num_slots * (states.state_bytes + tail)
    return StatePlan(
        slots=states.num_slots,
        rings=states.num_rings,
        num_bytes=states.num_bytes + tails.num_bytes,
        slot_bytes=states.state_bytes + tail,
        share=taken / (taken + runner.pool.num_bytes),
    )


def _slot_file(
    config: EngineConfig, runner: ModelRunner, plan: RoomBelow, sizes: tuple[int, int]
) -> SlotFile:
    """``sizes``: bytes of a block, and what rows of layers with a window are of them where not
    every block has such."""
    try:
        return SlotFile(
            _folder(config, runner),
            num_blocks=plan.disk_blocks,
            block_size=config.block_size,
            block_bytes=sizes[0],
            near_bytes=sizes[1],
            identity=identity(config, runner.model),
        )
    except StoreError as error:
        raise LoadError(str(error)) from error


def _open_states(
    config: EngineConfig,
    runner: ModelRunner,
    plan: RoomBelow,
    threads: tuple[Executor, Executor],
    ended: Ended,
) -> tuple[KVTransfer, Iterator[StoredState]]:
    """What copies states, and those that are on the disk; ``threads``: for copies, and the
    disk's."""
    states, tails = runner.states, runner.tails
    assert states is not None
    assert tails is not None
    copying, writing = threads
    copies = StateCopies(states, tails, copying)
    store: KVStore | None = None
    stored: Iterator[StoredState] = iter(())
    if config.disk_kv_folder is not None and plan.disk_states:
        layout = f"{identity(config, runner.model)} {states.rows.dtype} {states.state_bytes}"
        try:
            file = StateFile(
                _folder(config, runner),
                num_slots=plan.disk_states,
                row_bytes=copies.row_bytes,
                layout=f"{layout} {config.block_size}",
            )
        except StoreError as error:
            raise LoadError(str(error)) from error
        store = KVStore(file, writing, ended=partial(_told, ended, True))
        stored = file.stored()
    transfer = KVTransfer(
        tails,
        host_blocks=plan.host_states,
        store=store,
        worker=copying,
        copies=copies,
        others=_others(config, runner, of_states=True),
    )
    return transfer, stored


def _thread(name: str) -> Executor:
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)


def identity(config: EngineConfig, model: LoadedModel) -> str:
    """Names the weights and the way they are computed with: KV of equal names is equal."""
    parts = [repr(model.config), str(model.dtype), config.quantization, config.kv_cache_dtype]
    if model.ranks is not None:
        parts.append(repr(model.ranks.partition))
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
    return sorted(folder.glob("*.safetensors")) if gguf is None else [gguf]


def _file_sample(path: Path) -> str:
    """Name, size and a digest of parts of a file; other weights differ everywhere."""
    size = path.stat().st_size
    digest = xxhash.xxh3_128()
    with open(path, "rb") as file:
        for index in range(_SAMPLES):
            file.seek(index * max(0, size - _SAMPLE_BYTES) // (_SAMPLES - 1), os.SEEK_SET)
            digest.update(file.read(_SAMPLE_BYTES))
    return f"{path.name} {size} {digest.hexdigest()}"
