"""Adapters to other people's frameworks: a file of a few dozen lines for each."""
