"""The built-in presses: one file per eviction policy, each found through the `kvbench.presses` entry points."""
