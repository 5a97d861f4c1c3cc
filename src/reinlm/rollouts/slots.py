"""Answers that are being written, each in a row of one key-value cache, which holds a prompt of several answers once.

Rows are dense: the last row takes the place of one that ends, so finished answers cost nothing, and joining copies no
cache. A row holds its own tokens from its first column on, so rows need not be of one length. Prompts of several answers
stand in a table of their own, and attention to them is one matrix product for all answers of a prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from reinlm.models.decoder import RowForward, prepared
from reinlm.models.prefix_sharing import share_prefixes
from reinlm.models.row_attention import LayerSettings, RowAttention, as_computed
from reinlm.rollouts.answers import Prompt, RunningAnswer, take_tokens
from reinlm.rollouts.protocol import Reason
from reinlm.rollouts.sampling import RowSampling, sample

SHARED_FROM = 48
"""Prompts of several answers that have this many tokens are kept once; shorter ones are copied to each answer's row, since
attention to a shared prompt takes more calls for fewer bytes. In half precision all are copied: products would round scores."""
_SPARE = 64
"""Columns of room made at once, so that growth copies rarely."""

KeyValues = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class ReadPrompt:
    """A prompt that has been read."""

    ids: Prompt
    layers: Sequence[KeyValues]
    """Keys and values [T, kv heads, size] of the tokens that were read, in every layer."""
    path: np.ndarray[tuple[int], np.dtype[np.int64]]
    """Where the prompt's tokens are among them."""
    logits: Tensor
    """[1, V] of the first token of an answer."""

    @property
    def wide(self) -> bool:
        """Whether scores of attention keep their digits in the type of its keys, which those of half precision do not."""
        return torch.finfo(self.layers[0][0].dtype).bits >= 32


