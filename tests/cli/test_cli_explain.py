"""What is in force and where it came from: `--explain`, config.yaml and the console; what overrides leave alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import reinlm as library
from reinlm.algorithms import resolve
from reinlm.config import parse_yaml
from reinlm.rewards.spec import read_spec
from reinlm.sources import read_sources

RECIPE = """
model: {path: model, dtype: float32}
data: {path: d.jsonl, limit: 16, renderer: template}
reward: {functions: exact_match, time_limit: 7, on_reward_error: skip}
algorithm: {base: gspo, gate: {clip: {high: 5e-4}}}
rollout: {group_size: 4, batch_size: 16, max_new_tokens: 3}
run: {tensorboard: false}
"""


@pytest.fixture
def recipe(place: Path) -> None:
    (place / "r.yaml").write_text(RECIPE)
    (place / "f.py").write_text("def f(completions):\n    return [0.5 for _ in completions]\n")


def explained(text: str) -> tuple[dict[str, Any], dict[tuple[str, ...], str]]:
    return parse_yaml(text, "explain"), read_sources(text)


@pytest.mark.parametrize("verb", ["rl", "sft"])
def test_a_number_of_seeds_that_is_none_is_refused_by_explain_as_by_the_run(reinlm, place, recipe, verb):
    words = (verb, "--model", "m", "--data", "d.jsonl", *(("--reward", "math") if verb == "rl" else ()))
    for seeds in ("0", "-1"):
        run, explained_run = reinlm(*words, "--seeds", seeds), reinlm(*words, "--seeds", seeds, "--explain")
        assert (run.code, run.out, run.err) == (explained_run.code, explained_run.out, explained_run.err)
        assert (run.code, f"seeds is {seeds}, and must be" in run.err) == (2, True)
    assert reinlm(*words, "--seeds", "2", "--explain").code == 0


@pytest.mark.parametrize(("given", "name"), [("d.jsonl", "eval"), ("hard=d.jsonl", "hard")])
def test_eval_data_may_name_its_set(reinlm, place, recipe, given, name):
    outcome = reinlm("rl", "r.yaml", "--eval-data", given, "--explain")
    assert outcome.code == 0, outcome.err
    tree, sources = explained(outcome.out)
    assert {name: data["path"] for name, data in tree["evaluation"]["data"].items()} == {name: "d.jsonl"}
    assert sources["evaluation", "data", name, "path"] == "--eval-data"


def test_flags_and_overrides_change_what_they_name_alone(reinlm, place, recipe):
    words = ("--reward", "f.py:f", "reward.time_limit=2", "--data", "other.jsonl", "--model", "m2", "algorithm.kl=0.1")
    outcome = reinlm("rl", "r.yaml", *words, "--explain")
    assert outcome.code == 0, outcome.err
    tree, sources = explained(outcome.out)
    told = {key: tree["reward"][key] for key in ("functions", "time_limit", "on_reward_error")}
    assert told == {"functions": "f.py:f", "time_limit": 2.0, "on_reward_error": "skip"}
    assert (tree["data"]["path"], tree["data"]["limit"]) == ("other.jsonl", 16)
    assert (tree["model"]["path"], tree["model"]["dtype"]) == ("m2", "float32")
    assert tree["algorithm"]["gate"] == {"clip": {"low": 3e-4, "high": 5e-4, "dual": None}}
    assert {
        path: sources[path] for path in sources if path[0] in ("reward", "model") and sources[path] != "default"
    } == {
        ("reward", "functions"): "--reward",
        ("reward", "time_limit"): "reward.time_limit=2",
        ("reward", "on_reward_error"): "recipe r.yaml",
        ("model", "path"): "--model",
        ("model", "dtype"): "recipe r.yaml",
    }
    found = {".".join(path): source for path, source in sources.items() if path[0] == "algorithm"}
    assert found["algorithm.gate.clip.low"] == "gspo"
    assert found["algorithm.gate.clip.high"] == "recipe r.yaml"
    assert found["algorithm.kl.coefficient"] == "algorithm.kl=0.1"
    assert found["algorithm.base"] == "recipe r.yaml"
    assert sorted(path.name for path in place.iterdir()) == ["d.jsonl", "f.py", "model", "r.yaml"]


@pytest.mark.parametrize(
    ("words", "key", "source"),
    [
        (["sft", "-m", "none", "-d", "none.jsonl", "--steps", "3"], ("training", "steps"), "--steps"),
        (["rl", "-m", "none", "-d", "none.jsonl", "-r", "math", "seed=4"], ("seed",), "seed=4"),
        (
            ["eval", "-m", "none", "-d", "none.jsonl", "-r", "math", "--samples", "2"],
            ("evaluation", "samples"),
            "--samples",
        ),
        (
            ["generate", "-m", "none", "-p", "1+1=", "--max-new-tokens", "5"],
            ("sampling", "max_new_tokens"),
            "--max-new-tokens",
        ),
    ],
    ids=lambda value: value[0],
)
def test_every_verb_explains_without_a_model_and_what_it_prints_is_a_recipe(reinlm, place, words, key, source):
    outcome = reinlm(*words, "--explain")
    assert outcome.code == 0, outcome.err
    tree, sources = explained(outcome.out)
    assert sources[key] == source
    assert sources["model", "path"] == "--model"
    assert "default" in sources.values()
    (place / "said.yaml").write_text(outcome.out)
    again = reinlm(words[0], "said.yaml", "--explain")
    assert again.code == 0, again.err
    assert explained(again.out)[0] == tree


def test_a_run_says_what_was_given_and_its_config_is_a_recipe_with_sources(reinlm, place, recipe):
    outcome = reinlm("rl", "r.yaml", "-r", "f.py:f", "--steps", "1", "-o", "out", "algorithm.gate.clip.low=1e-4")
    assert outcome.code == 0, outcome.err
    assert "recipe r.yaml: model.path=model" in outcome.err
    assert "command line: reward.functions=f.py:f, training.steps=1" in outcome.err
    assert "gspo: advantage group_standardize; ratio sequence; gate clip 0.0001 0.0005; kl none" in outcome.err
    tree, sources = explained(Path("out/config.yaml").read_text())
    assert resolve(tree["algorithm"]) == library.algorithm("gspo", gate={"clip": [1e-4, 5e-4]})
    assert sources["algorithm", "gate", "clip", "low"] == "algorithm.gate.clip.low=1e-4"
    assert sources["algorithm", "gate", "clip", "high"] == "recipe r.yaml"
    assert "default" not in sources.values()
    assert ("optimizer", "learning_rate") not in sources
    resumed = reinlm("rl", "--resume", "-o", "out", "training.steps=2", "-q")
    assert resumed.code == 0, resumed.err
    assert "recipe r.yaml" not in resumed.err
    later = explained(Path("out/config.yaml").read_text())[1]
    assert later == sources | {("training", "steps"): "training.steps=2"}
    again = reinlm("rl", "out/config.yaml", "-o", "again", "--explain")
    assert explained(again.out)[0]["algorithm"] == tree["algorithm"]


def test_a_secret_is_not_in_a_source(reinlm, place):
    outcome = reinlm("rl", "-m", "m", "-d", "d", "-r", "math", "run.trackers=[{wandb: {api_key: s3cret}}]", "--explain")
    assert "s3cret" not in outcome.out


def test_python_explains_too_and_says_python() -> None:
    mine = library.algorithm("dapo", kl=0.1)
    text = library.explain("rl", "m", "d.jsonl", reward="math", algorithm=mine, rollout={"group_size": 4})
    tree, sources = explained(text)
    assert resolve(tree["algorithm"]) == mine
    assert sources["algorithm", "kl", "coefficient"] == "Python"
    assert sources["algorithm", "gate", "clip", "high"] == "dapo"
    assert sources["rollout", "group_size"] == "Python"
    with pytest.raises(library.InputError, match="unknown verb 'trian'"):
        library.explain("trian")


def graded(completions: list[str]) -> list[float]:
    return [1.0 for _ in completions]


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ((graded, 0.5), [("graded", 0.5)]),
        ([(graded, 0.5), "math"], [("graded", 0.5), ("math", 1.0)]),
        (["math", 0.5], [("math", 0.5)]),
        ({"function": graded}, [("graded", 1.0)]),
        ({"function": graded, "weight": 0.5}, [("graded", 0.5)]),
        (({"regex": {"pattern": "#"}}, 2), [("regex", 2.0)]),
        (({"name": "regex", "pattern": "#"}, 2), [("regex", 2.0)]),
    ],
)
def test_rewards_are_written_as_in_python(spec: Any, expected: Any) -> None:
    assert [(choice.name, choice.weight) for choice in read_spec(spec)] == expected


PARTS = """
def soft_clip(log_ratio, logprobs, signals):
    return -log_ratio.exp().clamp(max=1.2) * signals.advantages


