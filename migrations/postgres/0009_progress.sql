-- Jobs of many items: how far they have come, and which items were counted.

CREATE TABLE postrider.progress_job (
    no          bigint      GENERATED ALWAYS AS IDENTITY UNIQUE, -- what items refer to: shorter than the id
    job         text        PRIMARY KEY,
    group_id    text,
    announces   text        NOT NULL,                            -- the type of the event that tells of its completion
    status      text        NOT NULL DEFAULT 'INITIALIZING',
    total       bigint      NOT NULL DEFAULT 0,
    done        bigint      NOT NULL DEFAULT 0,                  -- handled, failed ones too
    errors      bigint      NOT NULL DEFAULT 0,
    version     bigint      NOT NULL DEFAULT 1,                  -- grows with every change
    unshown     boolean     NOT NULL DEFAULT true,               -- changed since it was last written to Redis
    kept_items  boolean     NOT NULL DEFAULT true,               -- its items are still in progress_item
    created_at  timestamptz NOT NULL DEFAULT now(),
    updated_at  timestamptz NOT NULL DEFAULT now(),
    finished_at timestamptz,

    CONSTRAINT job_has_1_to_128_bytes          CHECK (octet_length(job) BETWEEN 1 AND 128),
    CONSTRAINT progress_status_is_known        CHECK (status IN ('INITIALIZING', 'CRAWLING', 'PROCESSING_WAIT', 'PROCESSING', 'DONE')),
    CONSTRAINT total_is_not_negative           CHECK (total BETWEEN 0 AND 9007199254740991),
    CONSTRAINT errors_are_among_the_done       CHECK (errors BETWEEN 0 AND done),
    CONSTRAINT finished_jobs_have_all_done     CHECK (status <> 'DONE' OR (done = total AND finished_at IS NOT NULL))
) WITH (fillfactor = 50);
-- Marking changes no indexed column of a job that is unshown already, so the hot row of a busy job is updated in its page.
CREATE INDEX progress_job_unshown ON postrider.progress_job (job) WHERE unshown;
CREATE INDEX progress_job_created_at ON postrider.progress_job (created_at, job);
CREATE INDEX progress_job_kept_items ON postrider.progress_job (finished_at) WHERE kept_items AND finished_at IS NOT NULL;

-- Every item that was counted. No foreign key: its check would lock the job's row for every mark.
CREATE TABLE postrider.progress_item (
    job_no bigint  NOT NULL,
    item   text    NOT NULL CHECK (octet_length(item) BETWEEN 1 AND 512),
    failed boolean NOT NULL,
    PRIMARY KEY (job_no, item)
);

-- Every page of discovery whose items were added to the total.
CREATE TABLE postrider.progress_page (
    job_no bigint NOT NULL,
    page   text   NOT NULL CHECK (octet_length(page) BETWEEN 1 AND 512),
    PRIMARY KEY (job_no, page)
);
