"""One training run: the losses, the step, and what is kept to go on from.

``Trainer`` knows batches and weights; how long to train and what to show meanwhile is the
business of ``train``.
"""

import copy
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

from examples.train_agent_model.batches import Batch, Stage, batches
from examples.train_agent_model.model import PROBES, AgentModel, ModelShape, Probes
from examples.train_agent_model.optimizer import MuonAdamW
from examples.train_agent_model.peers import Peers
from examples.train_agent_model.rendering import Label, SessionEncoder
from examples.train_agent_model.shards import rows_of

WARM_UP_STEPS = 50
DECAY_SHARE = 0.7

LONGEST_STEP_S = 2.0
"""What a step counts at most: a machine that stalls must not use up the schedule."""

READING_STEPS = 4000
"""Of a practice that begins from a model, the steps in which its new probes only learn to read: as
long as they do not, their losses are many times that of the tokens, and would change what works."""

MEAN_SHARE = 0.1
"""Share of the steps so far over which ``Trainer.mean`` is taken, roughly."""

ALONE = Peers()
CPU = torch.device("cpu")


def batch_loss(
    model: AgentModel, probes: Probes, batch: Batch, *, autocast: bool, only_read: bool = False
) -> tuple[Tensor, dict[Label, Tensor]]:
    """Return mean losses: of predicting each weighted token from those before it, and of what the
    probes say at the tokens that are labelled, with ``only_read`` as in ``Probes.losses``."""
    weights = batch.weights[:, 1:].reshape(-1)
    chosen = weights.nonzero().squeeze(1)
    with torch.autocast(batch.tokens.device.type, dtype=torch.bfloat16, enabled=autocast):
        hidden, streams = model.hidden_and_streams(batch.tokens[:, :-1])
        logits = model.logits(hidden.flatten(0, 1)[chosen])
        labels = {label: values[:, :-1] for label, values in batch.labels.items()}
        embedding = model.model.embed_tokens.weight
        read = probes.losses(streams, labels, embedding, only_read=only_read)
    losses = F.cross_entropy(logits, batch.tokens[:, 1:].reshape(-1)[chosen], reduction="none")
    return (losses * weights[chosen]).sum() / weights[chosen].sum(), read


def whole_loss(loss: Tensor, read: dict[Label, Tensor]) -> Tensor:
    """Add the losses of labels to that of the tokens, each with its weight."""
    return sum((PROBES[label][2] * value for label, value in read.items()), loss)


def learning_scale(progress: float, step: int, decay_share: float = DECAY_SHARE) -> float:
    """Return the factor on the learning rates: warm-up, plateau, linear decay."""
    return min(1.0, (step + 1) / WARM_UP_STEPS, max(0.01, (1 - progress) / decay_share))


def grown(weights: dict[str, Tensor], after: Sequence[int]) -> dict[str, Tensor]:
    """Put a layer after each of the layers ``after``, numbered from 1: the same again, but begun
    without effect on the output (stacking: Gong et al. 2019, proceedings.mlr.press/v97)."""
    prefix = "model.layers."
    deeper = {name: w for name, w in weights.items() if not name.startswith(prefix)}
    for name, weight in weights.items():
        if name.startswith(prefix):
            number, _, rest = name.removeprefix(prefix).partition(".")
            place = int(number) + sum(place <= int(number) for place in after)
            deeper[f"{prefix}{place}.{rest}"] = weight
            if int(number) + 1 in after:
                silent = rest in ("self_attn.o_proj.weight", "mlp.down_proj.weight")
                fresh = torch.zeros_like(weight) if silent else weight.clone()
                deeper[f"{prefix}{place + 1}.{rest}"] = fresh
    return deeper


