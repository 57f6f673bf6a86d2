"""What is counted of a prefill on a GPU, and that blocks which come back changed are noticed."""

import numpy as np
import pytest
import torch

from benchmarks import gpu_moves
from benchmarks.gpu_cases import Wrong
from benchmarks.gpu_host import shrunk
from benchmarks.gpu_moves import attention_operations, measure_tiers, parameters
from benchmarks.gpu_plan import REHEARSAL
from radix_cache.block_pool import BlockArray
from runtime.model.decoder import Decoder
from runtime.model.layers import MapLoader
from runtime.model.random_weights import RandomWeights
from runtime.offload.copies import Copy, ThreadCopies
from runtime.offload.disk import ByteRows
from tests.support.model_shapes import changed

CPU = torch.device("cpu")


def test_parameters_are_those_of_the_layers_matrices() -> None:
    config = shrunk(3)
    decoder = Decoder(config, MapLoader(source=RandomWeights(0, torch.float32, CPU)), CPU)
    head = config.vocab_size * config.hidden_size * torch.float32.itemsize
    weights = decoder.step_weight_bytes - head
    norms = weights - parameters(config) * torch.float32.itemsize
    assert 0 <= norms < 0.05 * weights


@pytest.mark.parametrize(("chunk", "context", "pairs"), [(1, 0, 1), (3, 0, 6), (2, 5, 13)])
def test_each_query_meets_the_keys_before_it_and_its_own(
    chunk: int, context: int, pairs: int
) -> None:
    config = changed(shrunk(1), mixer={"heads": 1, "head_dim": 2, "kv_heads": 1})
    assert attention_operations(config, chunk, context) == 8 * pairs


class Wrongly(ThreadCopies):
    """Brings blocks up to other places."""

    def up(self, rows: ByteRows, sources: BlockArray, targets: BlockArray) -> Copy:
        return super().up(rows, sources, np.roll(targets, 1))


def test_blocks_that_come_back_changed_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(measure_tiers(REHEARSAL, torch.float32, CPU)) == 4
    monkeypatch.setattr(gpu_moves, "ThreadCopies", Wrongly)
    with pytest.raises(Wrong, match="came back changed"):
        measure_tiers(REHEARSAL, torch.float32, CPU)
