"""Tuned modules as members of an artifact, and back."""
