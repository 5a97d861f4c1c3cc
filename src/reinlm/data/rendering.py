"""Convert text and chats to tokens: prompts, and answers with their stop token.

The tokens before a trained answer are exactly those that sampling uses. Prompts for both are therefore rendered and
tokenised here, and an answer is tokenised as the continuation of its prompt. Sampled tokens are never tokenised again: a
conversation is extended by appending tokens (`Renderer.extension`).
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from reinlm.data.batching import Encoder, Plan, TokenIds, Untokenizable, run_plans
from reinlm.data.config import DataConfig
from reinlm.data.rows import BadRow, one_line
from reinlm.errors import InputError
from reinlm.records import Content, Message

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

T = TypeVar("T")
UNKNOWN_CHARACTERS = "the tokenizer knows none of its characters"
RULES_VERSION = "1"
"""Raised whenever the same template and messages give different tokens."""
_MARK = "@@reinlm@@"  # a placeholder answer, to find what a chat template writes around it


class Renderer:
    """A tokenizer and its chat template, with the conventions of reinlm.

    - Plain text gets the leading special tokens of the tokenizer (BOS) once, and no trailing ones: an EOS after a prompt
      would end the answer before it begins.
    - A rendered chat gets no further special tokens: its template contains them.

    Example: a chat of two turns, of which only new messages are tokenised:
        history = renderer.prompt(messages, "task 1")
        history += sampled
        answer = renderer.parse(messages, sampled, stops)
        history += renderer.extension("task 1", messages, history, answer, [{"role": "user", "content": "Sure?"}])
    """

    name = "template"

    def __init__(self, tokenizer: PreTrainedTokenizerBase, template_kwargs: Mapping[str, Any] | None = None) -> None:
        self.tokenizer = tokenizer
        self.template_kwargs = dict(template_kwargs or {})
        self.encode = Encoder(tokenizer)
        self._latest: tuple[str, int, TokenIds] | None = None
        """A prompt in plain text, the size of the vocabulary, and its tokens."""
        self._front = self._front_tokens()
        special = {token.content for token in tokenizer.added_tokens_decoder.values() if token.special}
        self._special = sorted({*special, *tokenizer.all_special_tokens})
        self._special_ids = frozenset(tokenizer.convert_tokens_to_ids(token) for token in self._special)

    @functools.cached_property
    def vocabulary(self) -> int:
        """Token ids of the tokenizer are below it."""
        return 1 + max(self.tokenizer.get_vocab().values())

    @property
    def identity(self) -> dict[str, str | None]:
        """What determines the tokens of a chat, apart from the tokenizer: `{"name": …, "version": …, "template_sha256": …}`.

        `template_sha256` is None for a tokenizer without a chat template. A run stores it in its config.yaml and
        cannot be resumed with a different one.
        """
        template = self.tokenizer.chat_template
        text = template if isinstance(template, str) else json.dumps(template, sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest() if template else None
        return {"name": self.name, "version": RULES_VERSION, "template_sha256": digest}

    # ------------------------------------------------------------------------------------------------ an episode's turns

    def prompt(self, content: Content, where: str) -> list[int]:
        """Token ids that the model reads before its first answer to `content`.

        The latest one in plain text is kept, since the episodes of a group begin with the same.

        Raises InputError, which names `where`, for messages that the template refuses and text that has no tokens.
        """
        size = len(self.tokenizer)
        if isinstance(content, str) and self._latest is not None and self._latest[:2] == (content, size):
            return list(self._latest[2])
        ids = self._now(where, self.prompt_plan(where, content))
        if len(ids) <= self.front_length:
            raise InputError(f"{where}: the prompt has no tokens", hint=UNKNOWN_CHARACTERS)
        if isinstance(content, str):
            self._latest = content, size, list(ids)
        return ids

    def parse(self, content: Content, token_ids: Sequence[int], stops: Collection[int]) -> str | Message:
        """One sampled turn, as text where `content` is text and as an assistant message where it is a chat.

        The stop token that closes it, one of `stops`, and all special tokens are left out.
        """
        text = self._decode(token_ids[:-1] if len(token_ids) and token_ids[-1] in stops else token_ids)
        return text if isinstance(content, str) else {"role": "assistant", "content": text}

    def extension(
        self, where: str, before: Content, history: Sequence[int], answer: str | Message, new: str | Sequence[Message]
    ) -> list[int] | None:
        """Token ids to append to `history`, so that the model reads `new` and the opening of its next answer.

        In a chat they begin with the template's text between the sampled stop token and the next message, or with the end of
        the turn if the answer was truncated. In plain text they are the tokens of `new`, without BOS or EOS.

        Args:
            where: prefix of error messages.
            before: the conversation up to the answer.
            history: all tokens of this context so far: prompts and sampled tokens, the last answer included.
            answer: what `parse` made of the answer.
            new: text, or what the environment says: messages of any role but assistant.

        Returns:
            None if the template rewrites earlier turns (removes thoughts, for example), or ends the answer with another
            token than the sampled one. The caller then starts a new segment from the prompt of all messages.
            Whitespace around an answer that the template trims is ignored.

        Raises:
            InputError: messages that the template refuses, or text where messages belong.
        """
        if isinstance(before, str) and isinstance(answer, str) and isinstance(new, str):
            return self._now(where, self._following_plan(answer, new))
        if isinstance(before, str) or isinstance(answer, str) or isinstance(new, str):
            raise InputError(f"{where}: a text goes on with text, a chat with messages")
        if any(message["role"] == "assistant" for message in new):
            raise InputError(f"{where}: an assistant message among the environment's, but the policy writes those")
        return self._now(where, self._chat_extension_plan(where, before, history, answer, new))

    # -------------------------------------------------------------------------------------------- plans for many texts

    @property
    def front_length(self) -> int:
        """How many special tokens precede plain text."""
        return len(self._front)

    def prompt_plan(self, where: str, content: Content) -> Plan[TokenIds]:
        """Tokens of a prompt, which may be none."""
        if not isinstance(content, str):
            return (yield from self.chat_prompt_plan(where, content))
        (ids,) = yield [content]
        return self._with_front(ids)

    def text_plan(self, text: str) -> Plan[TokenIds]:
        """Tokens of a text that is trained on completely: leading special tokens, the text, one EOS."""
        (ids,) = yield [text]
        return self._with_eos(self._with_front(ids))

    def text_turn_plan(self, prompt: str, answer: str) -> Plan[tuple[TokenIds, TokenIds]]:
        """Tokens of a text prompt, and of its answer with one EOS at the end."""
        before, after = yield from self._seam_plan(prompt, answer)
        return self._with_front(before), self._with_eos(after)

    def chat_prompt_plan(self, where: str, messages: Sequence[Message]) -> Plan[TokenIds]:
        """Tokens of a chat up to the opening of the assistant's answer."""
        (ids,) = yield [self.chat_text(where, messages, prompt=True)]
        return ids

    def chat_turn_plan(self, where: str, before: Sequence[Message], answer: Message) -> Plan[tuple[TokenIds, TokenIds]]:
        """Tokens of a chat up to the opening of an answer, and of that answer up to and with the token that ends its turn.

        What a template writes after that token (a line break, a closing EOS) is left out, since sampling stops there.
        A template that ends a turn without a special token gets the EOS. Where the chat with the answer does not begin
        with the prompt (a template that opens an answer with `<think>` and removes the thoughts later), the answer is
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
        close = self._close(tail)
        ids, after = yield from self._seam_plan(prompt, body + close)
        return ids, after if close else self._with_eos(after)

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

    def _chat_extension_plan(
        self, where: str, before: Sequence[Message], history: Sequence[int], answer: Message, new: Sequence[Message]
    ) -> Plan[TokenIds | None]:
        content = str(answer.get("content") or "")
        marked = {"role": "assistant", "content": _MARK}
        prompt = self.chat_text(where, before, prompt=True)
        around = self.chat_text(where, [*before, marked, *new], prompt=True)
        whole = self.chat_text(where, [*before, answer, *new], prompt=True)
        tail = around.removeprefix(prompt + _MARK)
        body = whole.removeprefix(prompt).removesuffix(tail)
        if tail == around or prompt + body + tail != whole or body.strip() != content.strip():
            return None
        close = self._close(self._turn_tail(where, before))
        if not tail.startswith(close):
            return None
        last = history[-1] if len(history) else None
        if not close:
            return None if last in self._special_ids else (yield from self._following_plan(content, tail))
        ending, rest = yield from self._seam_plan(close, tail.removeprefix(close))
        if last == ending[-1]:
            return rest
        return None if last in self._special_ids else [*ending, *rest]

    def _turn_tail(self, where: str, before: Sequence[Message]) -> str:
        """What the template writes after the text of an answer that ends the chat."""
        marked = self.chat_text(where, [*before, {"role": "assistant", "content": _MARK}], prompt=False)
        _, found, tail = marked.rpartition(_MARK)
        if not found:
            raise BadRow(where, "the chat template leaves the answer out")
        return tail

    def _close(self, tail: str) -> str:
        """`tail` up to and including its first special token, which ends a turn. Empty without one."""
        ends = [tail.index(token) + len(token) for token in self._special if token in tail]
        return tail[: min(ends)] if ends else ""

    def _seam_plan(self, before: str, after: str) -> Plan[tuple[TokenIds, TokenIds]]:
        """Tokens of `before`, and of `after` as they follow those.

        Tokenised together if that does not change the tokens of `before`, since some tokenizers mark the start of a text;
        separately if a token would span the boundary, because sampling starts exactly there.
        """
        ids, together = yield [before, before + after]
        if together[: len(ids)] == ids:
            return ids, together[len(ids) :]
        (alone,) = yield [after]
        return ids, alone

    def _following_plan(self, before: str, after: str) -> Plan[TokenIds]:
        _, ids = yield from self._seam_plan(before, after)
        return ids

    def _now(self, where: str, plan: Plan[T]) -> T:
        (result,) = run_plans([plan], self.encode)
        if isinstance(result, Untokenizable):
            raise InputError(f"{where}: cannot be tokenized: {result}", hint="a character is unknown to the tokenizer")
        if isinstance(result, BadRow):
            raise InputError(str(result), hint=result.hint)
        if isinstance(result, InputError):
            raise result
        return result

    def _decode(self, token_ids: Sequence[int]) -> str:
        ids = [int(token) for token in token_ids]
        return str(self.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False))

    def _with_front(self, ids: TokenIds) -> TokenIds:
        return ids if ids[: len(self._front)] == self._front else [*self._front, *ids]

    def _with_eos(self, ids: TokenIds) -> TokenIds:
        eos = self.tokenizer.eos_token_id
        if eos is None:
            raise InputError(
                "the tokenizer has no EOS token", hint="set tokenizer.eos_token: answers must be able to end"
            )
        return ids if ids and ids[-1] == eos else [*ids, eos]

    def _front_tokens(self) -> TokenIds:
        probe = "1"
        (bare,) = self.encode([probe])
        if isinstance(bare, Untokenizable) or not bare:  # of an empty text, only the special tokens remain
            full = self.tokenizer("", add_special_tokens=True)["input_ids"]
            return [token for token in full if token == self.tokenizer.bos_token_id]
        full = list(self.tokenizer(probe, add_special_tokens=True)["input_ids"])
        places = (start for start in range(len(full)) if full[start : start + len(bare)] == bare)
        return full[: next(places, 0)]


def build_renderer(config: DataConfig, tokenizer: PreTrainedTokenizerBase | Renderer) -> Renderer:
    """The renderer that `config` names, around `tokenizer`; a renderer in its place is checked and returned.

    Raises:
        InputError: a renderer that cannot be had, or one with other options than `config` says.
    """
    if isinstance(tokenizer, Renderer):
        renderer = tokenizer
        if renderer.template_kwargs != config.chat_template_kwargs:
            raise InputError(
                f"chat_template_kwargs={config.chat_template_kwargs} is set, but the renderer given has "
                f"{renderer.template_kwargs}",
                hint="build it with build_renderer(config, tokenizer)",
            )
        if config.renderer not in (renderer.name, renderer.name.partition(":")[0]):
            raise InputError(f"renderer={config.renderer!r} is set, but the renderer given is {renderer.name!r}")
    elif config.renderer == "template":
        renderer = Renderer(tokenizer, config.chat_template_kwargs)
    else:
        from reinlm.data.packaged import PackagedRenderer

        _, _, model = config.renderer.partition(":")
        renderer = PackagedRenderer(tokenizer, config.chat_template_kwargs, model=model or None)
    return renderer
