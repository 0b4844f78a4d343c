"""Find the fastest correct way to run a PyTorch module for inference on this machine.

The library lives in :mod:`aitune.torch`; importing this package imports nothing else.
"""

__version__ = "0.1.0"
