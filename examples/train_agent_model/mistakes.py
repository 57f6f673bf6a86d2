"""What a model gets wrong turn by turn, the right history given, sorted by where a turn goes wrong.

    python -m examples.train_agent_model.mistakes --sessions 400 --show

Says in a minute what whole episodes (``evaluate``) do not: which choice is not learned yet.
"""

import argparse
import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer

from examples.train_agent_model.generator import SessionGenerator
from examples.train_agent_model.model import AgentModel, shape_of
from examples.train_agent_model.rendering import SessionEncoder, session_parts

NAME = '{"name": "'
ARGUMENTS = '", "arguments": '


class Place(StrEnum):
    """Where in a turn its first wrong token is."""

    CALL_OR_ANSWER = "call or answer"
    NAME_BEGIN = "first token of a tool's name"
    NAME_REST = "later token of a tool's name"
    PARAMETER = "name of a parameter"
    VALUE_BEGIN = "how a value begins"
    VALUE = "later token of a value, or its end"
    AFTER_VALUE = "what comes after a value"
    AROUND = "how many calls"
    ANSWER = "answer"


_KEY = r'"[^"]*": '
_BEFORE = rf'{{(?:{_KEY}(?:"[^"]*"|[^",}}]+), )*'
"""A call's arguments up to a name."""

PLACES = tuple(
    (re.compile(pattern), place)
    for pattern, place in (
        (rf'(?:{_BEFORE}(?:"[^"]*"?:?)?)?', Place.PARAMETER),
        (rf'{_BEFORE}{_KEY}"?', Place.VALUE_BEGIN),
        (rf'{_BEFORE}{_KEY}(?:"[^"]+|[^",}}]+)', Place.VALUE),
        (rf'{_BEFORE}{_KEY}"[^"]*"', Place.AFTER_VALUE),
        (rf'{_BEFORE}{_KEY}(?:"[^"]*"|[^",}}]+),', Place.PARAMETER),
    )
)
"""What comes next, by how the arguments begin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One turn of the assistant as the model would write it, each token after the right ones."""

    is_call: bool
    wanted: str
    wrong_at: int | None
    """Where in ``wanted`` the first wrong token begins; None: all are right."""

    said: str
    """That token, or empty."""

    @property
    def place(self) -> Place | None:
        """Where the turn goes wrong; None where it does not."""
        if self.wrong_at is None:
            return None
        if self.wrong_at == 0:
            return Place.CALL_OR_ANSWER
        return place_in_call(self.wanted[: self.wrong_at]) if self.is_call else Place.ANSWER


def place_in_call(before: str) -> Place:
    """Say what comes after the beginning ``before`` of a turn of calls."""
    call = before.rpartition("<tool_call>")[2]
    name, told, arguments = call.partition(ARGUMENTS)
    if not told:
        if not name.startswith(f"\n{NAME}"):
            return Place.AROUND
        return Place.NAME_BEGIN if name.endswith(NAME) else Place.NAME_REST
    for pattern, place in PLACES:
        if pattern.fullmatch(arguments):
            return place
    return Place.AROUND


@torch.no_grad()
def forced_turns(
    model: AgentModel,
    encoder: SessionEncoder,
    sessions: int,
    *,
    seed: int | str = "forced",
    plain_share: float = 0.0,
) -> Iterator[Turn]:
    """Yield the turns of held-out sessions of four questions, always the same sessions.

    Args:
        plain_share: of results that are a bare value and no JSON.
    """
    generator = SessionGenerator(seed, held_out=True, plain_share=plain_share)
    for _ in range(sessions):
        session = encoder.encode(session_parts(generator.session(num_questions=4)))
        ids, weights = session.ids, session.weights
        tokens = torch.from_numpy(ids).long()[None].to(model.model.embed_tokens.weight.device)
        best = model.logits(model.hidden(tokens))[0].argmax(-1).cpu().numpy()
        edges = np.flatnonzero(np.diff((weights > 0).astype(np.int8), prepend=0, append=0))
        for start, stop in edges.reshape(-1, 2):
            wrong = np.flatnonzero(best[start - 1 : stop - 1] != ids[start:stop])
            first = start + wrong[0] if len(wrong) else stop
            yield Turn(
                is_call=bool(ids[start] == encoder.call_id),
                wanted=encoder.text(ids[start:stop]),
                wrong_at=len(encoder.text(ids[start:first])) if len(wrong) else None,
                said=encoder.text(best[first - 1 : first]) if len(wrong) else "",
            )


def forced_scores(model: AgentModel, encoder: SessionEncoder, sessions: int) -> dict[str, float]:
    """Return the shares of calling and of answering turns that are wholly right."""
    right: dict[str, list[bool]] = {"call": [], "answer": []}
    for turn in forced_turns(model, encoder, sessions):
        right["call" if turn.is_call else "answer"].append(turn.wrong_at is None)
    return {kind: sum(hits) / max(1, len(hits)) for kind, hits in right.items()}


def load_model(folder: Path) -> AgentModel:
    """Load an exported model in float32."""
    model = AgentModel(shape_of(folder), seed=0)
    weights = load_file(folder / "model.safetensors")
    model.load_state_dict({name: weight.float() for name, weight in weights.items()})
    return model


def main() -> None:
    """Read the command line and print the counts as JSON."""
    parser = argparse.ArgumentParser(description="Sort the wrong turns of held-out sessions.")
    parser.add_argument("--model", type=Path, default=Path("runtime/assets/default_model"))
    parser.add_argument("--sessions", type=int, default=400)
    parser.add_argument("--seed", default="forced", help="of the sessions")
    parser.add_argument(
        "--plain-share", type=float, default=0.0, help="of results that are no JSON but a value"
    )
    parser.add_argument("--show", action="store_true", help="each wrong turn, too")
    options = parser.parse_args()
    encoder = SessionEncoder(Tokenizer.from_file(str(options.model / "tokenizer.json")))
    places: Counter[str] = Counter()
    turns = 0
    for turn in forced_turns(
        load_model(options.model),
        encoder,
        options.sessions,
        seed=options.seed,
        plain_share=options.plain_share,
    ):
        turns += 1
        if turn.place is None:
            continue
        places[turn.place.value] += 1
        if options.show:
            at = turn.wrong_at
            print(f"{turn.place}: {turn.wanted[:at]!r} then {turn.said!r}, {turn.wanted[at:]!r}")
    counts = {"turns": turns, "wrong": places.total(), "places": dict(places.most_common())}
    print(json.dumps(counts))


if __name__ == "__main__":
    main()
