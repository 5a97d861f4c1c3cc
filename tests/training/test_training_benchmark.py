"""What `reinlm bench` counts, by hand; what it measures, on a model of a few thousand weights; what it refuses."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import reinlm
from reinlm.batches import TokenBatch
from reinlm.errors import InputError
from reinlm.models import character_tokenizer, load_policy, save_policy, tiny_model
from reinlm.training.benchmark import FIGURES, BenchConfig
from reinlm.training.benchmark.machine import copy_bandwidth, matmul_flops
from reinlm.training.benchmark.work import ModelWork, SampledGroup, model_work, sampling_seconds, training_work

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import guard

CPU = torch.device("cpu")
SHAPE: dict[str, Any] = {"prompt_tokens": 5, "max_new_tokens": 6, "group_size": 2, "batch_size": 4}
ONE = ModelWork(
    body=100, head=10, body_trained=100, head_trained=10, width=3, windows=(None,), weight_bytes=440, cache_bytes=6
)
"""A model whose tokens cost 200 operations in the body, 20 in the head, and 12 for each token that they attend to."""


def tiny(family: Any = "llama", **shape: Any) -> tuple[Any, Any]:
    tokenizer = character_tokenizer("0123456789+=")
    sizes = {"hidden_size": 8, "layers": 2, "heads": 2, "intermediate_size": 16, "context": 32} | shape
    return tiny_model(family, vocab_size=len(tokenizer), **sizes), tokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("bench") / "model"
    save_policy(load_policy(tiny()), path)
    return str(path)


# ---------------------------------------------------------------------------------------------------- counting


def test_matrices_are_counted_without_norms_and_embeddings() -> None:
    """Attention 4 · 8² and feed-forward 3 · 8 · 16 a layer, twice; the head is the embedding's matrix of 14 · 8."""
    model, _ = tiny()
    work = model_work(model)
    assert (work.body, work.head) == (2 * (4 * 64 + 3 * 128), 14 * 8)
    assert (work.body_trained, work.head_trained, work.width, work.windows) == (work.body, work.head, 8, (None, None))
    assert work.cache_bytes == 2 * 2 * 8 * 4
    assert work.weight_bytes == 4 * (work.body + work.head)


def test_of_a_mixture_of_experts_the_active_ones_count() -> None:
    """4 experts of which 2 are active, each of 3 · 8 · 8, and a router of 4 · 8, a layer."""
    model, _ = tiny("qwen3_moe")
    inner = model.config.moe_intermediate_size
    heads = model.config.num_attention_heads * model.config.head_dim
    keys = model.config.num_key_value_heads * model.config.head_dim
    assert model_work(model).body == 2 * (8 * (2 * heads + 2 * keys) + 2 * 3 * 8 * inner + 4 * 8)


def test_only_trained_matrices_have_a_gradient_of_their_own() -> None:
    model, _ = tiny()
    model.requires_grad_(False)
    model.model.layers[0].mlp.up_proj.weight.requires_grad_(True)
    work = model_work(model)
    assert (work.body_trained, work.head_trained) == (128, 0)


def test_a_shared_prompt_is_computed_once_and_the_last_token_not_at_all() -> None:
    """The prompt 1 2 3 with the answers 4 5 and 6 7 8: read are 1 2 3, 4, and 6 7.

    Pairs of tokens that attend: 1 + 2 + 3 in the prompt, 4 for the token 4, 4 + 5 for 6 and 7.
    """
    batch = TokenBatch.of([[1, 2, 3, 4, 5], [1, 2, 3, 6, 7, 8]], [[3, 4], [3, 4, 5]], group_size=2)
    found = training_work(ONE, batch)
    forward = 200 * 6 + 20 * 5 + 12 * (6 + 4 + 9)
    assert (found.tokens, found.scored, found.forward) == (6, 5, forward)
    assert found.backward == 2 * forward
    frozen = ModelWork(**{**vars(ONE), "body_trained": 0, "head_trained": 0})
    assert training_work(frozen, batch).backward == forward + 12 * 19  # no gradient of a matrix; attention's is twice


def test_a_window_bounds_what_a_token_attends_to() -> None:
    window = ModelWork(**{**vars(ONE), "windows": (2, None)})
    assert window.attention(1, 4) == 12 * ((2 + 2 + 2) + (2 + 3 + 4))


