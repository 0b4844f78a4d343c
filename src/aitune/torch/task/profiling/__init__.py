"""Time any callable."""
