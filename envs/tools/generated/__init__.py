"""The base of generated suites: worlds, goals that go together, options and their variants."""
