"""Random batches of sampling parameters, for whoever draws."""

import numpy as np
import torch
from torch import Tensor

from kernels.masked_sampling import PLACES, SHARE_BITS, Penalties, SamplingBatch, mass_of


def make_batch(rng: np.random.Generator, rows: int, vocab: int, **fixed: float) -> SamplingBatch:
    """Every filter on and off, half of the rows masked; ``fixed`` sets a parameter for all."""

    def choose(name: str, options: list[float]) -> np.ndarray:
        return np.array([fixed.get(name, rng.choice(options)) for _ in range(rows)])

    masks = rng.integers(-(1 << 31), 1 << 31, (rows, -(-vocab // 32)), dtype=np.int64)
    return SamplingBatch(
        temperature=choose("temperature", [0, 0.3, 1, 3]),
        top_k=choose("top_k", [0, 1, 5, 100, 10**6]).astype(np.int64),
        top_p=choose("top_p", [1, 0.95, 0.5, 1e-6]),
        min_p=choose("min_p", [0, 0.01, 0.5]),
        seeds=rng.integers(0, 1 << 64, rows, dtype=np.uint64),
        positions=rng.integers(0, 1 << 40, rows, dtype=np.uint64),
        masks=torch.from_numpy(masks.astype(np.int32)),
        masked=rng.random(rows) < 0.5,
    )


def make_penalties(rng: np.random.Generator, rows: int, vocab: int) -> Penalties:
    """For about half of the rows and at most a tenth of the vocabulary."""
    parts = [
        (row, token)
        for row in range(rows)
        if rng.random() < 0.5
        for token in rng.choice(vocab, vocab // 10, replace=False).tolist()
    ]
    at = np.array(parts, dtype=np.int64).reshape(-1, 2)
    return Penalties(
        rows=at[:, 0],
        tokens=at[:, 1],
        factors=rng.choice([1.0, 1.3, 0.7], len(at)),
        deductions=rng.choice([0.0, 0.35, -1.1, 2.0], len(at)),
    )


def on_the_edge_of_top_p(rows: int) -> tuple[Tensor, SamplingBatch]:
    """Logits [rows, 5] and parameters of which every other row's top-p is just enough for the
    two nearest tokens, and that of the rows between takes one unit of mass more."""
    halvings = torch.tensor([3.0, 1.25, 2.0, 1.5, 40.5])
    mass = mass_of((halvings - 1.25).mul(1 << PLACES).long())
    total, nearest = int(mass.sum()), int(mass[1] + mass[3])
    shares = [-(-((nearest + more) << SHARE_BITS) // total) for more in (0, 1)]
    batch = make_batch(
        np.random.default_rng(0), rows, 5, temperature=1 / np.log(2), top_k=0.0, min_p=0.0
    )
    batch.masked[:] = False
    batch.top_p[0::2], batch.top_p[1::2] = (share * 2.0**-SHARE_BITS for share in shares)
    return -halvings.expand(rows, -1), batch
