"""Options of ``keepwarm serve``, as typed values.

Every field of ``EngineConfig`` is an option of the same name (sizes in bytes become MiB),
its docstring the help text; the rest concerns the port, keys and prices. Nothing is started
or opened here but the tenants file.

Always true: options that exist passed their bounds, and a port that other machines can
reach has a key.
"""

import ast
import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints
from urllib.parse import urlsplit

from runtime.child_environment import KEY_VARIABLE
from runtime.config import BOUNDS, ConfigError, EngineConfig
from runtime.log_lines import LogFormat
from runtime.machine_files import cache_folder
from sessions.command.cluster_options import (
    CLUSTER_SETTINGS,
    ClusterOptions,
    read_cluster_options,
    read_networks,
)
from sessions.command.journal_options import (
    JOURNAL_SETTINGS,
    JournalOptions,
    read_journal_options,
)
from sessions.command.prices import PriceError, PriceFile, read_price_file
from sessions.command.settings import Kind, OptionError, Setting, Values
from sessions.durable.ledger import PriceTable
from sessions.http.front_door import Network, is_loopback
from sessions.tenants import KeyFileError, single_key
from sessions.tenants_file import TenantsFile, read_tenants_file
from tools_api.limits import DEFAULT_LIMITS

MIB = 1024 * 1024

