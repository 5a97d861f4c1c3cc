"""A vLLM server in a process of its own, as `reinlm vllm-serve` starts it, and its client."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from vllm_helpers import CACHE, answers, assert_same, in_process, moved, tiny_policy

from reinlm.errors import InputError, RunError
from reinlm.models import LoraConfig, Policy, load_policy
from reinlm.models.lora import adapted
from reinlm.rollouts import Completion, Request, Sampling
from reinlm.rollouts.vllm_server import VllmServerEngine

GREEDY = Sampling(max_new_tokens=12, temperature=0.0)
PROMPTS = [tuple(range(5 + i, 9 + 3 * i)) for i in range(6)]


def requests(sampling: Sampling) -> list[Request]:
    return [Request(f"{number}", prompt, sampling) for number, prompt in enumerate(PROMPTS)]


@contextmanager
def serving(model: Path, log: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """The address and the process of a server that is being started; ended afterwards."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    line = [sys.executable, "-m", "reinlm.cli", "vllm-serve", str(model), "--port", str(port), "--lora-rank", "4", "--"]
    line += ["--dtype", "float32", "--enforce-eager", "--kv-cache-memory-bytes", str(CACHE), "--max-num-seqs", "16"]
    with (
        log.open("wb") as output,
        subprocess.Popen(line, stdout=output, stderr=output, start_new_session=True) as process,
    ):
        try:
            yield f"http://127.0.0.1:{port}", process
        finally:
            with_children(process, signal.SIGTERM)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                with_children(process, signal.SIGKILL)


def with_children(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Send a signal to the server and its workers."""
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        return


@pytest.fixture(scope="module")
def url(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(folder, tmp_path_factory.mktemp("server") / "log") as (address, _):
        VllmServerEngine(load_policy(str(folder)), url=address, startup_timeout=600)
        yield address


@pytest.mark.parametrize("sampling", [GREEDY, replace(GREEDY, stop_strings=("a", "3", "zzz"))])
def test_greedy_answers_are_those_of_the_engine_in_process_and_follow_the_weights(url: str, sampling: Sampling) -> None:
    policy = tiny_policy()
    engine, other = VllmServerEngine(policy, url=url), in_process(policy)
    for version in range(3):
        assert_same(answers(engine, requests(sampling)), answers(other, requests(sampling)))
        moved(policy, seed=version)
        engine.update(None, version + 1)
        other.update(None, version + 1)


def test_a_request_has_noise_of_its_own(url: str) -> None:
    sampling = Sampling(max_new_tokens=16, temperature=1.5)
    engine = VllmServerEngine(tiny_policy(), url=url)
    together = answers(engine, requests(sampling))
    assert_same(together, [answers(engine, [request])[0] for request in requests(sampling)])
    assert len({tuple(one.token_ids.tolist()) for one in together}) == len(together)


def test_an_adapter_is_sent_as_one(url: str) -> None:
    pytest.importorskip("peft")
    policy = tiny_policy()
    policy = replace(policy, model=adapted(policy.model, LoraConfig(rank=4, alpha=8)))
    engine, other = VllmServerEngine(policy, url=url), in_process(policy)
    for version in range(3):
        moved(policy, by=0.3, seed=version)
        engine.update(None, version)
        other.update(None, version)
        assert_same(answers(engine, requests(GREEDY)), answers(other, requests(GREEDY)))
    listed = httpx.get(f"{url}/v1/models", trust_env=False).json()["data"]
    assert len([model for model in listed if model["id"].startswith("reinlm-")]) == 1


def test_a_cancelled_call_is_aborted_on_the_server(url: str) -> None:
    engine = VllmServerEngine(tiny_policy(), url=url)
    engine.update(None, 0)
    long = Request("long", PROMPTS[0], Sampling(max_new_tokens=4000, temperature=1.0))

    def counted(name: str) -> float:
        lines = httpx.get(f"{url}/metrics", trust_env=False).text.splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith(f"vllm:{name}{{"))

    async def cancelled() -> None:
        call = asyncio.create_task(engine.generate(long))
        await asyncio.sleep(0.1)
        with pytest.raises(RunError, match="while it writes"):
            engine.update(None, 1)
        engine.abort(["long", "unknown"])
        with pytest.raises(asyncio.CancelledError):
            await call

    before = counted("generation_tokens_total")
    asyncio.run(cancelled())
    engine.update(None, 1)  # waits until the request has left
    assert counted("num_requests_running") == 0
    assert 0 < counted("generation_tokens_total") - before < 4000
    assert_same(answers(engine, requests(GREEDY))[:1], answers_of(tiny_policy(), version=1)[:1])


def answers_of(policy: Policy, version: int) -> list[Completion]:
    """Greedy answers of the engine in process."""
    other = in_process(policy)
    other.update(None, version)
    return answers(other, requests(GREEDY))


def test_a_server_that_another_run_has_sent_weights_to_is_an_error(url: str) -> None:
    first, second = (VllmServerEngine(tiny_policy(), url=url) for _ in range(2))
    answers(first, requests(GREEDY))
    answers(second, requests(GREEDY))
    with pytest.raises(RunError, match="other weights than this run sent"):
        answers(first, requests(GREEDY))


def test_servers_that_cannot_be_used_are_refused_by_name(url: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="serves another model: model_type qwen3, not llama"):
        VllmServerEngine(tiny_policy("llama"), url=url)
    wide = tiny_policy()
    wide = replace(wide, model=adapted(wide.model, LoraConfig(rank=16, alpha=8)))
    with pytest.raises(InputError, match="no adapter of rank 16"):
        VllmServerEngine(wide, url=url)


def recipe(folder: Path, url: str, tmp_path: Path, **changes: Any) -> list[str]:
    """The command of a run that samples from the server."""
    (tmp_path / "score.py").write_text(
        "def score(completions, **_):\n    return [sum(map(ord, text)) % 97 / 97 for text in completions]\n"
    )
    rows = "".join(f'{{"prompt": "{a}+{b}="}}\n' for a in range(4) for b in range(3))
    (tmp_path / "data.jsonl").write_text(rows)
    settings = {
        "rollout.group_size": 4,
        "rollout.batch_size": 16,
        "rollout.max_new_tokens": 8,
        "rollout.engine": f"{{vllm_server: {{url: '{url}', startup_timeout: 600}}}}",
        "training.steps": 3,
        "optimizer.learning_rate": 0.003,
        "run.trackers": [],
    } | changes
    words = [f"{key}={value}" for key, value in settings.items()]
    return [
        *(sys.executable, "-m", "reinlm.cli", "rl", "-m", str(folder), "-d", str(tmp_path / "data.jsonl")),
        *("-r", f"{tmp_path / 'score.py'}:score", "-o", str(tmp_path / "run"), *words),
    ]


def test_a_server_that_is_killed_in_a_run_ends_it_with_what_to_do(folder: Path, tmp_path: Path) -> None:
    with serving(folder, tmp_path / "log") as (url, process):
        line = recipe(folder, url, tmp_path, **{"training.steps": 100000})
        run = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        metrics, end = tmp_path / "run/metrics.jsonl", time.monotonic() + 600
        while time.monotonic() < end and run.poll() is None:
            if metrics.exists() and metrics.read_text().count("\n") >= 3:
                break
            time.sleep(0.1)
        with_children(process, signal.SIGKILL)
        _, errors = run.communicate(timeout=120)
    assert run.returncode == 2, errors
    assert "Traceback" not in errors
    assert f"error: the vLLM server at {url} does not answer any more" in errors
    assert "--resume" in errors
    assert (tmp_path / "run/checkpoints").is_dir()
