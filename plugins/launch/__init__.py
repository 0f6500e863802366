"""Launchers: Slurm, SkyPilot, Kubernetes and ssh; each file has one, an entry point of ``rollenv.launchers``."""
