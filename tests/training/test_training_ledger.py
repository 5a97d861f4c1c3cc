"""The ledger of a run: sizes of every model from its modules, each byte once, and what is shared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import reinlm
from reinlm.insight.report import write_report
from reinlm.runs.ledger import Entry, console_lines
from reinlm.training.ledger import Resident, ledger, state_bytes
from reinlm.training.optimizer import Optimizer, OptimizerConfig
from tiny_runs import EXAMPLES, ROWS, graded, local, saved, tiny, trainer

PAIRS = [{"prompt": row["prompt"], "chosen": row["answer"], "rejected": "0"} for row in ROWS]
SMALL: dict[str, Any] = {
    "training": {"steps": 1},
    "run": {"save_every": 0, "trackers": []},
    "optimizer": {"learning_rate": 1e-3},
    "quiet": True,
}
LORA = {"lora": {"rank": 2}}


def sizes(model: Any = None) -> tuple[int, int]:
    """Parameters of a tiny model, and the bytes of its parameters and buffers."""
    model = tiny()[0] if model is None else model
    weights = [*model.parameters(), *model.buffers()]
    return sum(w.numel() for w in model.parameters()), sum(w.numel() * w.element_size() for w in weights)


def by_role(made: Any) -> dict[str, Entry]:
    return {entry.role: entry for entry in made.models}


def test_a_policy_alone_has_its_weights_a_gradient_and_two_moments_of_each(tmp_path: Path) -> None:
    with reinlm.SFTTrainer(tiny(), EXAMPLES, output=tmp_path / "run", **SMALL) as made:
        (policy,) = made.models
        parameters, weights = sizes()
        assert (policy.role, policy.parameters, policy.trained, policy.weights) == (
            "policy",
            parameters,
            parameters,
            weights,
        )
        tensors = len(list(made.policy.model.parameters()))
        assert (policy.gradients, policy.optimizer) == (8 * parameters, 16 * parameters + 4 * tensors)
        made.step()
        optimizer = made.run.learner.optimizer
        assert optimizer is not None
        assert state_bytes(optimizer) == policy.optimizer


@pytest.mark.parametrize(("name", "options", "each"), [("adamw", {}, 8), ("sgd", {}, 0), ("sgd", {"momentum": 0.9}, 4)])
def test_the_state_of_an_optimizer_is_foretold(name: str, options: dict[str, Any], each: int) -> None:
    weights = [torch.nn.Parameter(torch.zeros(shape)) for shape in ((3, 5), (7,), ())]
    optimizer = Optimizer(weights, OptimizerConfig(name=name, options=options), 1)
    before = torch.get_rng_state()
    foretold = state_bytes(optimizer)
    assert torch.equal(torch.get_rng_state(), before)
    for weight in weights:
        weight.grad = torch.ones_like(weight)
    optimizer.torch.step()
    kept = [value for state in optimizer.torch.state.values() for value in state.values() if value is not None]
    assert foretold == sum(value.numel() * value.element_size() for value in kept)
    assert foretold == each * 23 + (12 if name == "adamw" else 0)


def test_an_optimizer_that_cannot_be_tried_has_no_size() -> None:
    weight = torch.nn.Parameter(torch.zeros(2))
    optimizer = Optimizer([weight], OptimizerConfig(name="sgd"), 1)
    optimizer.config = OptimizerConfig.model_construct(**{**dict(optimizer.config), "name": "gone"})
    assert state_bytes(optimizer) is None
    assert "?" in console_lines(ledger([Resident("policy", [weight], optimizer=optimizer)]))[1]


def test_tied_weights_count_once() -> None:
    weight, other = torch.nn.Parameter(torch.zeros(4, 2)), torch.nn.Parameter(torch.zeros(3))
    first, second = ledger([Resident("one", [weight, weight, other]), Resident("two", [weight.view(4, 2), other])])
    assert (first.parameters, first.weights) == (11, 44)
    assert (second.parameters, second.weights, second.shares) == (11, 0, "all parameters with one")


def test_tied_embeddings_are_named(tmp_path: Path) -> None:
    with reinlm.SFTTrainer(tiny(), EXAMPLES, output=tmp_path / "run", **SMALL) as made:
        model = made.policy.model
        tied = model.get_output_embeddings().weight is model.get_input_embeddings().weight
        assert ("the head is the embedding" in made.models[0].shares) == tied


def test_a_reference_is_a_second_copy(tmp_path: Path) -> None:
    with trainer(tmp_path / "run", algorithm={"base": "grpo", "kl": 0.1}) as made:
        models = by_role(made)
    parameters, weights = sizes()
    assert [*models] == ["policy", "reference"]
    assert models["reference"] == Entry("reference", parameters, 0, weights, 0, 0, "")


def test_with_an_adapter_the_reference_is_the_policy_without_it(tmp_path: Path) -> None:
    with trainer(
        tmp_path / "run", {"path": saved(tmp_path / "m"), **LORA}, algorithm={"base": "grpo", "kl": 0.1}
    ) as made:
        models = by_role(made)
        adapter = sum(w.numel() for w in made.policy.model.parameters() if w.requires_grad)
    base, _ = sizes()
    assert models["policy"].parameters == base + adapter
    assert models["policy"].trained == adapter
    assert models["policy"].gradients == 4 * adapter
    assert (models["reference"].parameters, models["reference"].weights) == (base, 0)
    assert models["reference"].shares == "all parameters with policy; its adapter is switched off"


def test_a_critic_of_its_own_and_one_on_the_policys_backbone(tmp_path: Path) -> None:
    base, _ = sizes()
    head = 17  # 16 weights and a bias
    with trainer(tmp_path / "own", algorithm="ppo") as made:
        own = by_role(made)["critic"]
        backbone = own.parameters - head
        assert own.trained == own.parameters
        assert own.shares == ""
    with trainer(tmp_path / "shared", algorithm="ppo", critic={"backbone": "shared"}) as made:
        shared = by_role(made)["critic"]
    assert (shared.parameters, shared.trained) == (base + head, head)
    assert shared.weights == head * 8
    assert shared.shares == f"{base:,} of its parameters with policy; reads the policy's forward pass"
    assert 0 < backbone <= base


def test_a_critic_with_an_adapter_stands_on_the_policys_base(tmp_path: Path) -> None:
    with trainer(tmp_path / "run", {"path": saved(tmp_path / "m"), **LORA}, algorithm="ppo") as made:
        models = by_role(made)
    base, _ = sizes()
    adapter = models["policy"].trained
    assert models["policy"].parameters == base + adapter
    assert models["critic"].trained == adapter + 17
    assert models["critic"].parameters == base + adapter + 17
    assert models["critic"].shares == f"{base:,} of its parameters with policy; an adapter on the policy's base"
    assert models["critic"].weights < models["policy"].weights


def test_a_sampler_that_follows_is_a_copy_of_what_is_trained(tmp_path: Path) -> None:
    with trainer(tmp_path / "run", rollout={"async_level": 1}) as made:
        models = by_role(made)
        assert models["sampler"].weights == sizes()[1]
        assert models["sampler"].shares == "follows the policy"


def test_dpo_keeps_no_reference_where_its_log_probabilities_are_known(tmp_path: Path) -> None:
    with reinlm.DPOTrainer(tiny(), PAIRS, output=tmp_path / "offline", **SMALL) as made:
        reference = by_role(made)["reference"]
        assert (reference.parameters, reference.weights) == (0, 0)
        assert "not in memory" in reference.shares
    settings = {**SMALL, "rollout": {"batch_size": 8, "max_new_tokens": 2}}
    with reinlm.DPOTrainer(tiny(), ROWS, reward=local(graded), output=tmp_path / "online", **settings) as made:
        assert by_role(made)["reference"].weights == sizes()[1]


def test_reward_models_as_rewards_in_training_and_in_rejection_sampling(tmp_path: Path) -> None:
    folder = saved(tmp_path / "m")
    with reinlm.RewardTrainer(folder, PAIRS, output=tmp_path / "rm", **SMALL) as made:
        (reward,) = made.models
        assert reward.role == "reward"
        assert reward.trained == reward.parameters == sum(w.numel() for w in made.run.reward.parameters())
        made.train()
    path = str(tmp_path / "rm" / "checkpoints" / "last")
    settings = {**SMALL, "rollout": {"group_size": 2, "batch_size": 4, "max_new_tokens": 2}}
    with reinlm.RFTTrainer(
        folder, ROWS, reward=local({"model": {"path": path}}), method="rest_em", output=tmp_path / "rft", **settings
    ) as made:
        models = by_role(made)
        assert [*models] == ["policy", "policy at the start", "reward"]
        assert models["policy at the start"].parameters == models["policy"].parameters
        assert models["policy at the start"].weights == 8 * models["policy"].parameters // 2  # loaded as float32
        assert models["reward"].trained == 0
        assert models["reward"].weights > 0


def test_the_ledger_is_said_and_stands_in_run_json_and_the_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with trainer(tmp_path / "run", algorithm={"base": "grpo", "kl": 0.1}, quiet=False) as made:
        said = capsys.readouterr().err
        lines = console_lines(made.models)
        assert all(line in said for line in lines)
        assert lines[0].split()[:4] == ["model", "parameters", "trained", "weights"]
        made.step()
    written = json.loads((tmp_path / "run" / "run.json").read_text())["models"]
    assert [Entry(**row) for row in written] == made.models
    page = write_report(tmp_path / "run").read_text()
    assert "Models in memory" in page
    assert f"{written[0]['parameters']:,}" in page
