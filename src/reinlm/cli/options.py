"""The options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Arguments = Annotated[
    list[str] | None,
    typer.Argument(metavar="[RECIPE] [KEY=VALUE]...", help="A YAML recipe, and overrides such as seed=1."),
]
Model = Annotated[str | None, typer.Option("--model", "-m", help="A Hugging Face folder or name.")]
Data = Annotated[str | None, typer.Option("--data", "-d", help="JSONL, CSV or Parquet file, or a data set's name.")]
Models = Annotated[
    list[str] | None,
    typer.Option("--model", "-m", help="A Hugging Face folder or name; may be repeated, also as NAME=FOLDER."),
]
Sets = Annotated[
    list[str] | None,
    typer.Option("--data", "-d", help="A file, or a data set's name; may be repeated, also as NAME=FILE."),
]
Texts = Annotated[
    list[str] | None,
    typer.Option("--text", help="Held-out text, for the loss on it; may be repeated, also as NAME=FILE."),
]
EvalData = Annotated[str | None, typer.Option(help="Data that training never sees, also as NAME=FILE.")]
Reward = Annotated[
    list[str] | None,
    typer.Option(
        "--reward", "-r", help="math, exact_match, format, file.py:function or a reward model; may be repeated."
    ),
]
Environment = Annotated[
    str | None, typer.Option("--environment", "-e", help="A name, or file.py:CLASS [default: question].")
]
Samples = Annotated[int | None, typer.Option(help="Answers to each prompt; eval reports pass@k up to this k.")]
Temperature = Annotated[float | None, typer.Option(help="0 is greedy [default: 1].")]
MaxNewTokens = Annotated[int | None, typer.Option(help="Tokens of an answer at most [default: 256].")]
Output = Annotated[Path | None, typer.Option("--output", "-o", help="The run's folder [default: runs/KIND-TIME].")]


def whole_number(text: str) -> int:
    """A whole number, also as 1e4. Raises BadParameter for any other text."""
    try:
        number = float(text)
        if number == int(number):
            return int(number)
    except (ValueError, OverflowError):
        pass
    raise typer.BadParameter("input should be a valid integer")


Steps = Annotated[int | None, typer.Option(help="Training steps.", parser=whole_number, metavar="<int>")]
Seed = Annotated[int | None, typer.Option(help="Seed of everything random.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on from the newest checkpoint in --output.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Start again in an existing --output.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show tracebacks.")]
Explain = Annotated[
    bool, typer.Option("--explain", help="Print every key in force with its value and what gave it; run nothing.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Seeds = Annotated[
    int | None,
    typer.Option(
        help="Runs of so many seeds, from --seed on, one after the other, and their comparison; stopped, it goes on."
    ),
]

# ---------------------------------------------------------------------------------------------------- of `bench`

PromptTokens = Annotated[int | None, typer.Option(help="Tokens of every prompt [default: 64].")]
AnswerTokens = Annotated[
    int | None, typer.Option("--max-new-tokens", help="Tokens of an answer at most [default: 64].")
]
GroupSize = Annotated[int | None, typer.Option(help="Answers to each prompt [default: 8].")]
BatchSize = Annotated[int | None, typer.Option(help="Answers of a step [default: 64].")]
IgnoreEos = Annotated[bool, typer.Option("--ignore-eos", help="Let no stop token end an answer.")]
Turns = Annotated[int | None, typer.Option(help="Steps that are measured [default: 5].")]
Threads = Annotated[int | None, typer.Option(help="Threads of torch on the CPU.")]
FiguresFile = Annotated[
    str | None, typer.Option("--json", help="A file for all figures; - prints them.", metavar="FILE")
]
Profile = Annotated[
    str | None,
    typer.Option(help="A file for the trace of one more step, for a viewer such as Perfetto.", metavar="FILE"),
]
OverwriteFiles = Annotated[bool, typer.Option("--overwrite", help="Replace the files of --json and --profile.")]

# ---------------------------------------------------------------------------------------------------- of `classical`

ClassicalName = Annotated[
    str | None,
    typer.Argument(metavar="[NAME]", help="An algorithm (see --list), or a recipe, as a run's config.yaml."),
]
ClassicalSettings = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KEY=VALUE]...", help="Of the algorithm (discount=0.9), or of the environment (env.sab=true)."
    ),
]
ControlEnv = Annotated[
    str | None, typer.Option("--env", "-e", help="A Gymnasium id, such as CartPole-v1, or file.py:CLASS.")
]
ControlSteps = Annotated[
    int | None, typer.Option(help="Steps of the environment for each seed.", parser=whole_number, metavar="<int>")
]
Episodes = Annotated[int | None, typer.Option(help="Or episodes for each seed.", parser=whole_number, metavar="<int>")]
ControlSeeds = Annotated[int | None, typer.Option(help="Independent runs [default: 1].")]
ControlSeed = Annotated[int | None, typer.Option(help="Seed of the first one [default: 0].")]
EvaluationEpisodes = Annotated[int | None, typer.Option(help="Greedy episodes after training [default: 100].")]
Render = Annotated[str | None, typer.Option(help="text or video: watch the learned policy.")]
ToTensorBoard = Annotated[bool, typer.Option("--tensorboard", help="Mirror the metrics of each seed to TensorBoard.")]
ShowSettings = Annotated[
    bool, typer.Option("--settings", help="Show the settings of NAME with their values, and run nothing.")
]
