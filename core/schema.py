"""The tables of the run store, and how those of an older Mirrorboard become today's."""

from __future__ import annotations

import sqlite3

_MIGRATIONS = [
    # Never edit one that has been released: append the next.
    """
    CREATE TABLE jobs (
        number INTEGER PRIMARY KEY AUTOINCREMENT,
        id TEXT NOT NULL UNIQUE,
        kind TEXT NOT NULL,
        status TEXT NOT NULL,
        config TEXT NOT NULL,
        result TEXT,
        error TEXT,
        phase TEXT NOT NULL DEFAULT '',
        progress TEXT NOT NULL DEFAULT '{}',
        created_at REAL NOT NULL,
        started_at REAL,
        finished_at REAL,
        heartbeat_at REAL,
        engine_id TEXT,
        stop_requested_at REAL
    );
    CREATE INDEX jobs_by_status ON jobs (status, kind, number);
    CREATE TABLE metrics (
        id INTEGER PRIMARY KEY,
        job INTEGER NOT NULL REFERENCES jobs (number) ON DELETE CASCADE,
        per TEXT NOT NULL CHECK (per IN ('step', 'epoch')),
        step INTEGER NOT NULL,
        epoch INTEGER NOT NULL,
        split TEXT NOT NULL CHECK (split IN ('train', 'validation')),
        name TEXT NOT NULL,
        value REAL CHECK (typeof(value) IN ('real', 'null')),
        at REAL NOT NULL
    );
    CREATE INDEX metrics_by_job ON metrics (job, per, id);
    CREATE TABLE logs (
        id INTEGER PRIMARY KEY,
        job INTEGER NOT NULL REFERENCES jobs (number) ON DELETE CASCADE,
        at REAL NOT NULL,
        level TEXT NOT NULL,
        source TEXT NOT NULL,
        text TEXT NOT NULL
    );
    CREATE INDEX logs_by_job ON logs (job, id);
    CREATE TABLE engines (
        id TEXT PRIMARY KEY,
        role TEXT NOT NULL,
        pid INTEGER NOT NULL,
        pid_started_at REAL NOT NULL,
        owner_pid INTEGER NOT NULL,
        started_at REAL NOT NULL,
        ready_at REAL,
        job TEXT
    );
    """,
    """
    ALTER TABLE jobs ADD COLUMN name TEXT NOT NULL DEFAULT '';
    ALTER TABLE jobs ADD COLUMN place INTEGER;
    UPDATE jobs SET place = (
        SELECT count(*) FROM jobs AS earlier WHERE earlier.kind = 'train' AND earlier.number <= jobs.number
    ) WHERE kind = 'train';
    """,
    """
    CREATE TABLE samples (
        id INTEGER PRIMARY KEY,
        job INTEGER NOT NULL REFERENCES jobs (number) ON DELETE CASCADE,
        at REAL NOT NULL,
        step INTEGER NOT NULL,
        name TEXT NOT NULL,
        value REAL CHECK (typeof(value) IN ('real', 'null'))
    );
    CREATE INDEX samples_by_job ON samples (job, id)
    """,
    """
    ALTER TABLE jobs ADD COLUMN tags TEXT NOT NULL DEFAULT '[]'
    """,
    """
    CREATE TABLE confidence_bins (
        job INTEGER NOT NULL REFERENCES jobs (number) ON DELETE CASCADE,
        epoch INTEGER NOT NULL,
        place INTEGER NOT NULL,
        count INTEGER NOT NULL,
        confidence_sum REAL NOT NULL,
        correct INTEGER NOT NULL,
        PRIMARY KEY (job, epoch, place)
    ) WITHOUT ROWID
    """,
    """
    ALTER TABLE jobs ADD COLUMN checkpoint TEXT;
    ALTER TABLE jobs ADD COLUMN rewinds INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE jobs ADD COLUMN trained_s REAL NOT NULL DEFAULT 0;
    ALTER TABLE jobs ADD COLUMN queued_at REAL NOT NULL DEFAULT 0;
    UPDATE jobs SET queued_at = created_at
    """,
    """
    ALTER TABLE jobs ADD COLUMN study TEXT;
    ALTER TABLE jobs ADD COLUMN scaling TEXT CHECK ((scaling IS NULL) = (study IS NULL));
    CREATE INDEX jobs_by_study ON jobs (study) WHERE study IS NOT NULL
    """,
    """
    ALTER TABLE jobs ADD COLUMN elapsed_s REAL;
    ALTER TABLE engines ADD COLUMN boot_id TEXT NOT NULL DEFAULT ''
    """,
    """
    ALTER TABLE jobs ADD COLUMN owner TEXT NOT NULL DEFAULT '';
    ALTER TABLE jobs ADD COLUMN limit_s REAL
    """,
    """
    ALTER TABLE jobs ADD COLUMN layout_changed INTEGER NOT NULL DEFAULT 0
    """,
]


def newest_schema() -> int:
    """The schema version that this code works with."""
    return len(_MIGRATIONS)


def migrate(connection: sqlite3.Connection, to: int) -> None:
    """Brings a database from the schema it has to a newer one, inside the caller's transaction."""
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    for number, script in enumerate(_MIGRATIONS[version:to], start=version + 1):
        # Not executescript: it would commit the transaction first.
        for statement in script.split(";"):
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {number}")
