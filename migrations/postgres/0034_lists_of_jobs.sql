-- Jobs of one tenant, and those that are not done: a page of them reads as many rows as it shows. Among a million that are done
-- it read them all. The status of a job changes a few times in its life, so marks still change no indexed column.
CREATE INDEX progress_job_tenant ON postrider.progress_job (group_id, created_at, job) WHERE group_id IS NOT NULL;
CREATE INDEX progress_job_unfinished ON postrider.progress_job (created_at, job) WHERE status <> 'DONE';

-- A page of operations is in this order. By the time alone, all that were made in one moment were sorted for every page.
CREATE INDEX operation_newest ON postrider.operation (created_at, id);
DROP INDEX postrider.operation_created_at;
