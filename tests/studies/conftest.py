"""The studies are scripts: they and what they share are imported by their file names."""

from __future__ import annotations

import sys
from pathlib import Path

STUDIES = str(Path(__file__).parents[2] / "studies")
if STUDIES not in sys.path:
    sys.path.append(STUDIES)
