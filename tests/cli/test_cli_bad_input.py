"""What bad input gets: exit code 2, one line that names the culprit, at most one hint, nothing half-written."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import pytest
from pydantic import Field

from reinlm.cli import main
from reinlm.config import Config, build
from reinlm.errors import InputError

pytestmark = pytest.mark.no_cover


def refused(outcome, *culprits, written="out"):
    assert outcome.code == 2, outcome.err
    assert len(outcome.errors) == 1, outcome.err
    assert len(outcome.hints) <= 1
    assert "Traceback" not in outcome.err
    for culprit in culprits:
        assert culprit in outcome.err
    if written:
        assert not Path(written).exists()


# ------------------------------------------------------------------------------------------------ keys, flags, values


def test_a_misspelt_key_is_named_with_the_nearest(rl):
    refused(rl("rollout.grop_size=4"), "unknown key 'rollout.grop_size'", "did you mean 'rollout.group_size'?")


def test_a_misspelt_section_in_a_recipe_is_named(reinlm, place):
    (place / "r.yaml").write_text("model: model\ndata: d.jsonl\nreward: exact_match\noptimiser: {learning_rate: 1}\n")
    refused(reinlm("rl", "r.yaml"), "unknown key 'optimiser'", "did you mean 'optimizer'?", written="runs")


def test_a_recipe_that_is_no_yaml_is_named_by_line(reinlm, place):
    (place / "r.yaml").write_text("model: model\ndata: [\n")
    refused(reinlm("rl", "r.yaml"), "r.yaml:3: not valid YAML", written="runs")


def test_a_recipe_that_is_missing_is_named(reinlm):
    refused(reinlm("rl", "nowhere.yaml"), "no such recipe: nowhere.yaml", written="runs")


@pytest.mark.parametrize(
    ("words", "culprits"),
    [
        (["rll"], ["unknown command 'rll'", "did you mean 'rl'?"]),
        (["rl", "--modle", "x"], ["unknown option '--modle'", "did you mean --model?"]),
        (["rl", "--steps", "many"], ["--steps: ", "'many'"]),
        (["rl"], ["'model' is required"]),
        (["rl", "-m", "model", "-d", "d.jsonl"], ["'reward' is required"]),
    ],
)
def test_unknown_words_and_missing_sections_are_named(reinlm, words, culprits):
    refused(reinlm(*words), *culprits, written="runs")


@pytest.mark.parametrize(
    ("override", "culprits"),
    [
        ("optimizer.learning_rate=fast", ["optimizer.learning_rate", "'fast'"]),
        ("algorithm=5", ["algorithm: input should be a valid string or a valid dictionary (given: 5)"]),
        ("run.trackers=[5]", ["run.trackers.0: input should be a valid string or a valid dictionary (given: 5)"]),
        ("optimizer.learning_rate=-1", ["optimizer.learning_rate", "-1"]),
        ("optimizer.betas=[0.9,1.5]", ["optimizer.betas", "[0, 1)"]),
        ("training.steps=0", ["training.steps", "0"]),
        ("rollout.batch_size=10", ["batch_size 10 is not a multiple of group_size 4", "8 or 12"]),
        ("training.minibatches=3", ["training.minibatches 3 does not divide the 4 groups"]),
        ("rollout.temperature=0", ["temperature 0 cannot be trained on"]),
        ("rollout.top_p=0.9", ["top_p=0.9 cannot be trained on"]),
        ("rollout.top_k=5", ["top_k=5 cannot be trained on"]),
        ("rollout.group_size=1", ["rollout.group_size is 1"]),
        (
            "rollout.max_new_tokens=40",
            ["rollout.max_new_tokens 40", "context of 32", "set rollout.max_new_tokens below"],
        ),
        ("rollout.stop_token_ids=99999", ["rollout.stop_token_ids: token 99999", "vocabulary of"]),
        ("rollout.stop_token_ids=[-1]", ["rollout.stop_token_ids", "greater than or equal to 0", "-1"]),
        ("model.lora={rank: 2, dropout: 0.1}", ["model.lora.dropout 0.1 has no effect"]),
        ("evaluation.stop_at=2", ["evaluation.stop_at", "2"]),
        ("training.epochs=.inf", ["training.epochs", "finite number", "inf"]),
        ("training.target_kl=.inf", ["training.target_kl", "finite number", "inf"]),
        ("optimizer.weight_decay=.inf", ["optimizer.weight_decay", "finite number", "inf"]),
        ("evaluation.correct_above=.nan", ["evaluation.correct_above", "finite number", "nan"]),
        ("reward.time_limit=1e10", ["reward.time_limit", "less than or equal to 1000000", "10000000000.0"]),
        ("rollout.environment_time_limit=1e10", ["rollout.environment_time_limit", "1000000", "10000000000.0"]),
        ("algorithm.advantage={group_standardize: .inf}", ["epsilon", "finite", "inf"]),
        ("algorithm.entropy={coefficient: 0.1, step: .inf}", ["step", "finite", "inf"]),
    ],
)
def test_values_out_of_range_are_named(rl, override, culprits):
    refused(rl(override), *culprits)


def test_a_part_may_take_infinite_values_where_it_says_so():
    class Bounded(Config):
        low: float = -1.0
        high: float = Field(math.inf, allow_inf_nan=True)

    assert build(Bounded, {}).high == math.inf
    with pytest.raises(InputError, match=r"low: .*finite number \(given: -inf\)"):
        build(Bounded, {"low": -math.inf})


@pytest.mark.parametrize(
    ("prompt", "culprits"),
    [
        ("", ["prompts[0]", "is empty"]),
        ("1" * 99, ["prompts: 1 of 1 prompts are longer than", "prompts[0]"]),
        ("1=", ["set sampling.max_new_tokens below 32"]),
    ],
)
def test_a_prompt_that_cannot_be_answered_is_named_as_the_user_gave_it(reinlm, prompt, culprits):
    room = 31 if len(prompt) != 2 else 32
    outcome = reinlm("generate", "-m", "model", "--prompt", prompt, f"sampling.max_new_tokens={room}")
    refused(outcome, *culprits, written=None)
    assert "data" not in outcome.err
    assert "on_" not in outcome.err


def test_an_unknown_algorithm_is_named_with_the_nearest(rl):
    refused(rl("-a", "gropo"), "unknown algorithm 'gropo'", "did you mean 'grpo'?")


def test_choices_that_contradict_each_other_are_refused_with_a_reason(rl):
    refused(rl("algorithm={base: gspo, aggregation: token_mean}"), "one ratio a sequence under a token mean")


def test_an_unknown_reward_is_named_with_the_nearest(rl):
    refused(rl(reward="exact_mach"), "exact_mach", "did you mean 'exact_match'?")


def test_a_reward_file_or_function_that_is_missing_is_named(rl, place):
    refused(rl(reward="mine.py:score"), "mine.py")
    (place / "mine.py").write_text("def scored(prompts, completions): return [0.0] * len(prompts)\n")
    refused(rl(reward="mine.py:score"), "score")


# ------------------------------------------------------------------------------------------------ data


def test_a_missing_file_is_named(rl):
    refused(rl(data="e.jsonl"), "e.jsonl")


@pytest.mark.parametrize(
    ("override", "culprits"),
    [
        ("data=empty.jsonl", ["empty.jsonl: no rows"]),
        ("data=text.jsonl", ["text.jsonl", "prompt"]),
        ("evaluation.data=nope.jsonl", ["no such file: nope.jsonl"]),
        ("text=nope.jsonl", ["no such file: nope.jsonl"]),
        ("rollout.batch_size=400", ["a batch of 100 groups", "the data hold 64"]),
    ],
)
def test_data_are_checked_before_a_model_is_loaded(rl, place, override, culprits):
    (place / "empty.jsonl").write_text("")
    (place / "text.jsonl").write_text('{"text": "1+1=2"}\n')
    words = {"data": override.removeprefix("data=")} if override.startswith("data=") else {}
    refused(rl(*([] if words else [override]), model="no_such_model", **words), *culprits)


def test_further_models_are_looked_for_before_the_policy_is_loaded(rl):
    refused(rl("reference=./nope", "algorithm.kl.coefficient=0.1", model="no_such_model"), "nope")
    refused(rl("-a", "distill", "teacher=./nope", model="no_such_model"), "nope")


def test_a_malformed_row_is_named_by_file_and_line(rl, place):
    (place / "bad.jsonl").write_text('{"prompt": "1", "answer": "1"}\n{"prompt": \n')
    refused(rl(data="bad.jsonl"), "bad.jsonl:2")


def test_an_empty_column_is_named_by_file_line_and_column(rl, place):
    (place / "bad.jsonl").write_text('{"prompt": "1+1=", "answer": "2"}\n{"prompt": 7, "answer": "1"}\n')
    refused(rl(data="bad.jsonl"), "bad.jsonl:2", "prompt")


def test_skipping_bad_rows_is_said_and_the_run_goes_on(rl, place):
    good = (place / "d.jsonl").read_text()
    (place / "bad.jsonl").write_text(good + "{nonsense\n")
    outcome = rl("data.on_bad_row=skip", "--steps", "1", data="bad.jsonl")
    assert outcome.code == 0, outcome.err


def test_a_missing_column_is_named(rl, place):
    (place / "q.jsonl").write_text('{"text": "1+1"}\n')
    refused(rl(data="q.jsonl"), "q.jsonl", "prompt")
    (place / "p.jsonl").write_text('{"prompt": "1+1="}\n' * 8)
    refused(rl(data="p.jsonl"), "exact_match", "answer")


def test_empty_data_are_refused(rl, place):
    (place / "none.jsonl").write_text("")
    refused(rl(data="none.jsonl"), "none.jsonl")


def test_prompts_longer_than_the_context_are_counted(rl, place):
    rows = [{"prompt": "1" * 30, "answer": "2"}] * 3 + [{"prompt": f"{i}+1=", "answer": "2"} for i in range(8)]
    (place / "long.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    refused(rl(data="long.jsonl"), "3", "long.jsonl", "26")
    assert rl("data.on_long_prompt=skip", "--steps", "1", data="long.jsonl").code == 0


def test_a_character_that_the_tokenizer_does_not_know_is_named_by_row_and_column(rl, place):
    (place / "x.jsonl").write_text('{"prompt": "1+1=", "answer": "2"}\n{"prompt": "1+x=", "answer": "2"}\n')
    refused(rl("rollout.batch_size=8", data="x.jsonl"), "x.jsonl:2", "prompt")


def test_a_batch_with_more_groups_than_prompts_is_refused(rl, place):
    (place / "few.jsonl").write_text('{"prompt": "1+1=", "answer": "2"}\n')
    refused(rl(data="few.jsonl"), "4 groups", "the data hold 1")


# ------------------------------------------------------------------------------------------------ models


@pytest.mark.parametrize(
    ("lacking", "culprit"),
    [("config.json", "config.json"), ("model.safetensors", "weights"), ("tokenizer*", "tokenizer")],
)
def test_a_model_folder_that_lacks_something_is_named(rl, place, lacking, culprit):
    shutil.copytree(place / "model", place / "broken")
    for path in (place / "broken").glob(lacking):
        path.unlink()
    refused(rl(model="broken"), "broken", culprit)


def test_a_tokenizer_without_eos_is_refused(rl, place):
    shutil.copytree(place / "model", place / "endless")
    path = place / "endless" / "tokenizer_config.json"
    settings = json.loads(path.read_text())
    del settings["eos_token"]
    path.write_text(json.dumps(settings))
    refused(rl(model="endless"), "endless", "no EOS token")


def test_a_model_that_is_nowhere_is_named(rl):
    refused(rl(model="./nowhere"), "./nowhere")


# ------------------------------------------------------------------------------------------------ rewards that fail


@pytest.mark.parametrize(
    ("body", "culprits"),
    [
        ("raise ValueError('no idea')", ["no idea"]),
        ("while True: pass", ["1"]),
        ("return [0.0]", ["1 values for 4 samples"]),
        ("return [float('nan')] * len(prompts)", ["nan", "d.jsonl:"]),
    ],
)
def test_a_reward_that_fails_stops_the_run_and_is_named(rl, place, body, culprits):
    (place / "mine.py").write_text(f"def score(prompts, completions):\n    {body}\n")
    outcome = rl("reward.time_limit=1", "reward.functions=mine.py:score", reward="mine.py:score")
    refused(outcome, "score", *culprits, written=None)


def test_a_reward_that_fails_for_some_leaves_those_out_and_counts_them(reinlm, place):
    (place / "mine.py").write_text(
        "def score(prompts, completions):\n    return [float('nan') if i == 3 else i % 2 for i in range(len(prompts))]\n"
    )
    recipe = "model: model\ndata: d.jsonl\nreward: {functions: 'mine.py:score', on_reward_error: skip}\n"
    (place / "r.yaml").write_text(recipe)
    fast = ["rollout.group_size=4", "rollout.batch_size=16", "rollout.max_new_tokens=6", "run.tensorboard=false"]
    assert reinlm("rl", "r.yaml", *fast, "-o", "out", "-q", "--steps", "1").code == 0
    record = json.loads((place / "out" / "metrics.jsonl").read_text().splitlines()[-1])
    assert record["rewards/failed"] == 4  # one in each group


# ------------------------------------------------------------------------------------------------ runs


def test_an_existing_run_is_refused_without_resume_or_overwrite(rl):
    assert rl("--steps", "1").code == 0
    refused(rl("--steps", "1"), "out exists", "--resume", "--overwrite", written=None)
    assert rl("--steps", "1", "--overwrite").code == 0


def test_a_resume_with_a_changed_configuration_says_what_differs(rl):
    assert rl("--steps", "1").code == 0
    outcome = rl("--resume", "optimizer.learning_rate=1e-3")
    refused(outcome, "optimizer.learning_rate: 1e-06 -> 0.001", written=None)


def test_a_resume_of_nothing_or_of_another_kind_is_refused_whatever_else_is_given(rl, reinlm):
    refused(rl("--resume"), "nothing to resume", "out")
    refused(reinlm("rl", "--resume", "-o", "out"), "nothing to resume: out is not a run folder")
    assert rl("--steps", "1").code == 0
    refused(reinlm("sft", "--resume", "-o", "out"), "out holds a run of kind 'rl', not 'sft'", written=None)


def test_losses_that_are_not_finite_are_skipped_and_counted_and_stop_the_run_after_a_few(rl, place):
    (place / "mine.py").write_text(
        "def score(prompts, completions):\n    return [3e38 * (i % 2) for i in range(len(prompts))]\n"
    )
    weights = (place / "model" / "model.safetensors").read_bytes()
    outcome = rl(
        "--steps", "9", "optimizer.max_skipped=3", "run.save_every=1", "algorithm={base: grpo, advantage: group_center}",
        reward="mine.py:score",
    )  # fmt: skip
    refused(outcome, "3 updates in a row were not finite", "last good checkpoint: out/checkpoints/step_2", written=None)
    last = json.loads((place / "out" / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["updates/skipped"] == 2
    assert (place / "out" / "checkpoints" / "last" / "model.safetensors").read_bytes() == weights


def test_debug_shows_the_traceback(place, capfd):
    from reinlm.errors import InputError

    with pytest.raises(InputError, match=r"nowhere\.yaml"):
        main(["rl", "nowhere.yaml", "--debug"])
