"""Which passes the in-process engine makes, and what updates, aborted requests, sleep and errors leave behind."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from rollout_helpers import PAD, RAGGED, ModelMaker, drain, ids, logprobs, requests, run
from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from reinlm.errors import RunError
from reinlm.rollouts.hf_engine import HFEngine
from reinlm.rollouts.padded_rows import PaddedRows
from reinlm.rollouts.protocol import Request, Sampling
from reinlm.rollouts.slots import Slots

OK = Sampling(max_new_tokens=4)


def watched(engine: HFEngine) -> list[tuple[int, int]]:
    """The passes that the engine will make, filled as it does: (prompts, longest) to read, (answers, 1) to write."""
    passes: list[tuple[int, int]] = []
    rows = engine._rows
    advance, admit = rows.advance, rows.admit

    def advancing() -> None:
        assert not torch.is_grad_enabled()
        passes.append((rows.live, 1))
        advance()

    def admitting(arrivals: Any, waiting: bool) -> None:
        if fresh := [prompt for prompt, _ in arrivals if not rows.known(prompt)]:
            passes.append((len(fresh), max(map(len, fresh))))
        admit(arrivals, waiting)

    vars(rows).update(advance=advancing, admit=admitting)
    return passes


@pytest.mark.parametrize("max_batch", [3, 64])
def test_samples_of_a_prompt_share_one_prefill(
    max_batch: int, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast
) -> None:
    engine = HFEngine(model, tokenizer, pad_id=PAD, max_batch=max_batch)
    shapes = watched(engine)
    prompts = [prompt for prompt in RAGGED if len(prompt) > 1]
    run(engine, requests(Sampling(max_new_tokens=4), prompts=prompts, samples=8))
    assert sum(rows for rows, length in shapes if length > 1) == len(prompts)
    assert max(rows for rows, length in shapes if length == 1) <= max_batch


def test_prefill_reads_no_more_tokens_than_allowed(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> None:
    """Padding counts where there is any: in one row the prompts of 2 and 5 tokens are read together."""
    engine = HFEngine(model, tokenizer, pad_id=PAD, prefill_tokens=8)
    shapes = watched(engine)
    run(engine, requests(Sampling(max_new_tokens=4)))
    reads = [(rows, length) for rows, length in shapes if length > 1]
    if isinstance(engine._rows, PaddedRows):
        assert all(rows * length <= 8 or rows == 1 for rows, length in reads)
        assert len(reads) == 5
    else:
        assert reads == [(2, 3), (1, 7), (2, 5), (1, 4)]


@pytest.mark.usefixtures("transformers_cache")
@pytest.mark.parametrize("max_batch", [2, 4])
def test_columns_that_only_a_finished_prompt_needed_are_shed(
    max_batch: int, make_model: ModelMaker, tokenizer: PreTrainedTokenizerFast
) -> None:
    """Of one long prompt and three samples of a short one; two rows: the short prompt waits beside the long one."""
    widths: list[int] = []
    model = make_model()
    model.register_forward_hook(
        lambda _module, _args, kwargs, _out: widths.append(kwargs["past_key_values"].get_seq_length()), with_kwargs=True
    )
    long = Request("long", tuple(range(30)), Sampling(max_new_tokens=3))
    engine = HFEngine(model, tokenizer, pad_id=PAD, max_batch=max_batch)
    run(engine, [long, *requests(Sampling(max_new_tokens=6), prompts=[(5, 6, 7)], samples=3)])
    assert widths[:3] == [30, 31, 32]
    assert max(widths[4:]) <= 3 + 6  # a dead row goes at the next joining, so its columns may stay one pass longer


def test_a_full_batch_waits_for_an_eighth_of_room(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> None:
    engine = HFEngine(model, tokenizer, pad_id=PAD, max_batch=16)
    shapes = watched(engine)
    engine.submit(
        Request(str(i), (5, 6, 7 + i), Sampling(max_new_tokens=3 + i % 16, temperature=2.0)) for i in range(40)
    )
    drain(engine)
    admitted = [rows for rows, length in shapes if length > 1]
    assert sum(admitted) == 40
    assert admitted[0] == 16
    assert all(rows >= 2 for rows in admitted[:-1])  # the last ones come as soon as all of them fit


def test_finished_rows_leave_the_batch(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> None:
    engine = HFEngine(model, tokenizer, pad_id=PAD)
    shapes = watched(engine)
    lengths = [2, 2, 2, 2, 9, 9, 9, 9]
    engine.submit(
        Request(str(i), (5, 6, 7), Sampling(max_new_tokens=length, temperature=2.0)) for i, length in enumerate(lengths)
    )
    drain(engine)
    assert [rows for rows, length in shapes if length == 1] == [8] + [4] * 7


def test_a_prompt_is_read_anew_once_nothing_waits_for_it(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast
) -> None:
    """Else what a batch holds would depend on what was asked for before it."""
    engine = HFEngine(model, tokenizer, pad_id=PAD, max_batch=1)
    shapes = watched(engine)
    for _ in range(2):
        run(engine, requests(Sampling(max_new_tokens=2), prompts=[(5, 6, 7)], samples=2))
    assert [length for _, length in shapes if length > 1] == [3, 3]


def test_updates_in_flight_stamp_later_tokens(engine: HFEngine) -> None:
    engine.update(None, 3)
    engine.submit([Request("a", (5, 6, 7), Sampling(max_new_tokens=5))])
    engine.step()
    engine.step()
    engine.update(None, 4)
    assert drain(engine)["a"].columns["version"].tolist() == [3, 3, 4, 4, 4]
    assert engine.capabilities.in_flight_update


def test_update_loads_weights_and_rereads_prompts_that_wait(
    model: PreTrainedModel, make_model: ModelMaker, tokenizer: PreTrainedTokenizerFast
) -> None:
    other = make_model(initializer_range=0.3)
    sampling = Sampling(max_new_tokens=3, temperature=0.0)
    engine = HFEngine(model, tokenizer, pad_id=PAD, max_batch=1)
    engine.submit(requests(sampling, prompts=[(5, 6, 7)], samples=2))
    while engine.in_flight == 2:
        done = engine.step()
    engine.update(other.state_dict(), 1)
    after = drain(engine)["0/1"]
    assert ids(after) == tuple(other.generate(torch.tensor([[5, 6, 7]]), do_sample=False, max_new_tokens=3)[0, 3:])
    assert logprobs(after) != pytest.approx(logprobs(done[0]), abs=1e-2)


def test_aborted_requests_never_come_back(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> None:
    engine = HFEngine(model, tokenizer, pad_id=PAD, max_batch=4)
    sampling = Sampling(max_new_tokens=12, temperature=1.5)
    reference = run(engine, requests(sampling, samples=2))
    engine.submit(requests(sampling, samples=2))
    engine.step()
    engine.abort(["0/0", "0/1", "3/1", "4/0", "4/1", "nobody"])  # running ones, and waiting ones
    assert engine.in_flight == 7
    done = drain(engine)
    assert set(done) == set(reference) - {"0/0", "0/1", "3/1", "4/0", "4/1"}
    assert all(ids(done[name]) == ids(reference[name]) for name in done)
    engine.submit([Request("0/0", (5, 6, 7), sampling)])
    engine.step()
    engine.abort(["0/0"])
    assert engine.in_flight == 0
    assert list(engine.step()) == []


def test_sleep_refuses_to_lose_answers_and_step_refuses_to_sleepwalk(engine: HFEngine) -> None:
    engine.submit([Request("a", (5, 6, 7), Sampling(max_new_tokens=5))])
    engine.step()
    with pytest.raises(RunError, match="1 answers being written"):
        engine.sleep()
    drain(engine)
    engine.sleep()
    engine.submit([Request("a", (5, 6, 7), Sampling(max_new_tokens=5))])
    with pytest.raises(RunError, match="asleep"):
        engine.step()
    engine.wake()
    assert len(ids(drain(engine)["a"])) == 5


def test_a_model_whose_attention_takes_no_rows_is_sampled_from_with_transformers_cache(
    make_model: ModelMaker, tokenizer: PreTrainedTokenizerFast
) -> None:
    eager, sdpa = (HFEngine(make_model(attention=name), tokenizer, pad_id=PAD) for name in ("eager", "sdpa"))
    assert isinstance(eager._rows, PaddedRows)
    assert isinstance(sdpa._rows, Slots)
    expected, found = (run(engine, requests(OK)) for engine in (eager, sdpa))
    assert {name: ids(x) for name, x in found.items()} == {name: ids(x) for name, x in expected.items()}


def test_an_interrupted_step_leaves_an_engine_that_works(model: PreTrainedModel, engine: HFEngine) -> None:
    reference = run(engine, requests(OK))
    engine.submit(requests(OK))
    engine.step()

    def interrupt(*_args: object) -> None:
        raise KeyboardInterrupt

    handle = model.model.layers[1].mlp.register_forward_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        engine.step()
    handle.remove()
    assert engine.in_flight == 0
    assert run(engine, requests(OK)) == reference


def test_an_answer_that_is_asked_for_after_an_update_reads_its_prompt_anew(
    model: PreTrainedModel, make_model: ModelMaker, tokenizer: PreTrainedTokenizerFast
) -> None:
    """While answers to the same prompt are written, which keep what they have read."""
    other = make_model(initializer_range=0.3)
    engine = HFEngine(model, tokenizer, pad_id=PAD)
    prompt = (5, 6, 7)
    engine.submit([Request(f"old/{i}", prompt, Sampling(max_new_tokens=12, temperature=0.0)) for i in range(2)])
    engine.step()
    engine.update(other.state_dict(), 1)
    engine.submit([Request(f"new/{i}", prompt, Sampling(max_new_tokens=5, temperature=0.0)) for i in range(2)])
    done = drain(engine)
    expected = tuple(other.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=5)[0, 3:].tolist())
    assert ids(done["new/0"]) == ids(done["new/1"]) == expected


def test_a_prompt_that_was_read_by_broken_weights_is_read_anew(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast
) -> None:
    engine = HFEngine(model, tokenizer, pad_id=PAD, max_batch=2)
    asked = requests(OK, prompts=[(5, 6, 7)], samples=6)
    reference = run(engine, asked)
    good = {name: weight.clone() for name, weight in model.state_dict().items()}
    with torch.no_grad():
        model.lm_head.weight.fill_(float("nan"))
    engine.submit(asked)
    with pytest.raises(RunError, match="not finite"):
        engine.step()
    model.load_state_dict(good)
    assert run(engine, asked) == reference


def test_hooks_on_layers_act_on_what_is_sampled(model: Any, tokenizer: PreTrainedTokenizerFast) -> None:
    engine = HFEngine(model, tokenizer, pad_id=PAD)
    greedy = Sampling(max_new_tokens=6, temperature=0.0)
    plain = ids(run(engine, [Request("a", (5, 6, 7), greedy)])["a"])
    torch.manual_seed(0)
    steering = 3 * torch.randn(32)
    handle = model.model.layers[0].register_forward_hook(lambda _m, _a, output: output + steering)
    steered = ids(run(engine, [Request("a", (5, 6, 7), greedy)])["a"])
    expected = model.generate(torch.tensor([[5, 6, 7]]), do_sample=False, max_new_tokens=6)
    handle.remove()
    assert steered == tuple(expected[0, 3:].tolist()) != plain
    assert ids(run(engine, [Request("a", (5, 6, 7), greedy)])["a"]) == plain


def test_a_model_whose_logits_are_not_its_heads_is_sampled_from(
    make_model: ModelMaker, tokenizer: PreTrainedTokenizerFast
) -> None:
    model: Any = make_model()
    forward = model.forward

    def scaled(*arguments: Any, **options: Any) -> Any:
        output = forward(*arguments, **options)
        output.logits = output.logits * output.logits.abs()
        return output

    model.forward = scaled
    engine = HFEngine(model, tokenizer, pad_id=PAD)
    done = run(engine, [Request("a", (5, 6, 7), Sampling(max_new_tokens=6, temperature=0.0))])["a"]
    assert ids(done) == tuple(
        model.generate(torch.tensor([[5, 6, 7]]), do_sample=False, max_new_tokens=6)[0, 3:].tolist()
    )
