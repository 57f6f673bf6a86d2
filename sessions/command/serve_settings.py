"""Settings of ``keepwarm serve``: what may be typed, be in the environment or in a file.

Every field of ``EngineConfig`` is an option of the same name (sizes in bytes become MiB), its
docstring the help text; the rest concerns the port, keys, prices, the journal and the cluster. What
they mean together is said by ``options``. Needs nothing of what a server needs to run, so that
other commands can check a configuration file whole.
"""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args, get_origin, get_type_hints

from runtime.child_environment import KEY_VARIABLE
from runtime.config import BOUNDS, MOST_ADAPTERS, AdapterSource, EngineConfig
from runtime.log_lines import LogFormat
from sessions.command.settings import Kind, Setting, Values
from tools_api.docstrings import field_docstrings
from tools_api.limits import DEFAULT_LIMITS

MIB = 1024 * 1024

_OWN: tuple[Setting, ...] = (
    Setting(
        name="host",
        default="127.0.0.1",
        help="address to listen on; others than loopback need a key",
    ),
    Setting(
        name="port",
        kind="whole",
        default=8080,
        bounds=(0, 65535),
        help="port to listen on; 0 takes a free one",
    ),
    Setting(name="model_name", help="further model id that requests may use and responses name"),
    Setting(
        name="api_key",
        metavar="KEY",
        secret=True,
        help=f"key that clients must send; better in {KEY_VARIABLE}",
    ),
    Setting(
        name="tenants_file",
        kind="path",
        metavar="FILE",
        help="TOML file with a table [[keys]] for each key: name, sha256, tenant and role "
        "(operator, tenant, read-only); tenants share nothing, operators see metrics and all "
        "sessions; read again on SIGHUP; 'keepwarm keys' makes its rows",
    ),
    Setting(
        name="allow_origin",
        kind="list",
        default=(),
        metavar="ORIGIN",
        help="origin of web pages that may connect, e.g. https://agents.example; repeatable",
    ),
    Setting(
        name="price",
        default="",
        metavar="input=D,cached=D,output=D",
        help="dollars per million prompt tokens computed, prompt tokens cached, output tokens",
    ),
    Setting(
        name="prices",
        kind="path",
        metavar="FILE",
        help="the same for each model, TOML: a table [models.NAME] with input, cached, output and, "
        "where thinking costs otherwise, reasoning; [models.default] is for all others",
    ),
    Setting(
        name="label_from",
        kind="list",
        default=(),
        metavar="FIELD",
        help="field of requests that becomes a label of their sessions: user, or metadata.NAME; "
        "repeatable, up to 8 times",
    ),
    Setting(
        name="drain_seconds",
        kind="number",
        default=30.0,
        bounds=(0, 86400),
        help="on SIGTERM or SIGINT, how long running turns may go on; a second signal ends it",
    ),
    Setting(
        name="default_output_tokens",
        kind="whole",
        default=DEFAULT_LIMITS.default_output_tokens,
        bounds=(1, 1 << 24),
        help="output tokens of a turn that names no max_output_tokens",
    ),
    Setting(
        name="log_format",
        default="text",
        choices=get_args(LogFormat),
        help="lines of text, or a JSON object a line",
    ),
    Setting(
        name="log_level",
        default="info",
        choices=("debug", "info", "warning", "error"),
        help="what is logged to standard error",
    ),
    Setting(
        name="otlp_traces",
        metavar="URL",
        help="send a span of every turn to this OTLP endpoint over HTTP, e.g. "
        "http://127.0.0.1:4318/v1/traces; needs the extra 'otel'",
    ),
)


JOURNAL_SETTINGS: tuple[Setting, ...] = (
    Setting(
        name="journal",
        metavar="FILE",
        group="journal",
        help="where sessions are kept so that they outlive the server: a file, "
        "postgresql://... (shared by all that name it), or :memory: for nowhere; default: a file "
        "in the user's state folder",
    ),
    Setting(
        name="journal_shared",
        kind="switch",
        default=False,
        group="journal",
        help="let other servers of this host, started the same way, use the file as well",
    ),
    Setting(
        name="journal_foreign",
        choices=("unknown", "retokenise"),
        default="unknown",
        group="journal",
        help="sessions of another tokenizer or chat format: unknown here, or taken over by "
        "tokenising what was said anew",
    ),
    Setting(
        name="journal_keep_days",
        kind="number",
        default=30.0,
        bounds=(0.001, 36_500),
        metavar="DAYS",
        group="journal",
        help="turns that are older are deleted once nothing continues them",
    ),
    Setting(
        name="compaction_key",
        metavar="FILE",
        group="journal",
        help="the key that signs compaction items, at least 32 bytes, the same for all servers "
        "that are to take each other's; default: a file beside the journal's, made at the "
        "first start",
    ),
    Setting(
        name="journal_rescue_folder",
        metavar="FOLDER",
        group="journal",
        help="where the journal is saved if its file is removed, moved or replaced under a running "
        "server; default: beside it",
    ),
    Setting(
        name="ready_without_journal",
        kind="switch",
        default=False,
        group="journal",
        help="leave a journal that servers share out of /readyz: else all of them would leave "
        "their balancer at once while it is out of reach, and reading with them",
    ),
)


