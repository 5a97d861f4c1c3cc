"""What the in-process engine computes with: its own forward pass, products, threads and cache, against those of transformers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from rollout_helpers import PAD, RAGGED, ModelMaker, full_logprobs, ids, logprobs, requests, run
from transformers import (
    PreTrainedTokenizerFast,
)

from reinlm.models import score
from reinlm.models.matmul import MatmulBackend, using_backend
from reinlm.models.prepared import PreparedLayer
from reinlm.models.threads import using_threads
from reinlm.rollouts.hf_engine import HFEngine
from reinlm.rollouts.protocol import Request, Sampling

OK = Sampling(max_new_tokens=4)


def test_in_bfloat16_it_is_as_near_to_the_trainers_log_probabilities_as_with_transformers_cache(
    make_model: ModelMaker, tokenizer: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every operation rounds as that of transformers does."""
    monkeypatch.setattr("reinlm.rollouts.slots.SHARED_FROM", 2)
    model: Any = make_model(max_position_embeddings=96)
    model = model.bfloat16()
    prompts = [tuple(range(first, first + 50)) for first in (5, 60, 120)]

    def apart() -> float:
        done = run(HFEngine(model, tokenizer, pad_id=PAD), requests(OK, prompts=prompts, samples=8))
        answers = [done[f"{i}/{k}"] for i in range(len(prompts)) for k in range(8)]
        sequences = [[*prompts[i // 8], *ids(answer)] for i, answer in enumerate(answers)]
        places = [list(range(50, len(sequence))) for sequence in sequences]
        trained = score(model, sequences, places, packing="share").scored.detach()
        return float((trained - torch.tensor([x for answer in answers for x in logprobs(answer)])).abs().mean())

    own = apart()
    monkeypatch.setattr("reinlm.rollouts.hf_engine.row_forward", lambda _: None)
    assert own <= 1.25 * apart()


@pytest.mark.parametrize("shape", ["qwen3", "llama", "qwen2", "gpt2"])
def test_products_by_onednn_give_the_same_answers(
    shape: str, make_model: ModelMaker, tokenizer: PreTrainedTokenizerFast
) -> None:
    """With enough rows for it: those of short answers leave."""
    asked = [
        replace(request, sampling=Sampling(max_new_tokens=4 + 3 * (number % 5), temperature=0.0))
        for number, request in enumerate(requests(OK, prompts=RAGGED, samples=8))
    ]
    wide = {} if shape == "gpt2" else {"intermediate_size": 512}  # matrices that are worth it
    plain = run(HFEngine(make_model(shape, **wide), tokenizer, pad_id=PAD), asked)
    with using_backend("onednn"), torch.profiler.profile() as profile:
        fast = run(HFEngine(make_model(shape, **wide), tokenizer, pad_id=PAD), asked)
    if shape != "gpt2":  # whose layers are no nn.Linear
        assert "mkldnn::_linear_pointwise" in {event.name for event in profile.events()}
    assert plain.keys() == fast.keys()
    for name, answer in plain.items():
        assert ids(answer) == ids(fast[name])
        np.testing.assert_allclose(logprobs(answer), logprobs(fast[name]), atol=1e-5)


def test_an_adapter_is_sampled_from_by_onednn_too(make_model: ModelMaker, tokenizer: PreTrainedTokenizerFast) -> None:
    peft = pytest.importorskip("peft")
    every = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    model = peft.get_peft_model(make_model(), peft.LoraConfig(r=4, target_modules=every, init_lora_weights=False))
    asked = requests(replace(OK, temperature=0.0), prompts=RAGGED, samples=8)
    plain = run(HFEngine(model, tokenizer, pad_id=PAD), asked)
    with using_backend("onednn"):
        fast = run(HFEngine(model, tokenizer, pad_id=PAD), asked)
    for name, answer in plain.items():
        assert ids(answer) == ids(fast[name])
        np.testing.assert_allclose(logprobs(answer), logprobs(fast[name]), atol=1e-5)


def test_products_by_onednn_follow_the_weights(make_model: ModelMaker, tokenizer: PreTrainedTokenizerFast) -> None:
    """Weights that are laid out for it are laid out anew after an update in place and after an exchange."""
    model = make_model()
    engine = HFEngine(model, tokenizer, pad_id=PAD)
    asked = requests(replace(OK, temperature=0.0), prompts=RAGGED, samples=8)
    answers = []
    with using_backend("onednn"):
        for change in (None, "update", "exchange"):
            layer: Any = model.model.layers[0].mlp.up_proj
            if change == "update":
                with torch.no_grad():
                    layer.weight.mul_(-3.0)
            elif change == "exchange":
                layer.weight = torch.nn.Parameter(layer.weight.detach().flip(0))
            answers.append(run(engine, asked))
            fresh = run(HFEngine(model, tokenizer, pad_id=PAD), asked)
            assert {name: ids(answer) for name, answer in answers[-1].items()} == {
                name: ids(answer) for name, answer in fresh.items()
            }
    assert len({tuple(ids(answer) for answer in answered.values()) for answered in answers}) == 3


@pytest.mark.parametrize("backend", ["blas", "onednn"])
def test_copies_of_matrices_are_made_for_each_batch_and_version_and_not_of_large_models(
    backend: MatmulBackend,
    make_model: ModelMaker,
    tokenizer: PreTrainedTokenizerFast,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[Any] = []
    init = PreparedLayer.__init__

    def counted(self: PreparedLayer, layer: Any) -> None:
        made.append(layer)
        init(self, layer)

    monkeypatch.setattr(PreparedLayer, "__init__", counted)
    model = make_model(intermediate_size=512)
    layers = len(model.model.layers)
    engine = HFEngine(model, tokenizer, pad_id=PAD)
    asked = requests(replace(OK, temperature=0.0), prompts=RAGGED, samples=8)
    with using_backend(backend):
        first = run(engine, asked)
        assert len(made) == layers  # once, for the prompts and all tokens
        run(engine, asked)
        assert len(made) == 2 * layers
        engine.submit(asked)
        engine.step()
        engine.update(None, 1)
        engine.step()
        assert len(made) == 4 * layers  # a new version while answers are being written
        engine.abort([request.id for request in asked])
        monkeypatch.setattr("reinlm.models.decoder.MAX_PREPARED", 1000)
        plain = run(engine, asked)
        assert len(made) == 4 * layers  # not even to be counted
    for name, answer in first.items():
        assert ids(answer) == ids(plain[name])
        np.testing.assert_allclose(logprobs(answer), logprobs(plain[name]), atol=1e-5)


def test_a_sharded_model_is_not_read_in_inference_mode(
    make_model: ModelMaker, tokenizer: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights that are gathered in the first pass are allocated in it, and trained on later."""
    model = make_model()
    seen: list[bool] = []
    model.model.register_forward_hook(lambda *_: seen.append(torch.is_inference_mode_enabled()))
    for sharded in (False, True):
        if sharded:
            monkeypatch.setattr(next(model.parameters()), "full_tensor", lambda: None, raising=False)
        engine = HFEngine(model, tokenizer, pad_id=PAD)
        seen.clear()  # of the passes by which it was tried
        run(engine, requests(OK, prompts=RAGGED[:1]))
        assert set(seen) == {not sharded}


def test_an_answer_does_not_depend_on_how_long_others_were_before_it(
    make_model: ModelMaker, tokenizer: PreTrainedTokenizerFast
) -> None:
    """To the last bit: a run that is resumed has seen fewer of them."""
    model = make_model(max_position_embeddings=700)
    engine, fresh = (HFEngine(model, tokenizer, pad_id=PAD) for _ in range(2))
    run(engine, [Request("long", tuple(range(2, 202)) * 3, OK)])
    asked = requests(Sampling(max_new_tokens=40), prompts=[tuple(range(5, 255))])
    assert run(engine, asked) == run(fresh, asked)


@pytest.mark.parametrize("rope", ["default", "longrope", "yarn"])
def test_rotary_embeddings_are_the_models_own_at_every_length(
    rope: str, make_model: ModelMaker, tokenizer: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read from a table that grows, but for frequencies that follow the length of a sequence."""
    monkeypatch.setattr("reinlm.models.decoder._POSITIONS", 3)
    factor: dict[str, Any] = {} if rope == "default" else {"factor": 4.0, "original_max_position_embeddings": 16}
    if rope == "longrope":
        factor |= {"short_factor": [1.0] * 4, "long_factor": [3.0, 4.0, 5.0, 6.0]}
    model = make_model(rope_parameters={"rope_type": rope, "rope_theta": 100.0, **factor}, max_position_embeddings=64)
    prompt = RAGGED[0]
    done = run(HFEngine(model, tokenizer, pad_id=PAD), requests(Sampling(max_new_tokens=40), prompts=[prompt]))
    answer = done["0/0"]
    if rope == "longrope":  # keys stay as they were when they were read, as in a cache of transformers
        monkeypatch.setattr("reinlm.rollouts.hf_engine.row_forward", lambda _: None)
        cached = run(HFEngine(model, tokenizer, pad_id=PAD), requests(Sampling(max_new_tokens=40), prompts=[prompt]))
        expected = logprobs(cached["0/0"])
    else:
        expected = full_logprobs(model, prompt, ids(answer), 1.0)
    np.testing.assert_allclose(logprobs(answer), expected, atol=1e-4)


def test_a_small_model_is_sampled_from_with_one_thread(
    make_model: ModelMaker, tokenizer: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    model: Any = make_model()
    found: set[int] = set()
    model.get_input_embeddings().register_forward_hook(lambda *_: found.add(torch.get_num_threads()))
    engine = HFEngine(model, tokenizer, pad_id=PAD)
    found.clear()
    with using_threads(2):
        run(engine, requests(OK))
        assert torch.get_num_threads() == 2
    assert found == {1}


def test_the_cache_has_room_for_the_longest_answer_and_no_more(
    make_model: ModelMaker, tokenizer: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reinlm.rollouts.slots.SHARED_FROM", 1000)
    sizes: list[tuple[int, ...]] = []
    made = torch.Tensor.new_zeros

    def new_zeros(self: torch.Tensor, *size: Any, **options: Any) -> torch.Tensor:
        sizes.append(size)
        return made(self, *size, **options)

    monkeypatch.setattr(torch.Tensor, "new_zeros", new_zeros)
    run(HFEngine(make_model(), tokenizer, pad_id=PAD), requests(OK, prompts=RAGGED, samples=4))
    longest = max(map(len, RAGGED)) + OK.max_new_tokens
    assert {(size[0], size[2]) for size in sizes if len(size) == 4} == {(4 * len(RAGGED), longest)}
