"""The front end's small modules: the served model, and what a connection asks for."""

from dataclasses import fields

from runtime.messages import CancelRequest, ReleaseBranch
from sessions.turns.effects import Effects, GrammarCheck, Outbox, Planning
from sessions.turns.intake import Waiting
from sessions.turns.jobs import Job, Jobs
from sessions.turns.lanes import Lanes
from sessions.turns.service import ServedModel
from sessions.turns.turn_plan import TurnPlan
from tests.support.sessions_rig import TOKENIZER, Rig
from tools_api.grammar import GrammarSpec
from tools_api.requests import CreateRequest


def test_the_longest_token_bounds_how_few_tokens_a_text_can_have() -> None:
    model: ServedModel = Rig().model
    texts = [TOKENIZER.token_bytes(token) for token in range(TOKENIZER.vocab_size)]
    assert model.longest_token_bytes == max(map(len, texts)) > 1


def test_a_model_answers_to_its_name_and_its_aliases() -> None:
    assert Rig().model.aliases == {"default", "m"}


def test_everything_that_gathered_comes_out_in_its_order() -> None:
    def work() -> TurnPlan:
        raise NotImplementedError

    outbox = Outbox()
    outbox.frames += [b"1", b"2"]
    outbox.requests += [CancelRequest(request_id="r"), ReleaseBranch(branch_id="s")]
    outbox.grammar_checks.append(GrammarCheck(check_id="c", spec=GrammarSpec(lark="start: /x/")))
    outbox.withdrawn_checks.append("d")
    planning = Planning(planning_id="p", work=work)
    outbox.plannings.append(planning)
    outbox.wake.append("conn_2")
    assert outbox.take(1012) == Effects(
        frames=(b"1", b"2"),
        requests=(CancelRequest(request_id="r"), ReleaseBranch(branch_id="s")),
        grammar_checks=(GrammarCheck(check_id="c", spec=GrammarSpec(lark="start: /x/")),),
        withdrawn_checks=("d",),
        plannings=(planning,),
        wake=("conn_2",),
        close=1012,
    )
    assert outbox.take(None) == Effects()


def test_nothing_gathered_is_no_effect() -> None:
    assert Outbox().take(None) == Effects()


def test_an_outbox_holds_every_kind_of_effect() -> None:
    gathered = {field.name for field in fields(Outbox)}
    assert gathered | {"close"} == {field.name for field in fields(Effects)}


def test_a_job_is_found_by_what_each_caller_knows_of_it() -> None:
    lanes: Lanes[Waiting] = Lanes(max_names=2, max_active=2)
    jobs = Jobs()
    made = []
    for name in ("a", "b"):
        lane = lanes.find(name)
        assert lane is not None
        job = Job(lane=lane, request=CreateRequest(), num_bytes=1, arrival_s=0.0, check_id=name)
        jobs.add(job)
        jobs.sent(job, f"request_{name}")
        made.append(job)
    assert list(jobs) == made
    assert jobs.of_request("request_b") is jobs.of_check("b") is jobs.in_lane("b") is made[1]
    assert jobs.of_response("resp_1") is None
    jobs.withdrawn("request_b")
    for job in jobs:
        jobs.remove(job)
    assert jobs.of_request("request_b") is jobs.of_check("a") is jobs.in_lane("a") is None
