"""Options of ``keepwarm serve``, as typed values.

Nothing is started or opened here but the tenants file.

Always true: options that exist passed their bounds, and a port that other machines can
reach has a key.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

from runtime.child_environment import KEY_VARIABLE
from runtime.config import ConfigError, EngineConfig
from runtime.log_lines import LogFormat
from runtime.machine_files import cache_folder
from sessions.command.cluster_options import (
    ClusterOptions,
    read_cluster_options,
    read_networks,
)
from sessions.command.journal_options import (
    JournalOptions,
    read_journal_options,
)
from sessions.command.prices import PriceError, PriceFile, read_price_file
from sessions.command.serve_settings import ENGINE_OPTIONS
from sessions.command.settings import OptionError, Values
from sessions.durable.ledger import PriceTable
from sessions.http.front_door import Network, is_loopback
from sessions.tenants import KeyFileError, single_key
from sessions.tenants_file import TenantsFile, read_tenants_file
from tools_api.limits import DEFAULT_LIMITS

_PRICES = {"input": "input_uncached", "cached": "input_cached", "output": "output"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """A server, completely described."""

    engine: EngineConfig
    host: str
    port: int
    """The port to listen on. 0: any free one; the ready line tells which."""
    model_name: str | None
    tenants: TenantsFile
    """Keys, and what their tenants may use; no key, and the port is open."""
    tenants_file: Path | None
    """Where they were read from, to be read again on SIGHUP."""
    allowed_origins: frozenset[str]
    prices: PriceTable
    price_file: PriceFile | None
    """A file of prices; if there is one, it decides."""
    drain_s: float
    log_level: str
    log_format: LogFormat
    otlp_traces: str | None
    """Where spans go; None: there are none."""
    journal: JournalOptions
    cluster: ClusterOptions | None
    """The cluster that the server belongs to; None: it stands alone."""
    forwarded_by: tuple[Network, ...]
    """Networks of balancers whose word for a client's address is taken."""
    label_sources: tuple[str, ...]
    """Fields of requests that become labels of their sessions."""
    default_output_tokens: int
    """The limit of a turn that names none."""


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
    for option in ENGINE_OPTIONS:
        # A name of one word is an English word as well, unless the message begins with it.
        name = option.field if "_" in option.field else rf"\A{option.field}(?= (?:is|are) |: )"
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
        config = EngineConfig(**{option.field: option.value(values) for option in ENGINE_OPTIONS})
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
    prices: dict[str, float] = {}
    for part in text.split(",") if text else ():
        name, _, number = part.partition("=")
        if name.strip() not in _PRICES:
            raise OptionError(f"{label}: {part!r} is not one of input=D, cached=D, output=D")
        if _PRICES[name.strip()] in prices:
            raise OptionError(f"{label}: {name.strip()} has two prices")
        try:
            dollars = float(number)
        except ValueError:
            dollars = -1.0
        if not 0 <= dollars <= 1_000_000:
            raise OptionError(f"{label}: {part!r} is not a number of dollars")
        prices[_PRICES[name.strip()]] = dollars
    return PriceTable.per_million(**(dict.fromkeys(_PRICES.values(), 0.0) | prices))


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
