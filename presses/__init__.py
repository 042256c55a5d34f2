"""The built-in presses, one file per eviction policy, found through the entry points `kvbench.presses`."""
