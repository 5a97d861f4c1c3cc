"""`reinlm vllm-serve`: a vLLM server that a run can sample from and send its weights to."""

from __future__ import annotations

import importlib.util
import os
import sys
from typing import Annotated

import typer

from reinlm.cli.app import command
from reinlm.cli.options import Debug
from reinlm.errors import InputError
from reinlm.program import install

SERVER = "vllm.entrypoints.launchers.api_server.entry"
"""What `vllm serve` runs; that command itself looks for a package named vllm, which builds for the CPU do not have."""


@command("vllm-serve")
def vllm_serve(
    model: Annotated[str, typer.Argument(help="The model that is trained: a Hugging Face folder or name.")],
    more: Annotated[
        list[str] | None, typer.Argument(metavar="[-- OPTION...]", help="Options of `vllm serve`, after two dashes.")
    ] = None,
    host: Annotated[str, typer.Option(help="Where it listens.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Where it listens.")] = 8000,
    lora_rank: Annotated[int | None, typer.Option(help="Take LoRA adapters up to this rank.")] = None,
    debug: Debug = False,
) -> None:
    """A vLLM server for rollout.engine=vllm_server.

    Anyone who reaches its port can change its weights: keep it inside a network that you trust, and set VLLM_API_KEY.

    \b
    reinlm vllm-serve runs/sft/checkpoints/last --port 8000 -- --dtype float32
    """
    found = importlib.util.find_spec("vllm")
    if found is None or found.origin is None:  # the latter for a folder of that name
        raise InputError("vllm-serve: vLLM is not installed", hint=install("vllm"))
    from reinlm.rollouts.vllm_requests import lora_settings
    from reinlm.rollouts.vllm_worker import EXTENSION

    words = [
        *("--host", host, "--port", str(port)),
        *("--worker-extension-cls", EXTENSION),
        *("--logprobs-mode", "processed_logprobs"),
        *("--generation-config", "vllm"),
        "--enable-scale-out",
    ]
    environment = {**os.environ, "VLLM_SERVER_DEV_MODE": "1"}
    environment.setdefault("VLLM_NO_USAGE_STATS", "1")
    if lora_rank is not None:
        settings = lora_settings(lora_rank)
        words += ["--enable-lora", "--max-lora-rank", str(settings["max_lora_rank"]), "--max-loras", "1"]
        environment["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "1"
    line = [sys.executable, "-m", SERVER, "--model", model, *words, *(more or ())]
    os.execve(sys.executable, line, environment)  # noqa: S606  the server takes this process's place
