"""Tasks that need no data from outside."""
