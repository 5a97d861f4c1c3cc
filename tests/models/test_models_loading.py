"""Loading and saving: what a policy holds, what comes back from disk, and what bad input gets."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from reinlm.config import build
from reinlm.errors import InputError
from reinlm.models.loading import LoraConfig, ModelConfig, Policy, load_policy, load_tokenizer, stop_ids
from reinlm.models.modules import count_parameters
from reinlm.models.saving import restore_policy, save_policy
from reinlm.models.score import score
from reinlm.models.tiny import character_tokenizer, tiny_model

ALPHABET = "0123456789+=abcd"
SIZE = len(ALPHABET) + 2
SEQUENCE, POSITIONS = [[3, 4, 5, 6, 7]], [[1, 2, 3, 4]]


def fresh(family: Any = "qwen3", **changes: Any) -> Policy:
    model = tiny_model(family, vocab_size=SIZE, hidden_size=32, heads=2, **changes)
    return load_policy((model, character_tokenizer(ALPHABET)))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_policy(fresh(), tmp_path / "model")
    return tmp_path / "model"


def edit(file: Path, **changes: Any) -> None:
    tree = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({key: value for key, value in tree.items() if value != "DROP"}))


def shake(model: Any, seed: int = 1) -> None:
    """Move every trained weight, as training does."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.1)


@pytest.mark.parametrize("family", ["qwen3", "llama", "gpt2", "qwen3_moe"])
def test_what_is_saved_comes_back_bit_for_bit(family: Any, tmp_path: Path) -> None:
    policy = fresh(family)
    shake(policy.model)
    save_policy(policy, tmp_path)
    reloaded = load_policy(str(tmp_path))
    plain = AutoModelForCausalLM.from_pretrained(tmp_path)
    expected = policy.model.state_dict()
    for model in (reloaded.model, plain):
        assert model.state_dict().keys() == expected.keys()
        assert all(torch.equal(tensor, expected[name]) for name, tensor in model.state_dict().items())
        assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
        assert not model.training
    assert (reloaded.stops, reloaded.pad_id, reloaded.context_length) == ((1,), 0, 128)
    assert str(reloaded.device) == "cpu"
    assert reloaded.tokenizer("12+3").input_ids == [3, 4, 12, 5]


def test_stops_are_the_union_of_every_place_that_names_one(folder: Path) -> None:
    edit(folder / "generation_config.json", eos_token_id=[7, 5])
    edit(folder / "config.json", eos_token_id=9)
    policy = load_policy(folder)
    assert policy.stops == (1, 5, 7, 9)
    save_policy(policy, folder)
    assert AutoModelForCausalLM.from_pretrained(folder).generation_config.eos_token_id == [1, 5, 7, 9]


def test_a_stop_that_the_model_has_no_embedding_for_is_left_out() -> None:
    model = tiny_model("gpt2", vocab_size=SIZE)
    model.config.eos_token_id = 50256
    assert stop_ids(model, character_tokenizer(ALPHABET)) == (1,)


def test_a_tokenizer_without_pad_token_pads_with_a_stop_and_stays_as_it_is(tmp_path: Path) -> None:
    tokenizer = character_tokenizer(ALPHABET)
    tokenizer.pad_token = None
    policy = load_policy((tiny_model("llama", vocab_size=SIZE), tokenizer))
    assert policy.pad_id == 1
    save_policy(policy, tmp_path)
    assert load_tokenizer(ModelConfig(path=str(tmp_path))).pad_token is None


def test_a_loaded_model_finds_its_tokenizer_where_it_came_from(folder: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder)
    policy = load_policy(model)
    assert policy.model is model
    assert policy.tokenizer("=").input_ids == [13]
    own = character_tokenizer(ALPHABET)
    assert load_policy(model, tokenizer=own).tokenizer is own
    assert load_policy(folder, tokenizer=own).tokenizer is own


def test_a_loaded_model_from_nowhere_needs_its_tokenizer() -> None:
    with pytest.raises(InputError, match="this Qwen3ForCausalLM comes without a tokenizer"):
        load_policy(tiny_model("qwen3", vocab_size=SIZE))


def test_what_is_no_model_is_named() -> None:
    with pytest.raises(InputError, match="cannot train on a model of type int"):
        load_policy(3)


@pytest.mark.parametrize(
    ("choice", "dtype"), [("auto", torch.float32), ("bfloat16", torch.bfloat16), ("float16", torch.float16)]
)
def test_dtype_is_taken(folder: Path, choice: Any, dtype: torch.dtype) -> None:
    model = load_policy(ModelConfig(path=str(folder), dtype=choice, device="cpu")).model
    assert {parameter.dtype for parameter in model.parameters()} == {dtype}


def test_attention_is_taken(folder: Path) -> None:
    model = load_policy(ModelConfig(path=str(folder), attention="eager")).model
    assert model.config._attn_implementation == "eager"


