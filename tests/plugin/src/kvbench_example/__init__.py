"""A press and a task from outside kvbench."""
