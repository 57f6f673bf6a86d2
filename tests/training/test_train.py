"""Training of the default model: it learns, and an interruption changes nothing."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch
from safetensors.torch import load_file, save_file

from examples.train_agent_model.batches import pad
from examples.train_agent_model.curriculum import PRACTICE, STAGES
from examples.train_agent_model.export import export
from examples.train_agent_model.generator import SessionGenerator
from examples.train_agent_model.model import PROBES, AgentModel, ModelShape, Probes, shape_of
from examples.train_agent_model.optimizer import orthogonalised
from examples.train_agent_model.rendering import (
    NO_LABEL,
    Encoded,
    Label,
    SessionEncoder,
    session_parts,
)
from examples.train_agent_model.tokenizer import save_tokenizer, train_tokenizer
from examples.train_agent_model.train import main
from examples.train_agent_model.trainer import (
    WARM_UP_STEPS,
    Trainer,
    batch_loss,
    grown,
    learning_scale,
    whole_loss,
)
from tests.support.clock import FakeClock

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
    shape = ModelShape(vocab_size=encoder.vocab_size, **SMALL)
    return Trainer(folder, shape, encoder, seed=1, stages=STAGES, clock=FakeClock(tick_s=1.0))


@pytest.mark.slow
def test_the_loss_falls_under_four_within_150_steps(folder: Path, encoder: SessionEncoder) -> None:
    trainer = trainer_in(folder, encoder)
    generator = SessionGenerator("smoke", held_out=True)
    sessions = pad([encoder.encode(session_parts(generator.session(level=0))) for _ in range(8)])
    with torch.no_grad():
        before = batch_loss(trainer.model, trainer.probes, sessions, autocast=False)[0].item()
    trainer.stage = 1
    while trainer.step < 150:
        trainer.run_pool(budget_s=1e9, autocast=False)
    with torch.no_grad():
        after = batch_loss(trainer.model, trainer.probes, sessions, autocast=False)[0].item()
    assert before > 6
    assert after < 4


@pytest.mark.slow
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
    probes = whole.probes.state_dict()
    for name, weight in second.probes.state_dict().items():
        assert torch.equal(weight, probes[name]), name
    assert probes["readers.known.direction"].abs().max() > 0
    assert second.probe_losses == whole.probe_losses
    assert second.seconds == whole.seconds


@pytest.mark.slow
def test_practice_begins_from_a_model_with_its_own_clock_and_rate(
    folder: Path, encoder: SessionEncoder, tmp_path: Path
) -> None:
    first = trainer_in(folder, encoder)
    first.run_pool(budget_s=BUDGET_S, autocast=False)
    first.save()
    export(folder, tmp_path / "model")
    before = load_file(tmp_path / "model" / "model.safetensors")
    moved = {}
    for rate in (0.0, 0.2):
        second = Trainer(
            tmp_path,
            shape_of(tmp_path / "model"),
            encoder,
            seed=1,
            rate=rate,
            decay_share=1.0,
            stages=(PRACTICE,),
            clock=FakeClock(tick_s=1.0),
        )
        second.begin_from(tmp_path / "model")
        assert (second.seconds, second.stage, second.step) == (0.0, 0, 0)
        second.run_pool(budget_s=BUDGET_S, autocast=False)
        moved[rate] = any(
            not torch.equal(weight, before[name].float())
            for name, weight in second.model.state_dict().items()
        )
    assert moved == {0.0: False, 0.2: True}


def test_a_grown_model_says_what_it_said_before_and_all_of_it_learns(
    encoder: SessionEncoder,
) -> None:
    tokens = torch.arange(40)[None]
    small = AgentModel(ModelShape(vocab_size=encoder.vocab_size, **SMALL), seed=0)
    shape = ModelShape(vocab_size=encoder.vocab_size, **SMALL | {"num_hidden_layers": 4})
    large = AgentModel(shape, seed=1)
    large.load_state_dict(grown(small.state_dict(), [1, 2]))
    # The layers that were there, in their order, and the new ones between them.
    for place, was in ((0, 0), (2, 1)):
        mine = large.model.layers[place].state_dict()
        for name, weight in small.model.layers[was].state_dict().items():
            assert torch.equal(mine[name], weight)
    assert torch.equal(large.hidden(tokens), small.hidden(tokens))
    large.logits(large.hidden(tokens)).square().mean().backward()
    for place in (1, 3):
        layer = large.model.layers[place]
        for weight in (layer.self_attn.o_proj.weight, layer.mlp.down_proj.weight):
            assert not weight.any()
            assert weight.grad.any()


@pytest.mark.parametrize(
    ("layers", "complaint"),
    [
        (["0"], "of the layers 1 to 7"),
        (["8"], "of the layers 1 to 7"),
        (["2", "2"], "each once"),
        ([], "needs --begin-from"),
    ],
)
def test_layers_that_are_not_there_cannot_be_grown_after(
    layers: list[str],
    complaint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    model = Path(__file__).parents[2] / "runtime/assets/default_model"
    begun = ["--begin-from", str(model)] if layers else []
    arguments = ["--folder", str(tmp_path), *begun, "--grow-after", *(layers or ["1"])]
    monkeypatch.setattr("sys.argv", ["train", *arguments])
    with pytest.raises(SystemExit):
        main()
    assert complaint in capsys.readouterr().err


def test_the_rate_falls_over_the_share_of_the_time_that_was_said() -> None:
    late = 10 * WARM_UP_STEPS
    assert learning_scale(0.3, late) == 1.0
    assert learning_scale(0.65, late) == pytest.approx(0.5)
    assert learning_scale(0.3, late, decay_share=1.0) == pytest.approx(0.7)
    assert learning_scale(0.99, late, decay_share=1.0) == pytest.approx(0.01)
    assert learning_scale(0.0, 0) == 1 / WARM_UP_STEPS


@pytest.mark.slow
def test_the_mean_over_the_last_steps_is_kept_and_exported(
    encoder: SessionEncoder, folder: Path, tmp_path: Path
) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copyfile(folder / name, tmp_path / name)
    trainer = trainer_in(tmp_path, encoder)
    before = {name: weight.clone() for name, weight in trainer.model.state_dict().items()}
    trainer.run_pool(budget_s=BUDGET_S, autocast=False)
    mean = trainer.mean.state_dict()
    for name, weight in trainer.model.state_dict().items():
        behind, moved = (weight - mean[name]).norm(), (weight - before[name]).norm()
        assert 0 < behind < moved / 2, name
    trainer.save()
    again = trainer_in(tmp_path, encoder)
    assert again.resume()
    export(tmp_path, tmp_path / "model")
    for name, weight in load_file(tmp_path / "model" / "model.safetensors").items():
        assert torch.equal(again.mean.state_dict()[name], mean[name])
        assert torch.equal(weight, mean[name].bfloat16()), name
    other = Path(__file__).parents[2] / "runtime/assets/default_model"
    with pytest.raises(ValueError, match="has another shape"):
        export(tmp_path, tmp_path / "none", other)
    first = {name: weight.bfloat16() for name, weight in before.items()}
    shutil.copytree(tmp_path / "model", tmp_path / "other")
    save_file(first, tmp_path / "other" / "model.safetensors")
    export(tmp_path, tmp_path / "both", tmp_path / "other")
    for name, weight in load_file(tmp_path / "both" / "model.safetensors").items():
        assert torch.equal(weight, ((mean[name] + first[name].float()) / 2).bfloat16()), name


def test_hard_sessions_have_more_tools_and_come_last() -> None:
    means = []
    for hard in (False, True):
        generator = SessionGenerator("hard", held_out=False, hard=hard)
        sessions = [generator.session() for _ in range(300)]
        verbs = [{tool.name.split("_")[0] for tool in s.tools} for s in sessions]
        means.append([np.mean([len(s.tools) for s in sessions]), np.mean([len(v) for v in verbs])])
    assert means[1][0] > means[0][0] + 0.7
    assert means[1][1] > means[0][1] + 0.7
    assert PRACTICE.hard
    assert [stage.hard for stage in STAGES] == sorted(stage.hard for stage in STAGES)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_learns_what_a_cpu_learns_and_each_goes_on_from_the_other(
    encoder: SessionEncoder, tmp_path: Path
) -> None:
    shape = ModelShape(vocab_size=encoder.vocab_size, **SMALL)
    losses = {}
    for name in ("cuda", "cpu"):
        device = torch.device(name)
        trainer = Trainer(tmp_path, shape, encoder, seed=1, stages=(PRACTICE,), device=device)
        trainer.run_pool(budget_s=1e9, autocast=False)
        losses[name] = trainer.loss
        trainer.save()
        other = torch.device("cpu" if name == "cuda" else "cuda")
        after = Trainer(tmp_path, shape, encoder, seed=1, stages=(PRACTICE,), device=other)
        assert after.resume()
        after.run_pool(budget_s=1e9, autocast=False)
        assert after.model.model.embed_tokens.weight.device.type == other.type
        (tmp_path / "checkpoint.pt").unlink()
    assert losses["cuda"] == pytest.approx(losses["cpu"], rel=0.02)


def test_there_is_nothing_to_resume_in_an_empty_folder(
    encoder: SessionEncoder, tmp_path: Path
) -> None:
    assert not trainer_in(tmp_path, encoder).resume()


def test_unweighted_tokens_do_not_change_the_loss(encoder: SessionEncoder) -> None:
    shape = ModelShape(vocab_size=encoder.vocab_size, **SMALL)
    model, probes = AgentModel(shape, seed=0), Probes(shape)
    for weight in probes.parameters():
        torch.nn.init.normal_(weight)
    generator = SessionGenerator(4, held_out=True, hard=True)
    rows = (encoder.encode(session_parts(generator.session(num_questions=6))) for _ in range(100))
    row = next(row for row in rows if all((v != NO_LABEL).any() for v in row.labels.values()))
    longer = Encoded(
        ids=np.append(row.ids, row.ids[:5]),
        weights=np.append(row.weights, np.zeros(5, np.float32)),
        labels={k: np.append(v, np.full(5, NO_LABEL, np.int32)) for k, v in row.labels.items()},
    )
    loss, read = batch_loss(model, probes, pad([row]), autocast=False)
    other, read_too = batch_loss(model, probes, pad([longer]), autocast=False)
    assert torch.allclose(loss, other, atol=1e-5)
    assert read.keys() == read_too.keys() == set(Label)
    for label, value in read.items():
        assert torch.allclose(value, read_too[label], atol=1e-5)


@pytest.mark.parametrize("only_read", [True, False])
def test_probes_that_only_read_leave_no_gradient_in_the_network(
    encoder: SessionEncoder, *, only_read: bool
) -> None:
    shape = ModelShape(vocab_size=encoder.vocab_size, **SMALL)
    model, probes = AgentModel(shape, seed=0), Probes(shape)
    generator = SessionGenerator(4, held_out=True, hard=True)
    rows = [encoder.encode(session_parts(generator.session(num_questions=6))) for _ in range(8)]
    _, read = batch_loss(model, probes, pad(rows), autocast=False, only_read=only_read)
    assert read.keys() == set(Label)
    sum(read.values()).backward()  # type: ignore[union-attr, no-untyped-call]
    assert all((p.grad is None) == only_read for p in model.model.layers[0].parameters())
    assert all(p.grad is not None for p in probes.parameters())


@pytest.mark.slow
def test_a_new_probe_only_reads_for_the_steps_that_were_said(
    encoder: SessionEncoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[bool] = []

    def noted(*arguments: Any, only_read: bool, **options: Any) -> Any:
        said.append(only_read)
        return batch_loss(*arguments, only_read=only_read, **options)

    monkeypatch.setattr("examples.train_agent_model.trainer.batch_loss", noted)
    shape = ModelShape(vocab_size=encoder.vocab_size, **SMALL)
    trainer = Trainer(tmp_path, shape, encoder, seed=1, reading_steps=2, stages=(PRACTICE,))
    trainer.run_pool(budget_s=1e9, autocast=False)
    assert said == [True, True] + [False] * (len(said) - 2)
    assert len(said) > 3


def test_each_labels_loss_is_weighed_in_what_is_learned() -> None:
    alone = {label: torch.tensor(float(place)) for place, label in enumerate(Label, 1)}
    wanted = 0.5 + sum(PROBES[label][2] * value.item() for label, value in alone.items())
    assert whole_loss(torch.tensor(0.5), alone).item() == pytest.approx(wanted)
    assert whole_loss(torch.tensor(0.5), {}).item() == 0.5
    assert all(weight > 0 for _, _, weight in PROBES.values())


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
