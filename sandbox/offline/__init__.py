"""In place of the network of a machine: wheels and packages fetched before, and programs in front of downloaders."""

from rollenv.sandbox.offline.debs import Debs, packages
from rollenv.sandbox.offline.tools import FIRST_MODULES, NOTES, OURS, Offline
from rollenv.sandbox.offline.wheels import Wheels, requirements, with_files

__all__ = ["FIRST_MODULES", "NOTES", "OURS", "Debs", "Offline", "Wheels", "packages", "requirements", "with_files"]
