"""Panels of the worlds: each is a TOML file, and a line of JSON for every member."""
