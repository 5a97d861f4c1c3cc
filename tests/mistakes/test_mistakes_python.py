"""Natural mistakes in calls from Python: each gives one line that says what to write instead, and leaves nothing behind."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import reinlm
from tiny_runs import ROWS, graded, local, saved, settings, tiny

TEXTS = ["What is 2 + 2?", "And 3 + 4?"]
CHAT = [{"role": "user", "content": "1+1="}]


class Bench:
    """The objects that mistakes are made with."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.model, self.tokenizer = tiny()
        self.path = saved(folder / "model")
        self.how = settings() | {"quiet": True, "output": folder / "run", "reward": local(graded)}
        for name in ("failed", "control", "empty"):
            (folder / name).mkdir()
        self._write("failed", {"kind": "rl"}, {"ended": "failed", "message": "reward graded: the server is gone"})
        self._write("control", {"kind": "classical"}, {"ended": "finished", "message": None})
        (folder / "recipe.yaml").write_text("seed: 1\n")
        self.trainer = reinlm.RLTrainer(self.path, ROWS, **self.how)

    def _write(self, name: str, run: Any, summary: Any) -> None:
        (self.folder / name / "run.json").write_text(json.dumps({"schema_version": 1, **run}))
        (self.folder / name / "summary.json").write_text(json.dumps(summary))

    def rl(self, model: Any = None, data: Any = ROWS, **changes: Any) -> Any:
        """One mistake in a run that is right otherwise; None leaves a keyword out."""
        given = {name: value for name, value in (self.how | changes).items() if value is not None}
        return reinlm.rl(self.path if model is None else model, data, **given)

    def score(self, model: Any = None, data: Any = ROWS, **changes: Any) -> Any:
        how: dict[str, Any] = {"reward": local(graded), "max_new_tokens": 3, "quiet": True} | changes
        given: dict[str, Any] = {name: value for name, value in how.items() if value is not None}
        return reinlm.evaluate(self.path if model is None else model, data, **given)

    def ask(self, prompts: Any, model: Any = None, **changes: Any) -> Any:
        return reinlm.generate(model or self.path, prompts, **({"quiet": True, "max_new_tokens": 3} | changes))


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(tmp_path_factory.mktemp("bench"))


Mistake = tuple[Callable[[Bench], Any], str, str]

MODELS: dict[str, Mistake] = {
    "a tokenizer": (lambda b: b.rl(b.tokenizer), "a tokenizer .* stands where a model belongs", "(model, tokenizer)"),
    "swapped": (lambda b: b.rl((b.tokenizer, b.model)), "the wrong way round", "(model, tokenizer)"),
    "a list": (lambda b: b.rl([b.model, b.tokenizer]), "a list of 2 is no model", "(model, tokenizer)"),
    "three": (lambda b: b.rl((b.model, b.tokenizer, 1)), "a tuple of 3 is no model", "(model, tokenizer)"),
    "names in a pair": (lambda b: b.rl((b.path, b.path)), "holds loaded objects, not names", "the name alone"),
    "no tokenizer in a pair": (lambda b: b.rl((b.model, 3)), "a int is no tokenizer", "(model, tokenizer)"),
    "a model alone": (lambda b: b.rl(b.model), "comes without a tokenizer", "(model, tokenizer)"),
    "another module": (lambda b: b.rl(torch.nn.Linear(2, 2)), "a model of type Linear", "a transformers model"),
    "a class": (lambda b: b.rl(type(b.model)), "the class Qwen3ForCausalLM is no model", "from_pretrained"),
    "weights": (lambda b: b.rl(b.model.state_dict()), "weights alone are no model", "(model, tokenizer)"),
    "a trainer": (lambda b: b.rl(b.trainer), "a RLTrainer stands where a model belongs", "trainer.policy"),
    "a trainer to score": (lambda b: b.score(b.trainer), "a RLTrainer stands where a model", "trainer.policy"),
    "a failed run": (
        lambda b: b.score(b.folder / "failed"),
        "without a checkpoint: it failed: .*server is gone",
        "a run",
    ),
    "a control task": (
        lambda b: b.ask("1+1=", b.folder / "control"),
        "which is no language model",
        "classical.evaluate",
    ),
    "an empty folder": (lambda b: b.score(b.folder / "empty"), "has no (tokenizer|config.json)", "expected"),
    "a recipe": (lambda b: b.rl(b.folder / "recipe.yaml"), "is a recipe, not a model", "recipe="),
    "an adapter by name": (lambda b: b.rl(peft_config="lora"), "type str is no LoRA configuration", "'rank': 16"),
}

