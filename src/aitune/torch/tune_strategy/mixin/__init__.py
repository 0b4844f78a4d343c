"""Parts of strategies."""
