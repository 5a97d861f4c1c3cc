"""Which family of models a tokenizer's name belongs to, as in the real package."""

MODEL_RENDERER_MAP = {"Qwen/Qwen3-8B": "qwen3"}
