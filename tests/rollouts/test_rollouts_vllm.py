"""What the engines of vLLM do without it: weights under their names, and refusals. `tests/with_vllm` has the tests with it."""

from __future__ import annotations

import functools
import http.server
import importlib.util
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from reinlm.errors import InputError
from reinlm.models import LoraConfig, Policy, character_tokenizer, load_policy, tiny_model
from reinlm.models.lora import adapted
from reinlm.rollouts import Request, Sampling, build_engine
from reinlm.rollouts.answers import RunningAnswer
from reinlm.rollouts.stops import StopTexts
from reinlm.rollouts.vllm_requests import advance, check_version, lora_settings, prepared, sampling_params
from reinlm.rollouts.vllm_worker import CHUNK_BYTES, WeightReceiver, adapter_of, base_weights, packed

VLLM = importlib.util.find_spec("vllm")
without_vllm = pytest.mark.skipif(VLLM is not None and VLLM.origin is not None, reason="vLLM is installed")


def policy(family: Any = "qwen3", *, tie: bool = True) -> Policy:
    tokenizer = character_tokenizer("0123456789")
    return load_policy((tiny_model(family, vocab_size=len(tokenizer), hidden_size=16, heads=2, tie=tie), tokenizer))


@pytest.mark.parametrize("family", ["qwen3", "llama", "gpt2", "qwen3_moe"])
@pytest.mark.parametrize("tie", [True, False])
def test_weights_have_the_names_of_a_checkpoint(family: str, tie: bool, tmp_path: Any) -> None:
    from safetensors.torch import load_file

    model = policy(family, tie=tie).model
    model.save_pretrained(tmp_path)
    saved, found = load_file(tmp_path / "model.safetensors"), base_weights(model)
    assert found.keys() - saved.keys() == ({"lm_head.weight"} if tie else set())
    for name, weight in saved.items():
        torch.testing.assert_close(found[name], weight, rtol=0, atol=0)


def test_of_an_adapted_model_base_and_adapter_are_apart() -> None:
    plain = policy()
    expected = {name: weight.clone() for name, weight in base_weights(plain.model).items()}
    assert adapter_of(plain.model) is None
    model = adapted(plain.model, LoraConfig(rank=3, alpha=6, target_modules=["q_proj"]))
    found, adapter = base_weights(model), adapter_of(model)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], weight) for name, weight in expected.items())
    assert adapter is not None
    assert (adapter.rank, adapter.config["lora_alpha"], adapter.config["target_modules"]) == (3, 6, ["q_proj"])
    assert {name.rsplit(".", 2)[1] for name in adapter.weights} == {"lora_A", "lora_B"}


def test_weights_arrive_in_pieces_as_they_were_sent() -> None:
    weights = {
        "large": torch.randn(CHUNK_BYTES // 4 + 1),
        "small": torch.randn(3, 5).t(),
        "counts": torch.arange(4),
        "shared": torch.ones(2, 2),
    }
    weights["tied"] = weights["shared"]
    pieces = list(packed(weights, torch.bfloat16))
    assert len(pieces) == 1
    assert len(list(packed(weights, torch.float32))) == 2
    receiver = WeightReceiver()
    for piece in pieces:
        receiver.reinlm_append(piece)
    taken = receiver._reinlm_taken()
    assert taken.keys() == weights.keys()
    assert torch.equal(taken["small"], weights["small"].bfloat16())
    assert torch.equal(taken["counts"], weights["counts"])
    receiver.reinlm_append(pieces[0])
    receiver.reinlm_forget()
    assert receiver._reinlm_taken() == {}


def answer(sampling: Sampling, prompt: tuple[int, ...] = (2, 3), context: int = 16) -> RunningAnswer:
    stops = StopTexts(policy().tokenizer)
    return prepared(Request("a", prompt, sampling, seed=5), {}, context, 12, stops)


def test_what_vllm_is_asked_for() -> None:
    asked = sampling_params(answer(Sampling(30, 0.7, top_p=0.9, top_k=3, stop_token_ids=(1,), stop_strings=("7",))))
    seed = asked.pop("seed")
    assert asked == {
        "max_tokens": 14, "temperature": 0.7, "top_p": 0.9, "top_k": 3, "stop_token_ids": [1],
        "ignore_eos": True, "logprobs": 0, "detokenize": False,
    }  # fmt: skip
    assert 0 <= seed < 1 << 63
    assert seed != sampling_params(prepared(Request("b", (2, 3), Sampling(4), 5), {}, 16, 12, StopTexts(None)))["seed"]


def test_tokens_past_the_end_of_an_answer_are_dropped() -> None:
    by_string = answer(Sampling(9, stop_strings=("56",)))
    assert advance(by_string, [7, 7], [-0.1, -0.2], version=3) is None
    done = advance(by_string, [8, 9, 10], [-0.3, -0.4, -0.5], version=4)
    assert done is not None
    assert (done.token_ids.tolist(), done.reason) == ([7, 7, 8], "stop")
    assert done.columns["version"].tolist() == [3, 3, 4]
    full = advance(answer(Sampling(9), context=4), [7, 8, 9], [-0.1] * 3, version=0)
    assert full is not None
    assert (full.token_ids.tolist(), full.reason) == ([7, 8], "context")


def test_versions_and_ranks_that_cannot_be_used_are_refused_by_name() -> None:
    check_version("0.32.0+cpu")
    check_version("1.0")
    check_version("0.0.1.dev7")
    with pytest.raises(InputError, match=r"vLLM 0\.31\.2 is too old: 0\.32"):
        check_version("0.31.2")
    assert lora_settings(4)["max_lora_rank"] == 8
    with pytest.raises(InputError, match=r"rank 600.*512"):
        lora_settings(600)


@without_vllm
def test_without_vllm_it_is_said_how_to_install_it() -> None:
    with pytest.raises(InputError, match="vLLM is not installed") as error:
        build_engine("vllm", policy())
    assert "[vllm]" in str(error.value.hint)


@pytest.fixture
def other_server(tmp_path: Any) -> Iterator[str]:
    """The address of a web server that is no vLLM."""
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=tmp_path)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_where_no_vllm_server_is_it_is_said_how_to_start_one(other_server: str) -> None:
    with pytest.raises(InputError, match=r"no vLLM server at http://127.0.0.1:9: .*vllm-serve MODEL"):
        build_engine({"vllm_server": {"url": "http://127.0.0.1:9"}}, policy())
    with pytest.raises(InputError, match=r"404 to /version"):
        build_engine({"vllm_server": {"url": other_server}}, policy())
    with pytest.raises(InputError, match="url"):
        build_engine({"vllm_server": {"url": "localhost:8000"}}, policy())


def test_a_temperature_that_vllm_would_raise_is_refused() -> None:
    with pytest.raises(InputError, match=r"temperature 0\.005.*0\.01"):
        answer(replace(Sampling(4), temperature=0.005))
