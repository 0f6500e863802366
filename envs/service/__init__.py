"""Service tasks: an agent with functions and a policy, and a user with a goal, facts and a persona."""

from rollenv.core.registry import ABILITIES, register


def register_family() -> None:
    """Register ``service:Shop-v0`` and ``service:Airline-v0``."""
    for desk in ("shop", "airline"):
        register(
            f"service:{desk.capitalize()}-v0",
            "rollenv.envs.service.desk:DeskEnv",
            abilities=ABILITIES,
            oracle_success=1.0,
            levels={"size": [6, 12, 40]},
            desk=desk,
        )