_PRICES = {"input": "input_uncached", "cached": "input_cached", "output": "output"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """A server, completely described."""

    engine: EngineConfig
    host: str
    port: int
    """0: any free port; the ready line tells which."""
    model_name: str | None
    tenants: TenantsFile
    """Keys, and what their tenants may use; no key, and the port is open."""
    tenants_file: Path | None
    """Where they were read from, to be read again on SIGHUP."""
    allowed_origins: frozenset[str]
    prices: PriceTable
    price_file: PriceFile | None
    """If there is one, it decides."""
    drain_s: float
    log_level: str
    log_format: LogFormat
    otlp_traces: str | None
    """Where spans go; None: there are none."""
    journal: JournalOptions
    cluster: ClusterOptions | None
    """None: it stands alone."""
    forwarded_by: tuple[Network, ...]
    """Networks of balancers."""
    label_sources: tuple[str, ...]
    """Fields of requests that become labels of their sessions."""
    default_output_tokens: int
    """The limit of a turn that names none."""


_OWN = (
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


# Engine options, from the fields of EngineConfig

TUNING = frozenset(
    {"num_blocks", "state_slots", "block_size", "max_batch_tokens", "max_waiting"}
    | {"prefill_tokens_beside_decodes", "startup_profile_ms", "startup_profile_folder"}
    | {"first_token_limit_s", "output_reserve_percent", "session_context_percent"}
    | {"max_draft_tokens", "draft_tokens_per_step", "cache_policy", "session_tokens_bytes"}
    | {"hung_after_s", "step_limit_s", "load_hung_after_s", "load_limit_s"}
)
"""Fields that nobody needs to set who does not measure the engine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _EngineOption:
    field: str
    unit: int
    """Factor from the option's value to the field's."""
    setting: Setting

    def value(self, values: Values) -> Any:
        given = values[self.setting.name]
        return given * self.unit if self.unit != 1 and given is not None else given


def _engine_option(name: str, kind: Any, default: Any, text: str) -> _EngineOption:
    is_size = name.endswith("_bytes")
    unit = MIB if is_size else 1
    low_high = BOUNDS.get(name)
    return _EngineOption(
        field=name,
        unit=unit,
        setting=Setting(
            name=name.removesuffix("_bytes") + "_mib" if is_size else name,
            help=text.replace("``", "'").replace("None:", "Default:"),
            default=default // unit if is_size and default is not None else default,
            bounds=low_high and (-(-low_high[0] // unit), low_high[1] // unit),
            metavar="MIB" if is_size else name.rpartition("_")[2].upper(),
            group="engine",
            tuning=name in TUNING,
            **_kind(kind),
        ),
    )


def _kind(hint: Any) -> dict[str, Any]:
    if get_origin(hint) is Literal:
        return {"choices": get_args(hint)}
    (plain,) = [part for part in get_args(hint) or (hint,) if part is not type(None)]
    kinds: Mapping[type, Kind] = {bool: "switch", int: "whole"}
    kind = kinds.get(plain, "text")
    return {"kind": kind}


def _field_docstrings(type_: type) -> dict[str, str]:
    """The string under each field, on one line."""
    (definition,) = ast.parse(inspect.getsource(type_)).body
    assert isinstance(definition, ast.ClassDef)
    texts = {}
    for field, below in zip(definition.body, definition.body[1:], strict=False):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(below, ast.Expr)
        ):
            texts[field.target.id] = " ".join(str(ast.literal_eval(below.value)).split())
    return texts


def _engine_options() -> tuple[_EngineOption, ...]:
    kinds, texts = get_type_hints(EngineConfig), _field_docstrings(EngineConfig)
    return tuple(
        _engine_option(field.name, kinds[field.name], field.default, texts[field.name])
        for field in fields(EngineConfig)
    )


_ENGINE = _engine_options()
SERVE_SETTINGS: tuple[Setting, ...] = (
    *_OWN,
    *JOURNAL_SETTINGS,
    *CLUSTER_SETTINGS,
    *(option.setting for option in _ENGINE),
)
"""Every option of ``keepwarm serve``."""


# From values to options


def read_serve_options(values: Values, environment: Mapping[str, str]) -> ServeOptions:
    """Combine the values of ``SERVE_SETTINGS``.

    Args:
        environment: for the place of the cache folder.

    Raises:
        OptionError: something contradicts itself or leaves the port open.
    """
    tenants_file: Path | None = values["tenants_file"]
    tenants = _read_tenants(values, tenants_file)
    if not tenants.keys and not is_loopback(values["host"]):
        raise OptionError(
            f"{values.label('host')} {values['host']} can be reached from other machines and "
            f"needs a key: set {KEY_VARIABLE}, --api-key or --tenants-file"
        )
    journal = read_journal_options(values, environment)
    return ServeOptions(
        engine=_engine_config(values, environment),
        host=values["host"],
        port=values["port"],
        model_name=values["model_name"],
        tenants=tenants,
        tenants_file=tenants_file,
        allowed_origins=frozenset(
            _origin(text, values.label("allow_origin")) for text in values["allow_origin"]
        ),
        prices=_price_table(values["price"], values.label("price")),
        price_file=_price_file(values),
        drain_s=values["drain_seconds"],
        log_level=values["log_level"],
        log_format=values["log_format"],
        otlp_traces=_collector(values["otlp_traces"], values.label("otlp_traces")),
        default_output_tokens=values["default_output_tokens"],
        label_sources=_label_sources(values["label_from"], values.label("label_from")),
        journal=journal,
        cluster=read_cluster_options(values, journal),
        forwarded_by=read_networks(values),
    )


def _label_sources(given: tuple[str, ...], label: str) -> tuple[str, ...]:
    for source in given:
        name = source.removeprefix("metadata.")
        named = source == "user" or (name != source and name and name.isprintable())
        if not named or len(name) > DEFAULT_LIMITS.max_label_name:
            raise OptionError(f"{label} {source!r} is neither user nor metadata.NAME")
    if len({source.removeprefix("metadata.") for source in given}) < len(given):
        raise OptionError(f"{label}: two fields would become one label")
    if len(given) > DEFAULT_LIMITS.max_labels:
        raise OptionError(f"{label}: more than {DEFAULT_LIMITS.max_labels} fields")
    return tuple(given)


def in_the_users_words(message: str, values: Values) -> str:
    """A message about options or fields of ``EngineConfig``, with the names under which they
    were given: the flag, the variable or the line of the file."""
    for option in _ENGINE:
        # A name of one word is an English word as well, unless the message begins with it.
        name = option.field if "_" in option.field else rf"\A{option.field}(?= is )"
        flag = option.setting.flag
        message = re.sub(rf"(?<![\w-])({name}|{flag})(?![\w-])", flag, message)
    for name in values:
        if values.found(name).origin in ("environment", "file"):
            flag = re.escape("--" + name.replace("_", "-"))
            label = values.label(name).replace("\\", r"\\")
            message = re.sub(rf"{flag}(?![\w-])", label, message)
    return message


def _engine_config(values: Values, environment: Mapping[str, str]) -> EngineConfig:
    try:
        config = EngineConfig(**{option.field: option.value(values) for option in _ENGINE})
    except ConfigError as error:
        raise OptionError(in_the_users_words(str(error), values)) from error
    if config.startup_profile_folder is None:
        return replace(config, startup_profile_folder=str(cache_folder(environment)))
    return config


def _read_tenants(values: Values, path: Path | None) -> TenantsFile:
    single, label = values["api_key"], values.label("api_key")
    if not single:
        if path is None:
            return TenantsFile(keys=())
        label = values.label("tenants_file")
    elif path is not None:
        raise OptionError(f"a single key ({label}) and a tenants file ({path}) are given")
    try:
        if path is not None:
            return read_tenants_file(path)
        return TenantsFile(keys=(single_key(single),))
    except KeyFileError as error:
        raise OptionError(f"{label}: {error}") from error


def _price_file(values: Values) -> PriceFile | None:
    path, label = values["prices"], values.label("prices")
    if not path:
        return None
    if values["price"]:
        raise OptionError(f"{label} and {values.label('price')} are given: choose one")
    try:
        return read_price_file(path)
    except PriceError as error:
        raise OptionError(f"{label}: {error}") from error


def _price_table(text: str, label: str) -> PriceTable:
    prices = dict.fromkeys(_PRICES.values(), 0.0)
    for part in text.split(",") if text else ():
        name, _, number = part.partition("=")
        if name.strip() not in _PRICES:
            raise OptionError(f"{label}: {part!r} is not one of input=D, cached=D, output=D")
        try:
            dollars = float(number)
        except ValueError:
            dollars = -1.0
        if not 0 <= dollars <= 1_000_000:
            raise OptionError(f"{label}: {part!r} is not a number of dollars")
        prices[_PRICES[name.strip()]] = dollars
    return PriceTable.per_million(**prices)


def _collector(url: str | None, label: str) -> str | None:
    parts = urlsplit(url or "")
    if url is not None and not (parts.scheme in ("http", "https") and parts.hostname):
        raise OptionError(f"{label} {url!r} is not of the form http://host:4318/v1/traces")
    return url


def _origin(text: str, label: str) -> str:
    try:
        parts = urlsplit(text)
        complete = parts.scheme and parts.hostname and parts.port != 0
    except ValueError:
        complete = False
    if not complete or text != f"{parts.scheme}://{parts.netloc}":
        raise OptionError(f"{label} {text!r} is not of the form https://host or with :port")
    return text.lower()
