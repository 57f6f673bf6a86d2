"""From an ``EngineConfig`` to an engine that is ready to step: the one place of assembly."""

import logging
import time
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace

from radix_cache.cache import PrefixCache
from radix_cache.config import CacheConfig
from runtime.chat_formats import format_of
from runtime.config import TOKEN_GAP_MS_ON_GPU, EngineConfig
from runtime.drafting.drafter import Drafter, InterleavedDrafter
from runtime.engine.background import BackgroundTasks
from runtime.engine.branch_tokens import BranchTokens
from runtime.engine.compilations import Compilations
from runtime.engine.draft_controller import DraftController
from runtime.engine.emission import Emission
from runtime.engine.engine import Engine
from runtime.engine.kv_memory import KVMemory
from runtime.engine.lookahead import Lookahead
from runtime.engine.open_requests import OpenRequests, RequestLimits
from runtime.engine.step_computation import StepComputation
from runtime.grammar.compiler import GrammarCompiler
from runtime.messages import EngineInfo
from runtime.model.config import LoadError
from runtime.model.kv_pool import block_bytes
from runtime.model.rank_link import RankLink, RoomBelow
from runtime.model.runner import ModelRunner, load_runner
from runtime.model.window_plan import tokens_of_step
from runtime.offload.opening import KVTiers, open_tiers
from runtime.process.one_line import in_one_line
from runtime.process.rank_memory import state_memory
from runtime.process.rank_processes import RankProcesses
from runtime.process.startup_profile import measured_table
from runtime.process.stored_profile import StoredProfile
from runtime.process.watchdog import READING_FOLDER, READING_TOKENIZER
from runtime.scheduling.costs import StepCosts
from runtime.scheduling.scheduler import Scheduler
from runtime.tokenizer import Tokenizer, TokenizerError

log = logging.getLogger(__name__)

_GRAMMAR_CACHE_BYTES = 256 * 1024 * 1024
_DRAFT_INDEX_BYTES = 256 * 1024 * 1024
_DRAFT_MEMORY_BYTES = 32 * 1024 * 1024
_RESCUE_SHARE = 1.0


class EngineLoadError(LoadError):
    """The engine cannot start. The message is meant for the person who started it."""


def load_engine(
    config: EngineConfig,
    *,
    clock: Callable[[], float] = time.monotonic,
    enters: Callable[[str], None] = lambda stage: None,
    others: RankProcesses | None = None,
) -> Engine:
    """Load model, tokenizer and KV pool.

    Args:
        enters: is called with what is done next, in words that follow "while".
        others: the other ranks, where ``config`` has any; they end with the engine, or if it cannot
            start.

    Raises:
        EngineLoadError: a file is missing or unfit, the memory does not suffice, or whatever
            else went wrong.
    """
    started = time.monotonic()
    undo = ExitStack()
    try:
        if others is not None:
            undo.callback(others.kill)
        ranks = None if others is None else _lead(others, config, enters)
        if ranks is not None:
            undo.callback(ranks.close)
        enters(READING_FOLDER)
        runner = load_runner(config, folder_read=lambda: enters("loading the model"), ranks=ranks)
        model = runner.model
        enters(READING_TOKENIZER)
        tokenizer = Tokenizer.load(
            model.tokenizer_folder,
            vocab_size=model.config.vocab_size,
            model_type=model.model_type,
            format_of=format_of(config.chat_format),
        )
        load_s = time.monotonic() - started
        enters("timing the first steps")
        costs = StepCosts(
            measured_table(
                runner,
                seconds=config.startup_profile_ms / 1000,
                max_batch_tokens=config.max_batch_tokens,
                clock=clock,
                stored=StoredProfile.of(runner, config),
            )
        )
        enters("making the caches")
        engine = assemble(config, runner, tokenizer, clock=clock, load_s=load_s, costs=costs)
        undo.pop_all()
    except (LoadError, TokenizerError) as error:
        raise EngineLoadError(str(error)) from error
    except Exception as error:  # a file that nobody has thought of, or memory that ran out
        said = f"{config.model!r} cannot be loaded: {in_one_line(error)}"
        raise EngineLoadError(said) from error
    finally:
        undo.close()
    log.info("engine ready model=%s load_s=%.2f", model.name, engine.info.load_s)
    return engine


def _lead(others: RankProcesses, config: EngineConfig, enters: Callable[[str], None]) -> RankLink:
    """Meet the other ranks; a model on one device loads nothing of this."""
    from runtime.process.ranks import lead

    enters("starting the other ranks")
    return lead(others, config, enters)


