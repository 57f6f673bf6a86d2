"""Training in several processes: each takes its share of the batches, all take the same steps."""

from pathlib import Path

import pytest
import torch

from examples.train_agent_model.batches import Batch, batches, pool_rows
from examples.train_agent_model.curriculum import PRACTICE
from examples.train_agent_model.peers import Peers, run_together
from examples.train_agent_model.trainer import Trainer, batch_loss
from tests.support.training import toy_trainer


def made(trainer: Trainer, share: int) -> list[Batch]:
    """The first pool's batches of one of two processes."""
    rows = pool_rows(trainer.encoder, PRACTICE, 1, 0, 0)
    size = trainer.encoder.vocab_size
    return list(batches(rows, PRACTICE, size, (1, 0, 0), share=share, shares=2))


def one_pool(peers: Peers, folder: Path) -> None:
    trainer = toy_trainer(folder, peers)
    trainer.run_pool(budget_s=1e9, autocast=False)
    state = trainer.model.state_dict()
    position = [trainer.step, trainer.tokens, trainer.seconds, trainer.loss]
    torch.save({"state": state, "position": position}, folder / f"{peers.rank}.pt")


@pytest.mark.slow
def test_all_processes_end_with_the_same_weights_tokens_and_clock(tmp_path: Path) -> None:
    run_together(2, tmp_path / "meeting", one_pool, tmp_path)
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in range(2))
    assert first["position"] == second["position"]
    for name, weight in first["state"].items():
        assert torch.equal(weight, second["state"][name]), name
    steps, tokens = first["position"][:2]
    trainer = toy_trainer(tmp_path)
    shares = [made(trainer, rank) for rank in range(2)]
    assert steps == len(shares[0])
    assert tokens == sum(batch.tokens.numel() for share in shares for batch in share)


def one_mean(peers: Peers, folder: Path) -> None:
    tensors = [torch.full((2, 3), float(peers.rank)), torch.tensor([peers.rank * 10.0])]
    peers.average(tensors)
    torch.save(tensors, folder / f"{peers.rank}.pt")


@pytest.mark.parametrize("count", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_the_mean_is_over_all_processes(count: int, tmp_path: Path) -> None:
    run_together(count, tmp_path / "meeting", one_mean, tmp_path)
    middle = (count - 1) / 2
    for rank in range(count):
        square, single = torch.load(tmp_path / f"{rank}.pt")
        assert torch.equal(square, torch.full((2, 3), middle))
        assert single.tolist() == [middle * 10]


def fails(peers: Peers) -> None:
    if peers.rank == 1:
        raise ValueError("the second process")


@pytest.mark.slow
def test_a_process_that_fails_ends_the_training_with_its_error(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="the second process"):
        run_together(2, tmp_path / "meeting", fails)


def test_the_step_of_two_processes_is_that_of_one_on_both_batches(tmp_path: Path) -> None:
    trainer = toy_trainer(tmp_path)
    pair = [made(trainer, rank)[0] for rank in range(2)]
    sums = [batch_loss(trainer.model, trainer.probes, batch, autocast=False)[0] for batch in pair]
    (sum(sums) / 2).backward()
    wanted = trainer.model.model.layers[0].mlp.up_proj.weight.grad
    run_together(2, tmp_path / "meeting", one_gradient, tmp_path)
    assert torch.allclose(torch.load(tmp_path / "gradient.pt"), wanted, atol=1e-6)


def one_gradient(peers: Peers, folder: Path) -> None:
    trainer = toy_trainer(folder, peers)
    batch = made(trainer, peers.rank)[0]
    batch_loss(trainer.model, trainer.probes, batch, autocast=False)[0].backward()
    gradient = trainer.model.model.layers[0].mlp.up_proj.weight.grad
    peers.average([gradient])
    if peers.rank == 0:
        torch.save(gradient, folder / "gradient.pt")
