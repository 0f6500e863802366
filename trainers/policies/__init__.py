"""A trained model with its optimizer, and its log-probabilities of given tokens."""
