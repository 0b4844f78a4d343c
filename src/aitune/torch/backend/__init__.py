"""Ways of running a graph."""
