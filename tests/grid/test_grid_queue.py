"""The plan of a grid, and a queue that goes on where it was stopped; runs of a tiny model through the public interface."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import reinlm
from reinlm.config import dump_yaml, read_recipe
from reinlm.errors import InputError
from reinlm.grid import plan, run_queue
from reinlm.loop import Interrupted
from tiny_runs import ROWS, metrics, saved, settings


def test_a_grid_is_every_recipe_with_every_value_of_every_axis_and_every_seed(tmp_path: Path) -> None:
    for name in ("grpo", "dapo"):
        (tmp_path / f"{name}.yaml").write_text(f"algorithm: {name}\nseed: 5\n")
    planned = plan(
        [tmp_path / "grpo.yaml", tmp_path / "dapo.yaml"],
        grid=["optimizer.betas=[0.9,0.9],[0.9,0.99]"],
        changes=["rollout.group_size=8"],
        seeds=2,
    )
    assert [run.name for run in planned[:3]] == [
        "grpo-betas=_0.9_0.9_-seed5", "grpo-betas=_0.9_0.9_-seed6", "grpo-betas=_0.9_0.99_-seed5",
    ]  # fmt: skip
    assert len(planned) == 8
    assert planned[-1].tree == {
        "algorithm": "dapo", "seed": 6, "rollout": {"group_size": 8}, "optimizer": {"betas": [0.9, 0.99]},
    }  # fmt: skip


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("material")
    saved(folder / "model")
    (folder / "d.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    (folder / "reward.py").write_text(REWARD)
    return folder


REWARD = """
def digits(completions):
    return [sum(c.isdigit() for c in text) for text in completions]


def away(completions):
    raise RuntimeError("the service is away")
