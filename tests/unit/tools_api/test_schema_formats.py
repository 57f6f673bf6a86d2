"""What formats allow, against the parsers that will read it."""

import datetime as dt
import ipaddress
import re
import uuid
from typing import Any

import pydantic
import pytest

from tools_api.schema_formats import LIBRARY_FORMATS, PATTERNS, WEB_ADDRESS

GOOD: dict[str, list[str]] = {
    "date": ["2024-02-29", "2000-02-29", "1999-12-31", "0001-01-01", "0004-02-29"],
    "time": ["00:00:00Z", "23:59:59.123456789+23:59", "12:30:00-00:30"],
    "date-time": ["2024-02-29T12:00:00Z", "1996-12-19t16:39:57-08:00"],
    "duration": ["P1D", "PT0S", "P1Y2M3DT4H5M6S", "P2W", "PT36H", "PT1H30M"],
    "uri": [
        "http://example.com",
        "https://u:p@a-b.example.com:8080/x/y%20z?q=1&r=/?#top",
        "http://127.0.0.1:65535/",
        "http://[::1]/",
        "file:///etc/hosts",
        "mailto:someone@example.com",
        "urn:isbn:0451450523",
        "htt://host",
        "data:text/plain,hello",
    ],
    "uuid": [str(uuid.UUID(int=7)), str(uuid.UUID(int=7)).upper()],
    "uuid4": [str(uuid.uuid4())],
    "ipv4": ["0.0.0.0", "255.249.100.9"],
    "ipv6": ["::", "::1", "1::", "1:2:3:4:5:6:7:8", "fe80::1:2", "1:2:3:4:5:6:7::"],
    "ipv4interface": ["10.0.0.1/8", "1.2.3.4"],
    "ipv6interface": ["::1/128", "1::/0"],
    "ipvanyaddress": ["::1", "1.2.3.4"],
    "ipvanyinterface": ["::1/99", "1.2.3.4/32"],
    "base64": ["", "aGk=", "aGVsbG8h", "aA=="],
    "base64url": ["_-__", "aA=="],
    "fraction": ["1", "-3/04", "2.50"],
}
BAD: dict[str, list[str]] = {
    "date": ["2023-02-29", "1900-02-29", "0000-01-01", "2024-02-30", "2024-04-31", "24-01-01"],
    "time": ["24:00:00Z", "12:00:60Z", "12:00:00", "12:00:00+24:00"],
    "date-time": ["2024-01-01", "2024-01-01 00:00:00Z", "2023-02-29T00:00:00Z"],
    "duration": ["P", "PT", "P1S", "P1Y1D", "PT1H1S", "P1W2D", "P1234567Y", "1D"],
    "uri": ["http://", "http://a:65536", "http://1.2.3.256", "http:x", "/path", "a b:c", "file:x"],
    "uuid": ["0", str(uuid.UUID(int=7)).replace("-", "")],
    "uuid4": [str(uuid.UUID(int=7))],
    "ipv4": ["256.0.0.0", "1.2.3", "01.2.3.4"],
    "ipv6": ["1:2:3:4:5:6:7", "1::2::3", ":::", "12345::"],
    "ipv4interface": ["1.2.3.4/33"],
    "ipv6interface": ["::/129"],
    "ipvanyaddress": ["x"],
    "ipvanyinterface": ["1.2.3.4/64"],
    "base64": ["a", "aGk", "a==="],
    "base64url": ["a+=="],
    "fraction": ["1/0", "/2", ""],
}
PARSERS: dict[str, Any] = {
    "date": dt.date,
    "time": dt.time,
    "date-time": dt.datetime,
    "duration": dt.timedelta,
    "uri": pydantic.AnyUrl,
    "uuid": uuid.UUID,
    "uuid4": pydantic.UUID4,
    "ipv4": ipaddress.IPv4Address,
    "ipv6": ipaddress.IPv6Address,
    "ipv4interface": ipaddress.IPv4Interface,
    "ipv6interface": ipaddress.IPv6Interface,
    "ipvanyaddress": pydantic.IPvAnyAddress,
    "ipvanyinterface": pydantic.IPvAnyInterface,
    "base64": pydantic.Base64Bytes,
    "base64url": pydantic.Base64UrlBytes,
}


@pytest.mark.parametrize("name", GOOD)
def test_a_format_takes_what_its_parser_takes(name: str) -> None:
    for text in GOOD[name]:
        assert re.search(PATTERNS[name], text), text
        if name in PARSERS:
            pydantic.TypeAdapter(PARSERS[name]).validate_python(text)


@pytest.mark.parametrize("name", BAD)
def test_a_format_refuses_what_it_should(name: str) -> None:
    assert [text for text in BAD[name] if re.search(PATTERNS[name], text)] == []


def test_every_format_is_tried() -> None:
    others = {f"uuid{version}" for version in "1235678"}
    assert set(PATTERNS) - others == set(GOOD) == set(BAD)
    assert not LIBRARY_FORMATS & set(PATTERNS)


def test_every_pattern_is_anchored_and_looks_nowhere() -> None:
    for pattern in (*PATTERNS.values(), WEB_ADDRESS):
        assert pattern.startswith("^")
        assert pattern.endswith("$")
        assert not re.search(r"\(\?[=!<]", pattern)


@pytest.mark.parametrize(
    ("text", "good"),
    [
        ("https://example.com", True),
        ("http://localhost:8000/a?b#c", True),
        ("ftp://example.com", False),
        ("https://-a.com", False),
        ("https://a..com", False),
        ("https://xn--a.com", False),
        ("https://1.2.3", False),
    ],
)
def test_a_web_address_is_what_pydantic_takes_for_one(text: str, good: bool) -> None:
    assert bool(re.search(WEB_ADDRESS, text)) is good
    if good:
        pydantic.TypeAdapter(pydantic.HttpUrl).validate_python(text)
