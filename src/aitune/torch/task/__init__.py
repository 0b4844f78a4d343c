"""Tasks on any callable: compare, time, find limits."""
