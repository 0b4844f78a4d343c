"""For authors of backends and strategies."""
