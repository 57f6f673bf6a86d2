"""``/openapi.json``: valid, whole, and no narrower than what is served."""

import orjson
import pytest
from openapi_spec_validator import validate

from sessions.http.front_door import Access
from sessions.http.openapi import document, shown_path
from tests.support.running_server import RunningServer


@pytest.fixture(scope="module")
def server() -> RunningServer:
    return RunningServer()


@pytest.mark.tail
def test_the_document_is_valid_and_has_every_route(server: RunningServer) -> None:
    made = document(server.routes)
    validate(made)
    assert set(made["paths"]) == {shown_path(route.path) for route in server.routes}
    for route in server.routes:
        operations = made["paths"][shown_path(route.path)]
        assert {name.upper() for name in operations} == set(route.methods)
        for operation in operations.values():
            assert bool(operation["security"]) == (route.access is not Access.PUBLIC)
    ids = [each["operationId"] for path in made["paths"].values() for each in path.values()]
    assert len(set(ids)) == len(ids)


def test_it_is_small_and_the_same_each_time(server: RunningServer) -> None:
    made = orjson.dumps(document(server.routes))
    assert made == orjson.dumps(document(server.routes))
    assert len(made) < 128 * 1024


def test_fields_have_the_words_of_the_models_that_read_them(server: RunningServer) -> None:
    schemas = document(server.routes)["components"]["schemas"]
    options = schemas["KeepwarmOptions"]["properties"]
    assert options["session"]["description"].startswith("Names a chain")
    assert not schemas["KeepwarmOptions"]["additionalProperties"]
    assert schemas["CreateResponse"]["properties"]["temperature"]["anyOf"][0]["maximum"] == 2
    assert not any(name in schemas["CreateResponse"]["properties"] for name in ("body_digest",))
