"""vLLM in this process against the engine in_process and against distributions worked out in the test."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from vllm_helpers import CACHE, answers, assert_same, in_process, moved, tiny_policy

from reinlm.errors import InputError, RunError
from reinlm.models import LoraConfig, Policy
from reinlm.models.lora import adapted
from reinlm.rollouts import Request, Sampling, build_engine
from reinlm.rollouts.vllm_engine import VllmEngine

GREEDY = Sampling(max_new_tokens=12, temperature=0.0)
PROMPTS = [tuple(range(5 + i, 9 + 3 * i)) for i in range(6)]


def started(policy: Policy, **options: Any) -> VllmEngine:
    settings: dict[str, Any] = {"dtype": torch.float32, "enforce_eager": True, "max_running": 16} | options
    return VllmEngine(policy, **settings, engine_args={"kv_cache_memory_bytes": CACHE})


def requests(sampling: Sampling, prompts: list[tuple[int, ...]] = PROMPTS, seed: int = 0) -> list[Request]:
    return [Request(f"{number}", prompt, sampling, seed) for number, prompt in enumerate(prompts)]


@pytest.fixture(scope="module")
def policy() -> Policy:
    return tiny_policy()


@pytest.fixture(scope="module")
def engine(policy: Policy) -> VllmEngine:
    return started(policy)


@pytest.fixture(autouse=True)
def _nothing_left(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "engine" in request.fixturenames:
        assert request.getfixturevalue("engine").in_flight == 0


@pytest.mark.parametrize(("family", "tie"), [("qwen3", True), ("llama", False), ("gpt2", True)])
def test_greedy_answers_are_those_of_the_engine_in_process_and_follow_the_weights(family: str, tie: bool) -> None:
    policy = tiny_policy(family, tie=tie)
    engine, other = started(policy), in_process(policy)
    assert_same(answers(engine, requests(GREEDY)), answers(other, requests(GREEDY)))
    moved(policy)
    engine.update(None, 7)
    other.update(None, 7)
    changed = answers(other, requests(GREEDY))
    assert_same(answers(engine, requests(GREEDY)), changed)
    assert set(changed[0].columns["version"].tolist()) == {7}


def truncated(logits: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """The log-probabilities of the distribution that is sampled from, by definition."""
    logits = logits.double() / (sampling.temperature or 1.0)
    if sampling.top_k:
        logits = logits.masked_fill(logits < logits.topk(sampling.top_k).values[-1], -torch.inf)
    if sampling.top_p < 1.0:
        order = logits.argsort(descending=True)
        mass = logits.softmax(-1)[order]
        dropped = order[mass.cumsum(-1) - mass >= sampling.top_p]
        logits = logits.index_fill(0, dropped, -torch.inf)
    return logits.log_softmax(-1)


SETTINGS = {
    "plain": Sampling(24, 1.0),
    "temperature": Sampling(24, 0.7),
    "top_k": Sampling(24, 1.5, top_k=5),
    "top_p": Sampling(24, 1.3, top_p=0.8),
    "both": Sampling(24, 2.0, top_p=0.9, top_k=7),
    "greedy": Sampling(24, 0.0),
}


def test_log_probabilities_are_those_of_the_distribution_that_is_sampled_from(
    engine: VllmEngine, policy: Policy
) -> None:
    asked = [
        Request(f"{name}/{k}", PROMPTS[k], sampling) for name, sampling in SETTINGS.items() for k in range(len(PROMPTS))
    ]
    for request, found in zip(asked, answers(engine, asked), strict=True):
        ids = [*request.token_ids, *found.token_ids.tolist()]
        with torch.no_grad():
            logits = policy.model(torch.tensor([ids])).logits[0, len(request.token_ids) - 1 : -1]
        expected = [
            truncated(row, request.sampling)[token].item() for row, token in zip(logits, found.token_ids, strict=True)
        ]
        np.testing.assert_allclose(found.columns["rollout_logprobs"], expected, atol=1e-4, err_msg=request.id)


def test_tokens_are_drawn_with_their_probabilities(engine: VllmEngine, policy: Policy) -> None:
    sampling = Sampling(max_new_tokens=1, temperature=1.3, top_k=8)
    drawn = answers(engine, [Request(f"{number}", PROMPTS[0], sampling) for number in range(1000)])
    with torch.no_grad():
        expected = truncated(policy.model(torch.tensor([PROMPTS[0]])).logits[0, -1], sampling).exp()
    counts = np.bincount([int(one.token_ids[0]) for one in drawn], minlength=len(expected))
    assert np.abs(counts / 1000 - expected.numpy()).max() < 0.06  # 3.8 standard deviations at a half


def test_a_request_has_noise_of_its_own(engine: VllmEngine) -> None:
    sampling = Sampling(max_new_tokens=16, temperature=1.5)
    together = answers(engine, requests(sampling))
    alone = [answers(engine, [request])[0] for request in requests(sampling)]
    assert_same(together, alone)
    other_seed = answers(engine, requests(sampling, seed=1))
    assert [a.token_ids.tolist() for a in other_seed] != [a.token_ids.tolist() for a in together]
    other_name = answers(engine, [replace(requests(sampling)[0], id="another")])
    assert other_name[0].token_ids.tolist() != together[0].token_ids.tolist()


def test_answers_end_where_those_of_the_engine_in_process_end(engine: VllmEngine, policy: Policy) -> None:
    plain = answers(engine, requests(replace(GREEDY, max_new_tokens=30)))
    texts = [str(policy.tokenizer.decode(one.token_ids.tolist())) for one in plain]
    long = tuple(range(2, 40)) * 7
    until = replace(GREEDY, max_new_tokens=30)
    asked = [
        Request("context", long[:250], until),
        Request("length", PROMPTS[0], replace(GREEDY, max_new_tokens=1)),
    ]
    for number, (text, one) in enumerate(zip(texts, plain, strict=True)):
        by_string = replace(until, stop_strings=(text[5:8], "zzz"))
        by_token = replace(until, stop_token_ids=(int(one.token_ids[4]),))
        asked += [Request(f"string {number}", PROMPTS[number], by_string)]
        asked += [Request(f"token {number}", PROMPTS[number], by_token)]
    found = answers(engine, asked)
    assert_same(found, answers(in_process(policy), asked))
    assert {one.reason for one in found} == {"stop", "length", "context"}
    assert all(len(one.token_ids) < 30 for one in found)


def test_requests_that_cannot_be_answered_are_refused_by_name(engine: VllmEngine) -> None:
    for prompt, sampling, text in (
        ((), GREEDY, "empty prompt"),
        ((2,) * 256, GREEDY, "no room"),
        ((2, 999), GREEDY, "token 999 is outside"),
        ((2, 3), replace(GREEDY, stop_token_ids=(999,)), "stop token 999"),
        ((2, 3), replace(GREEDY, temperature=0.001), r"temperature 0\.001.*0\.01"),
    ):
        with pytest.raises(InputError, match=text):
            answers(engine, [Request("wrong", prompt, sampling)])
    with pytest.raises(InputError, match="in flight already"):
        answers(engine, [Request("twice", PROMPTS[0], GREEDY), Request("twice", PROMPTS[1], GREEDY)])


def test_a_cancelled_call_is_aborted_and_the_others_go_on(engine: VllmEngine, policy: Policy) -> None:
    async def cancelled() -> list[Any]:
        calls = [asyncio.create_task(engine.generate(request)) for request in requests(GREEDY)]
        while engine.in_flight < len(calls):
            await asyncio.sleep(0)
        calls[0].cancel()
        with pytest.raises(RunError, match="while it writes"):
            engine.update(None, 1)
        return await asyncio.gather(*calls, return_exceptions=True)

    first, *others = asyncio.run(cancelled())
    assert isinstance(first, asyncio.CancelledError)
    assert_same(others, answers(in_process(policy), requests(GREEDY))[1:])


def test_keys_and_values_of_the_weights_before_are_not_used(policy: Policy) -> None:
    policy = tiny_policy(context=512)
    engine, other = started(policy), in_process(policy)
    prompts = [tuple(range(2, 38)) * 9 + (5 + k,) for k in range(4)]  # several blocks of vLLM's cache
    answers(engine, requests(GREEDY, prompts))
    moved(policy)
    engine.update(None, 1)
    other.update(None, 1)
    assert_same(answers(engine, requests(GREEDY, prompts)), answers(other, requests(GREEDY, prompts)))


def test_an_adapter_is_taken_as_one(policy: Policy) -> None:
    pytest.importorskip("peft")
    policy = tiny_policy()
    policy = replace(policy, model=adapted(policy.model, LoraConfig(rank=4, alpha=8)))
    moved(policy, by=0.3)
    engine, other = started(policy), in_process(policy)
    before = answers(engine, requests(GREEDY))
    assert_same(before, answers(other, requests(GREEDY)))
    for version in (1, 2):
        moved(policy, seed=version + 1)
        engine.update(None, version)
        other.update(None, version)
        after = answers(engine, requests(GREEDY))
        assert_same(after, answers(other, requests(GREEDY)))
    assert [one.token_ids.tolist() for one in after] != [one.token_ids.tolist() for one in before]


def test_starting_vllm_leaves_random_numbers_and_threads_alone() -> None:
    policy = tiny_policy()
    states = random.getstate(), str(np.random.get_state()), torch.get_rng_state().tolist()
    set_threads, threads = torch.set_num_threads, torch.get_num_threads()
    started(policy)
    assert (random.getstate(), str(np.random.get_state()), torch.get_rng_state().tolist()) == states
    assert (torch.set_num_threads, torch.get_num_threads()) == (set_threads, threads)


def test_settings_that_vllm_cannot_honour_are_refused_by_name() -> None:
    policy = tiny_policy()
    for values, text in (
        ({"engine_args": {"max_num_seq": 3}}, "unknown engine vllm: argument in engine_args 'max_num_seq'"),
        ({"engine_args": {"seed": 3}}, r"engine_args\.seed is set by reinlm"),
    ):
        with pytest.raises(InputError, match=text):
            build_engine({"vllm": values}, policy)
    with pytest.raises(InputError, match="does not compute in float64"):
        build_engine("vllm", replace(policy, model=policy.model.double()))
