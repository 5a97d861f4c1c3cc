"""Tokenizers for the tests of the data."""

from __future__ import annotations

import os

os.environ["HF_HUB_OFFLINE"] = "1"  # before huggingface_hub is imported: a data set's name must fail at once

import pytest
from data_tokenizers import BARE, CHATML, LLAMA, THINKING, build_tokenizer
from transformers import PreTrainedTokenizerFast


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    return build_tokenizer()


@pytest.fixture(scope="session")
def chatml() -> PreTrainedTokenizerFast:
    return build_tokenizer(CHATML)


@pytest.fixture(scope="session")
def llama() -> PreTrainedTokenizerFast:
    return build_tokenizer(LLAMA)


@pytest.fixture(scope="session")
def thinking() -> PreTrainedTokenizerFast:
    return build_tokenizer(THINKING)


@pytest.fixture(scope="session")
def bare() -> PreTrainedTokenizerFast:
    return build_tokenizer(BARE)