def test_gradient_checkpointing_runs_layers_twice_in_training_mode(folder: Path) -> None:
    for lora in (None, LoraConfig(rank=2)):
        model = load_policy(ModelConfig(path=str(folder), gradient_checkpointing=True, lora=lora)).model
        calls: list[int] = []
        score(model, SEQUENCE, POSITIONS)
        layer = next(module for name, module in model.named_modules() if name.endswith("layers.0.mlp"))
        layer.register_forward_pre_hook(lambda *_, calls=calls: calls.append(1))
        score(model.train(), SEQUENCE, POSITIONS).scored.sum().backward()
        assert len(calls) == 2


def test_gradient_checkpointing_is_refused_where_there_is_none(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import Qwen3ForCausalLM

    monkeypatch.setattr(Qwen3ForCausalLM, "supports_gradient_checkpointing", False)
    with pytest.raises(InputError, match=r"model\.gradient_checkpointing: Qwen3ForCausalLM does not support"):
        load_policy(ModelConfig(path=str(folder), gradient_checkpointing=True))


# What bad input gets


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (["config.json"], "has no config.json"),
        (["model.safetensors"], "has no weights"),
        (["tokenizer.json", "tokenizer_config.json"], "has no tokenizer"),
    ],
)
def test_a_folder_that_lacks_something_is_named_with_what_it_lacks(
    folder: Path, files: list[str], message: str
) -> None:
    for file in files:
        (folder / file).unlink()
    with pytest.raises(InputError, match=f"model folder {folder} {message}"):
        load_policy(folder)


@pytest.mark.parametrize(
    "path", ["/no/such/folder", "./none", "~/none", "runs/x/checkpoints", "runs/x", "not a name", "model/"]
)
def test_a_folder_that_is_not_there_is_named(path: str) -> None:
    with pytest.raises(InputError, match=f"no such model folder: {path}"):
        load_policy(path)


def test_a_file_is_no_model_folder(folder: Path) -> None:
    with pytest.raises(InputError, match=r"config\.json is a file, not a model folder"):
        load_policy(folder / "config.json")


@pytest.mark.parametrize("name", ["nobody/nothing", "no_such_model"])
def test_a_name_that_cannot_be_downloaded_is_one_line_at_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(InputError, match=f"model '{name}' is neither a folder here nor a name") as caught:
        load_policy(ModelConfig(path=name, revision="main"))
    assert "\n" not in caught.value.message


def test_an_unknown_architecture_is_named(folder: Path) -> None:
    edit(folder / "config.json", model_type="qwen99", architectures="DROP")
    with pytest.raises(InputError, match=f"cannot load the configuration of {folder}: .*qwen99") as caught:
        load_policy(ModelConfig(path=str(folder)), tokenizer=character_tokenizer(ALPHABET))
    assert "\n" not in caught.value.message


def test_a_malformed_configuration_is_named(folder: Path) -> None:
    (folder / "config.json").write_text("{")
    with pytest.raises(InputError, match=f"cannot load the .* of {folder}: .*config.json"):
        load_policy(folder)


def test_broken_weights_are_named(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"\xff" * 20)
    with pytest.raises(InputError, match=f"cannot load the model of {folder}"):
        load_policy(folder)


def test_missing_weights_are_counted_and_named_not_drawn_at_random(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    for name in ("model.norm.weight", "model.layers.1.mlp.up_proj.weight"):
        del tensors[name]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InputError, match=r"2 weights are missing, the first is model\.layers\.1\.mlp\.up_proj\.weight"):
        load_policy(folder)


def test_weights_of_another_shape_are_named(folder: Path) -> None:
    edit(folder / "config.json", intermediate_size=40)
    with pytest.raises(InputError, match=f"{folder}"):
        load_policy(folder)


def test_a_pickle_that_runs_code_is_not_run(folder: Path, tmp_path: Path) -> None:
    class Payload:
        def __reduce__(self) -> Any:
            return (Path.touch, (tmp_path / "owned",))

    (folder / "model.safetensors").unlink()
    torch.save({"x": Payload()}, folder / "pytorch_model.bin")
    with pytest.raises(InputError, match="cannot load the model of"):
        load_policy(folder)
    assert not (tmp_path / "owned").exists()


def test_a_tokenizer_without_eos_is_refused(folder: Path) -> None:
    edit(folder / "tokenizer_config.json", eos_token="DROP")
    with pytest.raises(InputError, match=f"the tokenizer of {folder} has no EOS token"):
        load_policy(folder)


