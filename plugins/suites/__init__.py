"""Published suites of tasks with tools, each judged as its authors judge it."""
