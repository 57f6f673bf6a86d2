"""Training of the default model: it learns, and an interruption changes nothing."""

import itertools
from pathlib import Path

import numpy as np
import pytest
import tokenizers
import torch

from examples.train_agent_model.export import export
from examples.train_agent_model.generator import SessionGenerator
from examples.train_agent_model.model import AgentModel, ModelShape
from examples.train_agent_model.optimizer import orthogonalised
from examples.train_agent_model.rendering import SessionEncoder, session_parts
from examples.train_agent_model.tokenizer import SPECIAL, save_tokenizer, train_tokenizer
from examples.train_agent_model.train import STAGES, Trainer, batch_loss, batches, drill, pad

SMALL = {"hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 64, "head_dim": 16}
BUDGET_S = 1000.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("training")
    generator = SessionGenerator("test", held_out=False)
    sessions = [generator.session(level=0.3) for _ in range(60)]
    texts = [part.text for s in sessions for part in session_parts(s) if not part.special]
    save_tokenizer(train_tokenizer(texts, 700), target)
    return target


@pytest.fixture(scope="module")
def encoder(folder: Path) -> SessionEncoder:
    return SessionEncoder(tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json")))


def trainer_in(folder: Path, encoder: SessionEncoder) -> Trainer:
    ticks = itertools.count()
    shape = ModelShape(vocab_size=encoder.vocab_size, **SMALL)  # type: ignore[arg-type]
    return Trainer(folder, shape, encoder, seed=1, clock=lambda: float(next(ticks)))


def test_the_loss_falls_under_four_within_150_steps(folder: Path, encoder: SessionEncoder) -> None:
    trainer = trainer_in(folder, encoder)
    generator = SessionGenerator("smoke", held_out=True)
    sessions = pad([encoder.encode(session_parts(generator.session(level=0))) for _ in range(8)])
    with torch.no_grad():
        before = batch_loss(trainer.model, sessions, autocast=False).item()
    trainer.stage = 1
    while trainer.step < 150:
        trainer.run_pool(budget_s=1e9, autocast=False)
    with torch.no_grad():
        after = batch_loss(trainer.model, sessions, autocast=False).item()
    assert before > 6
    assert after < 4


def test_a_resumed_run_equals_an_uninterrupted_one(
    folder: Path, encoder: SessionEncoder, tmp_path: Path
) -> None:
    whole = trainer_in(tmp_path, encoder)
    for _ in range(2):
        whole.run_pool(budget_s=BUDGET_S, autocast=False)

    first = trainer_in(tmp_path, encoder)
    first.run_pool(budget_s=BUDGET_S, autocast=False)
    first.save()
    second = trainer_in(tmp_path, encoder)
    assert second.resume()
    second.run_pool(budget_s=BUDGET_S, autocast=False)

    assert (second.step, second.tokens, second.loss) == (whole.step, whole.tokens, whole.loss)
    wanted = whole.model.state_dict()
    for name, weight in second.model.state_dict().items():
        assert torch.equal(weight, wanted[name]), name


def test_there_is_nothing_to_resume_in_an_empty_folder(
    encoder: SessionEncoder, tmp_path: Path
) -> None:
    assert not trainer_in(tmp_path, encoder).resume()


def test_a_pool_is_the_same_each_time_and_unlike_its_neighbour(encoder: SessionEncoder) -> None:
    pools = [list(batches(encoder, STAGES[2], 1, pool)) for pool in (3, 3, 4)]
    tokens = [[batch.tokens for batch in pool] for pool in pools]
    assert all(torch.equal(a, b) for a, b in zip(tokens[0], tokens[1], strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(tokens[0], tokens[2], strict=False))


def test_a_batch_keeps_within_its_tokens(encoder: SessionEncoder) -> None:
    for batch in batches(encoder, STAGES[3], 1, 0):
        assert batch.tokens.numel() <= STAGES[3].batch_tokens or len(batch.tokens) == 1


def test_a_drill_weighs_exactly_the_tokens_said_before() -> None:
    batch = drill(np.random.default_rng(1), 500, 640)
    assert batch.tokens.min() >= len(SPECIAL)
    for ids, weights in zip(batch.tokens.tolist(), batch.weights.tolist(), strict=True):
        run = weights.index(1.0) - 1
        assert ids == [ids[place % run] for place in range(len(ids))]
        assert set(weights[run + 1 :]) == {1.0}


def test_unweighted_tokens_do_not_change_the_loss(encoder: SessionEncoder) -> None:
    model = AgentModel(ModelShape(vocab_size=encoder.vocab_size, **SMALL), seed=0)  # type: ignore[arg-type]
    rows = [encoder.encode(session_parts(SessionGenerator(1, held_out=True).session(level=0)))]
    longer = [(np.append(ids, ids[:5]), np.append(weights, np.zeros(5))) for ids, weights in rows]
    plain = batch_loss(model, pad(rows), autocast=False)
    padded = batch_loss(model, pad(longer), autocast=False)  # type: ignore[arg-type]
    assert torch.allclose(plain, padded, atol=1e-5)


@pytest.mark.parametrize("shape", [(3, 16, 16), (2, 8, 32), (2, 32, 8)])
def test_an_orthogonalised_matrix_has_singular_values_near_one(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    values = torch.linalg.svdvals(orthogonalised(torch.randn(shape)).float())
    assert values.min() > 0.3
    assert values.max() < 1.4


def test_the_exported_folder_is_loaded_by_transformers_with_the_same_logits(
    folder: Path, encoder: SessionEncoder, tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    trainer = trainer_in(folder, encoder)
    trainer.save()
    export(folder, tmp_path)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    tokens = torch.randint(0, encoder.vocab_size, (2, 40))
    ours = trainer.model
    ours.load_state_dict({k: v.bfloat16().float() for k, v in ours.state_dict().items()})
    with torch.no_grad():
        wanted = theirs(tokens).logits
        found = ours.logits(ours.hidden(tokens))
    assert torch.allclose(found, wanted, atol=1e-4)
    assert len(AutoTokenizer.from_pretrained(tmp_path)) == encoder.vocab_size
