"""Other companies' dialects of a model call, served by the gateway: entry points ``rollenv.dialects``."""
