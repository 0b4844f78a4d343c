"""Tune PyTorch modules."""
