"""Arguments become typed options, or one line that says what is wrong with them."""

from pathlib import Path
from typing import Any

import pytest

from keepwarm.commands.parameters import Given, settings_command
from runtime.config import EngineConfig
from sessions.command.options import (
    KEY_VARIABLE,
    ServeOptions,
    in_the_users_words,
    read_serve_options,
)
from sessions.command.serve_settings import MIB, SERVE_SETTINGS
from sessions.command.settings import OptionError, resolve
from sessions.durable.ledger import PriceTable
from sessions.tenants import ApiKey, single_key
from sessions.tenants_file import key_row

KEY = "a-good-key"
CACHE = str(Path.home() / ".cache" / "keepwarm")


def options(*words: str, **environment: str) -> ServeOptions:
    typed = settings_command("serve", SERVE_SETTINGS, parsed, help="").main(
        list(words), standalone_mode=False
    )
    values = resolve("serve", SERVE_SETTINGS, typed=typed, environment=environment)
    return read_serve_options(values, environment)


def parsed(given: Given) -> Any:
    return given.typed


def test_without_arguments_the_default_model_is_served_on_loopback() -> None:
    found = options()
    assert found.engine == EngineConfig(startup_profile_folder=CACHE)
    assert (found.host, found.port) == ("127.0.0.1", 8080)
    assert (found.tenants.keys, found.allowed_origins, found.model_name) == ((), frozenset(), None)
    assert found.prices == PriceTable()
    assert found.default_output_tokens == 4096
    assert options("--default-output-tokens", "9").default_output_tokens == 9


def test_engine_settings_are_taken_over() -> None:
    found = options("--model", "random:qwen3-tiny", "--dtype", "float32", "--block-size", "32")
    assert found.engine == EngineConfig(
        model="random:qwen3-tiny", dtype="float32", block_size=32, startup_profile_folder=CACHE
    )


def test_step_times_are_kept_in_the_users_cache_folder_or_where_it_is_said() -> None:
    assert options(XDG_CACHE_HOME="/there").engine.startup_profile_folder == "/there/keepwarm"
    assert options("--startup-profile-folder", "/here").engine.startup_profile_folder == "/here"
    assert options("--startup-profile-folder", "").engine.startup_profile_folder == ""


def test_quantisation_is_off_and_can_be_asked_for() -> None:
    plain = options().engine
    assert (plain.quantization, plain.kv_cache_dtype) == ("none", "auto")
    found = options("--quantization", "int4", "--kv-cache-dtype", "int8").engine
    assert (found.quantization, found.kv_cache_dtype) == ("int4", "int8")


def test_sizes_are_given_in_mib() -> None:
    found = options("--kv-cache-mib", "64", "--session-tokens-mib", "8").engine
    assert found.kv_cache_bytes == 64 * MIB
    assert found.session_tokens_bytes == 8 * MIB


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--block-size", "17"], "--block-size is 17, not a power of two"),
        (["--port", "65536"], "--port 65536 is not in 0..65535"),
        (["--default-output-tokens", "0"], "--default-output-tokens 0 is not in 1..16777216"),
        (["--drain-seconds", "-1"], "--drain-seconds -1.0 is not in"),
        (["--drain-seconds", "nan"], "--drain-seconds nan is not in"),
        (["--kv-cache-mib", "0"], "--kv-cache-mib 0 is not in 1..16777216"),
        (["--disk-kv-mib", "1"], "--disk-kv-mib needs --host-kv-mib and --disk-kv-folder as well"),
        (["--disk-kv-folder", "/x"], "--disk-kv-folder is given, but --disk-kv-mib is 0"),
        (["--kv-cache-mib", "9", "--num-blocks", "9"], "--kv-cache-mib and --num-blocks are both"),
        (["--threads", "many"], "--threads 'many' is not a whole number"),
        (["--price", "input"], "--price: 'input' is not a number"),
        (["--price", "input=x"], "--price: 'input=x' is not a number"),
        (["--price", "input=-1"], "--price: 'input=-1' is not a number"),
        (["--price", "output=nan"], "--price: 'output=nan' is not a number"),
        (["--price", "input=1,output=2,input=3"], "--price: input has two prices"),
        (["--price", "in=1"], "--price: 'in=1' is not one of"),
        (["--api-key", "short"], "a key must be 8 or more"),
        (["--tenants-file", "/nowhere/keys"], "/nowhere/keys: cannot read it: No such file"),
        (["--allow-origin", "example.org"], "--allow-origin 'example.org' is not of the form"),
        (["--allow-origin", "https://a.org/x"], "is not of the form"),
        (["--allow-origin", "*"], "is not of the form"),
        (["--allow-origin", "https://a.org:x"], "is not of the form"),
    ],
)
def test_a_bad_value_is_refused_in_one_line(words: list[str], complaint: str) -> None:
    with pytest.raises(OptionError) as caught:
        options(*words)
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "box.lan", ""])
def test_a_port_that_others_can_reach_needs_a_key(host: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="needs a key"):
        options("--host", host)
    keys = tmp_path / "keys"
    keys.write_text(key_row(ApiKey.of(KEY, tenant="acme")))
    assert options("--host", host, "--api-key", KEY).host == host
    assert options("--host", host, "--tenants-file", str(keys)).host == host
    assert options("--host", host, **{KEY_VARIABLE: KEY}).host == host


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
def test_loopback_needs_none(host: str) -> None:
    assert options("--host", host).tenants.keys == ()


