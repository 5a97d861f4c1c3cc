"""The examples of one row by the plain reading of the rule, a text at a time: what the batched loader must equal."""

from __future__ import annotations

from typing import Any

MARK = "@@mark@@"


class RowByRow:
    def __init__(self, tokenizer):
        self.tokenizer = tokenizer
        bare, full = self.encode("1"), tokenizer("1")["input_ids"]
        self.front = full[: next(i for i in range(len(full)) if full[i : i + len(bare)] == bare)]

    def encode(self, text):
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]

    def prompt(self, text):
        ids = self.encode(text)
        return ids if ids[: len(self.front)] == self.front else self.front + ids

    def following(self, before, after):
        alone, together = self.encode(before), self.encode(before + after)
        return together[len(alone) :] if together[: len(alone)] == alone else self.encode(after)

    def ended(self, ids):
        return ids if ids and ids[-1] == self.tokenizer.eos_token_id else [*ids, self.tokenizer.eos_token_id]

    def render(self, messages, opening):
        return self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=opening)

    def examples(self, row):
        """Pairs of token ids and flags."""
        if "text" in row:
            ids, start = self.ended(self.prompt(row["text"])), max(1, len(self.front))
            return [(ids, [index >= start for index in range(len(ids))])]
        if "messages" in row:
            return self.chat(row["messages"])
        before, after = self.prompt(row["prompt"]), self.ended(self.following(row["prompt"], row["completion"]))
        return [(before + after, [False] * len(before) + [True] * len(after))]

    def chat(self, messages):
        stretches: list[Any] = []
        for index, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            opened = self.render(messages[:index], True)
            before, after = self.encode(opened), self.answer(messages[:index], message, opened)
            if not stretches or before[: len(stretches[-1][0])] != stretches[-1][0]:
                stretches.append(([], []))
            ids, flags = stretches[-1]
            flags += [False] * (len(before) - len(ids)) + [True] * len(after)
            ids += before[len(ids) :] + after
        return stretches

    def answer(self, before, message, opened):
        whole = self.render([*before, message], False)
        tail = self.render([*before, {"role": "assistant", "content": MARK}], False).rpartition(MARK)[2]
        fits = whole.startswith(opened) and whole.endswith(tail)
        body = whole[len(opened) : len(whole) - len(tail)] if fits else message["content"]
        ends = [tail.index(token) + len(token) for token in self.tokenizer.all_special_tokens if token in tail]
        ends += [tail.index(t.content) + len(t.content) for t in self.tokenizer.added_tokens_decoder.values()
                 if t.special and t.content in tail]  # fmt: skip
        return self.following(opened, body + tail[: min(ends)]) if ends else self.ended(self.following(opened, body))
