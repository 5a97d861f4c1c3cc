"""The in-process engine against `generate`, against a plain forward, and against itself in other batches."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from rollout_helpers import (
    CONTEXT,
    EOS,
    PAD,
    RAGGED,
    VOCABULARY,
    ModelMaker,
    drain,
    full_logprobs,
    ids,
    logprobs,
    requests,
    run,
)
from transformers import (
    Llama4TextConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen3NextConfig,
    Qwen3NextForCausalLM,
    T5Config,
)

from reinlm.errors import InputError, RunError
from reinlm.rollouts.cache import check_supported
from reinlm.rollouts.hf_engine import HFEngine
from reinlm.rollouts.protocol import Completion, Request, Sampling
from reinlm.rollouts.sampling import noise_key, uniform

pytestmark = pytest.mark.no_cover

SHAPES = ["qwen3", "llama", "gpt2", "mistral"]
GREEDY = Sampling(max_new_tokens=20, temperature=0.0)
OK = Sampling(max_new_tokens=4)


@pytest.mark.usefixtures("every_cache")
@pytest.mark.parametrize("max_batch", [2, 256])
@pytest.mark.parametrize("shape", SHAPES)
def test_greedy_equals_generate_token_for_token(
    shape: str, max_batch: int, make_model: ModelMaker, tokenizer: PreTrainedTokenizerFast
) -> None:
    model = make_model(shape)
    lengths = [20, 3, 11, 20, 7, 1]  # rows end at different times, so that others take their place
    asked = [
        replace(request, sampling=replace(GREEDY, max_new_tokens=length))
        for request, length in zip(requests(GREEDY), lengths, strict=True)
    ]
    done = run(HFEngine(model, tokenizer, pad_id=PAD, max_batch=max_batch), asked)
    for request in asked:
        generated = model.generate(
            torch.tensor([request.token_ids]), do_sample=False, max_new_tokens=request.sampling.max_new_tokens
        )
        assert ids(done[request.id]) == tuple(generated[0, len(request.token_ids) :].tolist())
        assert done[request.id].reason == "length"


def test_greedy_stops_where_generate_stops(model: Any, engine: HFEngine) -> None:
    stops = (3, 77, 120, 200, 250, 290)
    done = run(engine, requests(replace(GREEDY, stop_token_ids=stops)))
    ends = set()
    for i, prompt in enumerate(RAGGED):
        generated = model.generate(
            torch.tensor([prompt]), do_sample=False, max_new_tokens=20, eos_token_id=list(stops), pad_token_id=PAD
        )
        answer = done[f"{i}/0"]
        assert ids(answer) == tuple(generated[0, len(prompt) :].tolist())
        assert answer.reason == ("stop" if ids(answer)[-1] in stops else "length")
        ends.add(answer.reason)


@pytest.mark.usefixtures("every_cache")
@pytest.mark.parametrize("shape", SHAPES)
def test_logprobs_equal_those_of_a_full_forward(
    shape: str, make_model: ModelMaker, tokenizer: PreTrainedTokenizerFast
) -> None:
    model = make_model(shape)
    engine = HFEngine(model, tokenizer, pad_id=PAD, max_batch=5, prefill_tokens=20)
    sampling = Sampling(
        max_new_tokens=24, temperature=1.7, stop_token_ids=(EOS, *range(100, 110)), stop_strings=("a", "th", "é")
    )
    asked = requests(sampling, samples=4)
    done = run(engine, asked)
    assert {answer.reason for answer in done.values()} == {"stop", "length"}
    for request in asked:
        answer = done[request.id]
        expected = full_logprobs(model, request.token_ids, ids(answer), 1.7)
        assert logprobs(answer) == pytest.approx(expected, abs=1e-4)


def test_greedy_logprobs_are_those_at_temperature_one(model: PreTrainedModel, engine: HFEngine) -> None:
    done = run(engine, requests(GREEDY))
    for i, prompt in enumerate(RAGGED):
        answer = done[f"{i}/0"]
        assert logprobs(answer) == pytest.approx(full_logprobs(model, prompt, ids(answer), 1.0), abs=1e-4)


def mixed(samples: int = 3, seed: int = 0) -> list[Request]:
    """Requests of unlike settings, ragged prompts and lengths."""
    settings = [
        Sampling(max_new_tokens=17, temperature=1.5, stop_token_ids=tuple(range(90, 120))),
        Sampling(max_new_tokens=5, temperature=0.0),
        Sampling(max_new_tokens=9, top_p=0.9),
        Sampling(max_new_tokens=21, temperature=2.0, top_k=40, stop_token_ids=(4,)),
    ]
    asked = requests(settings[0], samples=samples, seed=seed)
    return [replace(request, sampling=settings[i % 4]) for i, request in enumerate(asked)]


def test_an_answer_does_not_depend_on_the_batch_it_shares(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast
) -> None:
    model = model.double()
    reference = run(HFEngine(model, tokenizer, pad_id=PAD), mixed())
    for max_batch, prefill_tokens in [(1, 16384), (4, 16384), (7, 10), (16, 1)]:
        other = HFEngine(model, tokenizer, pad_id=PAD + 5, max_batch=max_batch, prefill_tokens=prefill_tokens)
        done = run(other, mixed()[::-1])
        assert {name: (ids(x), x.reason) for name, x in done.items()} == {
            name: (ids(x), x.reason) for name, x in reference.items()
        }
        for name, answer in done.items():
            assert logprobs(answer) == pytest.approx(logprobs(reference[name]), abs=1e-6)


def test_requests_that_arrive_late_change_nobodys_answer(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast
) -> None:
    model = model.double()
    reference = run(HFEngine(model, tokenizer, pad_id=PAD), mixed())
    engine = HFEngine(model, tokenizer, pad_id=PAD, max_batch=10)
    done: dict[str, Any] = {}
    for request in mixed():
        engine.submit([request])
        done.update((completion.id, completion) for completion in engine.step())
    done.update(drain(engine))
    assert {name: ids(x) for name, x in done.items()} == {name: ids(x) for name, x in reference.items()}


def test_seeds_and_samples_differ(engine: HFEngine) -> None:
    sampling = Sampling(max_new_tokens=12, temperature=2.0)
    first = run(engine, requests(sampling, samples=2, seed=0))
    again = run(engine, requests(sampling, samples=2, seed=0))
    other = run(engine, requests(sampling, samples=2, seed=1))
    assert {name: ids(x) for name, x in first.items()} == {name: ids(x) for name, x in again.items()}
    for i in range(len(RAGGED)):
        answers = {ids(first[f"{i}/0"]), ids(first[f"{i}/1"]), ids(other[f"{i}/0"])}
        assert len(answers) == 3


def test_token_k_is_the_inverse_cdf_of_noise_k(model: PreTrainedModel, engine: HFEngine) -> None:
    done = run(engine, requests(Sampling(max_new_tokens=8, temperature=1.5), seed=5))
    for i, prompt in enumerate(RAGGED):
        answer = ids(done[f"{i}/0"])
        with torch.no_grad():
            logits = model(torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1]
        cumulative = (logits.double() / 1.5).softmax(-1).cumsum(-1)
        key = torch.tensor(noise_key(5, f"{i}/0"))
        for k, token in enumerate(answer):
            noise = uniform(key, torch.tensor(k))
            assert cumulative[k, token - 1] - 1e-5 <= noise <= cumulative[k, token] + 1e-5


def test_a_stop_token_at_the_last_position_is_a_stop(engine: HFEngine) -> None:
    free = run(engine, [Request("a", (5, 6, 7), Sampling(max_new_tokens=6, temperature=2.0))])["a"]
    last = ids(free)[-1]
    assert last not in ids(free)[:-1]
    bound = run(engine, [Request("a", (5, 6, 7), Sampling(6, temperature=2.0, stop_token_ids=(last,)))])["a"]
    assert (ids(bound), bound.reason, free.reason) == (ids(free), "stop", "length")


def test_stop_strings_end_after_the_token_that_completes_them(
    engine: HFEngine, tokenizer: PreTrainedTokenizerFast
) -> None:
    sampling = Sampling(max_new_tokens=30, temperature=2.0)
    free = run(engine, requests(sampling, samples=4))
    strings = ("e", "t", "!", "0 ")
    bound = run(engine, requests(replace(sampling, stop_strings=strings), samples=4))
    stopped = 0
    for name, answer in free.items():
        count, end = len(ids(answer)), "length"
        for n in range(1, count + 1):
            if any(string in tokenizer.decode(list(ids(answer)[:n])) for string in strings):
                count, end = n, "stop"
                break
        assert (ids(bound[name]), bound[name].reason) == (ids(answer)[:count], end)
        assert logprobs(bound[name]) == pytest.approx(logprobs(answer)[:count], abs=1e-5)
        stopped += end == "stop"
    assert 3 < stopped < len(free)


@pytest.mark.usefixtures("every_cache")
@pytest.mark.parametrize("shape", ["qwen3", "gpt2"])
def test_an_answer_ends_where_the_context_is_full(
    shape: str, make_model: ModelMaker, tokenizer: PreTrainedTokenizerFast
) -> None:
    """The rows that end early run on as dead ones past the last absolute position of GPT-2."""
    model = make_model(shape)
    prompts = [tuple(range(10, 10 + CONTEXT - left)) for left in (1, 30, 30, 30, 30, 30, 30)]
    engine = HFEngine(model, tokenizer, pad_id=PAD)
    done = run(engine, requests(Sampling(max_new_tokens=99), prompts=prompts))
    assert [len(ids(done[f"{i}/0"])) for i in range(len(prompts))] == [1] + [30] * 6
    assert {answer.reason for answer in done.values()} == {"context"}
    short = run(HFEngine(model, tokenizer, pad_id=PAD, context_length=20), requests(Sampling(max_new_tokens=99)))
    assert [len(ids(short[f"{i}/0"])) for i in range(len(RAGGED))] == [20 - len(prompt) for prompt in RAGGED]


def test_tokens_asked_for_that_just_fit_are_a_length_and_one_more_is_the_context(engine: HFEngine) -> None:
    prompt = tuple(range(10, 10 + CONTEXT - 5))
    reasons = [run(engine, [Request("a", prompt, Sampling(count))])["a"].reason for count in (4, 5, 6)]
    assert reasons == ["length", "length", "context"]
    assert engine.capabilities.context_length == CONTEXT


@pytest.mark.parametrize(
    ("request_", "culprit"),
    [
        (Request("x", tuple(range(CONTEXT)), OK), f"'x': a prompt of {CONTEXT} tokens .* context of {CONTEXT} tokens"),
        (Request("x", (), OK), "'x' has an empty prompt"),
        (Request("ok", (1,), OK), "'ok' is in flight"),
        (Request("x", (1, VOCABULARY), OK), f"prompt token {VOCABULARY} is outside .* {VOCABULARY}"),
        (Request("x", (1,), replace(OK, stop_token_ids=(1, -1))), "stop token -1 is outside"),
    ],
)
def test_a_wrong_request_is_named_and_none_of_its_batch_is_taken(
    request_: Request, culprit: str, engine: HFEngine
) -> None:
    engine.submit([Request("ok", (1,), OK)])
    with pytest.raises(InputError, match=culprit):
        engine.submit([Request("fine", (2,), OK), request_])
    assert set(drain(engine)) == {"ok"}


def test_two_requests_of_one_id_in_one_call_are_refused(engine: HFEngine) -> None:
    with pytest.raises(InputError, match="'x' is in flight"):
        engine.submit([Request("x", (1,), OK), Request("x", (2,), OK)])
    assert engine.in_flight == 0


@pytest.mark.parametrize(
    "changes", [{"max_batch": 0}, {"prefill_tokens": 0}, {"context_length": 0}, {"context_length": CONTEXT + 1}]
)
def test_limits_out_of_range_are_refused(
    changes: dict[str, Any], model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast
) -> None:
    with pytest.raises(InputError, match=next(iter(changes))):
        HFEngine(model, tokenizer, pad_id=PAD, **changes)


def test_models_with_other_state_than_keys_and_values_are_refused(tokenizer: PreTrainedTokenizerFast) -> None:
    small: Any = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "head_dim": 16}
    linear = Qwen3NextConfig(
        **small, intermediate_size=32, num_experts=0, linear_num_value_heads=2, linear_num_key_heads=2,
        layer_types=["linear_attention", "full_attention"], linear_key_head_dim=8, linear_value_head_dim=8,
    )  # fmt: skip
    with pytest.raises(InputError, match=r"qwen3_next keeps state .*LinearAttention"):
        HFEngine(Qwen3NextForCausalLM(linear), tokenizer, pad_id=PAD)
    with pytest.raises(InputError, match="chunked attention"):
        check_supported(Llama4TextConfig(num_hidden_layers=4, layer_types=["chunked_attention"] * 4))
    with pytest.raises(InputError, match="t5 is an encoder-decoder"):
        check_supported(T5Config(num_layers=1))


def test_the_model_is_left_in_the_mode_it_was_in(make_model: ModelMaker, tokenizer: PreTrainedTokenizerFast) -> None:
    """Dropout and gradient checkpointing are on in training mode; neither may touch the answers."""
    model = make_model("gpt2", resid_pdrop=0.5, embd_pdrop=0.5, attn_pdrop=0.5)
    asked = requests(Sampling(max_new_tokens=8, temperature=1.5))
    reference = run(HFEngine(model, tokenizer, pad_id=PAD), asked)
    model.train()
    model.gradient_checkpointing_enable()
    model.transformer.h[0].eval()
    before = [module.training for module in model.modules()]
    done = run(HFEngine(model, tokenizer, pad_id=PAD), asked)
    assert {name: ids(x) for name, x in done.items()} == {name: ids(x) for name, x in reference.items()}
    assert [module.training for module in model.modules()] == before
    assert not all(before)
    assert any(before)


def test_a_part_in_training_mode_samples_without_noise(
    make_model: ModelMaker, tokenizer: PreTrainedTokenizerFast
) -> None:
    """As an adapter does that was added to a model in evaluation mode."""
    model = make_model("gpt2", resid_pdrop=0.5, embd_pdrop=0.5, attn_pdrop=0.5).eval()
    asked = requests(Sampling(max_new_tokens=8, temperature=1.5))
    reference = run(HFEngine(model, tokenizer, pad_id=PAD), asked)
    model.transformer.h[1].train()
    done = run(HFEngine(model, tokenizer, pad_id=PAD), asked)
    assert {name: ids(x) for name, x in done.items()} == {name: ids(x) for name, x in reference.items()}
    assert model.transformer.h[1].training


def test_sampling_leaves_the_weights_trainable(model: PreTrainedModel, engine: HFEngine) -> None:
    run(engine, requests(OK))
    model(torch.tensor([[1, 2, 3]])).logits.sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_logits_that_are_not_finite_stop_the_run(model: PreTrainedModel, engine: HFEngine) -> None:
    engine.submit([Request("a", (5, 6, 7), OK)])
    engine.step()
    with torch.no_grad():
        model.lm_head.weight.fill_(float("nan"))
    with pytest.raises(RunError, match=r"logits for request 'a' are not finite at token 1 \(policy version 0\)"):
        engine.step()
    assert engine.in_flight == 0


def test_autocast_runs_the_model_in_the_asked_type(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> None:
    seen = set()
    engine = HFEngine(model, tokenizer, pad_id=PAD, autocast_dtype=torch.bfloat16)
    model.lm_head.register_forward_hook(lambda _module, _args, output: seen.add(output.dtype))
    done = run(engine, requests(Sampling(max_new_tokens=4)))
    assert seen == {torch.bfloat16}
    answer: Completion = done["0/0"]
    assert logprobs(answer) == pytest.approx(full_logprobs(model, RAGGED[0], ids(answer), 1.0), abs=0.5)


@pytest.mark.usefixtures("every_cache")
def test_an_adapter_around_the_model_is_sampled_from(
    make_model: ModelMaker, tokenizer: PreTrainedTokenizerFast
) -> None:
    peft = pytest.importorskip("peft")
    model = peft.get_peft_model(make_model(), peft.LoraConfig(r=4, target_modules=["q_proj"], init_lora_weights=False))
    done = run(HFEngine(model, tokenizer, pad_id=PAD), requests(GREEDY))
    for i, prompt in enumerate(RAGGED):
        generated = model.generate(input_ids=torch.tensor([prompt]), do_sample=False, max_new_tokens=20)
        assert ids(done[f"{i}/0"]) == tuple(generated[0, len(prompt) :].tolist())
