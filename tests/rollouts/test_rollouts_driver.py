"""The engine as coroutines see it: many waiters, one driver."""

from __future__ import annotations

import asyncio

import pytest
import torch
from rollout_helpers import CONTEXT, PAD, RAGGED, requests, run
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from reinlm.errors import InputError, RunError
from reinlm.rollouts.hf_engine import HFEngine
from reinlm.rollouts.protocol import Completion, Request, Sampling

SAMPLING = Sampling(max_new_tokens=9, temperature=1.5, stop_token_ids=tuple(range(60, 90)))


@pytest.fixture
def engine(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> HFEngine:
    return HFEngine(model, tokenizer, pad_id=PAD, max_batch=4)


async def all_of(engine: HFEngine, asked: list[Request]) -> list[Completion | BaseException]:
    return await asyncio.gather(*(engine.generate(request) for request in asked), return_exceptions=True)


def test_awaited_together_answers_have_the_bits_of_those_submitted_together(engine: HFEngine) -> None:
    asked = requests(SAMPLING, samples=3)
    reference = run(engine, asked)
    assert asyncio.run(all_of(engine, asked)) == [reference[request.id] for request in asked]
    assert asyncio.run(all_of(engine, asked)) == [reference[request.id] for request in asked]  # on another loop


def test_other_coroutines_run_between_two_tokens(engine: HFEngine) -> None:
    async def main() -> int:
        answer = asyncio.ensure_future(engine.generate(Request("a", (5, 6, 7), Sampling(max_new_tokens=8))))
        turns = 0
        while not answer.done():
            turns += 1
            await asyncio.sleep(0)
        return turns

    assert asyncio.run(main()) >= 8


def test_a_completion_is_handed_on_while_others_are_written(engine: HFEngine) -> None:
    async def main() -> list[str]:
        ended = []

        async def one(name: str, length: int) -> None:
            await engine.generate(Request(name, (5, 6, 7), Sampling(max_new_tokens=length)))
            ended.append(f"{name} of {engine.in_flight + 1}")

        await asyncio.gather(one("long", 9), one("short", 2), one("middle", 5))
        return ended

    assert asyncio.run(main()) == ["short of 3", "middle of 2", "long of 1"]


def test_an_error_in_a_step_reaches_everybody_who_waits_and_leaves_an_engine_that_works(
    model: PreTrainedModel, engine: HFEngine
) -> None:
    reference = run(engine, requests(SAMPLING))
    kept = model.lm_head.weight.detach().clone()
    with torch.no_grad():
        model.lm_head.weight.fill_(float("nan"))
    errors = asyncio.run(all_of(engine, requests(SAMPLING)))
    assert [type(error) for error in errors] == [RunError] * len(RAGGED)
    assert all("not finite" in str(error) for error in errors)
    with torch.no_grad():
        model.lm_head.weight.copy_(kept)
    asked = requests(SAMPLING)
    assert asyncio.run(all_of(engine, asked)) == [reference[request.id] for request in asked]


def test_a_request_that_is_refused_fails_alone(engine: HFEngine) -> None:
    fine, wrong = Request("fine", (5, 6, 7), SAMPLING), Request("long", tuple(range(CONTEXT)), SAMPLING)
    answer, error, twice = asyncio.run(all_of(engine, [fine, wrong, fine]))
    assert isinstance(answer, Completion)
    assert isinstance(error, InputError)
    assert "'long': a prompt of 48 tokens" in str(error)
    assert isinstance(twice, InputError)
    assert "'fine' is in flight already" in str(twice)


def test_cancelling_a_call_aborts_its_request_alone(engine: HFEngine) -> None:
    asked = requests(Sampling(max_new_tokens=9, temperature=1.5))
    reference = run(engine, asked)

    async def main() -> list[Completion | BaseException]:
        calls = [asyncio.ensure_future(engine.generate(request)) for request in asked]
        while engine.in_flight < len(asked):
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        calls[1].cancel()  # one that is being written
        calls[5].cancel()  # and one that waits for room
        await asyncio.sleep(0)
        assert engine.in_flight == len(asked) - 2
        return await asyncio.gather(*calls, return_exceptions=True)

    answers = asyncio.run(main())
    assert [type(answer) for answer in answers] == [
        asyncio.CancelledError if place in (1, 5) else Completion for place in range(len(asked))
    ]
    kept = [answer for answer in answers if isinstance(answer, Completion)]
    assert [a.token_ids.tolist() for a in kept] == [reference[a.id].token_ids.tolist() for a in kept]
    assert engine.in_flight == 0


def test_the_end_of_the_loop_takes_back_what_is_in_flight(engine: HFEngine) -> None:
    async def main() -> None:
        asyncio.ensure_future(engine.generate(Request("a", (5, 6, 7), SAMPLING)))  # noqa: RUF006 - left behind
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert engine.in_flight == 1

    asyncio.run(main())
    assert engine.in_flight == 0


def test_requests_submitted_past_the_driver_are_refused_beside_it(engine: HFEngine) -> None:
    engine.submit([Request("other", (1,), SAMPLING)])
    with pytest.raises(RunError, match="1 other requests in flight"):
        asyncio.run(engine.generate(Request("a", (5,), SAMPLING)))
    assert engine.in_flight == 1
