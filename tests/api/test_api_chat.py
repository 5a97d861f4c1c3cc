"""What is trained and what is tried is rendered alike: in a run, in its checkpoints, and in runs that are resumed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import reinlm
from reinlm.config import dump_yaml, read_recipe
from tiny_runs import EXAMPLES, ROWS, answers, graded, local, metrics, settings, tiny, trainer

TEMPLATE = "{% for m in messages %}+{{ m['content'] }}{% endfor %}{% if add_generation_prompt %}={% endif %}"
"""A user message 1+2= is +1+2=, and = opens the answer."""
ROW = {"prompt": "1+2=", "answer": "3"}
HOW: dict[str, Any] = {"run": {"rollouts_every": 1}}
SHOWN: dict[str, Any] = {"reward": local("exact_match"), "max_new_tokens": 3}


def chatty() -> Any:
    model, tokenizer = tiny()
    tokenizer.chat_template = TEMPLATE
    return model, tokenizer


def first_prompt(folder: Path) -> str:
    """The tokens before the first chosen one of a run's first answer, as text."""
    ids, chosen, _ = answers(folder)[0]
    return str(chatty()[1].decode(ids[: chosen[0]]))


def read(folder: Path) -> Any:
    return json.loads((folder / "checkpoints" / "last" / "prompt_format.json").read_text())


def sampled_prompt(model: Any, **given: Any) -> str:
    """How `evaluate` renders the prompt 1+2=."""
    how: dict[str, Any] = {"data": [ROW], "quiet": True} | SHOWN | given
    found = reinlm.evaluate(model, **how)
    segment = found.groups[0].group.rollouts[0].segments[0]
    return str(
        chatty()[1].decode([int(t) for t, turn in zip(segment.token_ids, segment.turns, strict=True) if turn < 0])
    )


@pytest.mark.parametrize(
    ("chat", "rendered"), [("auto", "+1+2=="), ("always", "+1+2=="), ("messages", "1+2="), ("never", "1+2=")]
)
def test_a_checkpoint_is_tried_as_it_was_trained(chat: str, rendered: str, tmp_path: Path) -> None:
    data = {"path": [ROW] * 4, "chat": chat}
    how = settings(**HOW, rollout={"batch_size": 4}, evaluation={"data": [ROW], "max_new_tokens": 3})
    run = reinlm.rl(chatty(), data, reward=local("exact_match"), output=tmp_path / "run", quiet=True, **how)
    assert first_prompt(run.folder) == rendered
    assert read(run.folder)["chat"] == ("always" if rendered == "+1+2==" else "messages")
    resolved = read_recipe(run.folder / "config.yaml")["resolved"]
    assert resolved["prompts"] == read(run.folder)
    assert resolved["first_prompt"] == rendered
    for model in (run, run.policy, run.folder):
        assert sampled_prompt(model) == rendered
        (answer,) = reinlm.generate(model, "1+2=", quiet=True, max_new_tokens=3)
        assert isinstance(answer.prompt, str) == (rendered == "1+2=")
    assert sampled_prompt(run, data={"path": [ROW], "chat": "never"}) == "1+2="


def test_a_reward_function_receives_text_for_text_and_messages_where_they_are_asked_for(tmp_path: Path) -> None:
    seen: dict[str, Any] = {}

    def look(prompts: list[Any], completions: list[Any], **_: Any) -> list[float]:
        seen[chat] = prompts[0], completions[0]
        return [0.0 for _ in prompts]

    for chat in ("auto", "always"):
        reinlm.evaluate(chatty(), {"path": [ROW], "chat": chat}, quiet=True, **SHOWN | {"reward": local(look)})
    assert seen["always"][0] == [{"role": "user", "content": "1+2="}]
    (answer,) = seen["always"][1]
    assert seen["auto"] == ("1+2=", answer["content"])


def test_sft_and_what_follows_it_agree(tmp_path: Path) -> None:
    data = {"path": EXAMPLES, "prompt_template": "0{prompt}", "chat": "never"}
    tuned = reinlm.sft(chatty(), data, output=tmp_path / "sft", quiet=True, steps=1)
    assert read(tuned.folder)["prompt_template"] == "0{prompt}"
    assert sampled_prompt(tuned) == "01+2="
    run = reinlm.rl(tuned, ROWS[:4], reward=local(graded), output=tmp_path / "rl", quiet=True, **settings(**HOW))
    assert first_prompt(run.folder).startswith("0")
    chats = [{"messages": [{"role": "user", "content": "1+2"}, {"role": "assistant", "content": "3"}]}]
    assert read(reinlm.sft(chatty(), chats, output=tmp_path / "chats", quiet=True, steps=1).folder)["chat"] == "always"
    assert sampled_prompt(tmp_path / "chats") == "+1+2=="


def test_the_start_of_every_verb_says_how_prompts_are_rendered(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = "text as a user message in the chat template (the tokenizer has a chat template; chat=never"
    reinlm.sft(chatty(), EXAMPLES, output=tmp_path / "sft", steps=1)
    assert f"prompts: {said}" in capsys.readouterr().err
    reinlm.evaluate(chatty(), ROWS[:1], **SHOWN)
    assert said in capsys.readouterr().err
    reinlm.generate(chatty(), "1+2=", max_new_tokens=3)
    printed = capsys.readouterr()
    assert "the first is '+1+2=='" in printed.err
    assert printed.out == ""


def test_a_resumed_run_renders_as_it_was_begun(tmp_path: Path) -> None:
    how = settings(**HOW, training={"steps": 3})
    for name, chat in (("new", "auto"), ("old", "messages")):
        data = {"path": ROWS, "chat": chat}
        whole = reinlm.rl(chatty(), data, reward=local(graded), output=tmp_path / f"{name}-whole", quiet=True, **how)
        with trainer(tmp_path / name, chatty(), data, **(HOW | {"training": {"steps": 3}})) as begun:
            begun.step()
        file = tmp_path / name / "config.yaml"
        if name == "old":  # as a version wrote it for which auto left text plain
            config = read_recipe(file)
            config["data"]["chat"] = "auto"
            del config["resolved"]["prompts"], config["resolved"]["first_prompt"]
            file.write_text(dump_yaml(config))
        resumed: dict[str, Any] = {"output": tmp_path / name, "resume": True, "quiet": True, "reward": local(graded)}
        for _ in range(2):  # a second time there is nothing left to do, and nothing has changed
            again = reinlm.rl(chatty(), **resumed)
            assert metrics(again.folder) == metrics(whole.folder)
        assert ("prompts" in read_recipe(file)["resolved"]) == (name == "new")
        assert first_prompt(again.folder) == first_prompt(whole.folder)
