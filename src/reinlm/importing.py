"""While a user's file is imported for its parts, nothing trains, samples or writes.

A script that starts a run and also holds a part of it is imported where a recipe names that part: by `--explain`, by
`--resume`, and by the process of its reward functions. Without `if __name__ == "__main__":` it would run all its runs again.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from reinlm.errors import InputError

_PACKAGE = str(Path(__file__).parent) + os.sep
_imported: ContextVar[str] = ContextVar("imported", default="")
"""The file or module that is being imported for its parts; empty outside of that."""


class ImportedCallError(InputError):
    """A file that is imported for its parts calls what trains, samples or writes."""


@contextmanager
def importing(place: str) -> Iterator[None]:
    """Refuse the verbs in the block, which imports `place`, a file or module of the user, for its parts."""
    token = _imported.set(place)
    try:
        yield
    finally:
        _imported.reset(token)


def refuse_while_importing(verb: str) -> None:
    """Raise ImportedCallError where a file that is imported for its parts has called `verb`; its line is named."""
    place = _imported.get()
    if not place:
        return
    file, line = _caller()
    here = os.path.relpath(file)
    raise ImportedCallError(
        f"{place} is imported for its parts, and {file if here.startswith(os.pardir) else here}:{line} calls {verb}",
        hint='put what runs below `if __name__ == "__main__":`',
    )


def _caller() -> tuple[str, int]:
    """File and line of the statement of a module, outside of this package, from which the call came."""
    frame = sys._getframe(1)
    found = frame
    while frame.f_back is not None:
        frame = frame.f_back
        if not frame.f_code.co_filename.startswith((_PACKAGE, "<")):
            found = frame
            if frame.f_code.co_name == "<module>":
                break
    return found.f_code.co_filename, found.f_lineno
