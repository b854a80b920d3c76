-- Each section migrates the tables from version N-1 to N; 0 is an empty file. Never
-- change a section: existing stores were made with it.

-- Version 1
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

-- Version 2
-- `copy` distinguishes members of an archive that have the same name.
CREATE TABLE new_libraries (
    wheel INTEGER NOT NULL REFERENCES wheels (id) ON DELETE CASCADE,
    path TEXT NOT NULL,
    copy INTEGER NOT NULL,
    format TEXT NOT NULL,
    machine TEXT NOT NULL,
    size INTEGER NOT NULL,
    vendored INTEGER NOT NULL,
    needed TEXT NOT NULL,
    lto TEXT NOT NULL,
    unknown TEXT NOT NULL,
    compression TEXT NOT NULL,
    sections TEXT NOT NULL,
    unchecked INTEGER NOT NULL,
    defects TEXT NOT NULL,
    PRIMARY KEY (wheel, path, copy)
) WITHOUT ROWID;
INSERT INTO new_libraries
SELECT wheel, path, 0, format, machine, size, vendored, needed, '{}', '{}', '{}', '{}',
       0, defects
FROM libraries;
DROP TABLE libraries;
ALTER TABLE new_libraries RENAME TO libraries;
CREATE TABLE new_targets (
    wheel INTEGER NOT NULL REFERENCES wheels (id) ON DELETE CASCADE,
    path TEXT NOT NULL,
    copy INTEGER NOT NULL,
    target TEXT NOT NULL,
    count INTEGER NOT NULL,
    stubs INTEGER NOT NULL,
    ptx_isa TEXT,
    PRIMARY KEY (wheel, path, copy, target)
) WITHOUT ROWID;
INSERT INTO new_targets
SELECT wheel, path, 0, target, count, stubs, ptx_isa FROM targets;
DROP TABLE targets;
ALTER TABLE new_targets RENAME TO targets;
CREATE INDEX targets_by_target ON targets (target);
CREATE INDEX wheels_by_url ON wheels (url);
CREATE TABLE declared (
    wheel INTEGER PRIMARY KEY REFERENCES wheels (id) ON DELETE CASCADE,
    every_file INTEGER NOT NULL,
    sha256 TEXT,
    unhashed TEXT,
    message TEXT,
    hint TEXT,
    folder TEXT,
    name TEXT,
    version TEXT,
    requires TEXT NOT NULL,
    tags TEXT,
    variant_json BLOB
);

-- Version 3
-- `declared` had the metadata of wheels, for an option that was removed.
DROP TABLE declared;
DROP INDEX wheels_by_url;

-- Version 4
-- The column `sections` was removed, because it was not used.
CREATE TABLE new_libraries (
    wheel INTEGER NOT NULL REFERENCES wheels (id) ON DELETE CASCADE,
    path TEXT NOT NULL,
    copy INTEGER NOT NULL,
    format TEXT NOT NULL,
    machine TEXT NOT NULL,
    size INTEGER NOT NULL,
    vendored INTEGER NOT NULL,
    needed TEXT NOT NULL,
    lto TEXT NOT NULL,
    unknown TEXT NOT NULL,
    compression TEXT NOT NULL,
    unchecked INTEGER NOT NULL,
    defects TEXT NOT NULL,
    PRIMARY KEY (wheel, path, copy)
) WITHOUT ROWID;
INSERT INTO new_libraries
SELECT wheel, path, copy, format, machine, size, vendored, needed, lto, unknown,
       compression, unchecked, defects
FROM libraries;
DROP TABLE libraries;
ALTER TABLE new_libraries RENAME TO libraries;

-- Version 5
-- The hash identifies a row only if all bytes of the wheel were hashed, which is unknown
-- for older rows. The URL identifies all other rows, with the hash that the page lists.
ALTER TABLE wheels ADD COLUMN hashed INTEGER NOT NULL DEFAULT 0;
UPDATE wheels SET key = url || '#' || filename || '#sha256=' || sha256
WHERE sha256 IS NOT NULL;

-- Version 6
-- A file name belongs to each key. Failures that a page or a status of the server caused
-- are not final, so wheels whose bytes may be fine are read again.
UPDATE OR REPLACE wheels SET key = url || '#' || filename WHERE key = url;
UPDATE wheels SET may_pass = 1 WHERE status = 'failed' AND NOT hashed;

-- Version 7
-- Damage in bytes that were not hashed may have been on the way.
UPDATE wheels SET may_pass = 1
WHERE NOT hashed AND NOT complete AND (sha256 IS NOT NULL OR url LIKE 'http%');
