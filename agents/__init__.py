"""Agents and tools: kinds, loading, publishing, and the service that front ends call."""
