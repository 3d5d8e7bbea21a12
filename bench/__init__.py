"""The benchmark: our engine beside hand-written limits, interleaved in one run. Start it with ``./dev bench``."""

import importlib.util
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# `./dev` installs the package; a bare interpreter on a fresh checkout finds it this way.
if importlib.util.find_spec("flowfabric") is None:
    sys.path.insert(0, str(ROOT / "src"))
