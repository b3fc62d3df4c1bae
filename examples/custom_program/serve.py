"""A program that embeds the engine. Run it from the repository root:

    .venv/bin/python examples/custom_program/serve.py

It serves the agents and tools of the `engine.toml` beside it, and an agent and a tool of its own. An address to listen
on may follow, such as 127.0.0.1:8080.
"""

import sys
from pathlib import Path

from shipments import RunQuery, ShipmentExpert

import engine

if __name__ == "__main__":
    engine.serve(
        Path(__file__).with_name("engine.toml"),
        agents=[ShipmentExpert()],
        tools=[RunQuery()],
        bind=sys.argv[1] if len(sys.argv) > 1 else None,
    )
