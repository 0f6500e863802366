"""Names of other projects that lead here."""
