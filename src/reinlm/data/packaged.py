"""Chats rendered by the optional package `renderers` in place of the tokenizer's template."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from importlib import metadata
from typing import TYPE_CHECKING, Any

from reinlm.data.batching import Plan, TokenIds
from reinlm.data.rendering import Renderer
from reinlm.data.rows import BadRow, one_line
from reinlm.errors import InputError
from reinlm.program import install
from reinlm.records import Content, Message

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class PackagedRenderer(Renderer):
    """The package's renderer for a family of models; plain text stays as `Renderer` has it.

    Args:
        model: the package's name of the family ("qwen3", "llama-3"); None finds it by the tokenizer's name, which must be
            one that the package lists; the folder of a fine-tuned model is not listed.

    Raises:
        InputError: the package is missing, or it has no renderer of that name or for that tokenizer.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        template_kwargs: Mapping[str, Any] | None = None,
        *,
        model: str | None = None,
    ) -> None:
        super().__init__(tokenizer, template_kwargs)
        try:
            import renderers
            from renderers.base import MODEL_RENDERER_MAP
        except ImportError as error:
            raise InputError("renderer: renderers needs the package renderers", hint=install("renderers")) from error
        if model in (None, "auto"):  # for unlisted names the package would send a request to the network
            model = MODEL_RENDERER_MAP.get(tokenizer.name_or_path)
        if model is None:
            raise InputError(
                f"renderers knows no model {tokenizer.name_or_path!r}",
                hint="name its family: renderer: renderers:qwen3",
            )
        try:
            config = renderers.config_from_name(model)
            self._renderer = renderers.create_renderer(
                tokenizer, config, chat_template_kwargs=self.template_kwargs or None
            )
        except Exception as error:  # it raises ValueError, TypeError, AssertionError and pydantic's errors
            raise InputError(f"renderer: renderers:{model} cannot be used: {one_line(str(error))}") from error
        self.name = f"renderers:{model}"

    @property
    def identity(self) -> dict[str, str | None]:
        return {"name": self.name, "version": metadata.version("renderers"), "template_sha256": None}

    def parse(self, content: Content, token_ids: Sequence[int], stops: Collection[int]) -> str | Message:
        if isinstance(content, str):
            return super().parse(content, token_ids, stops)
        ids = [int(token) for token in token_ids]
        if ids and ids[-1] in stops and ids[-1] not in self._renderer.get_stop_token_ids():
            ids.pop()
        parsed = self._renderer.parse_response(ids, prompt_ids=self._render("the prompt", content, prompt=True))
        message: dict[str, Any] = {"role": "assistant", "content": parsed.content}
        if parsed.reasoning_content:
            message["reasoning_content"] = parsed.reasoning_content
        calls = [call for call in parsed.tool_calls if call.status == "ok"]
        if calls:
            message["tool_calls"] = [
                {"type": "function", "function": {"name": call.name, "arguments": call.arguments}} for call in calls
            ]
        return message

    def chat_prompt_plan(self, where: str, messages: Sequence[Message]) -> Plan[TokenIds]:
        yield from ()
        return self._render(where, messages, prompt=True)

    def chat_turn_plan(self, where: str, before: Sequence[Message], answer: Message) -> Plan[tuple[TokenIds, TokenIds]]:
        """As `Renderer.chat_turn_plan`, but a chat that does not begin with the tokens of its prompt is a bad row."""
        yield from ()
        prompt = self._render(where, before, prompt=True)
        whole = self._render(where, [*before, answer], prompt=False)
        if whole[: len(prompt)] != prompt:
            raise BadRow(where, "the renderer writes the opening of an answer in another way than it asks for one")
        after = whole[len(prompt) :]
        stops = set(self._renderer.get_stop_token_ids())
        end = next((index for index, token in enumerate(after) if token in stops), None)
        return prompt, self._with_eos(after) if end is None else after[: end + 1]

    def _chat_extension_plan(
        self, where: str, before: Sequence[Message], history: Sequence[int], answer: Message, new: Sequence[Message]
    ) -> Plan[TokenIds | None]:
        yield from ()
        ids = [int(token) for token in history]
        start = self._answer_start(where, before, ids)
        if start is None:
            return None
        try:
            bridged = self._renderer.bridge_to_next_turn(ids[:start], ids[start:], [dict(message) for message in new])
        except (TypeError, ValueError, KeyError) as error:
            raise BadRow(where, "the renderer refuses the messages", f": {one_line(str(error))}") from error
        if bridged is None or list(bridged.token_ids[: len(ids)]) != ids:
            return None
        return list(bridged.token_ids[len(ids) :])

    def _answer_start(self, where: str, before: Sequence[Message], history: TokenIds) -> int | None:
        """Where the last answer begins in `history`: after the last opening of an answer."""
        asked, plain = self._render(where, before, prompt=True), self._render(where, before, prompt=False)
        opening = asked[len(plain) :]
        if not opening or asked[: len(plain)] != plain:
            return None
        starts = range(len(history) - len(opening), -1, -1)
        found = next((start for start in starts if history[start : start + len(opening)] == opening), None)
        return None if found is None else found + len(opening)

    def _render(self, where: str, messages: Sequence[Message], *, prompt: bool) -> TokenIds:
        try:
            return list(
                self._renderer.render_ids([dict(message) for message in messages], add_generation_prompt=prompt)
            )
        except (TypeError, ValueError, KeyError) as error:
            raise BadRow(where, "the renderer refuses the messages", f": {one_line(str(error))}") from error
