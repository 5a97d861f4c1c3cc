"""The models of a run in memory, as the entries of its ledger: counted from the modules and optimizers themselves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from reinlm.models.heads import unwrap
from reinlm.runs.ledger import Entry
from reinlm.training.optimizer import Optimizer

if TYPE_CHECKING:
    from reinlm.models import Anchor, FollowingModel, RewardModel, ValueModel


@dataclass(frozen=True, eq=False)
class Resident:
    """A model of a run, as the run holds it.

    Example: a policy with its optimizer:
        Resident("policy", list(model.parameters()), list(model.buffers()), learner.optimizer)
    """

    role: str
    """policy, reference, critic, reward, teacher, …"""
    parameters: Sequence[Tensor]
    """All that it computes with, those of other models among them; empty where none of it is in this process."""
    buffers: Sequence[Tensor] = ()
    optimizer: Optimizer | None = None
    """What trains it; None for a frozen model."""
    note: str = ""
    """What its weights do not say, such as that an adapter is switched off."""


def policy_of(model: nn.Module, optimizer: Optimizer | None, critic: ValueModel | None = None) -> Resident:
    """A language model in training, without the adapter of a critic on the same base."""
    other = None if critic is None else critic.adapter
    parameters = [weight for name, weight in model.named_parameters() if other is None or f".{other}." not in name]
    return Resident("policy", parameters, list(model.buffers()), optimizer, _tied(model))


def critic_of(critic: ValueModel, policy: nn.Module, optimizer: Optimizer | None) -> Resident:
    """A critic: with its own backbone, or on that of the policy."""
    if critic.shared or critic.adapter:
        base = _without_adapters(policy) if critic.adapter else list(policy.parameters())
        note = "an adapter on the policy's base" if critic.adapter else "reads the policy's forward pass"
        return Resident("critic", [*base, *critic.trainable()], list(policy.buffers()), optimizer, note)
    return Resident("critic", critic.trainable(), list(critic.model.lm.buffers()), optimizer)


def anchors_of(anchors: Mapping[str, Anchor]) -> list[Resident]:
    """The frozen models beside a policy, by their role; the base of an adapter is one where the adapter is switched off."""
    found = []
    for role, anchor in anchors.items():
        lm = anchor.model.lm
        if anchor.adapter is None:
            found.append(Resident(role, list(lm.parameters()), list(lm.buffers())))
        else:
            found.append(Resident(role, _without_adapters(lm), list(lm.buffers()), note="its adapter is switched off"))
    return found


def sampler_of(copied: FollowingModel | None) -> list[Resident]:
    """The copy of the policy that samples beside its updates, if there is one."""
    if copied is None:
        return []
    model = copied.model
    return [Resident("sampler", list(model.parameters()), list(model.buffers()), note="follows the policy")]


def rewards_of(role: str, models: Mapping[str, RewardModel | None]) -> list[Resident]:
    """The learned models among rewards by their names; None for one in a process of its own."""
    found = []
    for name, reward in models.items():
        title = role if name == "model" else f"{role} {name}"
        if reward is None:
            found.append(Resident(title, [], note="in a process of its own"))
        else:
            modules = (reward.model.lm, reward.head)
            parameters = [weight for module in modules for weight in module.parameters()]
            found.append(Resident(title, parameters, [weight for module in modules for weight in module.buffers()]))
    return found


def _without_adapters(model: nn.Module) -> list[Tensor]:
    return [weight for name, weight in model.named_parameters() if "lora_" not in name]


def _tied(model: nn.Module) -> str:
    """A note where a language model's head is its embedding."""
    lm: Any = unwrap(model)
    head, embedding = lm.get_output_embeddings(), lm.get_input_embeddings()
    tied = head is not None and embedding is not None and head.weight is embedding.weight
    return "the head is the embedding" if tied else ""


# ------------------------------------------------------------------------------------------------ counting


def ledger(residents: Iterable[Resident]) -> list[Entry]:
    """The entries of some models, in this order; a weight belongs to the first model that holds it."""
    owner: dict[tuple[Any, ...], str] = {}
    entries = []
    for one in residents:
        parameters = {_place(weight): weight for weight in one.parameters}
        mine = parameters | {_place(weight): weight for weight in one.buffers}
        count = sum(weight.numel() for weight in parameters.values())
        shared: dict[str, int] = {}
        for place, weight in parameters.items():
            if place in owner:
                shared[owner[place]] = shared.get(owner[place], 0) + weight.numel()
        said = [
            f"{'all' if number == count else f'{number:,} of its'} parameters with {role}"
            for role, number in shared.items()
        ]
        trained = [] if one.optimizer is None else one.optimizer.parameters
        entries.append(
            Entry(
                one.role,
                parameters=count,
                trained=sum(weight.numel() for weight in trained),
                weights=sum(_bytes(weight) for place, weight in mine.items() if place not in owner),
                gradients=sum(_bytes(weight) for weight in trained),
                optimizer=0 if one.optimizer is None else state_bytes(one.optimizer),
                shares="; ".join([*said, *([one.note] if one.note else [])]),
            )
        )
        owner |= {place: one.role for place in mine if place not in owner}
    return entries


def state_bytes(optimizer: Optimizer) -> int | None:
    """Bytes of an optimizer's state: as it is, or before the first step as it will be; None where that cannot be said.

    Before the first step another optimizer of the same configuration makes a step of gradient 0 on a tiny parameter of each type
    and number of dimensions. What has the parameter's shape grows with it, anything else does not.
    """
    if optimizer.torch.state:
        return sum(_bytes(x) for kept in optimizer.torch.state.values() for x in kept.values() if isinstance(x, Tensor))
    measured: dict[tuple[torch.dtype, int], tuple[float, int]] = {}
    total = 0.0
    for weight in optimizer.parameters:
        kind = (weight.dtype, weight.dim())
        if kind not in measured:
            try:
                measured[kind] = _measured_state(optimizer, *kind)
            except Exception:  # noqa: BLE001 - a user's optimizer may need a device, or larger matrices
                return None
        each, fixed = measured[kind]
        total += each * _local(weight).numel() + fixed
    return round(total)


def _measured_state(optimizer: Optimizer, dtype: torch.dtype, dimensions: int) -> tuple[float, int]:
    """(bytes for each element of a parameter, further bytes)."""
    proxy = nn.Parameter(torch.zeros((2,) * dimensions, dtype=dtype))
    with torch.random.fork_rng(devices=[]):
        other = Optimizer([proxy], optimizer.config, 1)
        proxy.grad = torch.zeros_like(proxy)
        other.torch.step()
    kept = [value for value in other.torch.state[proxy].values() if isinstance(value, Tensor)]
    alike = sum(_bytes(value) for value in kept if value.shape == proxy.shape and dimensions)
    return alike / proxy.numel(), sum(_bytes(value) for value in kept) - alike


def _local(weight: Tensor) -> Tensor:
    """What of a weight lies in this process."""
    local = getattr(weight, "to_local", None)
    return weight if local is None else local()


def _bytes(weight: Tensor) -> int:
    local = _local(weight)
    return local.numel() * local.element_size()


def _place(weight: Tensor) -> tuple[Any, ...]:
    """Where a weight lies: equal for two names of the same one."""
    local = _local(weight)
    return (local.device, local.data_ptr(), local.numel()) if local.numel() else (id(weight),)
