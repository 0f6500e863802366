"""Training runs and evaluations as a web page: :func:`write_report`, :func:`serve`."""

from rollenv.report.build import SMALL, write_report
from rollenv.report.server import make_server
from rollenv.rollout.records.folders import Run, find_runs, open_run

__all__ = ["SMALL", "Run", "find_runs", "make_server", "open_run", "write_report"]
