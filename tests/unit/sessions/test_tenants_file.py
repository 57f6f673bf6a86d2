"""A file of keys is taken whole, in either form, or refused by the entry that is wrong."""

import re
import tomllib
from pathlib import Path

import pytest

from sessions.tenants import (
    MIN_KEY_CHARS,
    ApiKey,
    KeyFileError,
    Role,
    TenantPolicy,
    TokenPrices,
)
from sessions.tenants_file import key_row, read_tenants_file
from tools_api.limits import DEFAULT_LIMITS

KEY = "k" * MIN_KEY_CHARS
CI = ApiKey.of("key-of-ci", tenant="acme", name="ci")
BOSS = ApiKey.of("key-of-boss", tenant="ops", name="boss", role=Role.OPERATOR)
WATCH = ApiKey.of("key-of-watch", tenant="acme", name="watch", role=Role.READ_ONLY)
ROW = key_row(CI)
DIGEST = CI.sha256.hex()
PRICED = "[tenants.acme]\nprices = {input = 1, cached = 1, output = 1}\n"


def write(folder: Path, text: str | bytes) -> Path:
    path = folder / "tenants.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def refusal(folder: Path, text: str | bytes) -> str:
    path = write(folder, text)
    with pytest.raises(KeyFileError) as caught:
        read_tenants_file(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    return message


def test_rows_as_they_are_printed_are_read_as_they_were(tmp_path: Path) -> None:
    read = read_tenants_file(write(tmp_path, "".join(map(key_row, (CI, BOSS, WATCH)))))
    assert read.keys == (CI, BOSS, WATCH)


def test_a_tenant_has_a_table_of_its_own(tmp_path: Path) -> None:
    table = '[tenants.acme]\nmodels = ["m"]\nturns_per_minute = 60\ntokens_per_minute = 1000\n'
    read = read_tenants_file(write(tmp_path, ROW + table))
    assert read.policies == {
        "acme": TenantPolicy(models=frozenset({"m"}), turns_per_minute=60, tokens_per_minute=1000)
    }
    assert read_tenants_file(write(tmp_path, ROW + "[tenants.acme]\n")).policies == {
        "acme": TenantPolicy()
    }


def test_a_tenant_may_have_prices_and_a_number_of_connections(tmp_path: Path) -> None:
    table = "[tenants.acme]\nconnections = 8\nprices = { input = 1, cached = 0.1, output = 2.3 }\n"
    (policy,) = read_tenants_file(write(tmp_path, ROW + table)).policies.values()
    assert policy.connections == 8
    assert policy.prices == TokenPrices(
        input_uncached=10**9, input_cached=10**8, output=23 * 10**8, reasoning=None
    )
    thinking = table.replace("cached", "reasoning = 0.000000001, cached")
    (policy,) = read_tenants_file(write(tmp_path, ROW + thinking)).policies.values()
    assert policy.prices is not None
    assert policy.prices.reasoning == 1


def test_a_row_holds_no_key() -> None:
    assert "key-of-ci" not in ROW
    assert tomllib.loads(ROW)["keys"][0]["sha256"] == DIGEST


def test_a_key_without_a_role_is_its_tenants(tmp_path: Path) -> None:
    text = ROW.replace('role = "tenant"\n', "").replace(DIGEST, DIGEST.upper())
    assert read_tenants_file(write(tmp_path, text)).keys == (CI,)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "holds no key"),
        ("# only a comment", "holds no key"),
        ("keys = []", "holds no key"),
        ("[[keys]]\n", "key 1 name is missing"),
        (ROW + ROW, "key 2: this key stands in the file twice"),
        (ROW + ROW.replace(DIGEST, "0" * 64), "key 2: the name 'ci' stands in the file twice"),
        (ROW.replace(DIGEST, KEY), "key 1: sha256 is not 64 hexadecimal digits"),
        (ROW.replace(DIGEST, "0x" + DIGEST[2:]), "key 1: sha256 is not 64 hexadecimal digits"),
        (ROW.replace(f'"{DIGEST}"', "7"), "key 1 sha256 should be a valid string"),
        (ROW.replace('"tenant"', '"admin"'), "key 1 role should be 'operator', 'tenant' or"),
        (ROW.replace('"acme"', '"a/b"'), "key 1: tenant name 'a/b' is not"),
        (ROW.replace('"ci"', '""'), "key 1: key name '' is not"),
        (ROW + "secret = 1\n", "key 1 secret is unknown; known: name, sha256, tenant, role"),
        ("keyz = 1\n" + ROW, "keyz is unknown; known: keys, tenants"),
        (
            ROW + "[tenants.acme]\nturns = 1\n",
            "tenants acme turns is unknown; known: models, turns_",
        ),
        (ROW + "[tenants.acme]\nturns_per_minute = 0\n", "turns_per_minute should be greater"),
        (ROW + "[tenants.acme]\ntokens_per_minute = 1.5\n", "tokens_per_minute should be a valid"),
        (ROW + "[tenants.acme]\nmodels = []\n", "tenants acme models"),
        (ROW + "[tenants.acme]\nconnections = 0\n", "tenants acme connections should be greater"),
        (ROW + "[tenants.acme]\nprices = 3\n", "tenants acme prices should be a valid"),
        (ROW + PRICED.replace("output = 1", "o = 1"), "tenants acme prices output is missing"),
        (ROW + PRICED.replace("}", ", x = 1}"), "prices x is unknown; known: input, cached, out"),
        (ROW + PRICED.replace("1}", "-1}"), "tenants acme prices output should be greater"),
        (ROW + PRICED.replace("1}", "inf}"), "tenants acme prices output should be"),
        (ROW + PRICED.replace("1}", "1e-10}"), "tenants acme prices: a price is finer than"),
        (ROW + "[tenants.acem]\n", "tenants acem: no key belongs to a tenant of that name"),
        ("[[keys]\n", "not TOML: "),
        (f"x = {'9' * 5_000}\n", "not TOML: "),
        (f"x = {'[' * 5_000}\n", "not TOML: "),
        ("name = \n", "not TOML: "),
        (b"\xff\xfe", "cannot read it: not UTF-8"),
    ],
)
def test_what_is_wrong_is_told_by_its_entry(
    tmp_path: Path, text: str | bytes, complaint: str
) -> None:
    assert complaint in refusal(tmp_path, text)


