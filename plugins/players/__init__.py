"""Games for several players from other projects: ``spiel:GAME`` and others, and meters of how they are played."""
