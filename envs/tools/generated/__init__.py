"""What generated suites share: worlds, goals that go together, options and their variants."""
