"""Keys name tenants; a wrong key names nobody."""

from pathlib import Path

import pytest

from sessions.tenants import (
    MIN_KEY_CHARS,
    ApiKey,
    KeyFileError,
    Principal,
    Tenants,
    read_keys_file,
    single_key,
)

KEY = "k" * MIN_KEY_CHARS


def write(folder: Path, text: str) -> Path:
    path = folder / "keys"
    path.write_text(text, encoding="utf-8")
    return path


def test_without_keys_everyone_is_one_tenant_and_operator() -> None:
    tenants = Tenants([])
    assert tenants.open
    for key in (None, "", "anything"):
        assert tenants.authenticate(key) == Principal(tenant="default", operator=True)


@pytest.mark.parametrize("key", [None, "", KEY[:-1], KEY + "k", KEY.upper(), "\xe9" * 8])
def test_a_wrong_key_is_nobody(key: str | None) -> None:
    tenants = Tenants([single_key(KEY)])
    assert not tenants.open
    assert tenants.authenticate(key) is None


def test_each_key_of_a_file_names_its_tenant(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "# who key\n\nacme  key-of-acme-1\nacme key-of-acme-2\n  watch key#of#watch operator\n",
    )
    tenants = Tenants(read_keys_file(path))
    assert tenants.authenticate("key-of-acme-1") == Principal(tenant="acme", operator=False)
    assert tenants.authenticate("key-of-acme-2") == Principal(tenant="acme", operator=False)
    assert tenants.authenticate("key#of#watch") == Principal(tenant="watch", operator=True)
    assert tenants.authenticate("acme") is None


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "holds no key"),
        ("# only a comment", "holds no key"),
        (f"acme {KEY}\nacme", "line 2: expected 'tenant key'"),
        (f"acme {KEY} admin", "line 1: expected 'tenant key'"),
        ("acme short", "line 1: a key must be 8 or more"),
        (f"acme {KEY}\u00e9", "line 1: a key must be 8 or more"),
        (f"a/b {KEY}", "line 1: tenant 'a/b' is not"),
        (f"a {KEY}\nb {KEY}", "line 2: this key stands in the file twice"),
    ],
)
def test_a_bad_keys_file_is_refused_by_line(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(KeyFileError, match=complaint) as caught:
        read_keys_file(write(tmp_path, text))
    assert KEY not in str(caught.value)


def test_a_missing_keys_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(KeyFileError, match="cannot read"):
        read_keys_file(tmp_path / "absent")


def test_a_key_has_a_least_length() -> None:
    principal = Principal(tenant="t", operator=False)
    assert ApiKey(key=KEY, principal=principal).key == KEY
    with pytest.raises(KeyFileError):
        ApiKey(key=KEY[:-1], principal=principal)
