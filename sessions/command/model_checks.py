"""Findings of ``keepwarm doctor`` about the model: whether it is there, what it is, how it is
spoken to, what memory it takes.

What headers of weights and the device have to do with it is asked of a process that has torch
(``runtime.process.model_report``).
"""

from collections.abc import Iterator, Mapping
from typing import Any

from runtime.model.config import Experts, ModelConfig
from runtime.model.recurrent import GatedDelta, KimiDelta, Mamba2, ShortConv
from runtime.model.sources import ModelSource
from sessions.command.finding import Finding
from sessions.command.options import ServeOptions
from sessions.command.preflight import fault_of_context, fault_of_model, known_source
from sessions.command.settings import OptionError
from sessions.command.speech import Speech, speech_of

_RECURRENT = {
    ShortConv: "short convolutions",
    GatedDelta: "gated delta nets",
    KimiDelta: "Kimi delta attention",
    Mamba2: "Mamba-2",
}
_SESSION_TOKENS = (8192, 32768)
"""Lengths of sessions that are told of, beside the whole context."""


def model(name: str) -> Finding:
    """Whether there is a model of that name, as far as its small files tell."""
    fault = fault_of_model(name)
    if fault is None:
        return Finding(what="model", verdict="ok", found=name)
    advice = "--model default is the model that comes along"
    return Finding(what="model", verdict="fault", found=fault, advice=advice)


def spoken_to(options: ServeOptions) -> Iterator[Finding]:
    """The model, and if it is there its context and how it is spoken to."""
    name, asked = options.engine.model, options.engine.max_context_tokens
    found = model(name)
    yield found
    source = known_source(name) if found.verdict == "ok" else None
    if source is not None:
        yield family(source.config)
        yield context(name, source, asked)
        yield chat_format(options, source)


def family(config: ModelConfig) -> Finding:
    """Which family it is of, and what its layers are made of."""
    attention = config.attention
    words = [f"{len(attention)} layers of attention"]
    windows = sum(each.window is not None for each in attention)
    if windows:
        words.append(f"{windows} of them with a window")
    sharing = sum(each.shares is not None for each in attention)
    if sharing:
        words.append(f"{sharing} of them read the keys and values of others")
    for kind, name in _RECURRENT.items():
        count = sum(isinstance(each, kind) for each in config.recurrent)
        if count:
            words.append(f"{count} of {name}")
    experts = [
        each.feed_forward for each in config.layers if isinstance(each.feed_forward, Experts)
    ]
    if experts:
        router = experts[0].router
        words.append(f"{router.per_token} of {router.num_experts} experts a token")
    words.append(f"{_short(config.num_parameters)} parameters")
    found = f"{config.model_type}: {', '.join(words)}"
    return Finding(what="family", verdict="ok", found=found)


def context(name: str, source: ModelSource, asked: int | None) -> Finding:
    """Whether the model has so long a context as is to be served."""
    fault = fault_of_context(name, asked)
    if fault is None:
        most = source.config.max_context_tokens
        found = f"{most} tokens" if asked is None else f"{asked} of {most} tokens"
        return Finding(what="context", verdict="ok", found=found)
    advice = "--max-context-tokens makes a context shorter, never longer"
    return Finding(what="context", verdict="fault", found=fault, advice=advice)


def chat_format(options: ServeOptions, source: ModelSource) -> Finding:
    """Which format the model's own template says, and how that was found out."""
    try:
        chosen = speech(options, source)
    except OptionError as error:
        advice = "docs/chat_formats.md says how a format is chosen, and which there are"
        return Finding(what="chat format", verdict="fault", found=str(error), advice=advice)
    found = chosen.chat_format.name + (f": {chosen.how}" if chosen.how else "")
    if chosen.warning is None:
        return Finding(what="chat format", verdict="ok", found=found)
    advice = f"the server starts; {chosen.warning}"
    return Finding(what="chat format", verdict="note", found=found, advice=advice)


def speech(options: ServeOptions, source: ModelSource) -> Speech:
    """How the model would be spoken to. Raises OptionError: it cannot be."""
    engine = options.engine
    return speech_of(
        engine.model,
        source,
        chat_format=engine.chat_format,
    )


