"""Looks at runs: reads run folders, never the code that wrote them."""
