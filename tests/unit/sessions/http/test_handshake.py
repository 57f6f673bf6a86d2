"""A key among sub-protocols is found and never repeated; the answer names what we speak."""

import base64

import pytest
from websockets.datastructures import Headers
from websockets.protocol import State

from sessions.http.handshake import CODED_KEY, OFFER, PLAIN_KEY, NotOpened, accepted, offered_key
from sessions.http.message import HttpRequest
from tools_api.errors import ApiError

SECRET = "s3cret-of-acme"
KEYS_OF_ANY_CHARACTERS = [SECRET, "a/b=c,d {e}", '"quoted"', "=" * 9, "~" * 64, "Schlüssel"]


def coded(key: str) -> str:
    return CODED_KEY + base64.urlsafe_b64encode(key.encode()).decode().rstrip("=")


def request(*offers: str, **headers: str) -> HttpRequest:
    given = Headers()
    fields = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": base64.b64encode(bytes(16)).decode(),
    }
    for name, value in (fields | headers).items():
        given[name.replace("_", "-")] = value
    for offer in offers:
        given[OFFER] = offer
    return HttpRequest(method="GET", target="/", headers=given)


@pytest.mark.parametrize(
    ("offers", "key"),
    [
        ((), None),
        (("",), None),
        (("chat, keepwarm",), None),
        ((f"realtime, {PLAIN_KEY}{SECRET}",), SECRET),
        ((f"{PLAIN_KEY}{SECRET},realtime",), SECRET),
        (("keepwarm", f"{PLAIN_KEY}{SECRET}"), SECRET),
        ((f"keepwarm,,\t{PLAIN_KEY}{SECRET} ,",), SECRET),
        ((f"keepwarm, {PLAIN_KEY}{SECRET}, {coded(SECRET)}",), SECRET),
        ((f"keepwarm, {PLAIN_KEY}",), ""),
        ((f"keepwarm, {CODED_KEY}",), ""),
        ((f"keepwarm, x{PLAIN_KEY}{SECRET}",), None),
    ],
)
def test_a_key_is_found_wherever_it_stands(offers: tuple[str, ...], key: str | None) -> None:
    assert offered_key(request(*offers)) == key


@pytest.mark.parametrize("key", KEYS_OF_ANY_CHARACTERS)
def test_a_key_of_any_characters_can_be_offered(key: str) -> None:
    assert offered_key(request(f"keepwarm, {coded(key)}")) == key


@pytest.mark.parametrize(
    "offer",
    [
        f"keepwarm {PLAIN_KEY}{SECRET}",
        f'keepwarm, {PLAIN_KEY}"{SECRET}"',
        f"keepwarm, {PLAIN_KEY}{SECRET}=",
        f"keepwarm, {PLAIN_KEY}{SECRET}ü",
        f"keepwarm, {CODED_KEY}{SECRET}!",
        f"keepwarm, {CODED_KEY}a",
        f"keepwarm, {CODED_KEY}_-_-",
        f"keepwarm, {coded(SECRET)}=",
        f"keepwarm, {PLAIN_KEY}{SECRET}, {PLAIN_KEY}another",
        f"keepwarm, {PLAIN_KEY}{SECRET}, {coded('another')}",
    ],
)
def test_an_offer_that_cannot_be_read_is_refused_without_repeating_it(offer: str) -> None:
    with pytest.raises(ApiError) as caught:
        offered_key(request(offer))
    assert caught.value.status == 400
    said = str(caught.value)
    assert said.startswith(f"{OFFER}: ")
    assert SECRET not in said
    assert coded(SECRET) not in said


@pytest.mark.parametrize(
    ("offer", "named"),
    [
        ("keepwarm", "keepwarm"),
        ("realtime", "realtime"),
        ("realtime, keepwarm", "realtime"),
        (f"{PLAIN_KEY}{SECRET}, chat, keepwarm", "keepwarm"),
        ("chat", None),
        ("Keepwarm", None),
    ],
)
def test_the_answer_names_the_first_that_is_spoken(offer: str, named: str | None) -> None:
    protocol, response = accepted(request(offer), max_bytes=1)
    assert (protocol.state, response.status_code) == (State.OPEN, 101)
    assert response.headers.get(OFFER) == named


def test_who_offers_none_is_named_none() -> None:
    _, response = accepted(request(), max_bytes=1)
    assert OFFER not in response.headers


@pytest.mark.parametrize("key", [PLAIN_KEY + SECRET, coded(SECRET)])
def test_a_key_alone_is_refused_since_the_answer_could_name_nothing(key: str) -> None:
    with pytest.raises(NotOpened, match="'keepwarm' has to be offered beside the key"):
        accepted(request(f"chat, {key}"), max_bytes=1)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Connection": "close"}, 426),
        ({"Upgrade": "h2c"}, 426),
        ({"Sec_WebSocket_Version": "8"}, 426),
        ({"Sec_WebSocket_Version": "13, 8"}, 426),
        ({"Sec_WebSocket_Version": ""}, 426),
        ({"Sec_WebSocket_Key": "short"}, 400),
    ],
)
def test_the_rest_of_a_handshake_is_checked(headers: dict[str, str], status: int) -> None:
    with pytest.raises(NotOpened) as caught:
        accepted(request(f"keepwarm, {PLAIN_KEY}{SECRET}", **headers), max_bytes=1)
    refused = caught.value
    assert refused.error.status == status
    assert SECRET not in str(refused)
    assert "\n" not in str(refused)
    told = dict(refused.headers)
    assert told["Sec-WebSocket-Version"] == "13", "RFC 6455 section 4.4"
    assert (told.get("Upgrade"), told.get("Connection")) == (
        ("websocket", "Upgrade") if status == 426 else (None, None)
    )


def test_extensions_are_passed_over() -> None:
    asked = request(Sec_WebSocket_Extensions="no extension at all;;")
    assert accepted(asked, max_bytes=1)[1].status_code == 101
