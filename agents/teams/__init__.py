"""Teams: agents that create, message and answer each other, one turn at a time."""
