"""Bundled training recipes as TOML files."""