def test_a_tokenizer_larger_than_the_model_is_refused() -> None:
    model = tiny_model("qwen3", vocab_size=SIZE - 1)
    with pytest.raises(InputError, match=f"has {SIZE} tokens and the model embeds {SIZE - 1}"):
        load_policy((model, character_tokenizer(ALPHABET)))


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
@pytest.mark.parametrize("device", ["cuda", "cuda:1"])
def test_cuda_where_there_is_none_is_refused(folder: Path, device: str) -> None:
    with pytest.raises(InputError, match=f"device '{device}' is not here: this machine has 0 of its kind"):
        load_policy(ModelConfig(path=str(folder), device=device))


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"path": "x", "dtype": "int8"}, "dtype: "),
        ({"path": "x", "device": "tpu"}, "device: .*given: 'tpu'"),
        ({"path": "x", "lora": {"rank": 0}}, "lora.rank: "),
        ({"path": "x", "lora": {"rnak": 8}}, "unknown key 'lora.rnak'"),
        ({"dtype": "auto"}, "'path' is required"),
    ],
)
def test_configuration_that_cannot_be_is_named(tree: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        build(ModelConfig, tree)


# LoRA


def test_lora_trains_the_adapter_alone_and_scores_as_the_whole(folder: Path) -> None:
    policy = load_policy(ModelConfig(path=str(folder), lora=LoraConfig(rank=2, target_modules=["q_proj", "v_proj"])))
    # two layers, two modules each, rank 2 over 32 inputs and 32 outputs
    assert count_parameters(policy.model).trainable == 2 * 2 * (2 * 32 + 2 * 32)
    shake(policy.model)
    logits = policy.model(torch.tensor(SEQUENCE)).logits[0]
    expected = torch.log_softmax(logits, -1)[[0, 1, 2, 3], SEQUENCE[0][1:]]
    torch.testing.assert_close(score(policy.model, SEQUENCE, POSITIONS).logprobs, expected)


def test_lora_on_the_head_gets_its_gradient(folder: Path) -> None:
    policy = fresh(tie=False)
    save_policy(policy, folder)
    model = load_policy(
        ModelConfig(path=str(folder), lora=LoraConfig(rank=2, target_modules=["lm_head"]))
    ).model.double()
    shake(model)
    weights = [parameter for parameter in model.parameters() if parameter.requires_grad]
    logits = model(torch.tensor(SEQUENCE)).logits[0]
    expected = torch.autograd.grad(torch.log_softmax(logits, -1)[[0, 1, 2, 3], SEQUENCE[0][1:]].sum(), weights)
    actual = torch.autograd.grad(score(model, SEQUENCE, POSITIONS, chunk_tokens=1).scored.sum(), weights)
    assert len(weights) == 2
    for got, want in zip(actual, expected, strict=True):
        assert want.abs().max() > 1e-3
        torch.testing.assert_close(got, want, rtol=0, atol=1e-12)


def test_a_lora_policy_is_saved_merged_with_its_adapter_beside_it(folder: Path, tmp_path: Path) -> None:
    config = ModelConfig(path=str(folder), lora=LoraConfig(rank=2, alpha=8, dropout=0.1))
    policy = load_policy(config)
    shake(policy.model)
    before = {name: tensor.clone() for name, tensor in policy.model.state_dict().items()}
    save_policy(policy, tmp_path / "out")
    assert all(torch.equal(tensor, before[name]) for name, tensor in policy.model.state_dict().items())
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    torch.testing.assert_close(
        merged(torch.tensor(SEQUENCE)).logits, policy.model(torch.tensor(SEQUENCE)).logits, rtol=0, atol=1e-5
    )
    resumed = load_policy(config)
    restore_policy(resumed, tmp_path / "out")
    assert all(torch.equal(tensor, before[name]) for name, tensor in resumed.model.state_dict().items())


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (["q_proj", "k_prj"], "unknown module in model.lora.target_modules 'k_prj'"),
        ("nothing.*", "'nothing.\\*'"),
        (["lm_head"], "names a head or embedding that share their weights"),
        (["embed_tokens"], "names a head or embedding that share their weights"),
    ],
)
def test_lora_on_modules_that_are_not_there_is_refused(folder: Path, targets: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_policy(ModelConfig(path=str(folder), lora=LoraConfig(target_modules=targets)))


def test_lora_without_peft_says_how_to_install_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(InputError, match=r"model\.lora needs peft") as caught:
        load_policy(ModelConfig(path=str(folder), lora=LoraConfig()))
    assert caught.value.hint == "in the clone of reinlm: pip install '.[lora]'"


# Restoring


def test_restoring_gives_the_weights_back_bit_for_bit(folder: Path) -> None:
    policy = fresh(seed=9)
    restore_policy(policy, folder)
    expected = fresh().model.state_dict()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in policy.model.state_dict().items())


def test_restoring_from_another_model_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds a qwen3 model, and this one is a gpt2"):
        restore_policy(fresh("gpt2"), folder)
    with pytest.raises(InputError, match="holds a qwen3 model of another shape"):
        restore_policy(fresh(layers=3), folder)
    with pytest.raises(InputError, match="holds no model"):
        restore_policy(fresh(), tmp_path)


def test_restoring_another_adapter_is_refused(folder: Path, tmp_path: Path) -> None:
    def adapted(**changes: Any) -> Policy:
        return load_policy(ModelConfig(path=str(folder), lora=LoraConfig(**changes)))

    with pytest.raises(InputError, match="holds no adapter"):
        restore_policy(adapted(), folder)
    save_policy(adapted(rank=2, target_modules=["q_proj"]), tmp_path / "out")
    with pytest.raises(InputError, match=r"an adapter of another shape than model\.lora"):
        restore_policy(adapted(rank=4, target_modules=["q_proj"]), tmp_path / "out")
    with pytest.raises(InputError, match=r"an adapter of other modules than model\.lora names"):
        restore_policy(adapted(rank=2, target_modules=["v_proj"]), tmp_path / "out")
