"""Wire protocols of ROCK, OpenReward and SandboxFusion; each is a module with ``routes(server)``."""
