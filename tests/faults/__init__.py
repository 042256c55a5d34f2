"""Faults injected into runs, and what they cost."""
