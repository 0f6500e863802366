"""Checks of an environment's promises: :func:`check_env`."""

from rollenv.core.checker.checks import CHECKS, Finding, cannot, check_env, run_checks

__all__ = ["CHECKS", "Finding", "cannot", "check_env", "run_checks"]
