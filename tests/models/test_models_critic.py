"""Values of states, divergences over the whole vocabulary, and a reference that may move."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch

from reinlm.batches import TokenBatch
from reinlm.errors import InputError
from reinlm.models import VALUES, Anchor, Reference, TokenModel, ValueModel, Want, score, tiny_model

SEQUENCES = [[3, 4, 5, 6, 7], [8, 9, 2]]
POSITIONS = [[2, 4], [1]]


def model(seed: int = 0) -> Any:
    made: Any = tiny_model("gpt2", vocab_size=14, hidden_size=16, layers=2, heads=2, context=16, seed=seed)
    return made.double().eval()


def adapted(seed: int = 0) -> Any:
    peft = pytest.importorskip("peft")
    base: Any = tiny_model("qwen3", vocab_size=14, hidden_size=16, layers=1, heads=2, context=16, seed=seed)
    return peft.get_peft_model(base.eval(), peft.LoraConfig(r=2, target_modules="all-linear", task_type="CAUSAL_LM"))


def batch_of(sequences: Any = SEQUENCES, positions: Any = POSITIONS, temperature: float = 1.0) -> TokenBatch:
    batch = TokenBatch.of(sequences, positions)
    return replace(batch, temperature=torch.full((batch.sequences,), temperature, dtype=torch.float64))


def values_of(critic: ValueModel, sequences: Any = SEQUENCES, positions: Any = POSITIONS) -> torch.Tensor:
    with critic.model.using(critic.adapter):
        found = critic.model(batch_of(sequences, positions), VALUES).values
    assert found is not None
    return found


def full_kl(policy: TokenModel, anchor: Anchor, temperature: float = 1.0) -> torch.Tensor:
    want = Want(full_kl={"reference": "reverse"})
    return policy(batch_of(temperature=temperature), want, {"reference": anchor}).full_kl["reference"]


def hidden(net: Any, sequence: list[int]) -> torch.Tensor:
    return net.transformer(input_ids=torch.tensor([sequence]))[0][0]


def randomize(critic: ValueModel, seed: int = 0) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in critic.head.parameters():
            weight.copy_(torch.randn(weight.shape, generator=generator, dtype=torch.float64))


@pytest.mark.parametrize("packing", ["pad", "pack"])
def test_a_value_is_read_from_the_state_before_its_token(packing: Any) -> None:
    policy = TokenModel(model() if packing == "pad" else adapted(), packing=packing)
    critic = ValueModel(policy, "own") if packing == "pad" else ValueModel(policy, "shared")
    randomize(critic)
    found = values_of(critic, [*SEQUENCES, [3, 4]], [*POSITIONS, [2]])
    singles = [values_of(critic, [s], [[p]]).item() for s, ps in zip(SEQUENCES, POSITIONS, strict=True) for p in ps]
    singles.append(values_of(critic, [[3, 4]], [[2]]).item())
    assert found.tolist() == pytest.approx(singles, abs=1e-6)
    if packing == "pad":
        states = [hidden(policy.lm, SEQUENCES[0])[1], hidden(policy.lm, SEQUENCES[0])[3]]
        states.append(hidden(policy.lm, SEQUENCES[1])[0])
        states.append(hidden(policy.lm, [3, 4])[1])  # the state after the last token
        expected = torch.stack(states) @ critic.head.weight[0] + critic.head.bias
        assert found.tolist() == pytest.approx(expected.tolist(), abs=1e-10)
        other = values_of(critic, [[3, 4, 13, 6, 7]], [[2]])
        assert other.item() == pytest.approx(found[0].item(), abs=1e-12)  # the token itself is not seen


def test_all_values_are_zero_at_first_and_its_own_backbone_is_a_copy() -> None:
    policy = TokenModel(model())
    critic = ValueModel(policy)
    assert values_of(critic).tolist() == [0.0] * 3
    assert {p.data_ptr() for p in critic.trainable()}.isdisjoint(p.data_ptr() for p in policy.parameters())
    assert all(p.requires_grad for p in critic.trainable())
    lm: Any = policy.lm
    copied, theirs = dict(critic.model.lm.named_parameters()), dict(lm.transformer.named_parameters())
    assert len(critic.trainable()) == 2 + len(theirs)
    assert all(torch.equal(copied[name], theirs[name]) for name in theirs)


def test_a_backbone_may_come_from_another_model() -> None:
    policy, source = TokenModel(model(0)), model(1)
    critic = ValueModel(policy, "own", source)
    weights, theirs = dict(critic.model.lm.named_parameters()), dict(source.transformer.named_parameters())
    assert all(torch.equal(weights[name], theirs[name]) for name in theirs)


def test_a_shared_backbone_gives_values_and_log_probabilities_in_one_pass() -> None:
    policy = TokenModel(model())
    plain = policy(batch_of(), Want())
    critic = ValueModel(policy, "shared")
    randomize(critic)
    calls: list[int] = []
    lm: Any = policy.lm
    lm.transformer.register_forward_hook(lambda *_: calls.append(1))
    scores = policy(batch_of(), Want(values=True))
    assert len(calls) == 1
    assert torch.equal(scores.scored, plain.scored)
    assert scores.values is not None
    assert scores.values.tolist() == pytest.approx(values_of(critic).tolist(), abs=1e-12)
    scores.values.sum().backward()
    assert lm.transformer.h[0].attn.c_attn.weight.grad.abs().sum() > 0
    assert [name for name, _ in critic.named_parameters()] == ["head.weight", "head.bias"]
    assert plain.values is policy(batch_of(), Want()).values is None


def test_under_an_adapter_the_critic_is_a_second_adapter_on_the_same_weights() -> None:
    lm = adapted()
    policy = TokenModel(lm)
    before = policy(batch_of(), Want()).scored.detach()
    critic = ValueModel(policy)
    assert critic.adapter
    assert critic.model is policy
    with torch.no_grad():
        for weight in critic.trainable():
            weight.add_(0.1)
    assert torch.equal(policy(batch_of(), Want()).scored, before)
    with policy.using(critic.adapter):
        values = values_of(critic)
        values.square().sum().backward()
        assert not torch.equal(policy(batch_of(), Want()).scored, before)
    named = dict(lm.named_parameters())
    moved = {name for name, weight in named.items() if weight.grad is not None and weight.grad.abs().sum() > 0}
    assert moved
    assert all(".critic." in name for name in moved)
    assert all(weight.requires_grad for weight in critic.trainable())
    assert all(named[name].requires_grad for name in named if ".default." in name)
    assert torch.equal(values, values_of(critic))
    saved = {name: weight.clone() for name, weight in critic.learned().items()}
    other = ValueModel(TokenModel(adapted()))
    other.restore(saved)
    assert torch.equal(values_of(other), values)
    with pytest.raises(InputError, match="already has an adapter named critic"):
        ValueModel(policy)


@pytest.mark.parametrize("direction", ["reverse", "forward"])
def test_the_divergence_over_the_vocabulary_is_exact_and_has_its_gradient(direction: Any) -> None:
    policy, other = TokenModel(model(0), chunk_tokens=2), model(1)
    reference = Reference(policy, other)
    want = Want(full_kl={"reference": direction})
    scores = policy(batch_of(temperature=0.7), want, {"reference": reference.anchor})
    expected = []
    for sequence, positions in zip(SEQUENCES, POSITIONS, strict=True):
        mine, theirs = (
            torch.log_softmax(net(input_ids=torch.tensor([sequence])).logits[0] / 0.7, -1) for net in (policy.lm, other)
        )
        theirs = theirs.detach()
        first, second = (mine, theirs) if direction == "reverse" else (theirs, mine)
        expected += [(first[p - 1].exp() * (first[p - 1] - second[p - 1])).sum() for p in positions]
    found = scores.full_kl["reference"]
    assert found.tolist() == pytest.approx([float(x.detach()) for x in expected], abs=1e-12)
    lm: Any = policy.lm
    weight = lm.transformer.h[0].attn.c_attn.weight
    (slope,) = torch.autograd.grad(found.sum(), weight)
    (naive,) = torch.autograd.grad(torch.stack(expected).sum(), weight)
    torch.testing.assert_close(slope, naive, atol=1e-10, rtol=1e-8)
    assert all(p.grad is None for p in other.parameters())
    assert dict(policy(batch_of(), Want()).full_kl) == {}


def test_what_cannot_be_measured_is_refused_and_states_come_beside_log_probabilities() -> None:
    policy = TokenModel(model())
    with pytest.raises(InputError, match="full_kl: no anchor 'reference' is given"):
        policy(batch_of(), Want(full_kl={"reference": "reverse"}))
    for wanted in ({"entropy": True}, {"full_kl": {"reference": "reverse"}}):
        with pytest.raises(InputError, match="entropy and full_kl are measured with the log-probabilities"):
            Want(logprobs=False, **wanted)
    found = policy(batch_of(), Want(hidden=True))
    states = [
        hidden(policy.lm, SEQUENCES[0])[1],
        hidden(policy.lm, SEQUENCES[0])[3],
        hidden(policy.lm, SEQUENCES[1])[0],
    ]
    torch.testing.assert_close(found.hidden, torch.stack(states), atol=1e-12, rtol=0)
    assert found.logprobs is not None


def test_an_adapters_divergence_is_from_itself_without_the_adapter() -> None:
    lm = adapted()
    policy = TokenModel(lm)
    reference = Reference(policy)
    assert reference.shared
    assert full_kl(policy, reference.anchor).tolist() == pytest.approx([0.0] * 3, abs=1e-6)
    with torch.no_grad():
        for name, weight in lm.named_parameters():
            if "lora_B" in name:
                weight.add_(0.3)
    assert full_kl(policy, reference.anchor).min() > 1e-4
    with reference.anchor.model.using(reference.anchor.adapter), torch.no_grad():
        plain = policy(batch_of(), Want()).scored
    with lm.disable_adapter():
        assert torch.equal(plain, score(lm, SEQUENCES, POSITIONS).scored)
    assert not torch.equal(plain, policy(batch_of(), Want()).scored)
    with pytest.raises(InputError, match="cannot be refreshed"):
        reference.refresh(1.0)
    assert reference.state_dict() == {}


def test_a_reference_stays_until_it_is_refreshed_and_goes_part_of_the_way() -> None:
    policy = TokenModel(model())
    reference = Reference(policy)
    before = copy.deepcopy(dict(policy.lm.named_parameters()))
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
    other = Reference(TokenModel(model(5)))
    other.load_state_dict(reference.state_dict())
    theirs = dict(other.weights.named_parameters())
    assert all(torch.equal(theirs[name], kept[name]) for name in kept)


def test_values_take_a_position_just_after_the_sequence_and_log_probabilities_do_not() -> None:
    policy = TokenModel(model(), value_head=torch.nn.Linear(16, 1, dtype=torch.float64))
    values = policy(batch_of([[3, 4]], [[1, 2]]), VALUES).values
    assert policy.value_head is not None
    expected = policy.value_head(hidden(policy.lm, [3, 4])).squeeze(-1)
    assert values.tolist() == pytest.approx(expected.tolist(), abs=1e-10)
    with pytest.raises(InputError, match="sequence 0 has 2 tokens and cannot be scored at position 3"):
        policy(batch_of([[3, 4]], [[3]]), VALUES)
    with pytest.raises(InputError, match="sequence 0 has 2 tokens and cannot be scored at position 2"):
        policy(batch_of([[3, 4]], [[1, 2]]), Want(values=True))
    with pytest.raises(InputError, match="the model has no value head"):
        TokenModel(model())(batch_of(), VALUES)