def test_sampling_takes_the_longer_of_computing_and_reading_in_each_step() -> None:
    """A prompt of 2 with answers of 3 and 2 tokens: one pass over the prompt, then steps of 2 answers and of 1.

    Without a limit of bandwidth: the prompt 2 · 200 + 20 and 3 pairs; steps 2 · 220 and 3 + 3 pairs, then 220 and 4 pairs.
    Without a limit of operations: 440 bytes three times, and cached 2 + 2 tokens of 6 bytes, then 2 + 2.
    """
    group = [SampledGroup(prompt=2, answers=(3, 2))]
    computing = sampling_seconds(ONE, group, slots=8, flops=1.0, bandwidth=1e30)
    assert computing == (420 + 36) + (440 + 72) + (220 + 48)
    reading = sampling_seconds(ONE, group, slots=8, flops=1e30, bandwidth=1.0)
    assert reading == 440 + (440 + 6 * 4) + (440 + 6 * 4)


def test_an_answer_waits_for_a_slot() -> None:
    """Answers of 3 and 2 tokens in one slot: steps of one answer, 2 and then 1 of them."""
    group = [SampledGroup(prompt=2, answers=(3, 2))]
    reading = sampling_seconds(ONE, group, slots=1, flops=1e30, bandwidth=1.0)
    assert reading == 440 + (440 + 6 * 3) + (440 + 6 * 4) + (440 + 6 * 3)


def test_the_machine_is_measured() -> None:
    assert 1e7 < matmul_flops(CPU, torch.float32) < 1e15
    assert 1e7 < copy_bandwidth(CPU) < 1e14


# ---------------------------------------------------------------------------------------------------- measuring


def test_figures_are_consistent_and_the_files_hold_them(folder: str, tmp_path: Path) -> None:
    figures_file, trace_file = tmp_path / "figures.json", tmp_path / "trace.json"
    found = reinlm.bench(
        folder, **SHAPE, ignore_eos=True, turns=2, output=figures_file, profile=str(trace_file), quiet=True
    )
    figures = found.figures
    assert figures.keys() == FIGURES.keys()
    assert all(math.isfinite(value) and value > 0 for value in figures.values())
    assert len(found.turns) == 2
    for turn in found.turns:
        assert turn["rollout/tokens"] == 4 * 6 == turn["answers"] * turn["mean_length"]
        assert turn["rollout/tokens_per_second"] == pytest.approx(24 / turn["time/rollout"])
        assert turn["training/tokens_per_second"] == pytest.approx(24 / turn["time/update"])
        parts = [turn[f"time/{phase}"] for phase in ("rollout", "reward", "score", "update")]
        assert sum(parts) <= turn["time/step"]
        assert turn["grad_norm"] > 0
        assert 2 * 5 + 6 <= turn["training/tokens"] <= 2 * 5 + 4 * 5  # answers may share their beginning
    peak = found.machine.flops["float32"]
    median = sorted(turn["training/flops"] / turn["time/update"] / peak for turn in found.turns)
    assert figures["training/roofline"] == pytest.approx(sum(median) / 2)
    stored = json.loads(figures_file.read_text())
    assert stored == json.loads(json.dumps(found.to_json()))
    assert stored["shape"]["parameters"] == sum(weight.numel() for weight in tiny()[0].parameters())
    names = {event.get("name") for event in json.loads(trace_file.read_text())["traceEvents"]}
    assert {"sampling", "rewards", "score", "update", "forward", "backward", "optimizer"} <= names


def test_operations_of_an_update_are_those_counted_by_hand(folder: str) -> None:
    """Two prompts of 5 with two answers of one token each: the prompts are read, and each answer's token is scored.

    Matrices of 1,280 entries for 10 tokens and a head of 112 for 4; 15 pairs of tokens a prompt and layer, of width 8.
    """
    shape = {**SHAPE, "max_new_tokens": 1}
    found = reinlm.bench(folder, **shape, ignore_eos=True, turns=1, algorithm="dr_grpo", quiet=True)
    assert found.figures["training/tokens"] == 2 * 5
    assert found.figures["training/flops"] == 6 * (1280 * 10 + 112 * 4) + 12 * 8 * 15 * 2 * 2
    assert found.figures["rollout/tokens"] == 4


def test_a_given_model_keeps_its_weights_and_threads_are_as_before() -> None:
    model, tokenizer = tiny()
    before = {name: weight.clone() for name, weight in model.named_parameters()}
    threads = torch.get_num_threads()
    found = reinlm.bench((model, tokenizer), **SHAPE, turns=1, threads=threads + 1, quiet=True)
    assert all(torch.equal(weight, before[name]) for name, weight in model.named_parameters())
    assert found.machine.threads == threads + 1
    assert torch.get_num_threads() == threads
    assert found.turns[0]["answers"] == 4


def test_a_critic_and_every_pass_are_work_of_the_update() -> None:
    """PPO: four passes of policy and of a critic, which has a value head of 8 in place of the head."""
    policy = reinlm.bench(tiny(), **SHAPE, ignore_eos=True, turns=1, algorithm="dr_grpo", quiet=True)
    both = reinlm.bench(tiny(), **SHAPE, ignore_eos=True, turns=1, algorithm="ppo", quiet=True)
    of_head = 6 * 14 * 8 * 24
    body = policy.figures["training/flops"] - of_head
    assert policy.shape["passes"] == 1
    assert both.figures["training/flops"] == both.shape["passes"] * (2 * body + of_head)
    assert both.memory.critic == 4 * policy.memory.weights


