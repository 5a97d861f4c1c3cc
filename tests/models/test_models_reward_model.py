"""Reward models: where they are read, how heads become a score, and that what is saved scores alike in transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from reinlm.errors import InputError
from reinlm.models import (
    LoraConfig,
    ModelConfig,
    Policy,
    RewardHeads,
    RewardModel,
    character_tokenizer,
    load_policy,
    load_reward_model,
    new_reward_model,
    save_policy,
    tiny_model,
)
from reinlm.models.heads import split_backbone, unwrap
from reinlm.models.reward_model import ReferenceScores

SEQUENCES = [[3, 4, 5, 6, 1], [3, 4, 5, 7, 8, 9, 1], [3, 4, 5, 9], [5, 2]]
STARTS = [3, 3, 3, 1]


def tiny_policy(family: Any = "qwen3") -> Policy:
    tokenizer = character_tokenizer("0123456789+=")
    made = tiny_model(family, vocab_size=len(tokenizer), hidden_size=16, layers=1, heads=2, context=16)
    return load_policy((made, tokenizer))


def base(folder: Path, family: str = "qwen3") -> ModelConfig:
    save_policy(tiny_policy(family), folder / "base")
    return ModelConfig(path=str(folder / "base"))


def rewards(model: RewardModel, sequences: Any = SEQUENCES, starts: Any = STARTS) -> torch.Tensor:
    return model.score(model.batch(sequences, starts)).reward


def of_transformers(folder: Path, sequences: Any = SEQUENCES) -> torch.Tensor:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    model: Any = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    padded = AutoTokenizer.from_pretrained(folder).pad({"input_ids": sequences}, return_tensors="pt")
    with torch.no_grad():
        logits: torch.Tensor = model(**padded).logits
    assert logits.shape == (len(sequences), 1)
    return logits[:, 0]


def hidden(model: RewardModel, ids: list[int]) -> torch.Tensor:
    classifier = unwrap(model.policy.model)
    with torch.no_grad():
        states: torch.Tensor = getattr(classifier, classifier.base_model_prefix)(torch.tensor([ids]))[0][0]
    return states


@pytest.mark.parametrize("family", ["qwen3", "llama", "gpt2", "qwen3_moe"])
@pytest.mark.parametrize("packing", ["share", "pad"])
def test_what_is_saved_scores_alike_in_transformers_and_here(tmp_path: Path, family: str, packing: Any) -> None:
    heads = RewardHeads(("helpful", "harmless"), (1.0, 0.5), members=3)
    model = new_reward_model(base(tmp_path, family=family), heads, seed=1, packing=packing)
    expected = rewards(model)
    model.save(tmp_path / "reward")
    again = load_reward_model(str(tmp_path / "reward"), packing=packing)
    assert again.heads == heads
    torch.testing.assert_close(rewards(again), expected)
    torch.testing.assert_close(of_transformers(tmp_path / "reward"), expected)
    torch.testing.assert_close(again.score(again.batch(SEQUENCES, STARTS)).spread, expected_spread(model))


def expected_spread(model: RewardModel) -> torch.Tensor:
    weight = model.head.weight.detach().reshape(3, 2, -1)
    by_member = torch.stack([weight @ hidden(model, ids)[-1] for ids in SEQUENCES]) @ torch.tensor([1.0, 0.5])
    return by_member.std(-1, correction=0)


def test_a_reward_of_any_other_library_is_read_as_transformers_reads_it(tmp_path: Path) -> None:
    from transformers import AutoModelForSequenceClassification

    source = base(tmp_path, family="llama")
    foreign: Any = AutoModelForSequenceClassification.from_pretrained(source.path, num_labels=1, pad_token_id=0)
    foreign.save_pretrained(tmp_path / "foreign")
    tiny_policy().tokenizer.save_pretrained(tmp_path / "foreign")
    loaded = load_reward_model(str(tmp_path / "foreign"))
    torch.testing.assert_close(rewards(loaded), of_transformers(tmp_path / "foreign"))


def test_the_mean_of_an_answer_s_tokens_is_taken_without_its_prompt(tmp_path: Path) -> None:
    model = new_reward_model(base(tmp_path), RewardHeads(pooling="mean"))
    by_hand = [hidden(model, ids)[start:].mean(0) for ids, start in zip(SEQUENCES, STARTS, strict=True)]
    torch.testing.assert_close(rewards(model), (torch.stack(by_hand) @ model.head.weight.T)[:, 0].detach())


def test_an_empty_answer_is_read_at_the_last_token_of_the_prompt(tmp_path: Path) -> None:
    for pooling in ("last", "mean"):
        model = new_reward_model(base(tmp_path), RewardHeads(pooling=pooling))
        expected = model.head.weight[0] @ hidden(model, [3, 4, 5])[-1]
        torch.testing.assert_close(rewards(model, [[3, 4, 5]], [3])[0], expected.detach())


def test_steps_are_read_at_their_last_tokens(tmp_path: Path) -> None:
    model = new_reward_model(base(tmp_path), RewardHeads(reads="steps"))
    batch = model.batch(SEQUENCES[:2], STARTS[:2], steps=[[3, 4], [6]])
    states = torch.stack(
        [hidden(model, SEQUENCES[0])[3], hidden(model, SEQUENCES[0])[4], hidden(model, SEQUENCES[1])[6]]
    )
    torch.testing.assert_close(model.score(batch).reward, (states @ model.head.weight.T)[:, 0].detach())


def test_a_tokenizer_that_pads_with_its_stop_token_is_read_before_it_as_in_transformers(tmp_path: Path) -> None:
    policy = tiny_policy()
    policy.tokenizer.pad_token = policy.tokenizer.eos_token
    save_policy(policy, tmp_path / "base")
    model = new_reward_model(ModelConfig(path=str(tmp_path / "base")))
    model.save(tmp_path / "reward")
    assert float(rewards(model)[0]) == pytest.approx(float(rewards(model, [SEQUENCES[0][:-1]], [3])[0]), abs=1e-6)
    torch.testing.assert_close(rewards(model), of_transformers(tmp_path / "reward"))


def test_the_spread_of_the_members_is_subtracted(tmp_path: Path) -> None:
    config = base(tmp_path)
    plain = new_reward_model(config, RewardHeads(members=4), seed=3)
    careful = new_reward_model(config, RewardHeads(members=4, spread_penalty=0.7), seed=3)
    found = plain.score(plain.batch(SEQUENCES, STARTS))
    assert found.spread.min() > 0
    torch.testing.assert_close(rewards(careful), found.reward - 0.7 * found.spread)


@pytest.mark.parametrize("penalty", [0.0, 0.5])
def test_normalised_scores_have_mean_0_and_deviation_1_and_the_same_order(tmp_path: Path, penalty: float) -> None:
    model = new_reward_model(base(tmp_path), RewardHeads(members=2, spread_penalty=penalty))
    before = rewards(model)
    once = model.normalised(before)
    after = rewards(once)
    assert after.mean().abs() < 1e-6
    assert after.std(correction=0) == pytest.approx(1.0, abs=1e-6)
    assert after.argsort().tolist() == before.argsort().tolist()
    again = once.normalised(after)  # normalising twice changes nothing
    torch.testing.assert_close(rewards(again), after)
    once.save(tmp_path / "reward")
    loaded = load_reward_model(str(tmp_path / "reward"))
    assert loaded.heads == once.heads
    torch.testing.assert_close(rewards(loaded), after)
    if not penalty:  # transformers has the scale and no shift
        torch.testing.assert_close(of_transformers(tmp_path / "reward") - once.heads.shift, after)


def test_scores_without_a_spread_cannot_be_normalised_by(tmp_path: Path) -> None:
    model = new_reward_model(base(tmp_path))
    for scores in (torch.ones(5), torch.ones(1), torch.tensor([1.0, float("nan")])):
        with pytest.raises(InputError, match="no spread"):
            model.normalised(scores)


def test_an_adapter_is_saved_merged_and_the_head_is_none_of_its_modules(tmp_path: Path) -> None:
    pytest.importorskip("peft")
    model = new_reward_model(base(tmp_path).model_copy(update={"lora": LoraConfig(rank=2)}))
    with torch.no_grad():
        for name, weight in model.policy.model.named_parameters():
            assert "score.lora" not in name
            if "lora_B" in name:
                weight.normal_()
    plain = new_reward_model(base(tmp_path))
    expected = rewards(model)
    assert not torch.allclose(expected, rewards(plain))
    model.save(tmp_path / "reward")
    torch.testing.assert_close(rewards(load_reward_model(str(tmp_path / "reward"))), expected)
    torch.testing.assert_close(of_transformers(tmp_path / "reward"), expected)


def test_a_reward_model_is_trained_on_with_the_heads_that_it_has(tmp_path: Path) -> None:
    heads = RewardHeads(members=2)
    model = new_reward_model(base(tmp_path), heads, seed=5)
    model.save(tmp_path / "reward")
    path = ModelConfig(path=str(tmp_path / "reward"))
    torch.testing.assert_close(rewards(new_reward_model(path, heads, seed=6)), rewards(model))
    with pytest.raises(InputError, match="is a reward model with members 2, not 3"):
        new_reward_model(path, RewardHeads(members=3))


@pytest.mark.parametrize("labels", [0, 2])
def test_a_model_without_a_head_or_with_several_labels_is_refused(tmp_path: Path, labels: int) -> None:
    from transformers import AutoModelForSequenceClassification

    source = base(tmp_path)
    if labels:
        AutoModelForSequenceClassification.from_pretrained(source.path, num_labels=2).save_pretrained(source.path)
    with pytest.raises(InputError, match="gives 2 numbers for an answer" if labels else "has no reward head"):
        load_reward_model(source.path)


def test_a_reward_model_whose_heads_or_settings_are_lost_is_refused(tmp_path: Path) -> None:
    model = new_reward_model(base(tmp_path), RewardHeads(members=2))
    model.save(tmp_path / "reward")
    (tmp_path / "reward/reward_heads.safetensors").unlink()
    with pytest.raises(InputError, match="lacks reward_heads"):
        load_reward_model(str(tmp_path / "reward"))
    file = tmp_path / "reward/config.json"
    settings = json.loads(file.read_text())
    settings["reward_model"]["colour"] = "red"
    file.write_text(json.dumps(settings))
    with pytest.raises(InputError, match="reward_model cannot be read"):
        load_reward_model(str(tmp_path / "reward"))


def test_a_model_that_looks_ahead_is_refused(tmp_path: Path) -> None:
    from transformers import BertConfig, BertForSequenceClassification

    shape: Any = {
        "vocab_size": 14,
        "num_labels": 1,
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "initializer_range": 1.0,
    }
    BertForSequenceClassification(BertConfig(**shape)).save_pretrained(tmp_path)
    tiny_policy().tokenizer.save_pretrained(tmp_path)
    with pytest.raises(InputError, match="no linear head `score`"):
        load_reward_model(str(tmp_path))
    with pytest.raises(InputError, match="looks ahead"):
        split_backbone(BertForSequenceClassification.from_pretrained(tmp_path))


@pytest.mark.parametrize(
    ("criteria", "weights", "problem"),
    [(("a", "b"), (1.0,), "1 weights"), (("a", "a"), (1.0, 1.0), "named twice"), ((), (), "0 weights")],
)
def test_heads_name_each_criterion_once_with_a_weight(criteria: Any, weights: Any, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        RewardHeads(criteria, weights)


def test_reference_bins_hold_equal_shares_and_equal_scores_share_one() -> None:
    spread = ReferenceScores.of(torch.arange(100.0))
    assert len(spread.shares) == 10
    assert sum(spread.shares) == pytest.approx(1.0)
    assert max(spread.shares) - min(spread.shares) < 1e-9
    assert (spread.lowest, spread.highest) == (0.0, 99.0)
    assert torch.bincount(spread.bins(torch.arange(100.0))).tolist() == [10] * 10
    two = ReferenceScores.of(torch.tensor([0.0] * 30 + [1.0] * 10))
    assert two.edges == (1.0,)
    assert two.shares == pytest.approx((30.5 / 41, 10.5 / 41))
