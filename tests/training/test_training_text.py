"""Data-set text beside the sampled answers: what it adds to an update, and that a resumed run goes on in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from test_training_anchors import RATE, close, full, loaded, moved

from reinlm.data import RowOrder
from reinlm.errors import InputError
from reinlm.runs import load_state
from tiny_runs import EXAMPLES, change, descent, distributions, metrics, run_rl, saved, tiny, trainer, weights

PLAIN: dict[str, Any] = {"base": "grpo", "kl": None}


def texts(tokenizer: Any) -> list[tuple[list[int], list[int], float]]:
    """Every example as the model reads it: the completion's tokens and EOS are scored."""
    told = []
    for row in EXAMPLES:
        prompt = tokenizer(row["prompt"], add_special_tokens=False)["input_ids"]
        ids = [*prompt, *tokenizer(row["completion"], add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
        told.append((ids, list(range(len(prompt), len(ids))), 1.0))
    return told


def test_imitated_text_adds_its_cross_entropy_per_token_to_the_loss(tmp_path: Path) -> None:
    """c/N Σ_t -log π(y_t) over the scored tokens of the text, c = 0.3, beside whatever the answers teach."""
    text = {"data": EXAMPLES, "coefficient": 0.3, "batch_size": len(EXAMPLES)}
    free, _ = moved(tmp_path / "free", algorithm=PLAIN)
    both, result = moved(tmp_path / "both", algorithm=PLAIN, text=text)
    model, tokenizer = tiny()
    table, tokens = distributions(model, texts(tokenizer))
    loss = -table.gather(1, tokens[:, None]).mean()
    assert close(both - free, descent(model, 0.3 * loss, RATE))
    row = metrics(result.folder)[-1]
    assert row["text/loss"] == pytest.approx(float(loss), rel=1e-9)


@pytest.mark.parametrize("direction", ["reverse", "forward"])
def test_text_held_close_to_the_reference_adds_the_divergence_at_its_states(direction: str, tmp_path: Path) -> None:
    """c/N Σ_t KL, c = 0.3; the reference is there for the text alone."""
    path = saved(tmp_path / "sft", seed=5)
    text = {
        "data": EXAMPLES,
        "loss": "kl",
        "coefficient": 0.3,
        "batch_size": len(EXAMPLES),
        "direction": direction,
    }
    free, _ = moved(tmp_path / "free", algorithm=PLAIN)
    both, result = moved(tmp_path / "both", algorithm=PLAIN, text=text, reference={"path": path})
    model, tokenizer = tiny()
    told = texts(tokenizer)
    mine, theirs = distributions(model, told)[0], distributions(loaded(path), told)[0].detach()
    kls = full(mine, theirs) if direction == "reverse" else full(theirs, mine)
    assert close(both - free, descent(model, 0.3 * kls.mean(), RATE), 1e-5)
    assert metrics(result.folder)[-1]["text/loss"] == pytest.approx(float(kls.mean()), rel=1e-5)


def test_every_update_takes_the_next_examples_and_a_resumed_run_goes_on_with_them(tmp_path: Path) -> None:
    """Two updates a batch, five of sixteen examples each, three steps; the second run stops after the second step."""
    options: dict[str, Any] = {
        "algorithm": PLAIN,
        "text": {"data": EXAMPLES, "batch_size": 5},
        "training": {"steps": 3, "minibatches": 2},
        "optimizer": {"name": "adamw", "learning_rate": 0.01},
    }
    whole, halves = tiny(), tiny()
    straight = run_rl(tmp_path / "straight", whole, **options)
    with trainer(tmp_path / "halves", halves, **options) as first:
        first.step()
        first.step()
        first.save()
    again = run_rl(tmp_path / "halves", tiny(), resume=True, **options)
    assert metrics(again.folder) == metrics(straight.folder)
    assert len({row["text/loss"] for row in metrics(again.folder)}) == 3
    ended = weights(again.policy.model)
    assert all(torch.equal(ended[name], value) for name, value in weights(whole[0]).items())
    assert float(change(weights(halves[0]), ended).norm()) > 0


def test_an_update_that_target_kl_stops_takes_no_text(tmp_path: Path) -> None:
    """Of four passes the first alone is made, and one update's text is read."""
    run = trainer(
        tmp_path / "run",
        algorithm=PLAIN,
        text={"data": EXAMPLES, "batch_size": 3},
        training={"steps": 1, "passes": 4, "target_kl": 1e-12},
    )
    run.train()
    (row,) = metrics(tmp_path / "run")
    assert (row["updates/made"], row["updates/stopped"]) == (1.0, 1.0)
    read = RowOrder(len(EXAMPLES), seed=3)
    read.take(3)
    state = load_state(tmp_path / "run/checkpoints/step_1")
    assert state["run"]["text"] == {"order": read.state_dict()}


def test_a_direction_of_imitated_text_is_refused(tmp_path: Path) -> None:
    text = {"data": EXAMPLES, "direction": "forward"}
    with pytest.raises(InputError, match=r"text\.direction has no effect: the loss sft has no KL"):
        trainer(tmp_path / "run", text=text)
