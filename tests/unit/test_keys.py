"""Chained keys name all tokens up to a block's end."""

from radix_cache.edge import PieceShop
from radix_cache.keys import chain_keys, root_key
from radix_cache.nodes import Owner
from tests.support.cache_turns import transcript

BLOCK = 4


def test_chained_keys_name_all_tokens_before_them() -> None:
    tokens = transcript(40)
    whole = chain_keys(b"root", tokens, BLOCK)
    assert chain_keys(whole[3], tokens[16:], BLOCK) == whole[4:]
    other = tokens.copy()
    other[0] += 1
    assert not set(chain_keys(b"root", other, BLOCK)) & set(whole)


def test_chains_of_different_owners_begin_differently() -> None:
    shop = PieceShop(BLOCK)
    keys = {root_key(Owner(name, salt, shop)) for name in ("", "a", "b") for salt in (1, 2)}
    assert len(keys) == 3
    assert {len(key) for key in keys} == {16}
