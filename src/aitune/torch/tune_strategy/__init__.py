"""How a winner is found."""