class Table:
    """Keys and values of every layer, [rows, kv heads, columns, size], with room to grow."""

    def __init__(self) -> None:
        self.layers: list[KeyValues] = []
        self.rows = self.columns = 0

    def reserve(self, rows: int, columns: int, most: int, like: Sequence[KeyValues]) -> None:
        """Make room for so many rows and columns, of which there will be `most`, for keys and values as those of `like`
        [..., kv heads, size]."""
        if rows <= self.rows and columns <= self.columns:
            return
        if rows > self.rows:
            self.rows = rows if not self.rows else max(rows, self.rows + self.rows // 2)
        if columns > self.columns:
            self.columns = max(columns, min(most, columns + max(_SPARE, columns // 2)))
        empty = [(keys.new_empty(0, keys.shape[-2], 0, keys.shape[-1]),) * 2 for keys, _ in like]
        self.layers = [(self._grown(keys), self._grown(values)) for keys, values in self.layers or empty]

    def _grown(self, old: Tensor) -> Tensor:
        new = old.new_zeros(self.rows, old.shape[1], self.columns, old.shape[3])
        new[: old.shape[0], :, : old.shape[2]] = old
        return new

    def write(self, rows: slice, prompts: Sequence[ReadPrompt]) -> None:
        """Put a prompt into the first columns of each of these rows. Prompts that were read together are copied together."""
        paths = np.zeros((len(prompts), max(len(prompt.path) for prompt in prompts)), np.int64)
        for line, prompt in zip(paths, prompts, strict=True):
            line[: len(prompt.path)] = prompt.path
        for (keys, values), read in zip(self.layers, prompts[0].layers, strict=True):
            index = torch.from_numpy(paths).to(keys.device)
            for into, states in ((keys, read[0]), (values, read[1])):
                into[rows, :, : paths.shape[1]] = states[index].transpose(1, 2)

    def move(self, source: Tensor, target: Tensor, width: int) -> None:
        """Copy the first `width` columns of some rows to others."""
        for pair in self.layers:
            for states in pair:
                states[target, :, :width] = states[source, :, :width]


class Slots:
    """Running answers. Tensors of shape [n] follow the rows: what each has read, and where its prompt is.

    Args:
        forward: the model's forward pass on a row of tokens.
        head: hidden states [T, H] -> logits [T, V].
    """

    def __init__(self, forward: RowForward, head: Callable[[Tensor], Tensor], device: torch.device) -> None:
        self._live_forward = forward
        self._prepared: RowForward | None = None
        """Copies of the weights as they are while answers are being written."""
        self._head = head
        self._device = device
        self._kept: ReadPrompt | None = None
        self._empty()

    def clear(self) -> None:
        """Forget everything."""
        self._kept = None
        self._empty()

    def _empty(self) -> None:
        """Give the cache back, and what was copied of the weights."""
        self._prepared = None
        self._rows: list[RunningAnswer] = []
        self._own, self._shared = Table(), Table()
        self._prompts: list[Prompt] = []
        """Those of the shared table."""
        none = torch.zeros(0, dtype=torch.long, device=self._device)
        self._tokens = self._held = self._written = self._prefix = none
        self._prompt_of: list[int] = []
        """Of each row, its line of the shared table; -1 where its prompt is in its own row."""
        self._logits = torch.empty(0)
        self._sampling: RowSampling | None = None
        self._members: PromptGroups | None = None

    @property
    def live(self) -> int:
        """Answers being written."""
        return len(self._rows)

    def _forward(self, ids: Tensor, positions: Tensor, attention: RowAttention) -> Tensor:
        if self._prepared is None:
            self._prepared = prepared(self._live_forward)
        return self._prepared(ids, positions, attention)

    # ------------------------------------------------------------------------------------------ prompts

    def known(self, prompt: Prompt) -> bool:
        """Whether a prompt need not be read again."""
        return self._kept is not None and self._kept.ids == prompt

    def cost(self, prompts: Sequence[Prompt]) -> int:
        """Tokens that reading these prompts takes."""
        return sum(len(prompt) for prompt in prompts)

    def forget(self) -> None:
        """The weights have changed: what waits is read anew, and what is running keeps what it has read."""
        self._kept = self._prepared = None
        self._prompts = [() for _ in self._prompts]

    def settle(self, queued: bool) -> None:
        """After a step: give back what is not needed."""
        if not queued:
            self._kept = None
        if not self._rows:
            self._empty()

    def admit(self, arrivals: Sequence[tuple[Prompt, Sequence[RunningAnswer]]], waiting: bool) -> None:
        """Read the prompts that are not known, and add rows. Between `advance` and `choose`.

        Args:
            waiting: more answers to the last prompt will come.
        """
        fresh = [prompt for prompt, _ in arrivals if not self.known(prompt)]
        read = {} if self._kept is None else {self._kept.ids: self._kept}
        if fresh:
            read |= self._read(fresh)
        joining = []
        for prompt, rows in arrivals:
            several = len(rows) > 1 or (waiting and prompt == arrivals[-1][0])
            shared = several and len(prompt) >= SHARED_FROM and read[prompt].wide
            joining.append((read[prompt], rows, self._line(read[prompt]) if shared else -1))
        self._join(joining)
        self._kept = _alone(read[arrivals[-1][0]]) if waiting else None

    def _read(self, prompts: Sequence[Prompt]) -> dict[Prompt, ReadPrompt]:
        sequences = [np.array(prompt, np.int64) for prompt in prompts]
        row = share_prefixes(sequences)
        layers: list[KeyValues] = []
        tree = row.tree(self._device)

        def attention(layer: int, query: Tensor, key: Tensor, value: Tensor, settings: LayerSettings) -> Tensor:
            key, value = as_computed(key, value)
            layers.append((key[0].transpose(0, 1), value[0].transpose(0, 1)))
            return tree(layer, query, key, value, settings)

        ids = torch.from_numpy(np.concatenate(sequences)[row.tokens]).to(self._device)
        hidden = self._forward(ids, torch.from_numpy(row.positions).to(self._device), attention)
        ends = np.cumsum([len(prompt) for prompt in prompts])
        logits = self._head(hidden[torch.from_numpy(row.index[ends - 1]).to(self._device)])
        paths = np.split(row.index, ends[:-1])
        return {
            prompt: ReadPrompt(prompt, layers, path, logits[line : line + 1])
            for line, (prompt, path) in enumerate(zip(prompts, paths, strict=True))
        }

    def _join(self, joining: Sequence[tuple[ReadPrompt, Sequence[RunningAnswer], int]]) -> None:
        """Add the rows of prompts, each with its line of the shared table or -1."""
        first, layers = len(self._rows), joining[0][0].layers
        for prompt, rows, line in joining:
            count, length = len(rows), len(prompt.ids)
            self._rows += rows
            self._prompt_of += [line] * count
            self._held = self._longer(self._held, count, 0 if line >= 0 else length)
            self._prefix = self._longer(self._prefix, count, length if line >= 0 else 0)
        added = len(self._rows) - first
        self._written = self._longer(self._written, added, 0)
        self._own.reserve(self.live, int(self._held[first:].max()) + 1, self._most(), layers)
        for prompt, rows, line in joining:
            if line < 0:
                self._own.write(slice(first, first + len(rows)), [prompt] * len(rows))
            first += len(rows)
        logits = torch.cat([prompt.logits.expand(len(rows), -1) for prompt, rows, _ in joining])
        self._logits = torch.cat([self._logits, logits]) if len(self._logits) else logits
        new = RowSampling.of([row.request for row in self._rows[-added:]], self._device)
        self._sampling = new if self._sampling is None else self._sampling.join(new)
        self._members = None

    def _most(self) -> int:
        """Columns of the longest row when it ends."""
        return max(
            row.limit + (len(row.request.token_ids) if line < 0 else 0)
            for row, line in zip(self._rows, self._prompt_of, strict=True)
        )

    def _line(self, prompt: ReadPrompt) -> int:
        """The line of the shared table that holds a prompt; a new one if it holds it not yet."""
        if prompt.ids in self._prompts:
            return self._prompts.index(prompt.ids)
        line = len(self._prompts)
        self._shared.reserve(line + 1, len(prompt.ids), len(prompt.ids), prompt.layers)
        self._shared.write(slice(line, line + 1), [prompt])
        self._prompts.append(prompt.ids)
        return line

    def _longer(self, values: Tensor, count: int, value: int) -> Tensor:
        return torch.cat([values, values.new_full((count,), value)])

    # ------------------------------------------------------------------------------------------ tokens

    def advance(self) -> None:
        """Read the newest token of every row, so that the logits for the next one stand ready."""
        longest = max(
            row.length - (len(row.request.token_ids) if line >= 0 else 0)
            for row, line in zip(self._rows, self._prompt_of, strict=True)
        )
        if longest > self._own.columns:
            self._own.reserve(self.live, longest, self._most(), self._own.layers)
        reading = DecodeAttention(self._own, self._shared, self._held, self._prefix, longest, self._grid())
        hidden = self._forward(self._tokens, self._held + self._prefix, reading)
        self._logits = self._head(hidden)
        self._held = self._held + 1

    def choose(self, version: int) -> list[tuple[RunningAnswer, Reason]]:
        """Sample a token for every row; the rows that ended with it. Waits for the device once."""
        assert self._sampling is not None
        self._tokens, logprobs = sample(self._logits, self._sampling, self._written)
        self._logits = self._logits[:0]
        self._written = self._written + 1
        ended = take_tokens(self._rows, self._tokens, logprobs, version)
        found = [(self._rows[index], reason) for index, reason in ended]
        self._remove({index for index, _ in ended})
        return found

    def drop(self, ids: set[str]) -> None:
        """Drop the rows of these requests."""
        self._remove({index for index, row in enumerate(self._rows) if row.request.id in ids})

    def _remove(self, gone: set[int]) -> None:
        """Take rows out, and the last ones into their places; then prompts that no row has."""
        if not gone:
            return
        order = _without(self.live, gone)
        moved = [(old, new) for new, old in enumerate(order) if old != new]
        if moved:
            source, target = (self._index(part) for part in zip(*moved, strict=True))
            self._own.move(source, target, max(self._rows[old].length for old, _ in moved))
        index = self._index(order)
        self._rows = [self._rows[old] for old in order]
        self._prompt_of = [self._prompt_of[old] for old in order]
        self._tokens, self._held = self._tokens[index], self._held[index]
        self._written, self._prefix = self._written[index], self._prefix[index]
        assert self._sampling is not None
        self._sampling = self._sampling.pick(index)
        self._members = None
        self._remove_prompts(set(range(len(self._prompts))) - set(self._prompt_of))

    def _remove_prompts(self, gone: set[int]) -> None:
        if not gone:
            return
        order = _without(len(self._prompts), gone)
        moved = [(old, new) for new, old in enumerate(order) if old != new]
        if moved:
            source, target = (self._index(part) for part in zip(*moved, strict=True))
            self._shared.move(source, target, self._shared.columns)
        self._prompts = [self._prompts[old] for old in order]
        places = {old: new for new, old in enumerate(order)}
        self._prompt_of = [places.get(line, -1) for line in self._prompt_of]

    def _grid(self) -> PromptGroups | None:
        """Which rows have which shared prompt; None where none has one. Made anew after rows came or went."""
        if self._members is None and self._prompts:
            self._members = PromptGroups.of(self._prompt_of, len(self._prompts), self._device)
        return self._members

    def _index(self, values: Sequence[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.long, device=self._device)


def _without(count: int, gone: set[int]) -> list[int]:
    """0 … count - 1 without some of them, whose places the last ones take."""
    left = [index for index in range(count) if index not in gone]
    size = len(left)
    spare = iter(index for index in reversed(left) if index >= size)
    return [next(spare) if index in gone else index for index in range(size)]


def _alone(prompt: ReadPrompt) -> ReadPrompt:
    """A prompt without the others that were read with it."""
    layers = [(keys[prompt.path], values[prompt.path]) for keys, values in prompt.layers]
    return ReadPrompt(prompt.ids, layers, np.arange(len(prompt.ids)), prompt.logits)


@dataclass(frozen=True)
class PromptGroups:
    """P shared prompts of at most M rows each."""

    rows: Tensor
    """[P · M] the rows of every prompt, prompt after prompt; row 0 in free places."""
    places: Tensor
    """[n] where each row stands among them; 0 for a row without a shared prompt."""
    prompts: int
    without: Tensor | None
    """[n, 1, 1, 1] whether a row has no shared prompt; None where all have one."""

    @classmethod
    def of(cls, lines: Sequence[int], prompts: int, device: torch.device) -> PromptGroups:
        """From the line of each row, -1 for none."""
        members: list[list[int]] = [[] for _ in range(prompts)]
        for row, line in enumerate(lines):
            if line >= 0:
                members[line].append(row)
        most = max(map(len, members))
        places = [0] * len(lines)
        grid = [0] * (prompts * most)
        for line, rows in enumerate(members):
            for number, row in enumerate(rows):
                places[row] = line * most + number
                grid[line * most + number] = row
        without = None
        if -1 in lines:
            without = torch.tensor([line < 0 for line in lines], device=device)[:, None, None, None]
        return cls(torch.tensor(grid, device=device), torch.tensor(places, device=device), prompts, without)

    def spread(self, states: Tensor) -> Tensor:
        """[n, K, G, X] -> [P, K, M · G, X]: the rows of each prompt side by side."""
        found: Tensor = states[self.rows].unflatten(0, (self.prompts, -1)).transpose(1, 2)
        return found.flatten(2, 3)

    def gather(self, states: Tensor, per_row: int) -> Tensor:
        """[P, K, M · G, X] -> [n, K, G, X]."""
        found: Tensor = states.unflatten(2, (-1, per_row)).transpose(1, 2).flatten(0, 1)
        return found[self.places]


class DecodeAttention:
    """Attention of one step: every row's new token over its prompt and its own tokens; a `RowAttention`.

    Args:
        held: [n] columns of its own row that each row fills already.
        prefix: [n] tokens of its shared prompt; 0 without one.
        width: columns of the longest row, its new token included.
    """

    def __init__(
        self, own: Table, shared: Table, held: Tensor, prefix: Tensor, width: int, grid: PromptGroups | None
    ) -> None:
        self._own, self._shared, self._grid = own, shared, grid
        self._held, self._prefix, self._width = held, prefix, width
        self._count = held.shape[0]
        self._write: Tensor | None = None
        self._masks: dict[int | None, Tensor] = {}

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor, settings: LayerSettings) -> Tensor:
        """As `reinlm.models.row_attention.RowAttention`; an engine samples without dropout."""
        query, key, value = as_computed(query, key, value)
        keys, values = self._own.layers[layer]
        count, heads = self._count, key.shape[1]
        if self._write is None:
            lines = torch.arange(count * heads, device=key.device).view(count, heads)
            self._write = (lines * keys.shape[2] + self._held[:, None]).flatten()
        for into, states in ((keys, key), (values, value)):
            into.view(-1, into.shape[-1]).index_copy_(
                0, self._write, states[0].transpose(0, 1).reshape(-1, into.shape[-1])
            )
        keys, values = keys[:count, :, : self._width], values[:count, :, : self._width]
        asked = query[0].transpose(0, 1).unflatten(1, (heads, -1))
        mask = self._mask(settings.window, query.dtype)
        wide = torch.finfo(keys.dtype).bits >= 32
        if self._grid is None and not (wide and key.device.type == "cpu"):
            answer = F.scaled_dot_product_attention(asked, keys, values, attn_mask=mask, scale=settings.scaling)
        else:
            answer = self._by_products(layer, asked, keys, values, mask, settings.scaling)
        return answer.flatten(1, 2)[None]

    def _by_products(
        self, layer: int, asked: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scaling: float | None
    ) -> Tensor:
        """Attention as two batched matrix products, which for one query a row are faster on a CPU than SDPA."""
        scores, grid, size = asked @ keys.transpose(2, 3), self._grid, mask.shape[-1] - self._width
        if grid is not None:
            prompt_keys, prompt_values = (states[: grid.prompts, :, :size] for states in self._shared.layers[layer])
            to_prompt = grid.gather(grid.spread(asked) @ prompt_keys.transpose(2, 3), asked.shape[2])
            scores = torch.cat([to_prompt, scores], dim=-1)
        scores = torch.add(mask, scores, alpha=asked.shape[-1] ** -0.5 if scaling is None else scaling)
        weights = scores.softmax(-1, dtype=torch.promote_types(scores.dtype, torch.float32)).to(values.dtype)
        if grid is None:
            return weights @ values
        of_prompt = grid.gather(grid.spread(weights[..., :size]) @ prompt_values, asked.shape[2])
        if grid.without is not None:
            of_prompt = of_prompt.masked_fill(grid.without, 0.0)
        return of_prompt + weights[..., size:] @ values

    def _mask(self, window: int | None, dtype: torch.dtype) -> Tensor:
        """[n, 1, 1, columns of the prompts and of the rows]: 0 where a column is read, else -inf."""
        if window not in self._masks:
            columns = torch.arange(self._width, device=self._held.device)
            read = columns <= self._held[:, None]
            if window is not None:
                read &= columns > self._held[:, None] - window
            if self._grid is not None:
                columns = torch.arange(int(self._prefix.max()), device=self._held.device)
                prompt = columns < self._prefix[:, None]
                if window is not None:
                    prompt &= columns > (self._prefix + self._held)[:, None] - window
                read = torch.cat([prompt, read], dim=-1)
            mask = torch.zeros(read.shape, dtype=dtype, device=read.device)
            self._masks[window] = mask.masked_fill_(~read, float("-inf"))[:, None, None]
        return self._masks[window]
