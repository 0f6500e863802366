"""Parts for one other project each, found through the entry points that any package can use."""
