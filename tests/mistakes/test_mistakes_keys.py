"""Natural mistakes with keys: one line that says what to write instead, from the command line and from Python."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import reinlm
from reinlm.cli import main
from reinlm.config import apply_overrides, build, parse_yaml
from reinlm.errors import InputError
from reinlm.models import character_tokenizer, save_policy, tiny_model
from reinlm.models.loading import load_policy
from reinlm.training.dpo_config import DPOConfig
from reinlm.training.rejection.config import RFTConfig

RL = "rl"
SFT = "sft"
EVAL = "eval"
GENERATE = "generate"

KEYS: list[tuple[str, str, str]] = [
    (RL, "num_generations=8", "TRL's num_generations is rollout.group_size"),
    (RL, "learning_rate=1e-6", "the key is optimizer.learning_rate"),
    (RL, "lr=1e-6", "lr is optimizer.learning_rate"),
    (RL, "group_size=8", "the key is rollout.group_size"),
    (RL, "rollout.n=8", "rollout.n is rollout.group_size"),
    (RL, "algorithm.gate.high=0.3", "the key is algorithm.gate.clip.high"),
    (RL, "algorithm.shapers.penalty=0.3", "the key is algorithm.shapers."),
    (RL, "algorithm.advantage=gae", "set algorithm.critic=critic"),
    (RL, "algorithm.gate=no.py", "write no.py:FUNCTION"),
    (RL, "clip_higher=0.28", "clip_higher is algorithm.gate.clip.high"),
    (RL, "dynamic_sampling=true", "dynamic_sampling is algorithm.filters; mixed_outcomes"),
    (RL, "steps=3", "the key is training.steps"),
    (RL, "epochs=2", "the key is training.epochs"),
    (RL, "beta=0.04", "TRL's beta is algorithm.kl.coefficient"),
    (RL, "clip=0.2", "clip is algorithm.gate.clip.low"),
    (RL, "clip_range=0.2", "Stable-Baselines3's clip_range is algorithm.gate.clip.low"),
    (RL, "epsilon_high=0.28", "TRL's epsilon_high is algorithm.gate.clip.high"),
    (RL, "max_completion_length=256", "TRL's max_completion_length is rollout.max_new_tokens"),
    (RL, "max_new_tokens=256", "rollout.max_new_tokens"),
    (RL, "temperature=0.9", "rollout.temperature"),
    (RL, "per_device_train_batch_size=4", "training.micro_batch_tokens"),
    (RL, "gradient_accumulation_steps=4", "training.micro_batch_tokens"),
    (RL, "num_train_epochs=2", "training.epochs"),
    (RL, "max_steps=10", "training.steps"),
    (RL, "output_dir=out", "run.output"),
    (RL, "report_to=wandb", "run.trackers"),
    (RL, "vllm_mode=colocate", "TRL's vllm_mode is rollout.engine"),
    (RL, "use_vllm=true", "rollout.engine"),
    (RL, "push_to_hub=true", "nothing is uploaded"),
    (RL, "logging_steps=1", "every step is logged"),
    (RL, "lora_r=16", "model.lora.rank"),
    (RL, "rank=16", "the key is model.lora.rank"),
    (RL, "eval_steps=10", "evaluation.every"),
    (RL, "rollout.learning_rate=1e-6", "the key is optimizer.learning_rate"),
    (RL, "training.learning_rate=1e-6", "the key is optimizer.learning_rate"),
    (RL, "optimizer.group_size=8", "the key is rollout.group_size"),
    (RL, "algorithm.beta=0.1", "algorithm.kl.coefficient"),
    (RL, "actor_rollout_ref.rollout.n=8", "rollout.group_size"),
    (RL, "actor_rollout_ref.actor.optim.lr=1e-6", "optimizer.learning_rate"),
    (RL, "trainer.nnodes=2", "a run is one process on one device"),
    (RL, "rollout.grup_size=8", "did you mean 'rollout.group_size'?"),
    (RL, "optimizer.learning_rte=1e-6", "did you mean 'optimizer.learning_rate'?"),
    (RL, "evaluation.every=5", "has no effect without evaluation.data"),
    (RL, "evaluation.samples=4", "has no effect without evaluation.data"),
    (RL, "evaluation.correct_above=0.9", "has no effect without evaluation.data"),
    (RL, "optimizer.final_fraction=0.5", "has no effect with the schedule constant"),
    (RL, "rollout.max_attempts=4", "drops no groups"),
    (RL, "model.revision=main", "has no effect"),
    (SFT, "max_length=512", "max_tokens"),
    (SFT, "batch_size=8", "the key is training.batch_size"),
    (SFT, "packing=true", "training.packing"),
    (SFT, "assistant_only_loss=true", "the assistant's are trained on"),
    (SFT, "model.revision=main", "has no effect"),
    (SFT, "run.rollouts_every=5", "sft has no rollouts to write"),
    (EVAL, "samples=4", "the key is evaluation.samples"),
    (EVAL, "evaluation.every=4", "belongs to training"),
    (EVAL, "model.gradient_checkpointing=true", "gradient_checkpointing"),
    (GENERATE, "max_new_tokens=5", "sampling.max_new_tokens"),
    (GENERATE, "temperature=0", "sampling.temperature"),
    (GENERATE, "model.trust_remote_code=true", "has no effect"),
]
"""Verb, KEY=VALUE, and a part of the answer."""
SHORT_IN_PYTHON = ("steps=3", "samples=4", "max_new_tokens=5", "temperature=0")
"""Taken from Python, where they are keywords of the verb."""
FLAGS = [
    (RL, "--num-generations", "write rollout.group_size=1: TRL's num_generations is rollout.group_size"),
    (RL, "--learning-rate", "write optimizer.learning_rate=1"),
    (RL, "--rollout.group_size", "write rollout.group_size=1"),
    (SFT, "--per-device-train-batch-size", "training.micro_batch_tokens"),
    (EVAL, "--top-p", "evaluation.top_p"),
]
SETTINGS: dict[str, dict[str, Any]] = {
    RL: {"model": "model", "data": "d.jsonl", "reward": "exact_match", "rollout": {"group_size": 2, "batch_size": 2}},
    SFT: {"model": "model", "data": "d.jsonl"},
    EVAL: {"model": "model", "data": "d.jsonl", "reward": "exact_match"},
    GENERATE: {"model": "model", "prompts": ["1+1="]},
}


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    characters = character_tokenizer("0123456789+=")
    shape: dict[str, Any] = {"hidden_size": 16, "layers": 1, "heads": 2, "intermediate_size": 32, "context": 32}
    save_policy(load_policy((tiny_model("qwen3", vocab_size=len(characters), **shape), characters)), tmp_path / "model")
    rows = [{"prompt": f"{n}+1=", "completion": str(n + 1), "answer": str(n + 1)} for n in range(4)]
    (tmp_path / "d.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def answered(capsys: Any, *words: str) -> str:
    with pytest.raises(SystemExit) as ended:
        main(list(words))
    told: str = capsys.readouterr().err
    assert ended.value.code == 2
    assert "Traceback" not in told
    lines = told.splitlines()  # a recipe's values may have been shown before
    said = lines[[line.startswith("error: ") for line in lines].index(True) :]
    assert [line.split(":")[0] for line in said] in (["error"], ["error", "hint"])
    return told


@pytest.mark.parametrize(("verb", "word", "answer"), KEYS, ids=[f"{verb} {word}" for verb, word, _ in KEYS])
def test_a_mistaken_key_is_answered_on_the_command_line_and_in_python(
    verb: str, word: str, answer: str, capsys: Any
) -> None:
    Path("r.yaml").write_text(json.dumps(SETTINGS[verb]))
    assert answer in answered(capsys, verb, "r.yaml", word)
    if word in SHORT_IN_PYTHON:
        return
    call: Any = {RL: reinlm.rl, SFT: reinlm.sft, EVAL: reinlm.evaluate, GENERATE: reinlm.generate}[verb]
    with pytest.raises(InputError) as error:
        call(recipe=SETTINGS[verb], **apply_overrides({}, [word]))
    assert answer in str(error.value)
    assert "\n" not in str(error.value)
    assert not Path("runs").exists()


@pytest.mark.parametrize(("verb", "flag", "answer"), FLAGS, ids=[flag for _, flag, _ in FLAGS])
def test_a_key_written_as_a_flag_is_answered_with_the_key(verb: str, flag: str, answer: str, capsys: Any) -> None:
    assert answer in answered(capsys, verb, flag, "1")


def test_a_configuration_object_of_another_library_is_answered() -> None:
    class GRPOConfig:
        num_generations = 8

    train: Any = reinlm.rl
    for name in ("args", "config"):
        with pytest.raises(InputError, match="options are sections here"):
            train(recipe=SETTINGS[RL], **{name: GRPOConfig()})


@pytest.mark.parametrize(
    ("tree", "hint"),
    [
        ({"dpo": {"beta": 0.2}}, "dpo.beta is algorithm.beta"),
        ({"columns": {"prompt": "question"}}, "the key is data.columns"),
        ({"data": {"path": "p.jsonl", "max_tokens": 8}}, "the key is max_tokens"),
    ],
)
def test_a_key_of_dpo_in_another_place_is_named_where_it_belongs(tree: dict[str, Any], hint: str) -> None:
    with pytest.raises(InputError) as caught:
        build(DPOConfig, {"model": "m", "data": "p.jsonl", **tree})
    assert caught.value.hint == hint


def test_a_contradiction_of_a_whole_recipe_is_said_without_the_name_of_a_class() -> None:
    given = {"model": "m", "data": "p.jsonl", "reward": "exact_match", "keep": {"rule": "above", "count": 2}}
    with pytest.raises(InputError) as caught:
        build(RFTConfig, given)
    assert caught.value.message.startswith("keep.count 2 has no effect")


@pytest.mark.parametrize("text", ["{beta:0.1}", "a: [{b: {base:dpo}}]"])
def test_a_colon_of_yaml_without_a_space_is_named(text: str) -> None:
    with pytest.raises(InputError, match=r"here: '(beta:0\.1|base:dpo)' is one word to YAML") as caught:
        parse_yaml(text, "here")
    assert caught.value.hint in ("write a space after the colon: beta: 0.1", "write a space after the colon: base: dpo")
    assert parse_yaml("{mine.py:score: null, 'http://x/y': null}", "here") == {
        "mine.py:score": None,
        "http://x/y": None,
    }
