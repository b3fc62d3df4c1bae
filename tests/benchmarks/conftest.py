"""Makes `bench_support` importable: the folder of these tests is no package."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
