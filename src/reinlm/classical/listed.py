"""What `dir(agent)` lists."""

USED = [
    "learn",
    "predict",
    "save",
    "load",
    "begin",
    "advance",
    "finished",
    "state_dict",
    "load_state_dict",
    "Settings",
    "name",
]
DATA = [
    "settings",
    "seed",
    "steps",
    "episodes",
    "env",
    "env_name",
    "env_arguments",
    "budget",
    "actor",
    "critic",
    "online",
    "q",
]
"""What `dir(agent)` lists: methods, and attributes where an algorithm has them."""
