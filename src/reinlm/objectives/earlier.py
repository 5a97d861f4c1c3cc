"""Earlier names of values: still taken as keywords, with a warning that says the new one."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

EARLIER = {
    "discount": "gamma",
    "smoothing": "gae_lambda",
    "critic_smoothing": "critic_lambda",
    "weights": "aggregation",
}
"""Earlier name of a value -> the name that it goes by."""

Made = TypeVar("Made", bound=Callable[..., Any])


def earlier_names(made: Made) -> Made:
    """A function, or a dataclass, that takes its values by their names in `EARLIER` too; reads them too as attributes.

    A call raises TypeError where it gives one value by both names.

    Example: GAE(smoothing=0.9) is GAE(gae_lambda=0.9), and GAE().smoothing is GAE().gae_lambda.
    """
    parameters = inspect.signature(made).parameters
    names = {old: new for old, new in EARLIER.items() if new in parameters}
    called: Any = made.__init__ if isinstance(made, type) else made  # type: ignore[misc]  # that of this very class

    @wraps(called)
    def take(*arguments: Any, **keywords: Any) -> Any:
        for old in names.keys() & keywords:
            if names[old] in keywords:
                raise TypeError(f"{made.__name__}: {old} and {names[old]} are one value, given twice")
            keywords[warn_renamed(made.__name__, old, names[old])] = keywords.pop(old)
        return called(*arguments, **keywords)

    def read(self: Any, name: str) -> Any:
        if name not in names:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self, warn_renamed(made.__name__, name, names[name]))

    if not isinstance(made, type):
        return take  # type: ignore[return-value]  # of the same signature
    made.__init__, made.__getattr__ = take, read  # type: ignore[misc, attr-defined]
    return made


def warn_renamed(owner: str, old: str, new: str) -> str:
    """Warn that a name is an earlier one, at the line that calls the caller of this function; returns the new name."""
    warnings.warn(f"{owner}: {old} is named {new}; say {new}", FutureWarning, stacklevel=3)
    return new
