"""From an ``EngineConfig`` to an engine that is ready to step: the one place of assembly."""

import logging
import time
import traceback
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path

from radix_cache.cache import PrefixCache
from runtime.config import EngineConfig
from runtime.drafting import InterleavedDrafter
from runtime.drafts import Drafter
from runtime.emission import Emission
from runtime.engine import Engine
from runtime.estimates import StepCosts
from runtime.grammar_compiler import GrammarCompiler
from runtime.kv_tiers import open_tiers
from runtime.messages import EngineInfo
from runtime.model_runner import ModelRunner, load_runner
from runtime.models.config import LoadError
from runtime.scheduler import Scheduler
from runtime.session_tokens import SessionTokens
from runtime.startup_profile import measured_profile
from runtime.tokenizer import Tokenizer, TokenizerError

log = logging.getLogger(__name__)

_GRAMMAR_CACHE_BYTES = 256 * 1024 * 1024
_DRAFT_INDEX_BYTES = 256 * 1024 * 1024
_DRAFT_MEMORY_BYTES = 32 * 1024 * 1024
_RESCUE_SHARE = 1.0
_SAID_CHARS = 400


class EngineLoadError(Exception):
    """The engine cannot start. The message is meant for the person who started it."""


def load_engine(
    config: EngineConfig,
    *,
    clock: Callable[[], float] = time.monotonic,
    enters: Callable[[str], None] = lambda stage: None,
) -> Engine:
    """Load model, tokenizer and KV pool. ``enters`` is called with what is done next, in words
    that follow "while".

    Raises:
        EngineLoadError: a file is missing or unfit, the memory does not suffice, or whatever
            else went wrong.
    """
    started = time.monotonic()
    try:
        enters("loading the model")
        runner = load_runner(config)
        model = runner.model
        enters("reading the tokenizer")
        tokenizer = Tokenizer.load(
            model.tokenizer_folder,
            vocab_size=model.config.vocab_size,
            model_type=model.model_type,
        )
        load_s = time.monotonic() - started
        enters("timing the first steps")
        costs = StepCosts(
            measured_profile(
                runner,
                seconds=config.startup_profile_ms / 1000,
                max_batch_tokens=config.max_batch_tokens,
                clock=clock,
            )
        )
        enters("making the caches")
        engine = assemble(config, runner, tokenizer, clock=clock, load_s=load_s, costs=costs)
    except (LoadError, TokenizerError) as error:
        raise EngineLoadError(str(error)) from error
    except Exception as error:  # a file that nobody has thought of, or memory that ran out
        raise EngineLoadError(_in_one_line(config.model, error)) from error
    log.info("engine ready model=%s load_s=%.2f", model.name, engine.info.load_s)
    return engine


def _in_one_line(model: str, error: Exception) -> str:
    """What nobody expected, with the place where it happened: there is no traceback."""
    code, line = "?", 0
    for frame, number in traceback.walk_tb(error.__traceback__):
        code, line = frame.f_code.co_filename, number
    place = f"{Path(code).parent.name}/{Path(code).name}, line {line}"
    said = " ".join(str(error).split())[:_SAID_CHARS]
    return f"{model!r} cannot be loaded: {type(error).__name__} in {place}: {said}"


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
    model = runner.model
    costs = costs or StepCosts()
    tiers = open_tiers(config, runner, workers) if config.host_kv_bytes else None
    cache = PrefixCache(
        runner.num_blocks,
        config.block_size,
        clock=clock,
        policy=config.cache_policy,
        restore_cost=costs.restore_s,
        reload_cost=tiers.transfer.up_s if tiers is not None else None,
        rescue_share=_RESCUE_SHARE,
        mover=tiers.transfer if tiers is not None else None,
        host_blocks=tiers.host_blocks if tiers is not None else 0,
        disk_blocks=tiers.disk_blocks if tiers is not None else 0,
    )
    if tiers is not None and tiers.disk_blocks:
        found = cache.load(tiers.stored)
        log.info("disk cache ready blocks=%d found=%d", tiers.disk_blocks, found)
    capacity = cache.usable_blocks * config.block_size
    limits = [capacity, model.config.max_context_tokens]
    if config.max_context_tokens is not None:
        limits.append(config.max_context_tokens)
    info = EngineInfo(
        model_name=model.name,
        device=str(model.device),
        dtype=str(model.dtype).removeprefix("torch."),
        vocab_size=model.config.vocab_size,
        max_context_tokens=min(limits),
        block_size=config.block_size,
        kv_capacity_tokens=capacity,
        num_parameters=model.config.num_parameters,
        load_s=load_s,
        tokenizer_folder=str(model.tokenizer_folder),
        model_type=model.model_type,
    )
    return Engine(
        scheduler=Scheduler(
            cache, config, costs, arrived=None if tiers is None else tiers.transfer.arrived
        ),
        cache=cache,
        runner=runner,
        tokenizer=tokenizer,
        compiler=GrammarCompiler(tokenizer, max_cache_bytes=_GRAMMAR_CACHE_BYTES),
        workers=workers or ThreadPoolExecutor(max_workers=1, thread_name_prefix="grammar"),
        sessions=SessionTokens(max_bytes=config.session_tokens_bytes),
        costs=costs,
        config=config,
        info=info,
        drafter=drafter or _drafter(config, tokenizer),
        transfer=None if tiers is None else tiers.transfer,
        emission_type=emission_type,
        looks_ahead=model.device.type == "cuda" if looks_ahead is None else looks_ahead,
        clock=clock,
    )


def _drafter(config: EngineConfig, tokenizer: Tokenizer) -> Drafter | None:
    if not config.max_draft_tokens:
        return None
    return InterleavedDrafter(
        end_of_turn_ids=tokenizer.end_of_turn_ids,
        max_index_bytes=_DRAFT_INDEX_BYTES,
        max_memory_bytes=_DRAFT_MEMORY_BYTES,
    )