def test_no_message_shows_what_may_be_a_key(tmp_path: Path) -> None:
    secret = "sk-very-secret"
    for text in (ROW.replace(DIGEST, secret), ROW.replace(f'"{DIGEST}"', f'["{secret}"]'),
                 f"acme {secret} admin", f'[[keys]]\nkey = "{secret}"\n'):  # fmt: skip
        assert secret not in refusal(tmp_path, text)


def test_there_is_a_most_of_keys_and_of_bytes(tmp_path: Path) -> None:
    def rows(count: int) -> str:
        keys = (ApiKey.of(f"key-number-{n}", tenant="t", name=f"k{n}") for n in range(count))
        return "".join(map(key_row, keys))

    most = DEFAULT_LIMITS.max_keys
    assert len(read_tenants_file(write(tmp_path, rows(most))).keys) == most
    assert f"holds {most + 1} keys, at most {most}" in refusal(tmp_path, rows(most + 1))
    room = DEFAULT_LIMITS.max_tenants_file_bytes - len(ROW) - 1
    assert read_tenants_file(write(tmp_path, ROW + "#" + "x" * room)).keys == (CI,)
    assert "larger than" in refusal(tmp_path, ROW + "#" + "x" * (room + 1))


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "absent"
    with pytest.raises(KeyFileError, match=re.escape(f"{path}: cannot read it: No such file")):
        read_tenants_file(path)


def test_lines_that_hold_keys_themselves_are_refused_and_not_shown(tmp_path: Path) -> None:
    message = refusal(tmp_path, f"acme {KEY}\n")
    assert "not TOML" in message
    assert KEY not in message
