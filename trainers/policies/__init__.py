"""What is trained: a model with its optimizer, and what it says about given tokens."""
