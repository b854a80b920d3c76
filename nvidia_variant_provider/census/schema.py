"""The tables of a store, and how older stores become newer ones."""

from __future__ import annotations

__all__ = ["APPLICATION", "MIGRATIONS", "VERSION"]

APPLICATION = 0x4E565043
"""``PRAGMA application_id`` of a store, by which another SQLite file is told."""

_FIRST = """
CREATE TABLE wheels (
    id INTEGER PRIMARY KEY,
    key TEXT NOT NULL UNIQUE,
    sha256 TEXT,
    project TEXT NOT NULL,
    version TEXT NOT NULL,
    label TEXT,
    filename TEXT NOT NULL,
    tags TEXT NOT NULL,
    url TEXT NOT NULL,
    size INTEGER,
    upload_time TEXT,
    status TEXT NOT NULL CHECK (status IN ('inspected', 'skipped', 'failed')),
    reason TEXT,
    may_pass INTEGER NOT NULL,
    complete INTEGER NOT NULL,
    cuda TEXT,
    requires TEXT NOT NULL,
    members INTEGER NOT NULL,
    defects TEXT NOT NULL,
    bytes_read INTEGER NOT NULL,
    seconds REAL NOT NULL,
    inspected_at TEXT NOT NULL,
    inspected_by TEXT NOT NULL
);
CREATE INDEX wheels_by_project ON wheels (project, version);
CREATE TABLE libraries (
    wheel INTEGER NOT NULL REFERENCES wheels (id) ON DELETE CASCADE,
    path TEXT NOT NULL,
    format TEXT NOT NULL,
    machine TEXT NOT NULL,
    size INTEGER NOT NULL,
    vendored INTEGER NOT NULL,
    needed TEXT NOT NULL,
    defects TEXT NOT NULL,
    PRIMARY KEY (wheel, path)
) WITHOUT ROWID;
CREATE TABLE targets (
    wheel INTEGER NOT NULL REFERENCES wheels (id) ON DELETE CASCADE,
    path TEXT NOT NULL,
    target TEXT NOT NULL,
    count INTEGER NOT NULL,
    stubs INTEGER NOT NULL,
    ptx_isa TEXT,
    PRIMARY KEY (wheel, path, target)
) WITHOUT ROWID;
CREATE INDEX targets_by_target ON targets (target);
CREATE TABLE claims (
    wheel INTEGER NOT NULL REFERENCES wheels (id) ON DELETE CASCADE,
    bound TEXT NOT NULL CHECK (bound IN ('strict', 'relaxed')),
    cuda_version_lower_bound TEXT,
    reason TEXT NOT NULL,
    sm_arch TEXT NOT NULL,
    PRIMARY KEY (wheel, bound)
) WITHOUT ROWID;
"""

MIGRATIONS = (_FIRST,)
"""What makes version N of the tables from version N-1; 0 is an empty file. Never change
an entry: people have stores that were made with it."""

VERSION = len(MIGRATIONS)
"""``PRAGMA user_version`` of a store that is up to date."""