DATA: dict[str, Mistake] = {
    "texts": (lambda b: b.rl(data=TEXTS), "a list of texts names files", "[{'prompt': text} for text in texts]"),
    "a word in a list": (lambda b: b.rl(data=["hello"]), "data 'hello' are neither a file", "[{'prompt': …}]"),
    "one text": (lambda b: b.rl(data=TEXTS[0]), "'What is 2 .*names no file", "[{'prompt': text}]"),
    "chats": (lambda b: b.rl(data=[CHAT]), "a chat stands where a row belongs", "'messages': chat"),
    "a mapping of columns": (lambda b: b.rl(data={"prompt": TEXTS}), "a mapping of columns", "from_dict"),
    "a function": (lambda b: b.rl(data=lambda: iter(ROWS)), "a function is no data", "call it"),
    "a tokenizer as data": (lambda b: b.rl(data=b.tokenizer), "a tokenizer stands where data belong", "as the model"),
    "a number": (lambda b: b.rl(data=7), "type int is no data", "a list of rows"),
    "a trainer as data": (lambda b: b.score(data=b.trainer), "type RLTrainer is no data", "a list of rows"),
    "nothing": (lambda b: b.rl(data=[]), "no rows", "at least one row"),
    "no data": (lambda b: b.rl(data=None), "'data' is required", "data=…"),
    "no column": (lambda b: b.rl(data=[{"query": "1+1="}]), "no column 'prompt'", "{prompt: YOUR_COLUMN}"),
    "weights for one": (
        lambda b: b.rl(data={"path": ROWS, "weights": [1, 2]}),
        "2 numbers for 1 sources",
        "one for each",
    ),
    "a weight of zero": (
        lambda b: b.rl(data={"path": [ROWS, ROWS], "weights": [1, 0]}),
        "must all be above 0",
        "leave a",
    ),
    "no column to sort": (
        lambda b: b.rl(data={"path": ROWS, "sort_by": "answr"}),
        "'answr', which data does",
        "'answer'",
    ),
    "order of a test": (
        lambda b: b.score(data={"path": ROWS, "shuffle": False}),
        "shuffle has no effect",
        "leave data",
    ),
    "texts to evaluate": (
        lambda b: b.rl(eval_data=TEXTS),
        "evaluation.data.eval: a list of texts",
        "[{'prompt': text}",
    ),
    "no completion": (lambda b: reinlm.sft(b.path, ROWS, quiet=True), "no column 'completion'", "{completion: YOUR"),
}

OTHERS: dict[str, Mistake] = {
    "a row without a prompt": (
        lambda b: b.ask({"question": "1+1="}),
        "a row needs the key 'prompt'",
        "{'prompt': text}",
    ),
    "rows without a prompt": (lambda b: b.ask([{"query": "1+1="}]), "no column 'prompt'", "needs prompt"),
    "a number as prompt": (lambda b: b.ask(5), "5 is no prompt", "a text, a chat"),
    "no prompt": (lambda b: b.ask([]), "the list is empty", "a text, a chat"),
    "a reward by its module": (
        lambda b: b.rl(reward="mine.score"),
        "unknown reward 'mine.score'",
        "package.module:function",
    ),
    "a module that is not there": (
        lambda b: b.rl(reward="no_such_module:score"),
        "no_such_module cannot be imported",
        "",
    ),
    "values as reward": (lambda b: b.rl(reward=[0.0, 1.0]), "0.0 is not a reward", "a function"),
    "no reward": (lambda b: b.rl(reward=None), "'reward' is required", "reward=…"),
    "no reward to score by": (lambda b: b.score(reward=None), "'reward' is required", "reward=…"),
    "a class as algorithm": (
        lambda b: b.rl(algorithm=reinlm.Algorithm),
        "the class Algorithm is none",
        'reinlm.algorithm("',
    ),
    "a function as callbacks": (lambda b: b.rl(callbacks=print), "callbacks is a list", "into a list"),
    "steps in words": (lambda b: b.rl(training=None, steps="many"), "training.steps: .*valid integer", ""),
    "steps twice": (lambda b: b.rl(steps=3), "steps and training.steps are the same", "one of them"),
    "an unknown keyword": (
        lambda b: b.rl(learning_rate=1e-3),
        "unknown key 'learning_rate'",
        "optimizer.learning_rate",
    ),
    "a keyword of TRL": (lambda b: b.rl(train_dataset=ROWS), "unknown key 'train_dataset'", "data"),
}


@pytest.mark.parametrize("name", [*MODELS, *DATA, *OTHERS])
def test_a_mistake_is_one_line_with_what_to_write(name: str, bench: Bench) -> None:
    call, message, hint = (MODELS | DATA | OTHERS)[name]
    with pytest.raises(reinlm.InputError, match=message) as caught:
        call(bench)
    assert "\n" not in str(caught.value)
    assert hint in str(caught.value)
    assert len(str(caught.value)) < 400
    assert not (bench.folder / "run").exists()


# ------------------------------------------------------------------------------------------------ data of other packages


def test_mistakes_with_frames(bench: Bench) -> None:
    pandas = pytest.importorskip("pandas")
    wrong = {
        "no column 'prompt'": pandas.DataFrame({"query": TEXTS}),
        "a Series is one column": pandas.Series(TEXTS),
        "no rows": pandas.DataFrame({"prompt": []}),
        r"data\[1\]: column 'prompt' is null": pandas.DataFrame({"prompt": ["1+1=", None]}),
    }
    for message, data in wrong.items():
        with pytest.raises(reinlm.InputError, match=message) as caught:
            bench.rl(data=data)
        assert "\n" not in str(caught.value)


def test_mistakes_with_data_sets(bench: Bench) -> None:
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_list(ROWS)
    wrong: dict[str, Any] = {
        "has the splits easy, hard: which one": datasets.DatasetDict(easy=rows, hard=rows),
        "unknown split of the DatasetDict 'tset'.*did you mean 'test'": {
            "path": datasets.DatasetDict(test=rows), "split": "tset"
        },
        "an IterableDataset may have no end.*'limit': N": rows.to_iterable_dataset(),
    }  # fmt: skip
    for message, data in wrong.items():
        with pytest.raises(reinlm.InputError, match=message) as caught:
            bench.rl(data=data)
        assert "\n" not in str(caught.value)


def test_options_of_peft_without_a_counterpart_are_named(bench: Bench) -> None:
    peft = pytest.importorskip("peft")
    wrong = {
        "use_rslora True": peft.LoraConfig(use_rslora=True, target_modules="all-linear"),
        "names no target_modules": peft.LoraConfig(r=8),
        "'SEQ_CLS' is no language model": peft.LoraConfig(target_modules="all-linear", task_type="SEQ_CLS"),
    }
    for message, config in wrong.items():
        with pytest.raises(reinlm.InputError, match=message):
            bench.rl(peft_config=config)
