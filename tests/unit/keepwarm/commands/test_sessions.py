"""The front end's small modules: the served model, and what a connection asks for."""

from dataclasses import fields

from runtime.messages import CancelRequest, ReleaseBranch
from sessions.turns.effects import Effects, Outbox, Question, RequestIdFreed, SessionGranted, Work
from sessions.turns.service import ServedModel
from tests.support.sessions_rig import TOKENIZER, Rig
from tools_api.grammar import GrammarSpec


def test_the_longest_token_bounds_how_few_tokens_a_text_can_have() -> None:
    model: ServedModel = Rig().model
    texts = [TOKENIZER.token_bytes(token) for token in range(TOKENIZER.vocab_size)]
    assert model.longest_token_bytes == max(map(len, texts)) > 1


def test_a_model_answers_to_its_name_and_its_aliases() -> None:
    assert Rig().model.aliases == {"default", "m"}


def test_everything_that_gathered_comes_out_in_its_order() -> None:
    outbox = Outbox()
    outbox.frames += [b"1", b"2"]
    outbox.requests += [CancelRequest(request_id="r"), ReleaseBranch(branch_id="s")]
    questions = (Question("c", GrammarSpec(lark="start: /x/")), Question("p", Work(dict)))
    outbox.questions += questions
    outbox.withdrawn.append("d")
    outbox.notes.append(RequestIdFreed("q"))
    outbox.others.append(SessionGranted("conn_2", "e"))
    assert outbox.collect(1012) == Effects(
        frames=(b"1", b"2"),
        requests=(CancelRequest(request_id="r"), ReleaseBranch(branch_id="s")),
        questions=questions,
        withdrawn=("d",),
        notes=(RequestIdFreed("q"),),
        others=(SessionGranted("conn_2", "e"),),
        close=1012,
    )
    assert outbox.collect(None) == Effects()


def test_nothing_gathered_is_no_effect() -> None:
    assert Outbox().collect(None) == Effects()


def test_an_outbox_holds_every_kind_of_effect() -> None:
    gathered = [field.name for field in fields(Outbox)]
    assert (*gathered, "close") == Effects._fields
