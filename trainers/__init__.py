"""Training: advantages, losses, batches, the loop, recipes."""
