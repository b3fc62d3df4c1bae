"""The command line of benchmarks that are separate programs: options, the report, the figures in a file."""

import argparse
import json
from pathlib import Path
from typing import Any


class Command(argparse.ArgumentParser):
    """`python -m benchmarks.NAME`: `--json FILE`, and the options added."""

    def __init__(self, name: str, about: str) -> None:
        super().__init__(prog=f"python -m benchmarks.{name}", description=about)
        self.add_argument("--json", type=Path, metavar="FILE", help="also write the figures to FILE")

    def add_count(self, option: str, default: int, what: str) -> None:
        """Add an option with a whole number from 1."""
        self.add_argument(option, type=positive, default=default, help=f"{what} (default: {default})")


def tell(text: str, figures: Any, file: Path | None) -> None:
    """Print the text, and write the figures to the file, if there is one, as JSON."""
    print(text)
    if file is not None:
        file.write_text(json.dumps(figures, indent=2) + "\n")


def positive(text: str) -> int:
    """A whole number from 1, for argparse. Raises ValueError."""
    if (number := int(text)) < 1:
        raise ValueError
    return number
