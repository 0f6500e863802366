"""Wire protocols of ROCK, OpenReward, SandboxFusion, E2B and OpenEnv; each is a module with ``routes(server)``."""
