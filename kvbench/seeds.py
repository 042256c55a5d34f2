"""The seeds that commands start from."""

BENCHMARK = 42
"""Of the benchmark's samples."""
TRACES = 1729
"""Of what presses learn from: never the benchmark's own."""
