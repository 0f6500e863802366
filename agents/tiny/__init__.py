"""The tiny model: built, tokenised and warmed up on the spot."""
