"""The index links what can be looked at, the models have every name."""

import orjson
import pytest
from websockets.datastructures import Headers

from sessions.http.exchange import Call
from sessions.http.message import HttpRequest
from sessions.tenants import Principal, TenantPolicy, Tenants
from sessions.wire.http_pages import Index, Models
from tests.support.exchange import KeptExchange
from tests.support.sessions_rig import Rig
from tools_api.errors import ApiError

ENDPOINTS = [
    ("/dashboard", ("GET", "HEAD")),
    ("/v1/<odd>", ("POST",)),
    ("/v1/responses", ("GET", "POST")),
    ("/v1/responses/{id}", ("GET", "HEAD", "DELETE")),
]


def call(argument: str = "", **headers: str) -> Call:
    request = HttpRequest(method="GET", target="/", headers=Headers(headers))
    principal = Principal(tenant="t")
    return Call(
        principal=principal, request=request, argument=argument, body=b"", exchange=KeptExchange()
    )


def test_people_get_links_to_what_they_can_open_and_markup_is_escaped() -> None:
    page = Index(ENDPOINTS).show(call(Accept="text/html,*/*")).body.decode()
    assert '<a href="/dashboard">' in page
    assert "/v1/&lt;odd&gt;" in page
    assert 'href="/v1/responses' not in page


@pytest.mark.parametrize("accept", ["application/json", "Application/JSON, */*;q=0.1"])
def test_programs_get_a_list(accept: str) -> None:
    answer = Index(ENDPOINTS).show(call(Accept=accept))
    listed = orjson.loads(answer.body)["endpoints"]
    assert [(each["path"], tuple(each["methods"])) for each in listed] == ENDPOINTS


def test_every_name_is_a_model_the_servers_own_first() -> None:
    models = Models(Rig().service, created=5)
    listed = orjson.loads(models.show_all(call()).body)
    assert [model["id"] for model in listed["data"]] == ["default", "m"]
    assert listed["data"][0] == {
        "id": "default",
        "object": "model",
        "created": 5,
        "owned_by": "keepwarm",
        "max_model_len": 4096,
    }
    assert orjson.loads(models.show(call("m")).body) == listed["data"][1]


def test_adapters_stand_beside_the_model_as_far_as_the_tenant_may_use_them() -> None:
    limited = TenantPolicy(models=frozenset({"sql"}))
    tenants = Tenants([], {"t": limited})
    rig = Rig(tenants=tenants)
    rig.model.adapters = frozenset({"sql", "law"})
    models = Models(rig.service, created=5)
    listed = orjson.loads(models.show_all(call()).body)["data"]
    assert [(model["id"], model["parent"]) for model in listed] == [("sql", "default")]
    assert orjson.loads(models.show(call("sql")).body) == listed[0]
    for name in ("law", "default", "other"):
        with pytest.raises(ApiError, match=f"The model '{name}' does not exist here"):
            models.show(call(name))
    page = orjson.loads(models.show_all(anthropic("/v1/models")).body)
    assert [model["display_name"] for model in page["data"]] == ["sql"]
    tenants.replace([], {})
    every = orjson.loads(models.show_all(call()).body)["data"]
    assert [model["id"] for model in every] == ["default", "m", "law", "sql"]
    assert ["parent" in model for model in every] == [False, False, True, True]


def anthropic(target: str, argument: str = "") -> Call:
    headers = Headers({"anthropic-version": "2023-06-01"})
    request = HttpRequest(method="GET", target=target, headers=headers)
    return Call(
        principal=Principal(tenant="t"),
        request=request,
        argument=argument,
        body=b"",
        exchange=KeptExchange(),
    )


def test_who_speaks_anthropics_api_gets_its_models() -> None:
    models = Models(Rig().service, created=5)
    listed = orjson.loads(models.show_all(anthropic("/v1/models")).body)
    assert listed.keys() == {"data", "has_more", "first_id", "last_id"}
    assert listed["data"][0] == {
        "type": "model",
        "id": "default",
        "object": "model",
        "created": 5,
        "owned_by": "keepwarm",
        "max_model_len": 4096,
        "display_name": "default",
        "created_at": "1970-01-01T00:00:05Z",
        "lifecycle": "active",
        "max_input_tokens": 4096,
        "max_tokens": 4096,
    }
    one = orjson.loads(models.show(anthropic("/v1/models/m", "m")).body)
    assert one == listed["data"][1]


@pytest.mark.parametrize(
    ("query", "ids", "more"),
    [
        ("", ["default", "m"], False),
        ("?limit=1", ["default"], True),
        ("?limit=1&after_id=default", ["m"], False),
        ("?limit=1&before_id=m", ["default"], False),
        ("?after_id=m", [], False),
        ("?limit=1000", ["default", "m"], False),
    ],
)
def test_its_pages_are_turned(query: str, ids: list[str], more: bool) -> None:
    models = Models(Rig().service, created=5)
    page = orjson.loads(models.show_all(anthropic("/v1/models" + query)).body)
    assert ([model["id"] for model in page["data"]], page["has_more"]) == (ids, more)
    assert (page["first_id"], page["last_id"]) == ((ids[0], ids[-1]) if ids else (None, None))


@pytest.mark.parametrize("query", ["?limit=0", "?limit=x", "?limit=1001", "?after_id=none"])
def test_a_page_that_there_is_not_is_refused_by_its_parameter(query: str) -> None:
    with pytest.raises(ApiError) as caught:
        Models(Rig().service, created=5).show_all(anthropic("/v1/models" + query))
    assert caught.value.param == query[1:].partition("=")[0]


@pytest.mark.parametrize("name", ["other", "M", "m/", "%6D%00"])
def test_any_other_name_is_not_found(name: str) -> None:
    with pytest.raises(ApiError) as caught:
        Models(Rig().service, created=5).show(call(name))
    assert (caught.value.status, caught.value.code) == (404, "model_not_found")


def test_a_name_may_come_encoded() -> None:
    answer = Models(Rig().service, created=5).show(call("%6D"))
    assert orjson.loads(answer.body)["id"] == "m"
