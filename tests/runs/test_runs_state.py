from __future__ import annotations

import json
import math
import random
import struct
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load, save

from reinlm.records import NO_TURN, RewardEvent, Rollout, RolloutGroup, ScoredGroup, Segment, Task
from reinlm.runs.state import pack_state, random_states, restore_random_states, unpack_state

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(exclude_categories=["Cs"]))
    | st.binary()
)
trees = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(
            st.integers() | st.sampled_from(["$", "v", "a", "exp_avg"]) | st.booleans(), inner, max_size=4
        )
    ),
    max_leaves=12,
)


def through_disk(tree: object) -> Any:
    packed, tensors = pack_state(tree)
    return unpack_state(json.loads(json.dumps(packed, allow_nan=False)), load(save(tensors)))


def bits(tree: object) -> object:
    """Types and bits, so that -0.0 differs from 0.0, True from 1, a tuple from a list, and NaN equals itself."""
    if isinstance(tree, float):
        return ("float", struct.pack(">d", tree))
    if isinstance(tree, list | tuple):
        return (type(tree), [bits(item) for item in tree])
    if isinstance(tree, dict):
        return ("dict", [(bits(key), bits(item)) for key, item in tree.items()])
    return (type(tree), tree)


@given(trees)
def test_plain_values_come_back_with_the_same_types_and_bits(tree: object) -> None:
    assert bits(through_disk(tree)) == bits(tree)


DTYPES = [
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.uint16, torch.int32, torch.uint32, torch.int64),
    *(torch.uint64, torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64),
    *(torch.float8_e4m3fn, torch.float8_e5m2),
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3)], ids=str)
def test_tensors_of_every_type_come_back_bit_for_bit(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = (torch.arange(math.prod(shape)) % 2).reshape(shape).to(dtype)
    back = through_disk({"x": [tensor]})["x"][0]
    assert back.dtype == dtype
    assert back.shape == tensor.shape
    assert back.reshape(-1).view(torch.uint8).tolist() == tensor.reshape(-1).view(torch.uint8).tolist()


def test_nan_and_infinite_tensor_entries_survive() -> None:
    back = through_disk(torch.tensor([math.nan, math.inf, -math.inf, -0.0]))
    assert (
        back.view(torch.int32).tolist()
        == torch.tensor([math.nan, math.inf, -math.inf, -0.0]).view(torch.int32).tolist()
    )


def test_tensors_that_share_memory_or_are_strided_are_stored_apart() -> None:
    base = torch.arange(6.0).reshape(2, 3)
    back = through_disk({"whole": base, "again": base, "row": base[0], "column": base.T})
    assert back["again"].tolist() == base.tolist()
    assert back["row"].tolist() == [0, 1, 2]
    assert back["column"].tolist() == [[0, 3], [1, 4], [2, 5]]


def test_numpy_values_come_back_as_numpy() -> None:
    back = through_disk({"array": np.arange(3, dtype=np.uint32), "scalar": np.float64(0.1), "flag": np.bool_(True)})
    assert back["array"].dtype == np.uint32
    assert back["array"].tolist() == [0, 1, 2]
    assert type(back["scalar"]) is np.float64
    assert back["scalar"] == 0.1
    assert type(back["flag"]) is np.bool_


def test_an_optimizer_goes_on_from_its_packed_state_to_the_same_bits() -> None:
    def build() -> tuple[torch.nn.Linear, torch.optim.AdamW]:
        torch.manual_seed(0)
        model = torch.nn.Linear(3, 2)
        return model, torch.optim.AdamW(model.parameters(), lr=0.1)

    def step(model: torch.nn.Linear, optimizer: torch.optim.AdamW, k: int) -> None:
        optimizer.zero_grad()
        model(torch.full((1, 3), float(k))).pow(2).sum().backward()
        optimizer.step()

    straight, optimizer = build()
    for k in range(4):
        step(straight, optimizer, k)
    first, optimizer = build()
    step(first, optimizer, 0)
    step(first, optimizer, 1)
    state = through_disk({"model": OrderedDict(first.state_dict()), "optimizer": optimizer.state_dict()})
    second, optimizer = build()
    second.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    step(second, optimizer, 2)
    step(second, optimizer, 3)
    assert torch.equal(second.weight, straight.weight)


def test_random_states_go_on_where_they_were() -> None:
    def draw() -> list[float]:
        return [random.random(), random.gauss(0, 1), float(np.random.standard_normal()), torch.randn(()).item()]

    random.gauss(0, 1)  # keeps a second number in hand, that the state must hold
    np.random.standard_normal()
    states = through_disk(random_states())
    expected = [draw(), draw()]
    restore_random_states(states)
    assert [draw(), draw()] == expected


def test_a_numpy_generator_goes_on_where_it_was() -> None:
    generator = np.random.default_rng(3)
    state = through_disk(generator.bit_generator.state)
    expected = generator.random(3).tolist()
    other = np.random.default_rng()
    other.bit_generator.state = state
    assert other.random(3).tolist() == expected


def test_states_of_absent_accelerators_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    states = random_states() | {"cuda": [torch.zeros(16, dtype=torch.uint8)] * 3}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.warns(UserWarning, match="written with 3 CUDA devices.*this machine has 0 CUDA devices"):
        restore_random_states(states)


@pytest.mark.filterwarnings("error")
def test_left_over_groups_come_back_as_equal_records() -> None:
    task = Task(id="train.jsonl:1", content=({"role": "user", "content": "2+2?"},), columns={"a": [1.5]})
    segment = Segment(
        np.array([5, 6, 9]),
        np.array([NO_TURN, NO_TURN, 0]),
        {"rollout_logprobs": np.array([-0.1], np.float32), "version": np.array([4])},
    )
    rollout = Rollout(task, (segment,), completion="4", terminated=True, truncated=False, reason="stop")
    scored = ScoredGroup(RolloutGroup(task, (rollout,)), events=((RewardEvent("math", 1.0, token=0),),))
    assert through_disk([scored]) == [scored]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"a": [0, {1, 2}]}, "state.a.1: cannot store a value of type set"),
        ({"path": Path("x")}, "state.path: cannot store a value of type PosixPath"),
        ({"z": torch.zeros(1, dtype=torch.complex128)}, "state.z: cannot store a tensor of type torch.complex128"),
        ({"words": np.array(["a"])}, "state.words: cannot store a numpy value of type <U1"),
    ],
)
def test_what_cannot_be_stored_is_named_by_its_place(value: object, message: str) -> None:
    with pytest.raises(TypeError) as raised:
        pack_state(value)
    assert str(raised.value) == message
