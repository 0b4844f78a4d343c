"""Small helpers without torch."""
