"""Compatibility with other projects' interfaces."""
