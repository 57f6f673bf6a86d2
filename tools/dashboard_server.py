"""A server for whoever looks at a dashboard: a small model, prices, keys of two tenants, a
journal."""

from collections.abc import Mapping
from pathlib import Path

from sessions.tenants import ApiKey, Role
from sessions.tenants_file import key_row

MODEL = ("--model", "random:qwen3-tiny", "--kv-cache-mib", "32", "--threads", "1")
PRICES = ("--price", "input=3,cached=0.3,output=15")
ACME, GLOBEX, BOSS = "key-of-acme", "key-of-globex", "key-of-the-boss"
TENANTS = {"acme": ACME, "globex": GLOBEX}
"""Their keys."""
KEYS = {
    ACME: ("acme", Role.TENANT),
    GLOBEX: ("globex", Role.TENANT),
    BOSS: ("acme", Role.OPERATOR),
}
"""Whose each key is, and what it may."""
Keys = Mapping[str, tuple[str, Role]]


def write_keys(path: Path, keys: Keys, quotas: str = "") -> None:
    """A tenants file; ``quotas``: more of it."""
    rows = [
        key_row(ApiKey.of(key, tenant=tenant, role=role)) for key, (tenant, role) in keys.items()
    ]
    path.write_text("\n".join([*rows, quotas]))
    path.chmod(0o600)


def options_in(folder: Path, keys: Keys = KEYS, quotas: str = "") -> list[str]:
    """Options of a server without its model, whose tenants file ``tenants.toml``, which is written
    now, and whose journal ``journal`` are in ``folder``."""
    write_keys(folder / "tenants.toml", keys, quotas)
    files = ["--tenants-file", str(folder / "tenants.toml"), "--journal", str(folder / "journal")]
    return [*PRICES, *files]
