"""Text and chats to tokens: what the model reads before it answers, and the answer with its stop token.

One rule holds everywhere: the tokens before a trained answer are exactly those that sampling would feed. So a prompt is
rendered and tokenised here for both, and an answer is tokenised as what follows it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from reinlm.data.rows import BadRow, Row, one_line
from reinlm.errors import InputError
from reinlm.records import Message

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_MARK = "@@reinlm@@"  # stands in for an answer, to see what a chat template writes after it


class Untokenizable(Exception):  # noqa: N818 - becomes a verdict on the row that holds the text
    """A text that the tokenizer cannot read: it holds a character outside an alphabet without an unknown token."""

    def __init__(self, text: str, message: str) -> None:
        super().__init__(message)
        self.text = text

    def in_row(self, row: Row) -> BadRow:
        """The verdict on the row: the column that holds the text is named where one does."""
        names = [name for name, value in row.columns.items() if isinstance(value, str) and value and value in self.text]
        place = f"column {names[0]!r}" if names else "the row"
        return BadRow(
            row.where, f"{place} cannot be tokenized", f": {self}", hint="a character is unknown to the tokenizer"
        )


class Renderer:
    """A tokenizer and its chat template, with the conventions of reinlm.

    - Plain text gets the special tokens that the tokenizer puts in front (BOS), once, and none behind: an EOS behind a
      prompt would end the answer before it began.
    - A rendered chat gets none: its template writes its own.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, template_kwargs: Mapping[str, Any] | None = None) -> None:
        self.tokenizer = tokenizer
        self.template_kwargs = dict(template_kwargs or {})
        self._tokens = lru_cache(maxsize=4)(self._tokenize)  # an example asks for its prompt's tokens repeatedly
        self._front = self._front_tokens()
        special = {token.content for token in tokenizer.added_tokens_decoder.values() if token.special}
        self._special = sorted({*special, *tokenizer.all_special_tokens})

    @property
    def front_length(self) -> int:
        """How many special tokens stand in front of plain text."""
        return len(self._front)

    def text_prompt(self, text: str) -> list[int]:
        """Tokens of a plain text prompt."""
        ids = self._encode(text)
        return ids if ids[: len(self._front)] == self._front else [*self._front, *ids]

    def text_answer(self, prompt: str, answer: str) -> list[int]:
        """Tokens of a plain text answer to `prompt`, with one EOS at the end."""
        return self._with_eos(self._following(prompt, answer))

    def whole_text(self, text: str) -> list[int]:
        """Tokens of a text to train on whole: the tokenizer's tokens in front, and one EOS at the end."""
        return self._with_eos(self.text_prompt(text))

    def chat_text(self, where: str, messages: Sequence[Message], *, prompt: bool) -> str:
        """The chat as its template writes it, with the opening of an answer where it is a prompt.

        Raises BadRow where the template refuses the messages, InputError where the tokenizer has no template.
        """
        from jinja2 import TemplateError

        if not self.tokenizer.chat_template:
            raise InputError(
                f"{where}: chat messages need a chat template, and the tokenizer has none",
                hint="take an instruction-tuned model's tokenizer, or give prompts as plain text",
            )
        plain = [dict(message) for message in messages]
        try:
            return str(
                self.tokenizer.apply_chat_template(
                    plain, tokenize=False, add_generation_prompt=prompt, **self.template_kwargs
                )
            )
        except (TemplateError, TypeError, ValueError) as error:
            raise BadRow(where, "the chat template refuses the messages", f": {one_line(str(error))}") from error

    def chat_prompt(self, where: str, messages: Sequence[Message]) -> list[int]:
        """Tokens of a chat up to the opening of the assistant's answer."""
        return self._encode(self.chat_text(where, messages, prompt=True))

    def chat_answer(self, where: str, before: Sequence[Message], answer: Message) -> list[int]:
        """Tokens of the assistant's message after `before`, up to and with the token that ends its turn.

        What a template writes behind that token (a line break, a closing EOS) is left out, since sampling stops there.
        A template that ends a turn without a special token gets the EOS. Where the chat with the answer does not begin
        with the prompt (a template that opens an answer with `<think>` and then cuts the thoughts out), the answer is
        the message's content as written, followed by what ends a turn.
        """
        prompt = self.chat_text(where, before, prompt=True)
        whole = self.chat_text(where, [*before, answer], prompt=False)
        tail = self._turn_tail(where, before)
        if whole.startswith(prompt) and whole.endswith(tail):
            body = whole[len(prompt) : len(whole) - len(tail)]
        elif answer.get("content"):
            body = str(answer["content"])
        else:
            raise BadRow(
                where, "the chat template rewrites an answer without content", hint="give the answer as content"
            )
        ends = [tail.index(token) + len(token) for token in self._special if token in tail]
        if not ends:
            return self._with_eos(self._following(prompt, body))
        return self._following(prompt, body + tail[: min(ends)])

    def _turn_tail(self, where: str, before: Sequence[Message]) -> str:
        marked = self.chat_text(where, [*before, {"role": "assistant", "content": _MARK}], prompt=False)
        _, found, tail = marked.rpartition(_MARK)
        if not found:
            raise BadRow(where, "the chat template leaves the answer out")
        return tail

    def _following(self, prompt: str, answer: str) -> list[int]:
        """Tokens of `answer` as they follow those of `prompt`.

        Tokenised together where that leaves the prompt's tokens as they are, since some tokenizers mark the start of a
        text; apart where a token would span the seam, because sampling starts exactly there.
        """
        before, together = self._encode(prompt), self._encode(prompt + answer)
        return together[len(before) :] if together[: len(before)] == before else self._encode(answer)

    def _with_eos(self, ids: list[int]) -> list[int]:
        eos = self.tokenizer.eos_token_id
        if eos is None:
            raise InputError(
                "the tokenizer has no EOS token", hint="set tokenizer.eos_token: answers must be able to end"
            )
        return ids if ids and ids[-1] == eos else [*ids, eos]

    def _front_tokens(self) -> list[int]:
        probe = "1"
        bare, full = self._encode(probe), list(self.tokenizer(probe, add_special_tokens=True)["input_ids"])
        if not bare:  # a tokenizer that does not know the probe shows its special tokens alone
            return [token for token in full if token == self.tokenizer.bos_token_id]
        places = (start for start in range(len(full)) if full[start : start + len(bare)] == bare)
        return full[: next(places, 0)]

    def _encode(self, text: str) -> list[int]:
        return list(self._tokens(text))

    def _tokenize(self, text: str) -> tuple[int, ...]:
        try:
            return tuple(self.tokenizer(text, add_special_tokens=False)["input_ids"])
        except Exception as error:  # the tokenizers library raises nothing narrower
            raise Untokenizable(text, str(error)) from error
