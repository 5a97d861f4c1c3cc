"""Values of states, divergences over the whole vocabulary, and a reference that may move."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from reinlm.errors import InputError
from reinlm.models import Reference, ValueModel, score, tiny_model
from reinlm.models.score import state_values

SEQUENCES = [[3, 4, 5, 6, 7], [8, 9, 2]]
POSITIONS = [[2, 4], [1]]


def model(seed: int = 0) -> Any:
    made: Any = tiny_model("gpt2", vocab_size=14, hidden_size=16, layers=2, heads=2, context=16, seed=seed)
    return made.double().eval()


def adapted(seed: int = 0) -> Any:
    peft = pytest.importorskip("peft")
    base: Any = tiny_model("qwen3", vocab_size=14, hidden_size=16, layers=1, heads=2, context=16, seed=seed)
    return peft.get_peft_model(base.eval(), peft.LoraConfig(r=2, target_modules="all-linear", task_type="CAUSAL_LM"))


def hidden(net: Any, sequence: list[int]) -> torch.Tensor:
    return net.transformer(input_ids=torch.tensor([sequence]))[0][0]


def randomize(critic: ValueModel, seed: int = 0) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in critic.head.parameters():
            weight.copy_(torch.randn(weight.shape, generator=generator, dtype=torch.float64))


@pytest.mark.parametrize("packing", ["pad", "pack"])
def test_a_value_is_read_from_the_state_before_its_token(packing: Any) -> None:
    policy = model() if packing == "pad" else adapted()
    critic = ValueModel(policy, "own") if packing == "pad" else ValueModel(policy, "shared")
    randomize(critic)
    found = critic.values([*SEQUENCES, [3, 4]], [*POSITIONS, [2]], packing)
    singles = [critic.values([s], [[p]]).item() for s, ps in zip(SEQUENCES, POSITIONS, strict=True) for p in ps]
    singles.append(critic.values([[3, 4]], [[2]]).item())
    assert found.tolist() == pytest.approx(singles, abs=1e-6)
    if packing == "pad":
        states = [hidden(policy, SEQUENCES[0])[1], hidden(policy, SEQUENCES[0])[3], hidden(policy, SEQUENCES[1])[0]]
        states.append(hidden(policy, [3, 4])[1])  # the state after the last token
        expected = torch.stack(states) @ critic.head.weight[0] + critic.head.bias
        assert found.tolist() == pytest.approx(expected.tolist(), abs=1e-10)
        other = critic.values([[3, 4, 13, 6, 7]], [[2]])
        assert other.item() == pytest.approx(found[0].item(), abs=1e-12)  # the token itself is not seen


def test_all_values_are_zero_at_first_and_its_own_backbone_is_a_copy() -> None:
    policy = model()
    critic = ValueModel(policy)
    assert critic.values(SEQUENCES, POSITIONS).tolist() == [0.0] * 3
    assert {p.data_ptr() for p in critic.parameters()}.isdisjoint(p.data_ptr() for p in policy.parameters())
    assert all(p.requires_grad for p in critic.trainable())
    assert len(critic.trainable()) == 2 + len(list(policy.transformer.parameters()))


def test_a_backbone_may_come_from_another_model() -> None:
    policy, source = model(0), model(1)
    critic = ValueModel(policy, "own", source)
    weights, theirs = dict(critic.backbone.named_parameters()), dict(source.transformer.named_parameters())
    assert all(torch.equal(weights[name], theirs[name]) for name in theirs)


def test_a_shared_backbone_gives_values_and_log_probabilities_in_one_pass() -> None:
    policy = model()
    critic = ValueModel(policy, "shared")
    randomize(critic)
    calls: list[int] = []
    policy.transformer.register_forward_hook(lambda *_: calls.append(1))
    plain = score(policy, SEQUENCES, POSITIONS).logprobs
    calls.clear()
    scores = score(policy, SEQUENCES, POSITIONS, value_head=critic.head)
    assert len(calls) == 1
    assert torch.equal(scores.logprobs, plain)
    assert scores.values is not None
    assert scores.values.tolist() == pytest.approx(critic.values(SEQUENCES, POSITIONS).tolist(), abs=1e-12)
    scores.values.sum().backward()
    assert policy.transformer.h[0].attn.c_attn.weight.grad.abs().sum() > 0
    assert [name for name, _ in critic.named_parameters()] == ["head.weight", "head.bias"]
    assert score(policy, SEQUENCES, POSITIONS).values is None


def test_under_an_adapter_the_critic_is_a_second_adapter_on_the_same_weights() -> None:
    policy = adapted()
    before = score(policy, SEQUENCES, POSITIONS).logprobs.detach()
    critic = ValueModel(policy)
    assert critic.adapter
    with torch.no_grad():
        for weight in critic.trainable():
            weight.add_(0.1)
    assert torch.equal(score(policy, SEQUENCES, POSITIONS).logprobs, before)
    with critic.active():
        values = critic.values(SEQUENCES, POSITIONS)
        values.square().sum().backward()
        assert not torch.equal(score(policy, SEQUENCES, POSITIONS).logprobs, before)
    named = dict(policy.named_parameters())
    moved = {name for name, weight in named.items() if weight.grad is not None and weight.grad.abs().sum() > 0}
    assert moved
    assert all(".critic." in name for name in moved)
    assert all(weight.requires_grad for weight in critic.trainable())
    assert all(named[name].requires_grad for name in named if ".default." in name)
    with critic.active():
        again = critic.values(SEQUENCES, POSITIONS)
    assert torch.equal(values, again)
    saved = {name: weight.clone() for name, weight in critic.learned().items()}
    other = ValueModel(adapted())
    other.restore(saved)
    with other.active():
        assert torch.equal(other.values(SEQUENCES, POSITIONS), values)
    with pytest.raises(InputError, match="already has an adapter named critic"):
        ValueModel(policy)


def test_the_divergence_over_the_vocabulary_is_exact_and_has_its_gradient() -> None:
    policy, other = model(0), model(1)
    reference = Reference(other)
    scores = score(policy, SEQUENCES, POSITIONS, temperature=0.7, reference=reference, chunk_tokens=2)
    expected = []
    for sequence, positions in zip(SEQUENCES, POSITIONS, strict=True):
        mine, theirs = (
            torch.log_softmax(net(input_ids=torch.tensor([sequence])).logits[0] / 0.7, -1) for net in (policy, other)
        )
        expected += [(mine[p - 1].exp() * (mine[p - 1] - theirs[p - 1].detach())).sum() for p in positions]
    assert scores.full_kl is not None
    assert scores.full_kl.tolist() == pytest.approx([float(x.detach()) for x in expected], abs=1e-12)
    weight = policy.transformer.h[0].attn.c_attn.weight
    (slope,) = torch.autograd.grad(scores.full_kl.sum(), weight)
    (naive,) = torch.autograd.grad(torch.stack(expected).sum(), weight)
    torch.testing.assert_close(slope, naive, atol=1e-10, rtol=1e-8)
    assert all(p.grad is None for p in other.parameters())
    assert score(policy, SEQUENCES, POSITIONS).full_kl is None


def test_an_adapters_divergence_is_from_itself_without_the_adapter() -> None:
    policy = adapted()
    reference = Reference(policy)
    assert reference.shared
    zero = score(policy, SEQUENCES, POSITIONS, reference=reference).full_kl
    assert zero is not None
    assert zero.tolist() == pytest.approx([0.0] * 3, abs=1e-6)
    with torch.no_grad():
        for name, weight in policy.named_parameters():
            if "lora_B" in name:
                weight.add_(0.3)
    moved = score(policy, SEQUENCES, POSITIONS, reference=reference).full_kl
    assert moved is not None
    assert moved.min() > 1e-4
    with reference.active() as frozen, torch.no_grad():
        plain = score(frozen, SEQUENCES, POSITIONS).logprobs
    assert not torch.equal(plain, score(policy, SEQUENCES, POSITIONS).logprobs)
    with pytest.raises(InputError, match="cannot be refreshed"):
        reference.refresh(1.0)
    assert reference.state_dict() == {}


def test_a_reference_stays_until_it_is_refreshed_and_goes_part_of_the_way() -> None:
    policy = model()
    reference = Reference(policy)
    before = copy.deepcopy(dict(policy.named_parameters()))
    with torch.no_grad():
        for weight in policy.parameters():
            weight.add_(1.0)
    kept = dict(reference.weights.named_parameters())
    assert all(torch.equal(kept[name], before[name]) for name in before)
    reference.refresh(0.25)
    assert all(torch.allclose(kept[name], before[name] + 0.25, atol=1e-12) for name in before)
    reference.refresh(1.0)
    assert all(torch.allclose(kept[name], before[name] + 1.0, atol=1e-12) for name in before)
    assert not any(weight.requires_grad for weight in kept.values())
    other = Reference(model(5))
    other.load_state_dict(reference.state_dict())
    theirs = dict(other.weights.named_parameters())
    assert all(torch.equal(theirs[name], kept[name]) for name in kept)


def test_state_values_take_a_position_just_after_the_sequence() -> None:
    policy = model()
    head = torch.nn.Linear(16, 1, dtype=torch.float64)
    values = state_values(policy.transformer, head, [[3, 4]], [[1, 2]])
    expected = head(hidden(policy, [3, 4])).squeeze(-1)
    assert values.tolist() == pytest.approx(expected.tolist(), abs=1e-10)
    with pytest.raises(InputError):
        state_values(policy.transformer, head, [[3, 4]], [[3]])