def read_model(report: Mapping[str, Any]) -> Iterator[Finding]:
    """Findings from a ``ModelReport``. What is at fault with files and context has been told."""
    if report["fault"] is not None:
        advice = "give what it asks for, or another model"
        yield Finding(what="memory", verdict="fault", found=report["fault"], advice=advice)
        return
    left = f"; not read: {report['left']}" if report["left"] else "; all of it is read"
    yield Finding(what="checkpoint", verdict="ok", found=report["form"] + left)
    yield memory(report)


def memory(report: Mapping[str, Any]) -> Finding:
    """The memory of weights and KV, and how many sessions fit."""
    context, tokens = report["context"], report["tokens"]
    lengths = [each for each in _SESSION_TOKENS if each < context] + [context]
    sessions = [f"{_sessions(report, each)} of {each} tokens" for each in lengths]
    words = [f"of each of {report['ranks']} ranks"] if report["ranks"] > 1 else []
    adapted = report["adapter_bytes"]
    adapters = f" and adapters {_size(adapted)}" if adapted else ""
    words += [
        f"weights take {_size(report['weight_bytes'])} in {report['dtype']}{adapters}, "
        f"{_size(report['free_bytes'])} are free on {report['device']}",
        f"KV takes {_size(report['token_bytes'])} a token, {_size(report['kv_bytes'])} in all for "
        f"{tokens} tokens",
        f"sessions that fit: {', '.join(sessions)}",
    ]
    windowed, window = report["windowed_share"], report["window_tokens"]
    if report["near_tokens"]:
        words.append(
            f"layers that see {window} tokens give back what is behind: they take "
            f"{_size(report['near_token_bytes'])} a token more, of {report['near_tokens']} tokens "
            "at a time"
        )
    elif windowed and window < context:
        needed = 1 - windowed * (1 - window / context)
        words.append(
            f"layers that see {window} tokens keep all: a session of {context} tokens takes "
            f"{1 / needed:.3g} times what its windows need"
        )
    if report["state_slots"]:
        share = f"{100 * report['state_share']:.3g} % of what both take"
        size = _size(report["state_bytes"])
        words.append(f"{report['state_slots']} states of {size} each, {share}")
    if report["host_tokens"]:
        words.append(
            f"host memory holds {report['host_tokens']} tokens more{_near_below(report)}"
            f"{_states_below(report)}"
        )
    found = "; ".join(words)
    if tokens >= context:
        return Finding(what="memory", verdict="ok", found=found)
    advice = (
        f"no transcript can be longer than {tokens} tokens: --kv-cache-mib gives KV more memory, "
        "--kv-cache-dtype has it take half"
    )
    return Finding(what="memory", verdict="note", found=found, advice=advice)


def _near_below(report: Mapping[str, Any]) -> str:
    """Of how many of them layers with a window have room there, where they give back rows."""
    count = report["host_near_tokens"]
    return f", those layers {count} of them" if count else ""


def _states_below(report: Mapping[str, Any]) -> str:
    """How many states there is room for below the device, where a model has any."""
    if not report["state_slots"]:
        return ""
    on_disk = f", the disk {report['disk_states']}" if report["disk_states"] else ""
    return f" and {report['host_states']} states{on_disk}"


def _sessions(report: Mapping[str, Any], length: int) -> int:
    """How many sessions fit. Each has a slot for its state, if there are states, and the window at
    its end."""
    fitting: int = report["tokens"] // length
    if report["near_tokens"]:
        fitting = min(fitting, report["near_tokens"] // min(length, report["window_tokens"]))
    slots = report["state_slots"]
    return fitting if slots is None else min(fitting, slots)


def _size(num_bytes: int) -> str:
    for power, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if num_bytes >= 1 << power:
            return f"{num_bytes / (1 << power):.3g} {unit}"
    return f"{num_bytes} bytes"


def _short(count: int) -> str:
    for least, word in ((10**9, "billion"), (10**6, "million")):
        if count >= least:
            return f"{count / least:.3g} {word}"
    return str(count)
