"""From prompts to groups of rollouts."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from rollout_helpers import EOS, PAD, RAGGED
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from reinlm import rollouts
from reinlm.config import build
from reinlm.errors import InputError, RunError
from reinlm.records import Prompt, RolloutGroup
from reinlm.rollouts.collect import SamplingConfig, check_trainable, collect
from reinlm.rollouts.hf_engine import HFEngine
from reinlm.rollouts.protocol import Request, Sampling

SAMPLING = Sampling(max_new_tokens=10, temperature=1.5, stop_token_ids=(EOS, *range(60, 100)))
PROMPTS = [Prompt(id=f"data[{i}]", content=f"question {i}", token_ids=ids) for i, ids in enumerate(RAGGED)]


@pytest.fixture
def engine(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> HFEngine:
    return HFEngine(model, tokenizer, pad_id=PAD, max_batch=6)


def gather(engine: HFEngine, tokenizer: PreTrainedTokenizerFast, **changes: object) -> list[RolloutGroup]:
    arguments = {"group_size": 3, "sampling": SAMPLING, "seed": 0, "tag": "train/1", "tokenizer": tokenizer}
    prompts = changes.pop("prompts", PROMPTS)
    return collect(engine, prompts, **{**arguments, **changes})  # type: ignore[arg-type]


def answers(groups: list[RolloutGroup]) -> dict[str, list[tuple[int, ...]]]:
    return {group.prompt.id: [rollout.segments[0].chosen_ids for rollout in group.rollouts] for group in groups}


def test_groups_come_in_the_order_of_prompts_with_what_the_sampler_knows(
    engine: HFEngine, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast
) -> None:
    engine.update(None, 7)
    groups = gather(engine, tokenizer)
    assert [group.prompt for group in groups] == PROMPTS
    ends = set()
    for group in groups:
        assert len(group.rollouts) == 3
        for rollout in group.rollouts:
            (segment,) = rollout.segments
            prompt = group.prompt.token_ids
            assert segment.token_ids[: len(prompt)] == prompt
            assert segment.positions == tuple(range(len(prompt), len(segment.token_ids)))
            assert set(segment.versions) == {7}
            with torch.no_grad():
                logits = model(torch.tensor([segment.token_ids])).logits[0].double() / 1.5
            expected = [logits[p - 1].log_softmax(-1)[segment.token_ids[p]].item() for p in segment.positions]
            assert segment.rollout_logprobs == pytest.approx(expected, abs=1e-4)
            assert segment.end == ("stop" if segment.chosen_ids[-1] in SAMPLING.stop_token_ids else "length")
            ends.add(segment.end)
    assert ends == {"stop", "length"}


def test_the_stop_token_is_trained_on_but_is_no_part_of_the_text(
    engine: HFEngine, tokenizer: PreTrainedTokenizerFast
) -> None:
    for group in gather(engine, tokenizer):
        for rollout in group.rollouts:
            ids = list(rollout.segments[0].chosen_ids)
            kept = ids[:-1] if rollout.end == "stop" else ids
            assert rollout.completion == tokenizer.decode([i for i in kept if i not in (PAD, EOS)])
            assert rollout.length == len(ids)


def test_a_stop_string_stays_in_the_text(engine: HFEngine, tokenizer: PreTrainedTokenizerFast) -> None:
    sampling = replace(SAMPLING, max_new_tokens=30, stop_token_ids=(EOS,), stop_strings=("e", "t", "a"))
    rollouts = [rollout for group in gather(engine, tokenizer, sampling=sampling) for rollout in group.rollouts]
    stopped = [r for r in rollouts if r.end == "stop" and r.segments[0].chosen_ids[-1] != EOS]
    assert len(stopped) > 3
    assert all(any(string in r.completion for string in "eta") for r in stopped)


def test_a_chat_prompt_gets_an_assistant_message(engine: HFEngine, tokenizer: PreTrainedTokenizerFast) -> None:
    chat = replace(PROMPTS[0], content=({"role": "user", "content": "question 0"},))
    (plain,) = gather(engine, tokenizer, prompts=PROMPTS[:1])
    (group,) = gather(engine, tokenizer, prompts=[chat])
    for as_chat, as_text in zip(group.rollouts, plain.rollouts, strict=True):
        assert as_chat.completion == ({"role": "assistant", "content": as_text.completion},)


def test_answers_depend_on_seed_tag_prompt_and_sample_alone(
    engine: HFEngine, tokenizer: PreTrainedTokenizerFast
) -> None:
    reference = answers(gather(engine, tokenizer))
    assert answers(gather(engine, tokenizer, prompts=PROMPTS[::-1])) == reference
    fewer = answers(gather(engine, tokenizer, prompts=PROMPTS[2:4], group_size=2))
    assert fewer == {name: reference[name][:2] for name in fewer}
    assert all(len(set(group)) > 1 for group in reference.values())
    for changes in ({"seed": 1}, {"tag": "train/2"}):
        other = answers(gather(engine, tokenizer, **changes))
        assert all(other[name] != reference[name] for name in reference)


def test_progress_counts_up_to_all_answers(engine: HFEngine, tokenizer: PreTrainedTokenizerFast) -> None:
    seen: list[tuple[int, int]] = []
    gather(engine, tokenizer, on_progress=lambda done, total: seen.append((done, total)))
    counts = [done for done, _ in seen]
    assert counts == sorted(set(counts))
    assert len(counts) > 1
    assert seen[-1] == (18, 18)


def test_an_interrupt_takes_back_what_was_submitted(engine: HFEngine, tokenizer: PreTrainedTokenizerFast) -> None:
    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        gather(engine, tokenizer, on_progress=interrupt)
    assert engine.in_flight == 0
    assert len(gather(engine, tokenizer)) == len(PROMPTS)


def test_a_prompt_that_does_not_fit_is_named_and_nothing_stays_queued(
    engine: HFEngine, tokenizer: PreTrainedTokenizerFast
) -> None:
    long = Prompt(id="train.jsonl:9", content="long", token_ids=tuple(range(2, 80)))
    with pytest.raises(InputError, match=r"train.jsonl:9.* 78 tokens"):
        gather(engine, tokenizer, prompts=[*PROMPTS, long])
    assert engine.in_flight == 0


def test_a_busy_engine_a_prompt_given_twice_and_an_empty_group_are_refused(
    engine: HFEngine, tokenizer: PreTrainedTokenizerFast
) -> None:
    with pytest.raises(InputError, match=r"data\[1\]' stands twice"):
        gather(engine, tokenizer, prompts=[*PROMPTS, PROMPTS[1]])
    with pytest.raises(InputError, match="group_size must be at least 1, not 0"):
        gather(engine, tokenizer, group_size=0)
    engine.submit([Request("other", (1,), SAMPLING)])
    with pytest.raises(RunError, match="1 other requests"):
        gather(engine, tokenizer)
    assert engine.in_flight == 1


def test_configuration_becomes_sampling_with_the_models_stops_in_front() -> None:
    config = build(
        SamplingConfig,
        {
            "max_new_tokens": 9,
            "temperature": 0.7,
            "top_p": 0.9,
            "top_k": 5,
            "stop_token_ids": [8, 3],
            "stop_strings": ["#"],
        },
    )
    assert config.sampling((3, 4)) == Sampling(9, 0.7, 0.9, 5, (3, 4, 8), ("#",))


@pytest.mark.parametrize(
    ("tree", "culprit"),
    [
        ({"temperature": -1}, "temperature"),
        ({"temperature": 1e-9}, "temperature: must be 0 .greedy. or at least 0.0001"),
        ({"top_p": 0}, "top_p"),
        ({"top_k": -1}, "top_k"),
        ({"max_new_tokens": 0}, "max_new_tokens"),
        ({"stop_strings": ["a", ""]}, "stop_strings: a stop string cannot be empty"),
        ({"max_tokens": 4}, "unknown key 'max_tokens'"),
    ],
)
def test_configuration_out_of_range_is_named(tree: dict[str, object], culprit: str) -> None:
    with pytest.raises(InputError, match=culprit):
        build(SamplingConfig, tree)


@pytest.mark.parametrize(
    ("changes", "culprit"),
    [({"temperature": 0.0}, "temperature 0"), ({"top_p": 0.9}, r"top_p=0\.9"), ({"top_k": 40}, "top_k=40")],
)
def test_samples_that_cannot_be_trained_on_are_refused(changes: dict[str, float], culprit: str) -> None:
    for settings in (SamplingConfig(**changes), SamplingConfig(**changes).sampling(())):
        with pytest.raises(InputError, match=f"{culprit} cannot be trained on"):
            check_trainable(settings)
    check_trainable(SamplingConfig(temperature=0.7))


def test_collection_needs_no_torch_to_be_imported() -> None:
    code = "import sys, reinlm.rollouts.collect; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_package_offers_the_engine_and_names_what_it_lacks() -> None:
    assert rollouts.HFEngine is HFEngine
    with pytest.raises(AttributeError, match=r"reinlm\.rollouts.*'VllmEngine'"):
        _ = rollouts.VllmEngine
