"""The flat layout: which token belongs where, and the way there and back."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from reinlm.objectives import LEVELS, Layout
from strategies import layouts, padded_batches, partition

T = torch.tensor

# Two groups; the first holds an episode of two sequences (one of two turns, one empty) and an episode of one token.
NESTED = Layout(
    turn_of_token=T([0, 0, 1, 2, 3, 3]),
    sequence_of_turn=T([0, 0, 2, 3]),
    episode_of_sequence=T([0, 0, 1, 2]),
    group_of_episode=T([0, 0, 1]),
    groups=2,
)


def test_the_levels_run_from_turn_to_group():
    assert LEVELS == ("turn", "sequence", "episode", "group")


@pytest.mark.parametrize(
    ("level", "index", "count"),
    [
        ("turn", [0, 0, 1, 2, 3, 3], [2, 1, 1, 2]),
        ("sequence", [0, 0, 0, 2, 3, 3], [3, 0, 1, 2]),
        ("episode", [0, 0, 0, 1, 2, 2], [3, 1, 2]),
        ("group", [0, 0, 0, 0, 1, 1], [4, 2]),
    ],
)
def test_every_token_knows_its_members(level, index, count):
    assert NESTED.index(level).tolist() == index
    assert NESTED.count(level).tolist() == count
    assert NESTED.size(level) == len(count)
    assert NESTED.tokens == 6


def test_sums_and_means_by_sequence_count_an_empty_one_as_zero():
    x = T([1.0, 2.0, 6.0, 5.0, 1.0, 0.0])
    assert NESTED.sum(x, "sequence").tolist() == [9.0, 0.0, 5.0, 1.0]
    assert NESTED.mean(x, "sequence").tolist() == [3.0, 0.0, 5.0, 0.5]


def test_sum_mean_and_expand_pass_gradients_on():
    x = torch.randn(6, dtype=torch.float64, requires_grad=True)
    for level in LEVELS:
        assert torch.autograd.gradcheck(lambda x, by=level: NESTED.sum(x, by), x)
        assert torch.autograd.gradcheck(lambda x, by=level: NESTED.expand(NESTED.mean(x, by), by), x)


def test_from_lengths_makes_neighbours_a_group():
    layout = Layout.from_lengths([2, 0, 1, 3], group_size=2)
    assert layout.turn_of_token.tolist() == [0, 0, 2, 3, 3, 3]
    assert layout.sequence_of_turn.tolist() == layout.episode_of_sequence.tolist() == [0, 1, 2, 3]
    assert layout.group_of_episode.tolist() == [0, 0, 1, 1]
    assert layout.groups == 2
    assert Layout.from_lengths([2, 1]).group_of_episode.tolist() == [0, 1]


@pytest.mark.parametrize("group_size", [2, 0, -1])
def test_groups_that_do_not_divide_are_refused(group_size):
    with pytest.raises(ValueError, match=f"^3 sequences do not divide into groups of {group_size}$"):
        Layout.from_lengths([1, 1, 1], group_size=group_size)


def test_from_mask_takes_unbroken_runs_as_turns_and_rows_as_episodes():
    mask = T([[True, True, False, True], [False, False, False, False], [True, False, True, True]])
    layout = Layout.from_mask(mask)
    assert layout.turn_of_token.tolist() == [0, 0, 1, 2, 3, 3]
    assert layout.sequence_of_turn.tolist() == [0, 0, 2, 2]
    assert layout.episode_of_sequence.tolist() == layout.group_of_episode.tolist() == [0, 1, 2]
    assert layout.groups == 3


def test_from_mask_numbers_the_groups_that_it_is_given():
    layout = Layout.from_mask(torch.ones(4, 1, dtype=torch.bool), T([7, 3, 7, 9]))
    assert layout.group_of_episode.tolist() == [1, 0, 1, 2]
    assert layout.groups == 3
    assert layout.count("group").tolist() == [1, 2, 1]


@pytest.mark.parametrize("shape", [(0, 3), (2, 0), (0, 0)])
def test_a_mask_without_a_token_gives_an_empty_layout(shape):
    for groups in (None, torch.zeros(shape[0], dtype=torch.long)):
        layout = Layout.from_mask(torch.zeros(shape, dtype=torch.bool), groups)
        assert (layout.tokens, layout.size("turn"), layout.size("episode")) == (0, 0, shape[0])
        assert layout.groups == (0 if not shape[0] else shape[0] if groups is None else 1)


def test_offset_and_last_count_within_the_member():
    assert NESTED.offset("episode").tolist() == [0, 1, 2, 0, 0, 1]
    assert NESTED.offset("turn").tolist() == [0, 1, 0, 0, 0, 1]
    assert NESTED.last("episode").tolist() == [False, False, True, True, False, True]


def test_offsets_hold_where_the_tokens_of_other_members_stand_between():
    layout = Layout.from_mask(torch.ones(3, 2, dtype=torch.bool), T([0, 1, 0]))
    assert layout.offset("group").tolist() == [0, 1, 0, 1, 2, 3]
    assert layout.pad(T([1, 2, 3, 4, 5, 6]), "group", fill=-1).T.tolist() == [[1, 2, 5, 6], [3, 4, -1, -1]]


def test_time_keeps_its_order_among_many_tokens():
    """Sorts of a handful of items keep the order of equal ones by chance; those of forty need not."""
    layout = Layout.from_mask(torch.ones(40, 1, dtype=torch.bool), torch.arange(40) % 2)
    assert layout.offset("group").tolist() == [t // 2 for t in range(40)]
    _, tokens = Layout.from_lengths([40, 40]).select(T([1, 0]))
    assert tokens.tolist() == [*range(40, 80), *range(40)]


def test_pad_is_time_first_and_fills():
    padded = NESTED.pad(T([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]), "sequence", fill=-1.0)
    assert padded.tolist() == [[1.0, -1.0, 4.0, 5.0], [2.0, -1.0, -1.0, 6.0], [3.0, -1.0, -1.0, -1.0]]
    assert NESTED.pad(torch.ones(6), "turn")[1].tolist() == [1.0, 0.0, 0.0, 1.0]


def test_pad_of_nothing_has_no_steps():
    assert Layout.from_lengths([0, 0]).pad(torch.zeros(0), "sequence").shape == (0, 2)


@given(layouts())
def test_pad_and_unpad_undo_each_other_at_every_level(layout):
    x = torch.randn(layout.tokens)
    for level in LEVELS:
        assert torch.equal(layout.unpad(layout.pad(x, level, fill=9.0), level), x)
        assert torch.equal(
            layout.pad(x, level).sum(0), layout.pad(layout.unpad(layout.pad(x, level), level), level).sum(0)
        )


@given(padded_batches())
def test_a_mask_and_its_layout_agree(batch):
    mask = torch.as_tensor(batch.mask)
    layout = Layout.from_mask(mask)
    x = torch.randn(mask.shape)
    assert layout.count("sequence").tolist() == mask.sum(1).tolist()
    rows = [row[keep].tolist() for row, keep in zip(x, mask, strict=True)]
    padded = layout.pad(x[mask], "sequence", fill=torch.nan)
    assert [[v for v in column if v == v] for column in padded.T.tolist()] == rows
    runs = sum("".join("x" if m else " " for m in row).split().__len__() for row in batch.mask)
    assert layout.size("turn") == runs


@given(st.data())
def test_select_keeps_tokens_order_and_membership(data):
    layout = data.draw(layouts())
    chosen = partition(data.draw, layout.size("sequence"))[0]
    part, tokens = layout.select(chosen)
    expected = [t for s in chosen.tolist() for t in range(layout.tokens) if layout.index("sequence")[t] == s]
    assert tokens.tolist() == expected
    assert part.size("sequence") == len(chosen)
    assert part.count("sequence").tolist() == layout.count("sequence")[chosen].tolist()
    for level in ("turn", "episode", "group"):
        pairs = set(zip(part.index(level).tolist(), layout.index(level)[tokens].tolist(), strict=True))
        assert len(pairs) == len({a for a, _ in pairs}) == len({b for _, b in pairs})
    old_episodes = layout.episode_of_sequence[chosen].tolist()
    assert part.episode_of_sequence.tolist() == [list(dict.fromkeys(old_episodes)).index(e) for e in old_episodes]
    old_groups = [layout.group_of_episode[e].item() for e in dict.fromkeys(old_episodes)]
    assert part.group_of_episode.tolist() == [list(dict.fromkeys(old_groups)).index(g) for g in old_groups]
    assert part.groups == len(set(old_groups))


def test_select_names_a_sequence_that_is_asked_for_twice():
    with pytest.raises(ValueError, match=r"^select: a sequence is named twice among \[1, 0, 1\]$"):
        NESTED.select(T([1, 0, 1]))


def test_select_of_interleaved_sequences_keeps_the_time_of_each_episode():
    layout = Layout(T([0, 1, 2, 3, 3]), T([0, 1, 2, 3]), T([0, 0, 1, 1]), T([0, 0]), 1)
    part, tokens = layout.select(T([0, 2, 1, 3]))
    assert tokens.tolist() == [0, 2, 1, 3, 4]
    assert part.episode_of_sequence.tolist() == [0, 1, 0, 1]
    assert part.offset("episode").tolist() == [0, 0, 1, 1, 2]
    assert part.last("episode").tolist() == [False, False, True, False, True]


def test_to_moves_every_part():
    moved = NESTED.to("meta")
    parts = (moved.turn_of_token, moved.sequence_of_turn, moved.episode_of_sequence, moved.group_of_episode)
    assert {part.device.type for part in parts} == {"meta"}
    back = NESTED.to(torch.device("cpu"))
    assert torch.equal(back.index("group"), NESTED.index("group"))
    assert back.groups == 2


def test_everything_is_made_on_the_device_of_its_inputs():
    """With another default device, a tensor made without naming one would not meet the others."""
    mask, groups, order, x = T([[True, False], [True, True]]), T([4, 4]), T([1, 0]), torch.ones(3)
    mixed = T([8, 3, 1, 0, 7, 2, 6, 5, 4])

    def everything():
        layout = Layout.from_mask(mask, groups)
        part, tokens = layout.select(order)
        listed = Layout.from_lengths([2, 1], group_size=2, device=x.device)
        results = [
            layout.offset("sequence"),
            layout.last("episode"),
            layout.pad(x, "turn"),
            layout.sum(x, "group"),
            tokens,
        ]
        many, _ = Layout.from_lengths([1] * 9, device=x.device).select(mixed)
        results += [made.index(level) for made in (part, listed, many, Layout.from_mask(mask)) for level in LEVELS]
        return [*results, part.group_of_episode, part.episode_of_sequence, part.sequence_of_turn]

    expected = everything()
    with torch.device("meta"):
        made = everything()
    assert [x.tolist() for x in made] == [x.tolist() for x in expected]
