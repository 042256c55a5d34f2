"""kvbench: the benchmark and leaderboard for KV-cache eviction policies."""

__version__ = "0.1.0"
