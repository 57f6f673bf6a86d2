"""Pictures are asked for while somebody looks, and say to each what it may know."""

from dataclasses import replace
from typing import Any

import orjson

from runtime.messages import CachePicture, PictureRequest
from sessions.pages.cache_picture import ASK_EVERY_S, MAX_NODES, CachePictures
from sessions.tenants import Principal, Role
from tests.support.pictures import picture_node

ACME = Principal(tenant="acme")
OPERATOR = Principal(tenant="acme", role=Role.OPERATOR)
SESSIONS = {"branch_1": ("acme", "s1"), "branch_2": ("other", "s2")}
NODE = picture_node(
    tokens=32,
    tier=1,
    klass=1,
    age=3,
    holders=2,
    branches=("branch_1", "branch_9"),
    lease_s=2.5,
    head=(1, 2),
)


def pictures() -> CachePictures:
    return CachePictures(session_of_branch=SESSIONS.get, text_of=lambda tokens: f"text {tokens}")


def shown(of: CachePictures, who: Principal, now: float = 0.0) -> Any:
    return orjson.loads(of.part(who, now))


def test_each_scope_is_asked_for_now_and_then_while_somebody_looks() -> None:
    found = pictures()
    assert shown(found, ACME)["ready"] is False
    shown(found, OPERATOR)
    shown(found, ACME, ASK_EVERY_S / 2)
    assert found.pop_requests() == [
        PictureRequest(tenant="acme", max_nodes=MAX_NODES),
        PictureRequest(tenant=None, max_nodes=MAX_NODES),
    ]
    assert found.pop_requests() == []
    shown(found, ACME, ASK_EVERY_S)
    assert [request.tenant for request in found.pop_requests()] == ["acme"]


def test_branches_become_sessions_and_tokens_text() -> None:
    found = pictures()
    found.arrived(CachePicture(tenant="acme", nodes=(NODE,), num_nodes=0))
    (node,) = shown(found, ACME)["nodes"]
    assert (node["tier"], node["state"], node["lease_s"]) == ("host", "leased", 2.5)
    assert (node["sessions"], node["text"]) == ([["acme", "s1"]], "text (1, 2)")


def test_an_operator_sees_that_other_tenants_have_something_but_not_what() -> None:
    found = pictures()
    theirs = replace(NODE, owner="other", branches=("branch_2",))
    published = replace(NODE, owner="", branches=())
    found.arrived(CachePicture(tenant=None, nodes=(NODE, theirs, published), num_nodes=9))
    seen = shown(found, OPERATOR)
    assert [node["text"] is None for node in seen["nodes"]] == [False, True, False]
    assert seen["nodes"][1]["sessions"] == [["other", "s2"]]
    assert seen["num_nodes"] == 9
    assert shown(found, ACME)["nodes"] == []


def test_a_tenant_is_told_of_no_session_but_its_own() -> None:
    found = pictures()
    shared = replace(NODE, owner="", branches=("branch_1", "branch_2"))
    found.arrived(CachePicture(tenant="acme", nodes=(shared,), num_nodes=0))
    assert shown(found, ACME)["nodes"][0]["sessions"] == [["acme", "s1"]]


def test_a_dead_engines_picture_is_not_shown() -> None:
    found = pictures()
    found.arrived(CachePicture(tenant="acme", nodes=(NODE,), num_nodes=0))
    found.forget()
    assert shown(found, ACME)["ready"] is False


def test_tenants_blocks_are_asked_of_the_engine_and_told_as_it_said_them() -> None:
    found = pictures()
    assert found.tenant_blocks(0.0) is None
    assert [request.tenant for request in found.pop_requests()] == [None]
    found.arrived(CachePicture(tenant=None, nodes=(), num_nodes=0, tenant_blocks={"acme": 3}))
    assert found.tenant_blocks(0.1) == {"acme": 3}
    assert found.pop_requests() == []
    found.tenant_blocks(ASK_EVERY_S)
    assert len(found.pop_requests()) == 1
