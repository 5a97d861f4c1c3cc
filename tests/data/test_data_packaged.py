"""Chats through the package `renderers`: a stand-in with its interface, and the package itself where it is installed."""

from __future__ import annotations

import sys
from importlib import import_module, metadata, util
from pathlib import Path

import pytest
from data_tokenizers import CHATML, build_tokenizer
from tokenizers import AddedToken

from reinlm.data import DataConfig, build_renderer, load_examples, load_tasks
from reinlm.errors import InputError

STUBS = Path(__file__).parent / "stub_packages"
USER = {"role": "user", "content": "2+3?"}
FIVE = {"role": "assistant", "content": "five"}
OPENED = "<|im_start|>user\n2+3?<|im_end|>\n<|im_start|>assistant\n"
NO_THOUGHT = "<think>\n\n</think>\n\n"
QUIET = {"renderer": "renderers:qwen3", "chat_template_kwargs": {"enable_thinking": False}}


def forget():
    for name in [name for name in sys.modules if name.partition(".")[0] == "renderers"]:
        del sys.modules[name]


@pytest.fixture(params=["stand-in", "installed"])
def package(request, monkeypatch):
    if request.param == "installed" and util.find_spec("renderers") is None:
        pytest.skip("the package renderers is not installed")
    forget()
    if request.param == "stand-in":
        monkeypatch.syspath_prepend(STUBS)
    yield import_module("renderers")
    forget()


@pytest.fixture(scope="module")
def qwen():
    tokenizer = build_tokenizer(CHATML)
    marks = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")
    tokenizer.add_tokens([AddedToken("<|endoftext|>", special=True), *(AddedToken(mark) for mark in marks)])
    return tokenizer


def ids_of(tokenizer, text):
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def quiet(qwen):
    return build_renderer(DataConfig(path="any", **QUIET), qwen)


@pytest.mark.usefixtures("package")
def test_the_package_renders_reads_back_and_extends(qwen):
    renderer = quiet(qwen)
    prompt, sampled = renderer.prompt((USER,), "here"), ids_of(qwen, "five<|im_end|>")
    assert qwen.decode(prompt) == OPENED + NO_THOUGHT
    assert renderer.parse((USER,), sampled, frozenset(sampled[-1:])) == FIVE
    again = [{"role": "user", "content": "Sure?"}]
    asked = f"<|im_start|>user\nSure?<|im_end|>\n<|im_start|>assistant\n{NO_THOUGHT}"
    extension = renderer.extension("here", (USER,), prompt + sampled, FIVE, again)
    assert qwen.decode(extension) == f"\n{asked}"
    cut = renderer.extension("here", (USER,), prompt + sampled[:-1], FIVE, again)
    assert qwen.decode(cut) == f"<|im_end|>\n{asked}"


@pytest.mark.usefixtures("package")
def test_thoughts_and_calls_are_read_and_a_broken_call_is_none(qwen):
    renderer = build_renderer(DataConfig(path="any", renderer="renderers:qwen3"), qwen)
    sampled = '<think>\nhm\n</think>\n\n<tool_call>\n{"name": "add", "arguments": {"a": 2}}\n</tool_call><|im_end|>'
    stop = frozenset(ids_of(qwen, "<|im_end|>"))
    assert renderer.parse((USER,), ids_of(qwen, sampled), stop) == {
        "role": "assistant",
        "content": "",
        "reasoning_content": "hm",
        "tool_calls": [{"type": "function", "function": {"name": "add", "arguments": {"a": 2}}}],
    }
    broken = renderer.parse((USER,), ids_of(qwen, sampled.replace('"name": "add"', "x")), stop)
    assert "tool_calls" not in broken


