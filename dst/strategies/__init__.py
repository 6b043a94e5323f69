"""Ways to search."""
