"""Keys name tenants; a wrong key names nobody."""

import hashlib

import pytest

from sessions.tenants import (
    MIN_KEY_CHARS,
    ApiKey,
    KeyFileError,
    Principal,
    Role,
    TenantPolicy,
    Tenants,
    key_digest,
    single_key,
)

KEY = "k" * MIN_KEY_CHARS
ACME = ApiKey.of("key-of-acme", tenant="acme", name="ci")
WATCH = ApiKey.of("key-of-watch", tenant="acme", role=Role.READ_ONLY, name="watch")


def test_without_keys_everyone_is_one_tenant_and_operator() -> None:
    tenants = Tenants([])
    assert tenants.open
    for key in (None, "", "anything"):
        assert tenants.authenticate(key) == Principal(tenant="default", role=Role.OPERATOR)


@pytest.mark.parametrize("key", [None, "", KEY[:-1], KEY + "k", KEY.upper(), "\xe9" * 8])
def test_a_wrong_key_is_nobody(key: str | None) -> None:
    tenants = Tenants([single_key(KEY)])
    assert not tenants.open
    assert tenants.authenticate(key) is None


def test_a_key_names_its_tenant_its_role_and_itself() -> None:
    tenants = Tenants([ACME, WATCH])
    assert tenants.authenticate("key-of-acme") == Principal(
        tenant="acme", role=Role.TENANT, key_name="ci"
    )
    found = tenants.authenticate("key-of-watch")
    assert found is not None
    assert (found.read_only, found.operator) == (True, False)


def test_a_digest_is_no_key() -> None:
    assert Tenants([ACME]).authenticate(ACME.sha256.hex()) is None
    assert key_digest("key-of-acme") == hashlib.sha256(b"key-of-acme").digest() == ACME.sha256


def test_a_single_key_is_tenant_and_operator_and_has_a_name_of_its_own() -> None:
    principal = single_key(KEY).principal
    assert (principal.tenant, principal.operator) == ("default", True)
    assert principal.key_name == f"key-{key_digest(KEY).hex()[:8]}"


@pytest.mark.parametrize("key", [KEY[:-1], KEY + " x", KEY + "\u00e9", "", "\n" * 8])
def test_a_key_has_a_least_length_and_no_odd_characters(key: str) -> None:
    with pytest.raises(KeyFileError, match="a key must be 8 or more") as caught:
        ApiKey.of(key, tenant="t")
    assert not key or key not in str(caught.value)


@pytest.mark.parametrize("name", ["", "a/b", "a b", "x" * 65, "\u00e9"])
def test_names_are_of_few_characters(name: str) -> None:
    with pytest.raises(KeyFileError, match="tenant name"):
        ApiKey.of(KEY, tenant=name)
    if name:
        with pytest.raises(KeyFileError, match="key name"):
            ApiKey.of(KEY, tenant="t", name=name)


def test_a_digest_has_its_length() -> None:
    with pytest.raises(KeyFileError, match="64 hexadecimal"):
        ApiKey(sha256=b"short", principal=Principal(tenant="t", key_name="k"))


def test_other_keys_hold_at_once_and_those_that_are_gone_are_told() -> None:
    tenants = Tenants([ACME, WATCH])
    demoted = ApiKey.of("key-of-acme", tenant="acme", role=Role.READ_ONLY, name="ci")
    assert tenants.replace([demoted, WATCH], {}) == {ACME.principal}
    assert tenants.authenticate("key-of-acme") == demoted.principal
    assert tenants.replace([WATCH], {}) == {demoted.principal}
    assert tenants.authenticate("key-of-acme") is None
    assert tenants.replace([WATCH], {}) == frozenset()


def test_a_tenants_policy_is_that_of_the_moment_and_without_one_nothing_is_bounded() -> None:
    slow = TenantPolicy(turns_per_minute=1)
    tenants = Tenants([ACME], {"acme": slow})
    assert tenants.policy_of("acme")() == slow
    assert tenants.policy_of("other")() == TenantPolicy()
    tenants.replace([ACME], {})
    assert tenants.policy_of("acme")() == TenantPolicy()
