"""The built-in tasks: one file or folder each, found through the `kvbench.tasks` entry points."""
