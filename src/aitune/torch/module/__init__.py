"""Capture calls of a module and run it on what was tuned."""
