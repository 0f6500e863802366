"""Text worlds: ALFWorld's households."""
