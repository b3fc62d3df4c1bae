"""Fixtures of the sandbox's tests; what they share is in `lua_support.py`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
