"""The example is the library: loss and gradient are the same on the same pairs."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from reinlm.algorithms import preference_algorithm
from reinlm.models import character_tokenizer, score, tiny_model
from reinlm.objectives import Pairs

FILE = Path(__file__).parents[2] / "examples" / "minimal_dpo.py"


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("minimal_dpo", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def small(example: Any, seed: int) -> tuple[Any, Any]:
    """The task's tokenizer and an untrained model, which stops at random."""
    tokenizer = character_tokenizer(example.ALPHABET)
    shape: Any = {"hidden_size": 16, "layers": 1, "heads": 2, "context": 32}
    return tokenizer, tiny_model("gpt2", vocab_size=len(tokenizer), seed=seed, **shape)


def test_it_has_at_most_200_lines() -> None:
    assert len(FILE.read_text(encoding="utf-8").splitlines()) <= 200


def test_loss_and_gradient_of_the_weights_are_those_of_the_library(example: Any) -> None:
    tokenizer, model = small(example, seed=3)
    _, reference = small(example, seed=4)
    model, reference = model.double(), reference.double()
    generator = torch.Generator().manual_seed(3)
    asked = [problem for problem in example.problems(3, seed=0) for _ in range(2)]
    ids, mask = example.sample(model, example.encode(tokenizer, asked), tokenizer.eos_token_id, generator)
    assert len(set(mask.sum(1).tolist())) > 1  # some answers stop early, so that there is padding to leave out
    ref = example.sequence_logprobs(example.token_logprobs(reference, ids), mask).detach()
    summed = example.sequence_logprobs(example.token_logprobs(model, ids), mask)
    loss = example.dpo_loss(summed[0::2], summed[1::2], ref[0::2], ref[1::2])
    loss.backward()
    mine = torch.cat([p.grad.flatten() for p in model.parameters()])
    model.zero_grad()
    positions = [[t + 1 for t in range(mask.shape[1]) if row[t]] for row in mask]
    tokens = score(model, ids.tolist(), positions).scored
    lengths = mask.sum(1)
    sums = torch.stack([part.sum() for part in tokens.split(lengths.tolist())])
    pairs = Pairs(sums[0::2], sums[1::2], ref[0::2], ref[1::2], lengths[0::2], lengths[1::2])
    algorithm = preference_algorithm("dpo", beta=example.BETA)
    expected = algorithm.loss(pairs, algorithm.loss.prepare(pairs)).mean()
    expected.backward()
    theirs = torch.cat([p.grad.flatten() for p in model.parameters()])
    assert loss.item() == pytest.approx(expected.item(), abs=1e-9)
    assert float(theirs.norm()) > 0.01
    np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-9)


def test_the_judge_puts_a_right_answer_before_a_wrong_one(example: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer, model = small(example, seed=3)
    asked = example.problems(3, seed=0)
    prompts = example.encode(tokenizer, [problem for problem in asked for _ in range(example.SAMPLES)])
    texts = [problem.answer for problem in asked for _ in range(example.SAMPLES)]
    texts[0] = "1"  # one wrong answer to the first problem; none to the second; none right to the third
    texts[2 * example.SAMPLES :] = ["1"] * example.SAMPLES
    rows = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
    ids = torch.tensor([[*p, *row, *[0] * (6 - len(row))] for p, row in zip(prompts.tolist(), rows, strict=True)])
    start = prompts.shape[1] - 1
    mask = torch.tensor([[False] * start + [t < len(row) for t in range(6)] for row in rows])
    monkeypatch.setattr(example, "sample", lambda *_: (ids, mask))
    found, kept = example.judge(model, tokenizer, asked, torch.Generator())
    assert example.answers(tokenizer, found, kept) == [asked[0].answer, "1"]


def test_a_step_puts_pairs_in_order(example: Any) -> None:
    tokenizer, model = small(example, seed=3)
    generator = torch.Generator().manual_seed(3)
    asked = [problem for problem in example.problems(4, seed=0) for _ in range(2)]
    ids, mask = example.sample(model, example.encode(tokenizer, asked), tokenizer.eos_token_id, generator)
    ref = example.sequence_logprobs(example.token_logprobs(model, ids), mask).detach()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    first, nowhere = example.dpo_step(model, optimizer, ids, mask, ref)
    last, right = [example.dpo_step(model, optimizer, ids, mask, ref) for _ in range(10)][-1]
    assert first == pytest.approx(np.log(2.0), abs=1e-6)
    assert last < first
    assert (nowhere, right) == (0.0, 1.0)


@pytest.mark.slow
def test_it_learns_to_add(example: Any) -> None:
    before, after = example.main(seed=1, steps=90)
    assert before < 0.6
    assert after > before + 0.5 * (1.0 - before)
