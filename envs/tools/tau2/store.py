"""A large database that many episodes share: only the records that an episode changes are its own."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

from rollenv.tools.backend import Backend, ToolError

Record = dict[str, Any]
#: Tables of records by key.
Tables = Mapping[str, Mapping[str, Record]]


class StoreBackend(Backend):
    """Functions over shared tables, for subclasses.

    The state has ``changed`` (for each table the records that the episode has changed) and what a subclass adds to it.

    Args:
        tables: shared by all backends and never changed.
    """

    def __init__(self, tables: Tables):
        super().__init__({"changed": {name: {} for name in tables}})
        self.tables = tables

    def record(self, table: str, key: str) -> Record:
        """A record to read.

        Raises:
            ToolError: there is none.
        """
        changed = self.state["changed"][table]
        if key not in changed and key not in self.tables[table]:
            raise ToolError(f"{table.removesuffix('s').capitalize()} not found")
        found: Record = changed[key] if key in changed else self.tables[table][key]
        return found

    def own(self, table: str, key: str) -> Record:
        """A record to change: the episode's own copy.

        Raises:
            ToolError: there is none.
        """
        changed = self.state["changed"][table]
        if key not in changed:
            changed[key] = copy.deepcopy(self.record(table, key))
        return changed[key]  # type: ignore[no-any-return]

    def records(self, table: str) -> Iterator[tuple[str, Record]]:
        """All records of a table, to read."""
        changed = self.state["changed"][table]
        for key, record in self.tables[table].items():
            yield key, changed.get(key, record)

    def data(self) -> dict[str, Any]:
        """The state, without records that are as they were."""
        changed = {
            name: {key: record for key, record in records.items() if record != self.tables[name].get(key)}
            for name, records in self.state["changed"].items()
        }
        return {**self.state, "changed": changed}

    def before(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """The records that some data names, as they were at the start."""
        return {
            name: {key: self.tables[name][key] for key in records if key in self.tables[name]}
            for name, records in data["changed"].items()
        }
