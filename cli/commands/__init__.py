"""The commands, one file for each command or group."""

import sys
from importlib import import_module

# structlog imports rich and pygments where they are installed, for tracebacks in colours, which no log here has. They
# are a sixth of what `engine agent list` would import.
if "rich" not in sys.modules:
    sys.modules["rich"] = None  # type: ignore[assignment]
    import_module("structlog")
    del sys.modules["rich"]