@pytest.mark.usefixtures("package")
def test_where_the_package_proves_no_extension_there_is_none(qwen):
    thoughtful = build_renderer(DataConfig(path="any", renderer="renderers:qwen3"), qwen)
    history = thoughtful.prompt((USER,), "here") + ids_of(qwen, "five<|im_end|>")
    assert thoughtful.extension("here", (USER,), history, FIVE, [{"role": "user", "content": "Sure?"}]) is None
    assert quiet(qwen).extension("here", (USER,), [5, 6, 7], FIVE, [USER]) is None  # no opening of an answer in it


@pytest.mark.usefixtures("package")
def test_a_stop_token_of_the_run_s_own_is_left_out_too(qwen):
    sampled = ids_of(qwen, "five5")
    stop = frozenset(sampled[-1:])
    assert qwen.decode(list(stop)) == "5"
    assert quiet(qwen).parse((USER,), sampled, stop) == FIVE


@pytest.mark.usefixtures("package")
def test_plain_text_is_read_as_without_the_package(qwen):
    renderer = quiet(qwen)
    assert qwen.decode(renderer.prompt("2+3=", "here")) == "<s>2+3="
    assert renderer.parse("2+3=", ids_of(qwen, "5<|im_end|>"), frozenset(ids_of(qwen, "<|im_end|>"))) == "5"


@pytest.mark.usefixtures("package")
def test_data_are_loaded_through_the_package(qwen):
    row = {"messages": [USER, FIVE]}
    (example,) = load_examples(DataConfig(path=[row], renderer="renderers:qwen3"), qwen)
    assert qwen.decode(example.token_ids) == f"{OPENED}{NO_THOUGHT}five<|im_end|>"
    assert qwen.decode(example.token_ids[example.trained]) == f"{NO_THOUGHT}five<|im_end|>"
    (silent,) = load_examples(DataConfig(path=[row], **QUIET), qwen)
    assert qwen.decode(silent.token_ids[silent.trained]) == "five<|im_end|>"
    (task,) = load_tasks(DataConfig(path=[row], **QUIET), qwen)
    assert task.content == (USER,)
    with pytest.raises(InputError, match=r"renderer is set, but data\[0\] is plain text"):
        load_tasks(DataConfig(path=[{"prompt": "2+3="}], renderer="renderers:qwen3", chat="messages"), qwen)


def test_the_package_is_told_by_name_and_version(qwen, package):
    identity = quiet(qwen).identity
    assert identity == {
        "name": "renderers:qwen3", "version": metadata.version("renderers"), "template_sha256": None,
    }  # fmt: skip
    assert getattr(package, "__version__", "0.0.1") == identity["version"]


@pytest.mark.usefixtures("package")
def test_a_name_finds_its_family_and_an_unknown_one_is_an_error(qwen, monkeypatch):
    monkeypatch.setattr(qwen, "name_or_path", "mine")
    message = r"renderers knows no model 'mine' \(name its family: renderer: renderers:"
    for renderer in ("renderers", "renderers:auto"):
        with pytest.raises(InputError, match=message):
            build_renderer(DataConfig(path="any", renderer=renderer), qwen)
    monkeypatch.setattr(qwen, "name_or_path", "Qwen/Qwen3-8B")
    assert build_renderer(DataConfig(path="any", renderer="renderers"), qwen).name == "renderers:qwen3"
    with pytest.raises(InputError, match="renderers:qwem3 cannot be used: No renderer config registered"):
        build_renderer(DataConfig(path="any", renderer="renderers:qwem3"), qwen)
    with pytest.raises(InputError, match="renderers:qwen3 cannot be used: Unsupported chat_template_kwargs"):
        build_renderer(DataConfig(path="any", renderer="renderers:qwen3", chat_template_kwargs={"x": 1}), qwen)


def test_without_the_package_the_error_says_how_to_get_it(qwen, monkeypatch):
    monkeypatch.setitem(sys.modules, "renderers", None)
    with pytest.raises(
        InputError, match=r"needs the package renderers \(in the clone of reinlm: pip install '\.\[renderers\]'\)"
    ):
        quiet(qwen)