def mean_base(feedback):
    return feedback.layout.expand(feedback.effective_rewards, "episode")
"""


@pytest.mark.parametrize(
    ("kind", "name"), [("aggregation", "token_mean"), ("gate", "p.py:soft_clip"), ("advantage", "p.py:mean_base")]
)
def test_a_choice_that_is_a_bare_name_has_its_source(reinlm, place, kind, name):
    (place / "p.py").write_text(PARTS)
    (place / "mine.yaml").write_text(f"algorithm: {{base: grpo, {kind}: '{name}'}}\n")
    given = ("rl", "-m", "m", "-d", "d", "-r", "math", "--explain")
    typed = explained(reinlm(*given, f"algorithm.{kind}={name}").out)[1]
    assert typed["algorithm", kind] == f"algorithm.{kind}={name}"
    assert explained(reinlm(*given, "mine.yaml").out)[1]["algorithm", kind] == "recipe mine.yaml"
    python = library.explain("rl", "m", "d", reward="math", algorithm={"base": "grpo", kind: name})
    assert read_sources(python)["algorithm", kind] == "Python"
    other = {"aggregation": "gate", "gate": "aggregation", "advantage": "aggregation"}[kind]
    assert all(source == "grpo" for path, source in typed.items() if path[:2] == ("algorithm", other))


@pytest.mark.parametrize(
    ("words", "expected", "note"),
    [
        (
            ["sapo", "algorithm.gate.clip.high=0.3"],
            {"gate.clip.high": "algorithm.gate.clip.high=0.3", "gate.clip.low": "default of clip"},
            "algorithm.gate.clip.high replaces sapo's gate soft by clip",
        ),
        (
            ["gspo", "algorithm.kl.estimator=k2"],
            {"kl.coefficient": "default of kl", "kl.controller": "default of kl", "kl.estimator": "algorithm.kl.estimator=k2"},
            "algorithm.kl.estimator adds a KL of 0.04, which gspo has not",
        ),
        (
            ["gspo", "algorithm.entropy.coefficient=0.01"],
            {"entropy.entropy.coefficient": "algorithm.entropy.coefficient=0.01"},
            "algorithm.entropy.coefficient adds entropy",
        ),
        (["sapo", "algorithm.gate={clip: {high: 0.3}}"], {"gate.clip.low": "default of clip"}, None),
        (["dapo", "algorithm.gate.clip.high=0.3"], {"gate.clip.low": "dapo"}, None),
        (["ppo", "algorithm.advantage.gae.gamma=0.9"], {"advantage.whitened.advantage.gae.gae_lambda": "ppo"}, None),
        (["ppo", "algorithm.advantage.whitened=null"], {"advantage.gae.gae_lambda": "ppo"}, None),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)  # fmt: skip
def test_what_the_algorithm_does_not_say_is_a_default_of_the_choice(reinlm, place, words, expected, note):
    outcome = reinlm("rl", "-m", "m", "-d", "d", "-r", "math", "--explain", "--algorithm", *words)
    assert outcome.code == 0, outcome.err
    found = {".".join(path[1:]): source for path, source in explained(outcome.out)[1].items()}
    assert {key: found[key] for key in expected} == expected
    notes = [line for line in outcome.out.splitlines() if "# note: algorithm." in line]
    assert [note in line for line in notes] == ([True] if note else []), notes


@pytest.mark.parametrize(
    ("words", "sources"),
    [
        ((), {("base",): "recipe r.yaml", ("gate", "clip", "high"): "recipe r.yaml", ("gate", "clip", "low"): "gspo"}),
        (("--algorithm", "GSPO"), {("base",): "--algorithm", ("gate", "clip", "high"): "recipe r.yaml"}),
        (("--algorithm", "dapo"), {("base",): "--algorithm", ("gate", "clip", "high"): "dapo"}),
    ],
)
def test_values_of_another_algorithm_are_not_the_recipes(reinlm, place, recipe, words, sources):
    values, found = explained(reinlm("rl", "r.yaml", *words, "--explain").out)
    assert {path: found[("algorithm", *path)] for path in sources} == sources
    assert values["algorithm"]["gate"]["clip"]["high"] == (0.28 if "dapo" in words else 5e-4)
