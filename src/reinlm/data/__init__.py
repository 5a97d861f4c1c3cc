"""Data that users bring: rows from files, data sets and lists, as prompts to answer or examples to imitate."""

from reinlm.data.config import DataConfig
from reinlm.data.examples import Example, load_examples
from reinlm.data.loading import load_rows
from reinlm.data.order import PromptOrder
from reinlm.data.prompts import load_prompts
from reinlm.data.rows import Loaded, Row

__all__ = ["DataConfig", "Example", "Loaded", "PromptOrder", "Row", "load_examples", "load_prompts", "load_rows"]
