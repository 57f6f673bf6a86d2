"""The index links what can be looked at, the models have every name."""

import orjson
import pytest
from websockets.datastructures import Headers

from sessions.http.exchange import Call
from sessions.http.message import HttpRequest
from sessions.tenants import Principal
from sessions.wire.http_pages import Index, Models
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
    return Call(principal=principal, request=request, argument=argument, body=b"")


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


@pytest.mark.parametrize("name", ["other", "M", "m/", "%6D%00"])
def test_any_other_name_is_not_found(name: str) -> None:
    with pytest.raises(ApiError) as caught:
        Models(Rig().service, created=5).show(call(name))
    assert (caught.value.status, caught.value.code) == (404, "model_not_found")


def test_a_name_may_come_encoded() -> None:
    answer = Models(Rig().service, created=5).show(call("%6D"))
    assert orjson.loads(answer.body)["id"] == "m"
