"""What the environment says to a client, and what in it was probably meant to."""

import warnings

import pytest

from tests.support.fake_server import FakeServer, message, turn
from tools_api.sdk.client import DEFAULT_URL
from tools_api.sdk.environment import (
    KEY_VARIABLE,
    URL_VARIABLE,
    key_of,
    meant_by,
    server_of,
    warn_of_strays,
    with_path,
)
from tools_api.sdk.sync_client import Client


@pytest.fixture(autouse=True)
def _nobodys_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(URL_VARIABLE, raising=False)
    monkeypatch.delenv(KEY_VARIABLE, raising=False)


@pytest.mark.parametrize(
    ("given", "variable", "found"),
    [
        (None, None, (DEFAULT_URL, "base_url")),
        (None, "", (DEFAULT_URL, "base_url")),
        (None, "http://h:1", ("http://h:1/v1", URL_VARIABLE)),
        (None, "http://h:1/", ("http://h:1/v1", URL_VARIABLE)),
        (None, "http://h/kw/v1", ("http://h/kw/v1", URL_VARIABLE)),
        ("http://other", "http://h:1", ("http://other", "base_url")),
    ],
)
def test_what_is_given_goes_before_the_variable_and_that_before_the_default(
    given: str | None, variable: str | None, found: tuple[str, str]
) -> None:
    environment = {} if variable is None else {URL_VARIABLE: variable}
    assert server_of(given, environment, default=DEFAULT_URL) == found


def test_an_empty_key_is_none_whatever_the_environment_says() -> None:
    environment = {KEY_VARIABLE: "from-there"}
    assert key_of(None, environment) == "from-there"
    assert key_of("given", environment) == "given"
    assert key_of("", environment) is None
    assert key_of(None, {}) is None
    assert key_of(None, {KEY_VARIABLE: ""}) is None


def test_a_path_may_be_left_out_of_an_address() -> None:
    assert with_path("https://h") == with_path("https://h/") == "https://h/v1"
    assert with_path("https://h/v1/") == "https://h/v1/"


def test_a_client_that_is_told_nothing_takes_server_and_key_from_its_variables(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with FakeServer(lambda request: turn(request, [message("hello")])) as server:
        monkeypatch.setenv(URL_VARIABLE, server.url.removesuffix("/v1"))
        monkeypatch.setenv(KEY_VARIABLE, "a-key")
        with Client() as client:
            assert client.session().respond("x").text == "hello"
        with Client(api_key="") as client:
            client.session().respond("x")
    keys = [headers.get("Authorization") for headers in server.headers]
    assert keys == ["Bearer a-key", None]


def test_an_address_of_the_environment_is_refused_by_the_variables_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(URL_VARIABLE, "h:8080")
    with pytest.raises(ValueError, match="KEEPWARM_URL 'h:8080' does not start with"):
        Client()


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("KEEPWARM_BASE_URL", URL_VARIABLE),
        ("KEEPWARM_URI", URL_VARIABLE),
        ("KEEPWARM_ULR", URL_VARIABLE),
        ("KEEPWARM_ENDPOINT", URL_VARIABLE),
        ("KEEPWARM_KEY", KEY_VARIABLE),
        ("KEEPWARM_APIKEY", KEY_VARIABLE),
        ("KEEPWARM_API_KEZ", KEY_VARIABLE),
        ("KEEPWARM_TOKEN", KEY_VARIABLE),
        ("KEEPWARM_URL", None),
        ("KEEPWARM_PORT", None),
        ("KEEPWARM_FUZZ_CASES", None),
        ("OPENAI_BASE_URL", None),
    ],
)
def test_a_variable_that_looks_as_if_it_were_the_clients_is_told_of(
    name: str, meant: str | None
) -> None:
    assert meant_by(name) == meant
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        warn_of_strays({name: "x"})
    said = [str(each.message) for each in told]
    if meant is None:
        assert said == []
        return
    assert said == [
        f"the environment variable {name} is unknown and has no effect; is {meant} meant?"
    ]


def test_the_warning_points_at_who_made_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEEPWARM_BASE_URL", "http://h/v1")
    with pytest.warns(UserWarning, match="is KEEPWARM_URL meant") as told:
        Client().close()
    assert told[0].filename == __file__
