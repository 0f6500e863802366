"""The limits of a query of an untrusted author: what it may do, and how much."""

from __future__ import annotations

import sqlite3

from rollenv.envs.tools.sql.functions import MOST_LENGTH

#: A query may take so many steps of SQLite's virtual machine; a million take 0.02 to 0.2 seconds.
STEPS = 10_000_000
#: The most rows of a result, and the most characters in all of them together.
MOST_ROWS, MOST_CHARACTERS = 20_000, 2_000_000
#: The most pages of 4,096 bytes of a database.
_MOST_PAGES = 4096
#: The most bytes that SQLite may use, in all databases of this process together: a query cannot use up the machine's.
_HEAP = 1 << 30
#: The progress handler is called after so many steps.
EVERY = 1000

LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: MOST_LENGTH,
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: 100_000,
    sqlite3.SQLITE_LIMIT_COLUMN: 500,
    sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 200,
    sqlite3.SQLITE_LIMIT_COMPOUND_SELECT: 100,
    sqlite3.SQLITE_LIMIT_FUNCTION_ARG: 100,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
    sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 1000,
    sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER: 1000,
    sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH: 10,
    sqlite3.SQLITE_LIMIT_WORKER_THREADS: 0,
}
PREPARED = ("temp_store=2", f"max_page_count={_MOST_PAGES}", "trusted_schema=0", f"hard_heap_limit={_HEAP}")
READS = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_RECURSIVE}
WRITES = {
    *(sqlite3.SQLITE_INSERT, sqlite3.SQLITE_UPDATE, sqlite3.SQLITE_DELETE, sqlite3.SQLITE_ALTER_TABLE),
    *(sqlite3.SQLITE_CREATE_TABLE, sqlite3.SQLITE_CREATE_INDEX, sqlite3.SQLITE_CREATE_VIEW),
    *(sqlite3.SQLITE_DROP_TABLE, sqlite3.SQLITE_DROP_INDEX, sqlite3.SQLITE_DROP_VIEW),
    *(sqlite3.SQLITE_CREATE_TRIGGER, sqlite3.SQLITE_DROP_TRIGGER, sqlite3.SQLITE_REINDEX),
}
PRAGMAS = {"page_count", "table_info", "table_xinfo", "table_list", "index_list", "index_info", "foreign_key_list"}
#: What looks at the connection or its memory instead of the tables, or at chance.
NO_FUNCTIONS = {
    *("load_extension", "random", "randomblob", "last_insert_rowid", "changes", "total_changes"),
    *("fts3_tokenizer", "sqlite_offset", "sqlite_source_id", "sqlite_compileoption_get", "sqlite_compileoption_used"),
}
NO_TABLES = {"dbstat", "sqlite_stmt", "bytecode", "tables_used"}

#: What other actions are called.
FORBIDDEN = {
    sqlite3.SQLITE_ATTACH: "reaching other databases or files (ATTACH, VACUUM)",
    sqlite3.SQLITE_DETACH: "DETACH",
    sqlite3.SQLITE_TRANSACTION: "a transaction (every statement is final by itself)",
    sqlite3.SQLITE_SAVEPOINT: "a transaction (every statement is final by itself)",
    sqlite3.SQLITE_CREATE_VTABLE: "a virtual table",
    sqlite3.SQLITE_CREATE_TEMP_TABLE: "a temporary table",
}
