"""Records of evicted runs."""

from radix_cache.ghosts import Ghost, GhostRecords, MissCause


def ghost(first: bytes = b"x", num_blocks: int = 1) -> Ghost:
    return Ghost(first, num_blocks, 0.0, MissCause.EVICTED)


def test_a_run_is_found_by_place_hash_and_tokens() -> None:
    records = GhostRecords(4)
    run = ghost(b"abc")
    records.add(3, 99, run)
    assert records.find(3, 99, b"abc") is run
    assert records.find(2, 99, b"abc") is None
    assert records.find(3, 98, b"abc") is None
    assert records.find(3, 99, b"abd") is None, "a hash does not decide"


def test_the_oldest_record_goes_first() -> None:
    records = GhostRecords(2)
    for position in range(3):
        records.add(position, 0, ghost())
    assert len(records) == 2
    assert records.find(0, 0, b"x") is None
    assert records.find(2, 0, b"x") is not None


def test_a_later_run_of_the_same_place_replaces_the_earlier() -> None:
    records = GhostRecords(2)
    records.add(0, 0, ghost(num_blocks=5))
    records.add(0, 0, ghost(num_blocks=7))
    found = records.find(0, 0, b"x")
    assert found is not None
    assert found.num_blocks == 7
    assert len(records) == 1


def test_no_capacity_means_no_memory() -> None:
    records = GhostRecords(0)
    records.add(0, 0, ghost())
    assert len(records) == 0
