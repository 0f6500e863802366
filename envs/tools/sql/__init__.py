"""SQLite for untrusted SQL, and a dialect of it that answers as MySQL does."""
