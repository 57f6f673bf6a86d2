"""What ``keepwarm serve`` is told, as typed values.

Every field of ``EngineConfig`` is an option of the same name (sizes in bytes become MiB),
its docstring the help text; the rest concerns the port, keys and prices. Nothing is started
or opened here but the keys file.

Always true: options that exist passed their bounds, and a port that other machines can
reach has a key.
"""

import argparse
import ast
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints
from urllib.parse import urlsplit

from runtime.child_environment import KEY_VARIABLE
from runtime.config import ConfigError, EngineConfig
from runtime.log_lines import LogFormat
from sessions.durable.ledger import PriceTable
from sessions.http.front_door import is_loopback
from sessions.tenants import KeyFileError, single_key
from sessions.tenants_file import TenantsFile, read_tenants_file
from tools_api.limits import DEFAULT_LIMITS

MIB = 1024 * 1024

_PRICES = {"input": "input_uncached", "cached": "input_cached", "output": "output"}


class OptionError(Exception):
    """An option cannot be used as given; the message is one line for the person who gave it."""


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
    drain_s: float
    log_level: str
    log_format: LogFormat
    otlp_traces: str | None
    """Where spans go; None: there are none."""
    default_output_tokens: int
    """Of a turn that names no limit."""


def add_serve_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options that ``read_serve_options`` reads."""
    add = parser.add_argument
    add("--host", default="127.0.0.1", help="address to listen on; others than loopback need a key")
    add("--port", type=int, default=8080, help="port to listen on; 0 takes a free one")
    add("--model-name", help="further model id that requests may use and responses name")
    add("--api-key", metavar="KEY", help=f"key that clients must send; better in {KEY_VARIABLE}")
    add(
        "--tenants-file",
        type=Path,
        metavar="FILE",
        help="TOML file with a table [[keys]] for each key: name, sha256, tenant and role "
        "(operator, tenant, read-only); tenants share nothing, operators see metrics and all "
        "sessions; read again on SIGHUP",
    )
    add(
        "--keys-file",
        type=Path,
        metavar="FILE",
        help="the same; its former name, and that of files with a line 'tenant key [operator]' "
        "for each key, which are still read",
    )
    add(
        "--allow-origin",
        action="append",
        default=[],
        metavar="ORIGIN",
        help="origin of web pages that may connect, e.g. https://agents.example; repeatable",
    )
    add(
        "--price",
        default="",
        metavar="input=D,cached=D,output=D",
        help="dollars per million prompt tokens computed, prompt tokens cached, output tokens",
    )
    add(
        "--drain-seconds",
        type=float,
        default=30.0,
        help="on SIGTERM or SIGINT, how long running turns may go on",
    )
    add(
        "--default-output-tokens",
        type=int,
        default=DEFAULT_LIMITS.default_output_tokens,
        metavar="N",
        help="output tokens of a turn that names no max_output_tokens; default: %(default)s",
    )
    _add_log_options(parser)
    engine = parser.add_argument_group("engine")
    for option in _engine_options():
        engine.add_argument(option.flag, **option.arguments)


def _add_log_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--log-format",
        default="text",
        choices=get_args(LogFormat),
        help="lines of text, or a JSON object a line; default: %(default)s",
    )
    add("--log-level", default="info", choices=["debug", "info", "warning", "error"])

    add(
        "--otlp-traces",
        metavar="URL",
        help="send a span of every turn to this OTLP endpoint over HTTP, e.g. "
        "http://127.0.0.1:4318/v1/traces; needs the extra 'otel'",
    )


def read_serve_options(
    arguments: argparse.Namespace, environment: Mapping[str, str]
) -> ServeOptions:
    """Check and combine what the command line and the environment say.

    Raises:
        OptionError: something is out of bounds, contradicts itself or leaves the port open.
    """
    values = vars(arguments)
    try:
        config = EngineConfig(**{o.field: o.value(values) for o in _engine_options()})
        tenants_file = _tenants_file(arguments)
        single = arguments.api_key or environment.get(KEY_VARIABLE)
        read = _read_keys(single, tenants_file)
    except (ConfigError, KeyFileError) as error:
        raise OptionError(str(error)) from error
    if not read.keys and not is_loopback(arguments.host):
        raise OptionError(
            f"--host {arguments.host} can be reached from other machines and needs a key: set "
            f"{KEY_VARIABLE}, --api-key or --tenants-file"
        )
    if not 0 <= arguments.port <= 65535:
        raise OptionError(f"--port {arguments.port} is not in 0..65535")
    if not 0 <= arguments.drain_seconds <= 86400:
        raise OptionError(f"--drain-seconds {arguments.drain_seconds} is not in 0..86400")
    if arguments.default_output_tokens < 1:
        raise OptionError(
            f"--default-output-tokens {arguments.default_output_tokens} is not positive"
        )
    if config.startup_profile_folder is None:
        config = replace(config, startup_profile_folder=str(_cache_folder(environment)))
    return ServeOptions(
        engine=config,
        host=arguments.host,
        port=arguments.port,
        model_name=arguments.model_name,
        tenants=read,
        tenants_file=tenants_file,
        allowed_origins=frozenset(_origin(text) for text in arguments.allow_origin),
        prices=_price_table(arguments.price),
        drain_s=arguments.drain_seconds,
        log_level=arguments.log_level,
        log_format=arguments.log_format,
        otlp_traces=_collector(arguments.otlp_traces),
        default_output_tokens=arguments.default_output_tokens,
    )


def _cache_folder(environment: Mapping[str, str]) -> Path:
    """Where programs keep what they can make again."""
    return Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "keepwarm"


# Engine options, from the fields of EngineConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class _EngineOption:
    field: str
    flag: str
    unit: int
    """Factor from the option's value to the field's."""
    arguments: dict[str, Any]

    def value(self, values: Mapping[str, Any]) -> Any:
        given = values[self.flag.removeprefix("--").replace("-", "_")]
        return given * self.unit if self.unit != 1 and given is not None else given


def _engine_options() -> Iterator[_EngineOption]:
    kinds = get_type_hints(EngineConfig)
    texts = _field_docstrings(EngineConfig)
    for field in fields(EngineConfig):
        is_size = field.name.endswith("_bytes")
        unit = MIB if is_size else 1
        name = field.name.removesuffix("_bytes") + "_mib" if is_size else field.name
        text = texts[field.name].replace("``", "'").replace("None:", "Default:").replace("%", "%%")
        default = field.default
        arguments: dict[str, Any] = {"default": default, "help": text}
        if is_size and isinstance(default, int):
            arguments["default"] = default // MIB
        if default is not None:
            arguments["help"] = f"{text} Default: %(default)s."
        yield _EngineOption(
            field=field.name,
            flag="--" + name.replace("_", "-"),
            unit=unit,
            arguments=arguments | _argument_kind(field.name, kinds[field.name]),
        )


def _argument_kind(name: str, kind: Any) -> dict[str, Any]:
    if get_origin(kind) is Literal:
        return {"choices": get_args(kind)}
    (plain,) = [part for part in get_args(kind) or (kind,) if part is not type(None)]
    return {"type": plain, "metavar": "N" if plain is int else name.rpartition("_")[2].upper()}


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


# The rest


def _tenants_file(arguments: argparse.Namespace) -> Path | None:
    if arguments.tenants_file and arguments.keys_file:
        raise KeyFileError("--tenants-file and --keys-file are given: they mean the same")
    path: Path | None = arguments.tenants_file or arguments.keys_file
    return path


def _read_keys(single: str | None, path: Path | None) -> TenantsFile:
    if single is None:
        if path is None:
            return TenantsFile(keys=(), former=False)
        return read_tenants_file(path)
    if path is not None:
        raise KeyFileError(
            f"a single key ({KEY_VARIABLE} or --api-key) and a tenants file ({path}) are given"
        )
    return TenantsFile(keys=(single_key(single),), former=False)


def _price_table(text: str) -> PriceTable:
    prices = dict.fromkeys(_PRICES.values(), 0.0)
    for part in text.split(",") if text else ():
        name, _, number = part.partition("=")
        if name.strip() not in _PRICES:
            raise OptionError(f"--price: {part!r} is not one of input=D, cached=D, output=D")
        try:
            dollars = float(number)
        except ValueError:
            dollars = -1.0
        if not 0 <= dollars <= 1_000_000:
            raise OptionError(f"--price: {part!r} is not a number of dollars")
        prices[_PRICES[name.strip()]] = dollars
    return PriceTable.per_million(**prices)


def _collector(url: str | None) -> str | None:
    parts = urlsplit(url or "")
    if url is not None and not (parts.scheme in ("http", "https") and parts.hostname):
        raise OptionError(f"--otlp-traces {url!r} is not of the form http://host:4318/v1/traces")
    return url


def _origin(text: str) -> str:
    try:
        parts = urlsplit(text)
        complete = parts.scheme and parts.hostname and parts.port != 0
    except ValueError:
        complete = False
    if not complete or text != f"{parts.scheme}://{parts.netloc}":
        raise OptionError(f"--allow-origin {text!r} is not of the form https://host or with :port")
    return text.lower()