def assemble(
    config: EngineConfig,
    runner: ModelRunner,
    tokenizer: Tokenizer,
    *,
    clock: Callable[[], float] = time.monotonic,
    load_s: float = 0.0,
    drafter: Drafter | None = None,
    workers: Executor | None = None,
    costs: StepCosts | None = None,
    emission_type: type[Emission] = Emission,
    looks_ahead: bool | None = None,
) -> Engine:
    """Wire an engine around a runner and a tokenizer that exist already. ``looks_ahead``: begin
    steps before the last one's tokens are known; None: on a GPU.

    Raises:
        LoadError: the memory or the folder for KV below the device cannot be had.
    """
    costs = costs or StepCosts()
    if runner.states is not None:
        most = min(config.max_draft_tokens, runner.states.most_draft_tokens)
        config = replace(config, max_draft_tokens=most)
    on_gpu = runner.model.device.type == "cuda"
    if config.token_gap_ms is None and on_gpu:
        config = replace(config, token_gap_ms=TOKEN_GAP_MS_ON_GPU)
    drafter = drafter or _drafter(config, tokenizer)
    tiers = open_tiers(config, runner, workers) if config.host_kv_bytes else None
    cache = _cache(config, runner, costs, tiers, clock)
    info = _info(config, runner, cache, load_s)
    scheduler = Scheduler(
        cache, config, costs, arrived=None if tiers is None else tiers.transfer.arrived
    )
    memory = KVMemory(
        cache,
        None if tiers is None else tiers.transfer,
        state_memory(runner, tiers),
    )
    requests = OpenRequests(
        limits=_limits(config, info),
        scheduler=scheduler,
        cache=cache,
        branches=BranchTokens(max_bytes=config.session_tokens_bytes),
        compilations=_compilations(tokenizer, workers, clock),
        tokenizer=tokenizer,
        drafter=drafter,
        clock=clock,
    )
    lookahead = None
    if on_gpu if looks_ahead is None else looks_ahead:
        lookahead = Lookahead(runner, costs, clock, windows=cache.windows)
    return Engine(
        info=info,
        scheduler=scheduler,
        requests=requests,
        emission=emission_type(
            tokenizer=tokenizer,
            outputs=requests.outputs,
            max_context_tokens=info.max_context_tokens,
        ),
        computation=StepComputation(runner, memory, lookahead, clock),
        memory=memory,
        drafts=DraftController(drafter, config, clock),
        clock=clock,
    )


def _cache(
    config: EngineConfig,
    runner: ModelRunner,
    costs: StepCosts,
    tiers: KVTiers | None,
    clock: Callable[[], float],
) -> PrefixCache:
    """The prefix cache over the runner's blocks, with what an earlier process left on disk."""
    below = RoomBelow() if tiers is None else tiers.plan
    cache = PrefixCache(
        CacheConfig(
            num_blocks=runner.num_blocks,
            block_size=config.block_size,
            policy=config.cache_policy,
            rescue_share=_RESCUE_SHARE,
            host_blocks=below.host_blocks,
            disk_blocks=below.disk_blocks,
            host_states=below.host_states,
            disk_states=below.disk_states,
            state_slots=0 if runner.states is None else runner.states.num_slots,
            running_slots=0 if runner.states is None else runner.states.num_rings,
            slot_blocks=_slot_blocks(config, runner),
            window_blocks=runner.window_blocks or 0,
            host_window_blocks=below.host_window_blocks,
            window_tokens=runner.model.config.window or 0,
            step_tokens=tokens_of_step(config),
        ),
        clock=clock,
        restore_cost=costs.restore_s,
        reload_cost=tiers.transfer.up_s if tiers is not None else None,
        mover=tiers.transfer if tiers is not None else None,
    )
    if tiers is not None and below.disk_blocks:
        found, states = cache.load(tiers.stored, tiers.stored_states)
        log.info("disk cache ready blocks=%d found=%d", below.disk_blocks, found)
        if below.disk_states:
            log.info("disk cache ready states=%d found=%d", below.disk_states, states)
    return cache


def _slot_blocks(config: EngineConfig, runner: ModelRunner) -> int:
    """Blocks of which a slot for states takes the memory, the one that comes with it included."""
    if runner.states is None:
        return 1
    block = block_bytes(runner.model.config, config.block_size, runner.pool.dtype)
    return 1 + -(-runner.states.state_bytes // block)


def _compilations(
    tokenizer: Tokenizer, workers: Executor | None, clock: Callable[[], float]
) -> Compilations:
    """Grammars, compiled beside the steps: in a thread if there are no ``workers``."""
    return Compilations(
        GrammarCompiler(tokenizer, max_cache_bytes=_GRAMMAR_CACHE_BYTES),
        workers or ThreadPoolExecutor(max_workers=1, thread_name_prefix="grammar"),
        BackgroundTasks(clock),
    )


def _limits(config: EngineConfig, info: EngineInfo) -> RequestLimits:
    return RequestLimits(
        max_waiting=config.max_waiting,
        max_context_tokens=info.max_context_tokens,
        first_token_limit_s=config.first_token_limit_s,
        vocab_size=info.vocab_size,
        adapters={
            adapter.name: (number, adapter.digest) for number, adapter in enumerate(info.adapters)
        },
    )


def _info(
    config: EngineConfig, runner: ModelRunner, cache: PrefixCache, load_s: float
) -> EngineInfo:
    """The engine's account of itself."""
    model = runner.model
    capacity = cache.usable_blocks * config.block_size
    limits = [capacity, model.config.max_context_tokens]
    if config.max_context_tokens is not None:
        limits.append(config.max_context_tokens)
        if capacity < config.max_context_tokens:
            log.warning(
                "--max-context-tokens is %d, the KV memory holds %d tokens, and no context is "
                "longer: give a larger --kv-cache-mib, or --num-blocks",
                config.max_context_tokens,
                capacity,
            )
    return EngineInfo(
        model_name=model.name,
        device=str(model.device),
        dtype=str(model.dtype).removeprefix("torch."),
        vocab_size=model.config.vocab_size,
        max_context_tokens=min(limits),
        block_size=config.block_size,
        kv_capacity_tokens=capacity,
        num_parameters=model.num_parameters,
        load_s=load_s,
        tokenizer_folder=str(model.tokenizer_folder),
        model_type=model.model_type,
        ranks=config.tensor_parallel,
        adapters=model.adapters,
    )


def _drafter(config: EngineConfig, tokenizer: Tokenizer) -> Drafter | None:
    if not config.max_draft_tokens:
        return None
    return InterleavedDrafter(
        end_of_turn_ids=tokenizer.end_of_turn_ids,
        max_index_bytes=_DRAFT_INDEX_BYTES,
        max_memory_bytes=_DRAFT_MEMORY_BYTES,
    )
