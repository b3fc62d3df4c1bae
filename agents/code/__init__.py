"""Scripts and Python code behind agents and tools."""
