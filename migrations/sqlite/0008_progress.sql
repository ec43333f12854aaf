-- Jobs of many items: how far they have come, and which items were counted.
CREATE TABLE progress_job (
    "no"        INTEGER PRIMARY KEY AUTOINCREMENT,
    job         TEXT NOT NULL UNIQUE,
    group_id    TEXT,
    -- The type of the event that tells of its completion.
    announces   TEXT NOT NULL,
    status      TEXT NOT NULL DEFAULT 'INITIALIZING'
                CHECK (status IN ('INITIALIZING', 'CRAWLING', 'PROCESSING_WAIT', 'PROCESSING', 'DONE')),
    total       INTEGER NOT NULL DEFAULT 0 CHECK (total BETWEEN 0 AND 9007199254740991),
    -- Handled, failed ones too.
    done        INTEGER NOT NULL DEFAULT 0,
    errors      INTEGER NOT NULL DEFAULT 0 CHECK (errors BETWEEN 0 AND done),
    -- Grows with every change.
    version     INTEGER NOT NULL DEFAULT 1,
    -- Changed since it was last written to Redis.
    unshown     INTEGER NOT NULL DEFAULT 1,
    -- Its items are still in progress_item.
    kept_items  INTEGER NOT NULL DEFAULT 1,
    created_at  INTEGER NOT NULL,
    updated_at  INTEGER NOT NULL,
    finished_at INTEGER,
    CONSTRAINT finished_jobs_have_all_done CHECK (status <> 'DONE' OR (done = total AND finished_at IS NOT NULL))
);
CREATE INDEX progress_job_unshown ON progress_job (job) WHERE unshown;
CREATE INDEX progress_job_created ON progress_job (created_at, job);
CREATE INDEX progress_job_kept_items ON progress_job (finished_at) WHERE kept_items AND finished_at IS NOT NULL;

-- Every item that was counted.
CREATE TABLE progress_item (
    job_no INTEGER NOT NULL,
    item   TEXT NOT NULL,
    failed INTEGER NOT NULL,
    PRIMARY KEY (job_no, item)
) WITHOUT ROWID;

-- Every page of discovery whose items were added to the total.
CREATE TABLE progress_page (
    job_no INTEGER NOT NULL,
    page   TEXT NOT NULL,
    PRIMARY KEY (job_no, page)
) WITHOUT ROWID;
