"""Trained models with their optimizers, and the log-probabilities of tokens."""
