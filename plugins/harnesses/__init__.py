"""Agent programs of other projects; each file has the record of one, an entry point of ``rollenv.harnesses``."""