def test_a_key_on_the_command_line_goes_before_the_environment() -> None:
    found = options("--api-key", KEY, **{KEY_VARIABLE: "another-key"})
    assert found.tenants.keys == (single_key(KEY),)


def test_a_tenants_file_and_a_single_key_exclude_each_other(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text(key_row(ApiKey.of(KEY, tenant="acme")))
    (key,) = options("--tenants-file", str(keys)).tenants.keys
    assert key == ApiKey.of(KEY, tenant="acme")
    with pytest.raises(OptionError, match="are given"):
        options("--tenants-file", str(keys), "--api-key", "another-key")


def test_prices_are_dollars_per_million_tokens() -> None:
    found = options("--price", "input=0.25, cached=0.025,output=1.25")
    assert found.prices == PriceTable.per_million(
        input_uncached=0.25, input_cached=0.025, output=1.25
    )
    assert options("--price", "output=2").prices == PriceTable.per_million(
        input_uncached=0, input_cached=0, output=2
    )


def test_a_price_file_takes_the_place_of_one_price(tmp_path: Path) -> None:
    path = tmp_path / "prices.toml"
    path.write_text("[models.m]\ninput = 1\ncached = 0\noutput = 2\n")
    found = options("--prices", str(path))
    assert found.price_file is not None
    assert found.price_file.of(["m"]).output == 2 * 10**9
    with pytest.raises(OptionError, match="--prices and --price are given"):
        options("--prices", str(path), "--price", "output=1")
    path.write_text("[models.m]\n")
    with pytest.raises(OptionError, match=r"--prices: .*prices\.toml: models\.m\.input is missing"):
        options("--prices", str(path))


def test_origins_may_be_given_more_than_once() -> None:
    found = options("--allow-origin", "https://A.example", "--allow-origin", "http://b:8000")
    assert found.allowed_origins == {"https://a.example", "http://b:8000"}


def test_spans_go_nowhere_unless_an_address_is_given() -> None:
    assert options().otlp_traces is None
    url = "http://127.0.0.1:4318/v1/traces"
    assert options("--otlp-traces", url).otlp_traces == url


@pytest.mark.parametrize("url", ["", "127.0.0.1:4318", "grpc://127.0.0.1:4317", "http://"])
def test_an_address_for_spans_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(OptionError, match="--otlp-traces"):
        options("--otlp-traces", url)


def test_the_log_is_text_unless_json_is_asked_for() -> None:
    assert options().log_format == "text"
    assert options("--log-format", "json").log_format == "json"


def test_a_complaint_names_the_option_as_it_was_given() -> None:
    with pytest.raises(OptionError) as caught:
        options(KEEPWARM_DISK_KV_MIB="9", KEEPWARM_DISK_KV_FOLDER="/x")
    assert str(caught.value) == (
        "KEEPWARM_DISK_KV_MIB needs --host-kv-mib and KEEPWARM_DISK_KV_FOLDER as well"
    )


@pytest.mark.parametrize(
    ("message", "told"),
    [
        ("no room: raise kv_cache_bytes", "no room: raise --kv-cache-mib"),
        ("killed while loading the model", "killed while loading the model"),
        ("model is empty: give a folder", "--model is empty: give a folder"),
        ("--model /x: no such folder", "KEEPWARM_MODEL /x: no such folder"),
        ("see --load-hung-after-s 3", "see --load-hung-after-s 3"),
    ],
)
def test_an_engines_words_become_the_users(message: str, told: str) -> None:
    environment = {"KEEPWARM_MODEL": "/x"} if "KEEPWARM" in told else {}
    values = resolve("serve", SERVE_SETTINGS, typed={}, environment=environment)
    assert in_the_users_words(message, values) == told
