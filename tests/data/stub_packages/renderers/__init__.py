"""Stands in for the package `renderers` 0.1.12 with the part of its interface that reinlm calls, for one family."""

from dataclasses import dataclass, field
from types import SimpleNamespace


def config_from_name(name):
    if name != "qwen3":
        raise ValueError(f"No renderer config registered for name={name!r}. Known: ['qwen3']")
    return SimpleNamespace(name=name)


def create_renderer(tokenizer, config=None, *, chat_template_kwargs=None):
    unsupported = set(chat_template_kwargs or {}) - {"enable_thinking"}
    if unsupported:
        raise ValueError(f"Unsupported chat_template_kwargs for {config.name!r}: {sorted(unsupported)}")
    return Qwen3Renderer(tokenizer, **(chat_template_kwargs or {}))


@dataclass
class ParsedToolCall:
    raw: str
    name: str | None = None
    arguments: dict | str | None = None
    status: str = "ok"


@dataclass
class ParsedResponse:
    content: str
    reasoning_content: str | None = None
    tool_calls: list[ParsedToolCall] = field(default_factory=list)


class Qwen3Renderer:
    def __init__(self, tokenizer, enable_thinking=True):
        self.tokenizer = tokenizer
        self.opening = "<|im_start|>assistant\n" + ("" if enable_thinking else "<think>\n\n</think>\n\n")
        self.keeps_history = not enable_thinking

    def encode(self, text):
        return self.tokenizer.encode(text, add_special_tokens=False)

    def get_stop_token_ids(self):
        return self.tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|endoftext|>"])

    def render_ids(self, messages, *, tools=None, add_generation_prompt=False):
        ids = []
        for message in messages:
            opening = "<|im_start|>" + message["role"] + "\n"
            if message["role"] == "assistant":
                opening += "<think>\n\n</think>\n\n"
            ids += self.encode(opening) + self.encode(message["content"] + "<|im_end|>\n")
        return ids + (self.encode(self.opening) if add_generation_prompt else [])

    def parse_response(self, token_ids, *, tools=None, prompt_ids=None):
        stops = self.get_stop_token_ids()
        text = self.tokenizer.decode([token for token in token_ids if token not in stops], skip_special_tokens=False)
        thoughts, found, text = text.rpartition("</think>")
        calls = []
        if "<tool_call>" in text:
            text, _, raw = text.partition("<tool_call>")
            ok = "add" in raw
            calls = [ParsedToolCall(raw, "add" if ok else None, {"a": 2}, "ok" if ok else "invalid_json")]
        reasoning = thoughts.replace("<think>", "").strip() if found else None
        return ParsedResponse(text.strip(), reasoning, calls)

    def bridge_to_next_turn(self, previous_prompt_ids, previous_completion_ids, new_messages, *, tools=None):
        if not self.keeps_history:
            return None
        ids = previous_prompt_ids + previous_completion_ids
        if not set(previous_completion_ids) & set(self.get_stop_token_ids()):
            ids = ids + self.encode("<|im_end|>")
        added = self.encode("\n") + self.render_ids(new_messages, add_generation_prompt=True)
        return SimpleNamespace(token_ids=ids + added)