# ---------------------------------------------------------------------------------------------------- refusing


def huge(folder: str, path: Path) -> Path:
    """A folder whose configuration is that of a model of some hundred billion weights."""
    path.mkdir()
    for file in Path(folder).glob("*.json"):
        (path / file.name).write_text(file.read_text())
    config = json.loads((path / "config.json").read_text())
    config |= {"hidden_size": 16384, "head_dim": 128, "num_attention_heads": 128, "intermediate_size": 65536}
    config |= {"num_key_value_heads": 128, "num_hidden_layers": 40}
    (path / "config.json").write_text(json.dumps(config))
    (path / "model.safetensors").touch()
    return path


def test_a_model_that_does_not_fit_is_refused_with_what_it_needs_before_weights_are_read(
    folder: str, tmp_path: Path
) -> None:
    path = str(huge(folder, tmp_path / "huge"))
    with pytest.raises(
        InputError, match=r"huge needs about [\d,.]+ GiB \(weights ([\d,.]+), gradients \1, .* free"
    ) as said:
        reinlm.bench(path, quiet=True)
    assert "model.lora.rank=16" in str(said.value.hint)
    with pytest.raises(InputError, match=r"needs about") as said:
        reinlm.bench({"path": path, "lora": {"rank": 4}}, quiet=True)
    assert "lora" not in str(said.value.hint)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"batch_size": 5}, "batch_size 5 is not a multiple of group_size 2; take 4 or 6"),
        ({"prompt_tokens": 27}, "prompt_tokens 27 and rollout.max_new_tokens 6 exceed the context of 32"),
        ({"max_new_tokens": 32}, "leaves no room for a prompt"),
        ({"algorithm": "distill"}, "distill learns from a teacher, and bench has none"),
        ({"algorithm": "gpro"}, "unknown algorithm 'gpro'"),
        ({"training": {"steps": 3}}, "steps has no effect: bench measures `turns` steps"),
        ({"turns": 0}, "turns"),
        ({"threads": 0}, "threads"),
        ({"group_size": 1}, "group_size is 1"),
        ({"profile": "trace.txt"}, "must end in .json"),
        ({"output": "nowhere/figures.json"}, "no such folder"),
        ({"output": "one.json", "profile": "one.json"}, "output and profile are both"),
        ({"overwrite": True}, "overwrite has no effect"),
        ({"data": "rows.jsonl"}, "unknown key 'data'"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    given: dict[str, Any], told: str, folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError) as said:
        reinlm.bench(folder, **{**SHAPE, "quiet": True, **given})
    assert told in str(said.value)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_exists_is_replaced_only_where_asked(folder: str, tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    file.write_text("mine")
    with pytest.raises(InputError, match="exists already"):
        reinlm.bench(folder, **SHAPE, turns=1, output=file, quiet=True)
    assert file.read_text() == "mine"
    reinlm.bench(folder, **SHAPE, turns=1, output=file, overwrite=True, quiet=True)
    assert json.loads(file.read_text())["schema"] == 1


def test_the_run_of_rl_has_what_is_configured() -> None:
    config = BenchConfig.model_validate(
        {
            "model": "m",
            "rollout": {**SHAPE, "max_running": 3},
            "training": {"packing": "pad", "autocast": "off"},
            "seed": 7,
        }
    )
    made = config.of_rl()
    assert (made.rollout.max_running, made.rollout.groups, made.training.packing, made.seed) == (3, 2, "pad", 7)
    assert made.training.autocast == "off"


# ---------------------------------------------------------------------------------------------------- make bench


def test_the_guard_names_ratios_that_fell_or_are_gone() -> None:
    committed = {"update": 2.0, "sampling": 3.0, "old": 1.0}
    assert guard.fallen({"update": 1.41, "sampling": 3.5, "old": 1.0, "new": 0.1}, committed) == []
    slower = guard.fallen({"update": 1.39, "sampling": 3.0}, committed)
    assert [line.partition(":")[0] for line in slower] == ["update", "old"]


def test_the_guard_compares_committed_ratios_of_one_small_model(tmp_path: Path) -> None:
    committed = json.loads(guard.FILE.read_text())
    assert all(value > 0.5 for value in committed.values())
    small = {"prompt_tokens": 4, "max_new_tokens": 4, "group_size": 2, "batch_size": 4}
    model = guard.small_model(tmp_path)
    assert guard.generated(model, small) > 0
    assert guard.bench(model, small, "pad")["training/tokens_per_second"] > 0