CLUSTER_SETTINGS: tuple[Setting, ...] = (
    Setting(
        name="cluster",
        metavar="NAME",
        group="cluster",
        help="be one of several servers behind 'keepwarm cluster balance'; the journal is "
        "postgresql://... then",
    ),
    Setting(
        name="advertise",
        metavar="HOST[:PORT]",
        group="cluster",
        help="where the balancer reaches this server; without a port the one it listens on",
    ),
    Setting(
        name="cluster_slot",
        kind="whole",
        default=0,
        bounds=(0, 256),
        metavar="N",
        group="cluster",
        help="the balancer's slot that this server asks for, from 1 on: who comes back in its "
        "slot, with its KV folder, has the sessions that were at home there; 0: any",
    ),
    Setting(
        name="drain_notice_s",
        kind="number",
        default=2.0,
        bounds=(0, 600),
        metavar="SECONDS",
        group="cluster",
        help="how long a server that is told to stop goes on listening at most, until its "
        "balancer sends nobody more",
    ),
    Setting(
        name="forwarded_by",
        kind="list",
        default=(),
        metavar="NETWORK",
        group="cluster",
        help="network of balancers, e.g. 10.0.0.0/24, whose X-Forwarded-For names the client; "
        "repeatable",
    ),
)


TUNING = frozenset(
    {"num_blocks", "state_slots", "window_share", "block_size", "max_batch_tokens", "max_waiting"}
    | {"prefill_tokens_beside_decodes", "startup_profile_ms", "startup_profile_folder"}
    | {"first_token_limit_s", "output_reserve_percent", "session_context_percent"}
    | {"max_draft_tokens", "draft_tokens_per_step", "cache_policy", "session_tokens_bytes"}
    | {"hung_after_s", "step_limit_s", "load_hung_after_s", "load_limit_s"}
)
"""Fields that nobody needs to set who does not measure the engine."""
_ADAPTERS = "adapters"
"""The field that is no number, switch or text."""
_UNITS = {"tokens": "TOKENS", "ms": "MS", "s": "SECONDS", "percent": "PERCENT"}
"""Last words of fields that count something."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOption:
    """A field of ``EngineConfig`` as an option."""

    field: str
    unit: int
    """Factor from the option's value to the field's."""
    setting: Setting

    def value(self, values: Values) -> Any:
        """The value of the configuration's field.

        Raises:
            ConfigError: an adapter has no name or no folder.
        """
        given = values[self.setting.name]
        if self.field == _ADAPTERS:
            return read_adapters(given)
        return given * self.unit if self.unit != 1 and given is not None else given


def _engine_option(name: str, kind: Any, default: Any, text: str) -> EngineOption:
    is_size = name.endswith("_bytes")
    unit = MIB if is_size else 1
    low_high, said = BOUNDS.get(name), _kind(kind)
    return EngineOption(
        field=name,
        unit=unit,
        setting=Setting(
            name=_setting_name(name),
            help=_for_users(text),
            default=default // unit if is_size and default is not None else default,
            bounds=low_high and (-(-low_high[0] // unit), low_high[1] // unit),
            metavar="MIB" if is_size else _metavar(name, said),
            group="engine",
            tuning=name in TUNING,
            **said,
        ),
    )


_ADAPTER = EngineOption(
    field=_ADAPTERS,
    unit=1,
    setting=Setting(
        name="adapter",
        kind="list",
        default=(),
        metavar="NAME=FOLDER",
        group="engine",
        help="LoRA adapter, a folder in PEFT's layout, and the model name by which requests are "
        f"answered with it; repeatable, up to {MOST_ADAPTERS} times",
    ),
)


def read_adapters(given: Sequence[str]) -> tuple[AdapterSource, ...]:
    """Adapters as they are given, each ``NAME=FOLDER``; a folder may begin with ``~``.

    Raises:
        ConfigError: one has no name or no folder.
    """
    pairs = (text.partition("=") for text in given)
    return tuple(
        AdapterSource(name=name.strip(), folder=os.path.expanduser(folder.strip()))
        for name, _, folder in pairs
    )


def _for_users(docstring: str) -> str:
    """A field's docstring as the help of its option: other fields by their options' names, as a
    file has them, since help is wrapped at hyphens."""
    named = re.sub(r"``(\w+)``", lambda found: f"'{_setting_name(found[1])}'", docstring)
    named = named.replace("``", "'")
    return named.replace("; None:", "; default:").replace("None:", "Default:")


def _metavar(name: str, kind: Mapping[str, Any]) -> str:
    """What the help shows for a value: a number's unit, where it has one."""
    last = name.rpartition("_")[2]
    return last.upper() if kind.get("kind") == "text" else _UNITS.get(last, "N")


def _setting_name(field: str) -> str:
    return field.removesuffix("_bytes") + "_mib" if field.endswith("_bytes") else field


def _kind(hint: Any) -> dict[str, Any]:
    if get_origin(hint) is Literal:
        return {"choices": get_args(hint)}
    (plain,) = [part for part in get_args(hint) or (hint,) if part is not type(None)]
    kinds: Mapping[type, Kind] = {bool: "switch", int: "whole"}
    kind = kinds.get(plain, "text")
    return {"kind": kind}


def _engine_options() -> tuple[EngineOption, ...]:
    kinds, texts = get_type_hints(EngineConfig), field_docstrings(EngineConfig)
    return tuple(
        _ADAPTER
        if field.name == _ADAPTERS
        else _engine_option(field.name, kinds[field.name], field.default, texts[field.name])
        for field in fields(EngineConfig)
    )


ENGINE_OPTIONS = _engine_options()
"""All options of the engine, in the order of the fields."""
SERVE_SETTINGS: tuple[Setting, ...] = (
    *_OWN,
    *JOURNAL_SETTINGS,
    *CLUSTER_SETTINGS,
    *(option.setting for option in ENGINE_OPTIONS),
)
"""Every option of ``keepwarm serve``."""