class Trainer:
    """One training run in one folder."""

    def __init__(
        self,
        folder: Path,
        shape: ModelShape,
        encoder: SessionEncoder,
        *,
        seed: int,
        rate: float = 1.0,
        decay_share: float = DECAY_SHARE,
        reading_steps: int = 0,
        stages: tuple[Stage, ...],
        peers: Peers = ALONE,
        device: torch.device = CPU,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """
        Args:
            rate: where the learning rates begin, as a share of their usual ones.
            decay_share: the share of the time in which they fall.
            reading_steps: so many steps at first in which the probes only learn to read.
            peers: the processes that train this model together.
            device: where the weights are.
        """
        self.folder, self.encoder, self.seed, self._clock = folder, encoder, seed, clock
        self._rate, self._decay_share, self._stages = rate, decay_share, stages
        self._reading_steps = reading_steps
        self.peers, self.device = peers, device
        self.model = AgentModel(shape, seed=seed).to(device)
        self.mean = copy.deepcopy(self.model).requires_grad_(requires_grad=False)
        """The mean of the weights over the last steps, which is what is exported: while the rate
        is high it makes fewer mistakes than the weights of one step
        (docs/log/default-model.md)."""
        self.probes = Probes(shape).to(device)
        self._both = nn.ModuleList([self.model, self.probes])
        self.optimizer = MuonAdamW(self._both, muon_lr=0.02, adamw_lr=2e-3)
        self.step = self.pool = self.stage = self.tokens = 0
        self.seconds, self.loss = 0.0, 10.0
        self._uncounted_s = 0.0
        """What the last step took; counted when all processes meet in the next."""
        self.probe_losses = dict.fromkeys(Label, 1.0)

    def save(self) -> None:
        """Write the checkpoint; an interrupted write leaves the old one."""
        state = {
            "shape": asdict(self.model.shape),
            "model": self.model.state_dict(),
            "mean": self.mean.state_dict(),
            "probes": self.probes.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "position": [self.step, self.pool, self.stage, self.tokens],
            "meters": [self.seconds, self._uncounted_s, self.loss],
            "probe_losses": {label.value: loss for label, loss in self.probe_losses.items()},
        }
        torch.save(state, self.folder / "checkpoint.tmp")
        os.replace(self.folder / "checkpoint.tmp", self.folder / "checkpoint.pt")

    def begin_from(self, folder: Path, grown_after: Sequence[int] = ()) -> None:
        """Take over the weights of an exported model, whose shape but for the depth is this one's.

        Args:
            grown_after: numbers of its layers, from 1 on, after each of which one is put in.
        """
        weights = {k: w.float() for k, w in load_file(folder / "model.safetensors").items()}
        for model in (self.model, self.mean):
            model.load_state_dict(grown(weights, grown_after))

    def resume(self) -> bool:
        """Take over the folder's checkpoint, if there is one."""
        path = self.folder / "checkpoint.pt"
        if not path.exists():
            return False
        self._take(path)
        return True

    def _take(self, path: Path) -> None:
        state = torch.load(path, weights_only=True, map_location=self.device)
        self.model.load_state_dict(state["model"])
        self.mean.load_state_dict(state["mean"])
        self.probes.load_state_dict(state["probes"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step, self.pool, self.stage, self.tokens = state["position"]
        self.seconds, self._uncounted_s, self.loss = state["meters"]
        self.probe_losses = {Label(k): loss for k, loss in state["probe_losses"].items()}

    def run_pool(self, *, budget_s: float, autocast: bool) -> None:
        """Train on one pool of sessions and move the position past it."""
        while self._stage_is_over(self.seconds / budget_s):
            self.stage, self.pool = self.stage + 1, 0
            self.loss = 10.0
        stage, peers, at = self._stages[self.stage], self.peers, (self.stage, self.pool)
        rows = rows_of(self.folder, self.encoder, self._stages, self.seed, at)
        made = batches(
            rows,
            stage,
            self.encoder.vocab_size,
            (self.seed, *at),
            share=peers.rank,
            shares=peers.count,
        )
        for batch in made:
            started = self._clock()
            loss, read = batch_loss(
                self.model,
                self.probes,
                batch.to(self.device),
                autocast=autocast,
                only_read=self.step < self._reading_steps,
            )
            whole_loss(loss, read).backward()  # type: ignore[no-untyped-call]
            mean_loss = self._meet(batch, loss)
            scale = learning_scale(self.seconds / budget_s, self.step, self._decay_share)
            self.optimizer.step(self._rate * scale)
            if batch.drill == (stage.drill_share > 0.5):
                self.loss += 0.03 * (mean_loss - self.loss)
            if not batch.drill:
                for label, value in read.items():
                    self.probe_losses[label] += 0.03 * (value.item() - self.probe_losses[label])
            self.step += 1
            self._take_mean()
            self._uncounted_s += min(self._clock() - started, LONGEST_STEP_S)
        self.pool += 1

    @torch.no_grad()
    def _take_mean(self) -> None:
        share = 1 / max(1.0, MEAN_SHARE * self.step)
        for mean, weight in zip(self.mean.parameters(), self.model.parameters(), strict=True):
            mean.lerp_(weight, share)

    def _meet(self, batch: Batch, loss: Tensor) -> float:
        """Average the gradients over all processes, count tokens and seconds, and return the mean
        loss: what the schedule follows is then the same in all."""
        gradients = []
        for parameter in self._both.parameters():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            gradients.append(parameter.grad)
        meters = torch.tensor(
            [batch.tokens.numel(), self._uncounted_s, loss.item()], device=self.device
        )
        self.peers.average([*gradients, meters])
        tokens, seconds, mean_loss = meters.tolist()
        self.tokens += round(tokens * self.peers.count)
        self.seconds += seconds
        self._uncounted_s = 0.0
        return float(mean_loss)

    def _stage_is_over(self, progress: float) -> bool:
        stage = self._stages[self.stage]
        return self.loss < stage.until_loss or progress > stage.latest_end
