"""Parts of a paired comparison: blocks of calls, the signed-rank interval, the rules of a verdict."""
