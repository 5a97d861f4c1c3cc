"""The keys as data, their command and their page: complete, and written from the classes that hold them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from reinlm.cli import main
from reinlm.config import apply_overrides
from reinlm.errors import InputError
from reinlm.key_reference import (
    CONFIGS,
    EFFECTS,
    attribute_docs,
    configuration_page,
    enumerate_keys,
    type_text,
    written,
)
from reinlm.keys import VERBS, all_keys, find_keys, grouped, keys_of, locate
from reinlm.objectives import GAE, Clip
from reinlm.training.optimizer import OptimizerConfig
from reinlm.training.sections import RLTraining, SFTOptimizer

ROOT = Path(__file__).parents[2]


def run(capsys: Any, *words: str) -> tuple[Any, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(["keys", *words])
    printed = capsys.readouterr()
    return ended.value.code, printed.out, printed.err


def test_the_data_and_the_page_are_what_is_written_from_the_classes() -> None:
    data = (ROOT / "src/reinlm/keys.json").read_text(encoding="utf-8")
    assert data == written(), "python -m reinlm.key_reference"
    page = (ROOT / "docs/configuration.md").read_text(encoding="utf-8")
    assert page == configuration_page(), "reinlm keys --page > docs/configuration.md"
    assert list(all_keys()) == enumerate_keys()


def test_every_key_has_a_description_a_type_and_a_default() -> None:
    assert [key.key for key in all_keys() if not (key.doc and key.type and all(key.defaults.values()))] == []


@pytest.mark.parametrize("verb", CONFIGS)
def test_the_effect_of_every_key_was_measured_and_of_no_other(verb: str) -> None:
    measured = json.loads(EFFECTS.read_text(encoding="utf-8"))[verb]
    assert measured.keys() == {key.key for key in keys_of(verb)}, "python tests/keys/effects.py"
    assert all(measured.values())


def test_every_field_of_a_verb_is_there_and_no_key_twice() -> None:
    for verb, kind in CONFIGS.items():
        names = [key.key for key in keys_of(verb)]
        assert len(names) == len(set(names))
        tops = {name.partition(".")[0] for name in names}
        assert tops == kind.model_fields.keys() - {"resolved"}
    assert {"evaluation.every", "models.eval.lora"}.isdisjoint(key.key for key in keys_of("eval"))


def test_every_key_can_be_typed() -> None:
    for key in all_keys():
        tree: Any = apply_overrides({}, [f"{key.key}=1"])
        for part in key.key.split("."):
            tree = tree[part]
        assert tree == 1


def test_descriptions_are_those_below_the_fields_also_of_a_base() -> None:
    assert attribute_docs(Clip)["low"] == "The ratio counts down to 1 - low; in (0, 1]."
    assert attribute_docs(SFTOptimizer)["warmup_steps"] == attribute_docs(OptimizerConfig)["warmup_steps"]
    assert attribute_docs(RLTraining)["packing"].startswith('"share": all sequences of a micro-batch in one row')
    assert attribute_docs(GAE)["gae_lambda"] == "λ of the policy's advantage, in [0, 1]."


def test_types_say_their_range() -> None:
    fields = RLTraining.model_fields
    assert type_text(fields["minibatches"].annotation, fields["minibatches"].metadata) == "integer ≥ 1 | null"
    found = {key.key: key.type for key in keys_of("rl")}
    assert {key.type for key in keys_of("classical") if key.key == "clip_schedule"} == {"constant | linear | cosine"}
    assert found["optimizer.final_fraction"] == "number ≥ 0 and ≤ 1"
    assert found["training.packing"] == "auto | share | pack | pad"
    assert found["training.minibatches"] == "integer ≥ 1 | null"
    assert found["seed"] == "integer ≥ 0 and < 2147483648"


def test_the_search_reads_names_descriptions_and_the_names_of_other_libraries() -> None:
    assert find_keys("group_size")[0].key == "rollout.group_size"
    assert "rollout.group_size" in [key.key for key in find_keys("num_generations")]
    assert [key.key for key in find_keys("greedy", "eval")] == ["evaluation.temperature"]
    assert find_keys("clip low")[0].key == "algorithm.gate.clip.low"
    assert find_keys("rollout-steps")[0].algorithms
    assert find_keys("learning_rate", "sft")[0].defaults["sft"] == "1e-05"
    with pytest.raises(InputError, match=r"try `.*reinlm keys group_size`"):
        find_keys("grup_size")
    with pytest.raises(InputError, match="unknown verb 'train'"):
        find_keys("x", "train")


def test_a_key_at_the_wrong_level_is_located() -> None:
    assert locate("learning_rate", "rl") == ["optimizer.learning_rate"]
    assert locate("group_size", "rl") == ["rollout.group_size"]
    assert locate("group_size", "sft") == []
    assert grouped("rl")[""][0].key == "environment"


def test_the_command_prints_type_default_description_and_foreign_names(capsys: Any) -> None:
    code, out, _ = run(capsys, "group_size", "--verb", "rl")
    assert code == 0
    assert out.splitlines()[:2] == ["rollout.group_size", "    integer ≥ 1; default 8; rl"]
    assert "num_generations" in out
    code, out, _ = run(capsys, "learning_rate", "--json")
    rows = json.loads(out)
    assert rows[0]["defaults"] == {"rl": "1e-06", "sft": "1e-05", "rft": "1e-05", "dpo": "1e-06", "reward": "1e-05"}
    code, _, err = run(capsys, "nothing_like_it")
    assert (code, err.count("\n")) == (2, 2)
    code, out, _ = run(capsys, "--page")
    assert out == configuration_page()
    assert run(capsys, "--page", "clip")[0] == 2


def test_the_data_are_read_without_torch_and_pydantic() -> None:
    code = "import sys, reinlm.keys as k; k.keys_of('rl'); print([m for m in ('torch', 'pydantic', 'numpy') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"
    assert set(VERBS) == {*CONFIGS, "classical"}