"""


def recipe(material: Path, **changes: Any) -> dict[str, Any]:
    reward = {"functions": [f"{material / 'reward.py'}:digits"]}
    tree = settings(run={"save_every": 1}, training={"steps": 3}) | {"reward": reward}
    return tree | {"model": str(material / "model"), "data": str(material / "d.jsonl")} | changes


def test_seeds_run_one_after_the_other_and_end_with_a_page(material: Path, tmp_path: Path) -> None:
    result = reinlm.rl(recipe=recipe(material), output=tmp_path / "out", seeds=2, quiet=True)
    assert [run.folder.name for run in next(iter(result.groups.values()))] == ["seed3", "seed4"]
    assert result.page == tmp_path / "out" / "compare.html"
    (row,) = (row for row in result.rows if row["metric"] == "reward")
    assert (row["runs"], row["seeds"]) == (2, [3, 4])
    alone = reinlm.rl(recipe=recipe(material, seed=4), output=tmp_path / "alone", quiet=True)
    assert metrics(alone.folder) == metrics(tmp_path / "out" / "seed4")


def test_resuming_the_folder_of_a_queue_says_how_it_goes_on(tmp_path: Path) -> None:
    queue = tmp_path / "sd"
    queue.mkdir()
    (queue / "queue.json").write_text(json.dumps({"seed0": {"training": {"steps": 2}}}))
    with pytest.raises(InputError, match="sd is a queue of runs, of --seeds or compare") as caught:
        reinlm.rl("m", "d.jsonl", reward="math", resume=True, output=queue)
    assert caught.value.hint == "the command that started it goes on"
    (queue / "seed0").mkdir()
    (queue / "seed0" / "run.json").write_text(json.dumps(STARTED))
    with pytest.raises(InputError) as caught:
        reinlm.rl("m", "d.jsonl", reward="math", resume=True, output=queue)
    lengthens = f"`--resume --output {queue / 'seed0'} --steps N` lengthens one of its runs"
    assert caught.value.hint == f"the command that started it goes on with it: reinlm rl a.yaml --seeds 2; {lengthens}"
    tree = {"model": "m", "data": "d", "reward": "math", "training": {"steps": 3}}
    with pytest.raises(InputError, match=r"holds seed0 with other settings: .*training\.steps: 2 -> 3") as caught:
        run_queue(plan([tree]), queue, print, kind="rl", say=print)
    assert str(caught.value.hint).endswith(lengthens)


STARTED = {
    "schema_version": 1,
    "kind": "rl",
    "created": "2026-01-01T00:00:00",
    "command": "reinlm rl a.yaml --seeds 2",
}


def test_a_queue_that_was_stopped_keeps_finished_runs_and_resumes_the_begun_one_to_the_same_bits(
    material: Path, tmp_path: Path
) -> None:
    planned = plan([recipe(material)], seeds=3)
    begun: list[tuple[str, bool]] = []

    def start(tree: dict[str, Any], resume: bool, overwrite: bool) -> Any:
        begun.append((Path(tree["run"]["output"]).name, resume))
        with reinlm.RLTrainer(recipe=tree, resume=resume, overwrite=overwrite, quiet=True) as trainer:
            while not trainer.over:
                trainer.step()
                if begun == [("seed3", False), ("seed4", False)]:
                    raise Interrupted("as Ctrl-C", 2)

    said: list[str] = []
    with pytest.raises(Interrupted, match=r"interrupted in seed4: 1 of 3 runs were made; the same command goes on"):
        run_queue(planned, tmp_path / "out", start, kind="rl", say=said.append)
    # what was closed in an orderly way counts as ended: remove its summary, as a kill would have left it
    (tmp_path / "out" / "seed4" / "summary.json").unlink()
    result = run_queue(planned, tmp_path / "out", start, kind="rl", say=said.append)
    assert begun == [("seed3", False), ("seed4", False), ("seed4", True), ("seed5", False)]
    assert "1/3 seed3: finished before" in said
    assert [row["runs"] for row in result.rows] == [3]
    whole = reinlm.rl(recipe=recipe(material, seed=4), output=tmp_path / "whole", quiet=True)
    assert metrics(tmp_path / "out" / "seed4") == metrics(whole.folder)


def test_a_failed_run_is_named_and_does_not_stop_the_others(material: Path, tmp_path: Path) -> None:
    good, bad = tmp_path / "good.yaml", tmp_path / "bad.yaml"
    good.write_text(dump_yaml(recipe(material)))
    bad.write_text(dump_yaml(recipe(material, reward={"functions": [f"{material / 'reward.py'}:away"]})))
    result = reinlm.compare(bad, good, output=tmp_path / "out", quiet=True)
    assert list(result.failed) == ["bad-seed3"]
    assert [run.ended for group in result.groups.values() for run in group if "good" in run.folder.name] == ["finished"]
    assert "bad-seed3" in Path(str(result.page)).read_text()


def test_a_queue_where_every_run_fails_is_an_error(material: Path, tmp_path: Path) -> None:
    tree = recipe(material, reward={"functions": [f"{material / 'reward.py'}:away"]})
    with pytest.raises(reinlm.RunError, match=r"every rl run failed; the first, seed3: .*the service is away"):
        reinlm.rl(recipe=tree, output=tmp_path / "out", seeds=1, quiet=True)


def test_a_queue_does_not_mix_with_another_plan(material: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "queue.json").write_text(json.dumps({"seed3": recipe(material, algorithm="dapo")}))
    with pytest.raises(InputError, match=r"holds seed3 with other settings: algorithm: 'dapo' -> None"):
        reinlm.rl(recipe=recipe(material), output=tmp_path / "out", seeds=1, quiet=True)


def test_runs_of_a_queue_are_one_group_of_the_tracker(material: Path, tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    tree = recipe(material)
    tree["run"] = {**tree["run"], "trackers": [{"wandb": {"mode": "offline"}}]}
    tree["training"] = {"steps": 1}
    reinlm.rl(recipe=tree, output=tmp_path / "together", seeds=1, quiet=True)
    config = read_recipe(tmp_path / "together" / "seed3" / "config.yaml")
    assert config["run"]["trackers"][0]["wandb"]["group"] == "together"
    (log,) = (tmp_path / "together" / "seed3").glob("wandb/offline-run-*/run-*.wandb")
    assert b"together" in log.read_bytes()
