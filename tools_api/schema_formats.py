r"""Regular expressions for strings of a known ``format``.

JSON Schema leaves it to an implementation which formats it asserts. Here it is those that a
grammar can hold a model to, and each so narrowly that Python and pydantic read what was
written: no 30 February, no leap second, no port above 65535. Every other format is an
annotation.

Knows regular expressions without look-around. Knows no schema.

Always true: the expressions are anchored at both ends, and what one matches its parsers take.
"""

import string

_H16 = "[0-9A-Fa-f]{1,4}"
_HEX = "[0-9A-Fa-f]"
_OCTET = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
IPV4 = rf"(?:{_OCTET}\.){{3}}{_OCTET}"


def _ipv6() -> str:
    """RFC 4291, 2.2, without the mixed form: eight groups, or fewer around one ``::``."""
    shortened = [f"{_groups(before)}::{_groups(7 - before)}" for before in range(8)]
    return "(?:" + "|".join([f"(?:{_H16}:){{7}}{_H16}", *shortened]) + ")"


def _groups(most: int) -> str:
    """An expression for up to so many groups."""
    return f"(?:{_H16}(?::{_H16}){{0,{most - 1}}})?" if most else ""


IPV6 = _ipv6()
_V4_INTERFACE = f"{IPV4}(?:/(?:[12]?[0-9]|3[0-2]))?"
_V6_INTERFACE = f"{IPV6}(?:/(?:[1-9]?[0-9]|1[01][0-9]|12[0-8]))?"


def _date() -> str:
    """RFC 3339 full-date, proleptic Gregorian, years 1 to 9999."""
    year = "(?:[0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)"
    days = (
        "(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
        "|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))"
    )
    fourth = "(?:0[48]|[2468][048]|[13579][26])"
    return f"(?:{year}-{days}|(?:[0-9]{{2}}{fourth}|{fourth}00)-02-29)"


_CLOCK = "(?:[01][0-9]|2[0-3]):[0-5][0-9]"
_TIME = rf"{_CLOCK}:[0-5][0-9](?:\.[0-9]{{1,9}})?(?:[Zz]|[+-]{_CLOCK})"


def _duration() -> str:
    """RFC 3339, appendix A, with as many digits as a ``timedelta`` has room for."""

    def chain(*units: tuple[str, int]) -> str:
        """``1Y``, ``1Y2M``, ``1Y2M3D``, ``2M`` ...: units without a gap."""
        rest, forms = "", []
        for unit, digits in reversed(units):
            rest = f"[0-9]{{1,{digits}}}{unit}" + (f"(?:{rest})?" if rest else "")
            forms.append(rest)
        return "(?:" + "|".join(forms) + ")"

    date = chain(("Y", 6), ("M", 6), ("D", 6))
    time = chain(("H", 5), ("M", 7), ("S", 9))
    return f"P(?:{date}(?:T{time})?|T{time}|[0-9]{{1,6}}W)"


_FREE = "A-Za-z0-9._~!$&'()*+,;="
_PCHAR = f"(?:[{_FREE}:@-]|%{_HEX}{{2}})"
_USER = f"(?:(?:[{_FREE}:-]|%{_HEX}{{2}})*@)?"
_PORT = "(?::(?:[0-5]?[0-9]{1,4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5]))?"
_LABEL = "[A-Za-z0-9]+(?:-[A-Za-z0-9]+)*"
# The last label begins with a letter: else the whole is read as an IPv4 address.
_DOMAIN = rf"(?:{_LABEL}\.)*[A-Za-z][A-Za-z0-9]*(?:-[A-Za-z0-9]+)*\.?"
_WEB_HOST = rf"(?:{_DOMAIN}|{IPV4}|\[{IPV6}\])"
_HOST = rf"(?:(?:[{_FREE}-]|%{_HEX}{{2}})+|\[{IPV6}\])"
_PATH = f"(?:/{_PCHAR}*)*"
_QUERY = rf"(?:\?(?:{_PCHAR}|[/?])*)?(?:#(?:{_PCHAR}|[/?])*)?"
_WEB_SCHEMES = ("http", "https", "ws", "wss", "ftp")
_HOSTED_SCHEMES = (*_WEB_SCHEMES, "file")
"""Schemes whose host is a name or an address (WHATWG URL, special schemes)."""


def _other_scheme() -> str:
    """Any scheme but those of ``_HOSTED_SCHEMES``, upper and lower case."""
    starts = {word[:length] for word in _HOSTED_SCHEMES for length in range(len(word) + 1)}
    forms = []
    for start in sorted(starts):
        following = {word[len(start)] for word in _HOSTED_SCHEMES if _goes_on(word, start)}
        letters = set(string.ascii_letters) - following - {char.upper() for char in following}
        others = "" if not start else "0-9+.-"
        spelt = "".join(f"[{char}{char.upper()}]" for char in start)
        forms.append(f"{spelt}[{''.join(sorted(letters))}{others}][A-Za-z0-9+.-]*")
        if start and start not in _HOSTED_SCHEMES:
            forms.append(spelt)
    return "(?:" + "|".join(forms) + ")"


def _goes_on(word: str, start: str) -> bool:
    return word.startswith(start) and word != start


def _web(schemes: str) -> str:
    return f"{schemes}://{_USER}{_WEB_HOST}{_PORT}{_PATH}{_QUERY}"


def _uri() -> str:
    """RFC 3986, where a scheme that needs a host has one."""
    web = _web(f"(?:{'|'.join(_WEB_SCHEMES)})")
    file = f"file://(?:{_DOMAIN})?/{_PCHAR}*{_PATH}{_QUERY}"
    first = f"{_PCHAR}+{_PATH}"
    tail = f"(?://(?:{_USER}{_HOST}{_PORT})?{_PATH}|/(?:{first})?|{first}|)"
    return f"(?:{web}|{file}|{_other_scheme()}:{tail}{_QUERY})"


def _uuid(version: str, variant: str = "[89abAB]") -> str:
    return f"{_HEX}{{8}}-{_HEX}{{4}}-{version}{_HEX}{{3}}-{variant}{_HEX}{{3}}-{_HEX}{{12}}"


WEB_ADDRESS = f"^{_web('https?')}$"
"""An address that pydantic's HttpUrl takes; its schema says it only by the bounds of the length."""

PATTERNS: dict[str, str] = {
    name: f"^(?:{body})$"
    for name, body in {
        "date": _date(),
        "time": _TIME,
        "date-time": f"{_date()}[Tt]{_TIME}",
        "duration": _duration(),
        "uri": _uri(),
        **{f"uuid{version}": _uuid(version) for version in "12345678"},
        "uuid": _uuid("[0-9A-Fa-f]", _HEX),
        "ipv4": IPV4,
        "ipv6": IPV6,
        "ipv4interface": _V4_INTERFACE,
        "ipv6interface": _V6_INTERFACE,
        "ipvanyaddress": f"(?:{IPV4}|{IPV6})",
        "ipvanyinterface": f"(?:{_V4_INTERFACE}|{_V6_INTERFACE})",
        "base64": "(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?",
        "base64url": "(?:[A-Za-z0-9_-]{4})*(?:[A-Za-z0-9_-]{2}==|[A-Za-z0-9_-]{3}=)?",
        "fraction": r"[+-]?[0-9]+(?:/0*[1-9][0-9]*|\.[0-9]+)?",
    }.items()
}
"""By format: what it is held to here, more narrowly than the grammar library would."""

LIBRARY_FORMATS = frozenset({"email", "hostname"})
"""Formats that the grammar library asserts as they should be."""
