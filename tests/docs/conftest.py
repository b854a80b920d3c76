"""Make ``tools`` importable where the package is not editable."""

from __future__ import annotations

import sys
from pathlib import Path

# At the end of the path: the installed package is tested, not that of the checkout.
sys.path.append(str(Path(__file__).resolve().parents[2]))
