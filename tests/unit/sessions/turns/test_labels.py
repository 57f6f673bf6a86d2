"""Where a session's labels come from, and how long they hold."""

import pytest

from sessions.durable.usage_keys import OTHER, Labels
from sessions.turns.labels import labels_now
from tests.support.sessions_rig import Rig
from tools_api.item_reading import parse_items
from tools_api.requests import CreateRequest, KeepwarmOptions

SOURCES = ("user", "metadata.team")


def asked(labels: dict[str, str] | None = None, **fields: object) -> CreateRequest:
    options = KeepwarmOptions(labels=labels)
    return CreateRequest.model_validate({"input": parse_items("hi"), "keepwarm": options, **fields})


def after(*requests: CreateRequest, sources: tuple[str, ...] = SOURCES) -> Labels:
    session = Rig().store.tenant("t").session("s")
    for each in requests:
        session.labels = labels_now(each, session, sources)
    return session.labels


def test_own_labels_hold_until_others_are_given() -> None:
    assert after(asked({"b": "1", "a": "2"}), asked()) == (("a", "2"), ("b", "1"))
    assert after(asked({"b": "1"}), asked({"c": "3"})) == (("c", "3"),)
    assert after(asked({"b": "1"}), asked({})) == ()


def test_fields_become_labels_where_the_operator_says_so() -> None:
    request = asked(user="ada", metadata={"team": "red", "more": "x"})
    assert after(request) == (("team", "red"), ("user", "ada"))
    assert after(request, sources=()) == ()
    assert after(request, sources=("metadata.more",)) == (("more", "x"),)


def test_what_fields_said_stays_when_own_labels_change() -> None:
    assert after(asked(user="ada"), asked({"a": "1"})) == (("a", "1"), ("user", "ada"))
    assert after(asked({"user": "me"}, user="ada")) == (("user", "ada"),)


@pytest.mark.parametrize("text", ["a\nb", "\x00", "\u202e"])
def test_a_field_that_nobody_reads_is_counted_with_the_others(text: str) -> None:
    assert after(asked(user=text)) == (("user", OTHER),)


def test_a_part_of_another_session_begins_with_its_labels() -> None:
    store = Rig().store
    parent, child = store.tenant("t").session("p"), store.tenant("t").session("c")
    parent.labels, child.parent = (("team", "red"),), parent
    assert labels_now(asked(), child, ()) == (("team", "red"),)
    assert labels_now(asked({"team": "blue"}), child, ()) == (("team", "blue"),)
    child.turns_begun = 1
    assert labels_now(asked(), child, ()) == ()
