"""Which folder holds the model that a path means."""

from __future__ import annotations

from pathlib import Path

import pytest

from reinlm.errors import InputError
from reinlm.places import model_folder


def test_a_folder_of_several_runs_is_no_model_and_one_of_them_is_named(tmp_path: Path) -> None:
    for seed in range(3):
        (tmp_path / "seeds" / f"seed{seed}").mkdir(parents=True)
        (tmp_path / "seeds" / f"seed{seed}" / "run.json").write_text("{}")
    with pytest.raises(InputError, match="seeds is a folder of 3 runs, not a model") as caught:
        model_folder(str(tmp_path / "seeds"))
    assert str(tmp_path / "seeds" / "seed0") in str(caught.value.hint)
