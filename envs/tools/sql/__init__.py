"""SQLite for untrusted SQL, and a dialect of it that emulates MySQL."""
