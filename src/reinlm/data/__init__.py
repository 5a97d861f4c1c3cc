"""Users' data: rows from files, data sets and lists, converted to tasks for sampling, examples for SFT, or judged answers."""

from reinlm.data.config import DataConfig, JudgedDataConfig
from reinlm.data.examples import Example, Examples, load_examples
from reinlm.data.loading import load_rows
from reinlm.data.order import RowOrder
from reinlm.data.preferences import Judged, Steps, load_judged
from reinlm.data.prompts import PromptFormat
from reinlm.data.rendering import Renderer, build_renderer
from reinlm.data.rows import Loaded, Row
from reinlm.data.tasks import load_tasks
from reinlm.renamed import renamed

__all__ = [
    "DataConfig",
    "Example",
    "Examples",
    "Judged",
    "JudgedDataConfig",
    "Loaded",
    "PromptFormat",
    "Renderer",
    "Row",
    "RowOrder",
    "Steps",
    "build_renderer",
    "load_examples",
    "load_judged",
    "load_rows",
    "load_tasks",
]

renamed(
    __name__,
    {},
    {"PromptOrder": "reinlm.data.RowOrder", "load_prompts": "reinlm.data.load_tasks, whose tasks have no tokens"},
)
