-- Jobs of one tenant, and those that are not done: a page of them reads as many rows as it shows.
CREATE INDEX progress_job_tenant ON progress_job (group_id, created_at, job) WHERE group_id IS NOT NULL;
CREATE INDEX progress_job_unfinished ON progress_job (created_at, job) WHERE status <> 'DONE';

-- A page of operations is in this order.
CREATE INDEX operation_newest ON operation (created_at, id);
DROP INDEX operation_created;
