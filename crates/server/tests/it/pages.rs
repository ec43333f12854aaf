//! Pages of long lists on PostgreSQL: what a page reads does not grow with the list. Counted in rows that the server read, not in time.

use std::collections::BTreeMap;

use super::grants::psql;
use super::networked::servers;
use super::process::Folder;
use super::push::until;

/// Rows in each list: so many that reading all of one cannot be overlooked.
const ROWS: u64 = 200_000;
/// What a search without an index looks at, before it says how far it came.
const SCANNED: u64 = 20_000;

/// Fills a list past the triggers: a row of each at its place in time, every hundredth of another kind.
fn fill(database: &str) {
    let rows = format!("generate_series(1, {ROWS}) AS n");
    let then = "now() - n * interval '1 second'";
    let statements = [
        "SET session_replication_role = replica".to_owned(),
        format!(
            "INSERT INTO postrider.audit_log (at, actor, action, subject, reason) SELECT {then}, 'cli:ada', \
             CASE WHEN n % 100 = 0 THEN 'push.add' ELSE 'consumer.pause' END, 'subject-' || n % 1000, 'x' FROM {rows}"
        ),
        format!(
            "INSERT INTO postrider.event_outbox (id, group_id, aggregate_type, aggregate_id, event_type, payload, status, \
             available_at, created_at, occurred_at, published_at) \
             SELECT 'evt_' || n, 'tenant-' || n % 50, 'shop.order', 'order-' || n, CASE WHEN n % 100 = 0 THEN 'paid' ELSE 'placed' END, \
             '{{}}', 'published', {then}, {then}, {then}, now() FROM {rows}"
        ),
        format!(
            "INSERT INTO postrider.dead_letter (key, event_id, event_type, group_id, consumer_name, queue, exchange, routing_key, \
             reason, error, error_class, fingerprint, attempts, first_failed_at, dead_at, properties, headers, body) \
             SELECT 'key-' || n, 'evt_' || n, 'shop.order.placed', 'tenant-' || n % 50, 'billing', 'billing', 'e', 'k', \
             'retries_exhausted', 'no account', NULL, 'group-' || n % 200, 3, {then}, {then}, '{{}}', '{{}}', '' FROM {rows}"
        ),
        format!(
            "INSERT INTO postrider.progress_job (job, group_id, announces, status, total, done, unshown, created_at, finished_at) \
             SELECT 'job-' || n, 'tenant-' || n % 50, 'shop.import.done', CASE WHEN n % 10000 = 0 THEN 'PROCESSING' ELSE 'DONE' END, \
             9, CASE WHEN n % 10000 = 0 THEN 1 ELSE 9 END, false, {then}, CASE WHEN n % 10000 = 0 THEN NULL ELSE now() END FROM {rows}"
        ),
        format!(
            "INSERT INTO postrider.operation (id, kind, state, plan, total, created_by, created_at, finished_at) \
             SELECT gen_random_uuid(), 'replay_letters', 'done', '{{}}', 0, 'cli:ada', {then}, now() FROM {rows}"
        ),
        "INSERT INTO postrider.event_outbox_id (id, created_at) SELECT id, created_at FROM postrider.event_outbox".to_owned(),
        "ANALYZE".to_owned(),
    ];
    let args: Vec<&str> = statements.iter().flat_map(|statement| ["-c", statement.as_str()]).collect();
    let (done, said) = psql(database, &args);
    assert!(done, "{said}");
}

/// What PostgreSQL has read of each list so far: rows in order, and rows by an index.
fn read_so_far(database: &str) -> BTreeMap<String, (u64, u64)> {
    let counted = "SELECT CASE WHEN relname LIKE 'event_outbox%' THEN 'event_outbox' ELSE relname END, sum(seq_tup_read), \
                   sum(coalesce(idx_tup_fetch, 0)) FROM pg_stat_all_tables \
                   WHERE schemaname = 'postrider' AND relname ~ '^(event_outbox|dead_letter$|audit_log$|progress_job$|operation$)' GROUP BY 1";
    let (done, said) = psql(database, &["-c", counted]);
    assert!(done, "{said}");
    let row = |line: &str| {
        let parts: Vec<&str> = line.split('|').collect();
        Some(((*parts.first()?).to_owned(), (parts.get(1)?.parse().ok()?, parts.get(2)?.parse().ok()?)))
    };
    said.lines().filter_map(row).collect()
}

/// What a page reads is read each time; what else goes on beside it is not. So the least of three readings counts, by list.
async fn least(folder: &Folder, database: &str, path: &str) -> BTreeMap<String, (u64, u64)> {
    let mut least = reading(folder, database, path).await;
    for _ in 0..2 {
        if least.values().all(|(rows, _)| *rows < 1000) {
            break;
        }
        for (list, (rows, fetched)) in reading(folder, database, path).await {
            let known = least.entry(list).or_insert((rows, fetched));
            *known = (known.0.min(rows), known.1.min(fetched));
        }
    }
    least
}

/// Asks for a page, and twice for the one after it, and says what that read in all.
async fn reading(folder: &Folder, database: &str, path: &str) -> BTreeMap<String, (u64, u64)> {
    let before = read_so_far(database);
    let mut serving = folder.serve(&["--roles", "api"]);
    serving.wait_for("serving");
    let (mut asked, sign) = (path.to_owned(), if path.contains('?') { '&' } else { '?' });
    for _ in 0..3 {
        let (status, _, body) = serving.http("GET", &asked, &[], "");
        assert_eq!(status, 200, "{asked}: {body}");
        let page: serde_json::Value = serde_json::from_str(&body).unwrap();
        let Some(next) = page["next"].as_str() else { break };
        asked = format!("{path}{sign}cursor={next}");
    }
    // What a connection read is told when it ends.
    drop(serving);
    let alone = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()";
    until(|| psql(database, &["-c", alone]).1.trim() == "0").await;
    let after = read_so_far(database);
    let grown = |(name, (rows, fetched)): (String, (u64, u64))| {
        let (rows_before, fetched_before) = before.get(&name).copied().unwrap_or_default();
        (name, (rows - rows_before, fetched - fetched_before))
    };
    after.into_iter().map(grown).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_of_a_long_list_reads_no_more_than_a_page_of_a_short_one() {
    let (folder, database, _vhost) = servers().await;
    folder.run(&["db", "migrate", "--quiet"]).assert(0, "");
    fill(&database.url);
    // By an index: some hundred rows for some pages, of whatever is there.
    let indexed = [
        "/v1/events",
        "/v1/events?status=dead",
        "/v1/events?aggregate_type=shop.order&aggregate_id=order-107",
        "/v1/events/evt_100000",
        "/v1/dlq/messages",
        "/v1/dlq/messages?queue=billing",
        "/v1/dlq/messages?fingerprint=group-7",
        "/v1/dlq/messages?event_id=evt_5",
        "/v1/dlq/groups",
        "/v1/audit-log",
        "/v1/audit-log?subject=subject-7",
        "/v1/operations",
        "/v1/progress",
        "/v1/progress?tenant=tenant-7",
        "/v1/progress?tenant=nobody",
        "/v1/progress?status=PROCESSING",
        "/v1/progress?status=CRAWLING",
        "/v1/progress?status=PROCESSING&tenant=tenant-7",
        "/v1/progress?status=DONE&tenant=nobody",
    ];
    for path in indexed {
        for (list, (rows, fetched)) in least(&folder, &database.url, path).await {
            assert!(rows < 1000, "{path}: {rows} rows of {list} were read in order");
            assert!(fetched < 5000, "{path}: {fetched} rows of {list} were read by an index");
        }
    }
    // Without one: to where a search stops and says so, and not to the end.
    let searched = [
        ("/v1/events?type=shop.order.lost", "event_outbox"),
        ("/v1/events?tenant=nobody", "event_outbox"),
        ("/v1/events?key=nobody", "event_outbox"),
        ("/v1/dlq/messages?tenant=nobody", "dead_letter"),
        ("/v1/dlq/messages?text=nowhere", "dead_letter"),
        ("/v1/audit-log?action=never.done", "audit_log"),
        ("/v1/audit-log?actor=nobody", "audit_log"),
    ];
    for (path, list) in searched {
        let (rows, fetched) = least(&folder, &database.url, path).await[list];
        assert!(rows < 1000, "{path}: {rows} rows were read in order");
        // Three pages, and the row at which each search ends is counted on the way there.
        assert!(fetched <= 7 * SCANNED, "{path}: {fetched} rows were read");
        assert!(fetched < ROWS, "{path}: {fetched} rows were read");
    }
}

/// The overview reads some groups and counts all of them.
#[test]
fn the_overview_counts_more_reasons_than_it_reads() {
    let folder = Folder::new();
    let letter = |n: u32| {
        let at = "2026-11-15T10:00:00Z";
        serde_json::json!({
            "key": format!("key-{n}"), "event_id": format!("evt_{n}"), "event_type": "shop.order.placed", "tenant": null,
            "aggregate_id": null, "ordering_key": null, "consumer": "billing", "queue": "billing", "exchange": "e",
            "routing_key": "k", "reason": "rejected", "error": "no", "error_class": format!("class-{n}"), "attempts": 1,
            "first_failed_at": at, "dead_at": at, "properties": {}, "headers": {}, "body": "e30=",
        })
        .to_string()
    };
    let letters: Vec<String> = (0..230).map(letter).collect();
    folder.run_with(&["dlq", "import", "-"], &letters.join("\n")).assert(0, "230 dead letters");
    let mut serving = folder.serve(&[]);
    serving.wait_for("serving");
    let (_, _, page) = serving.http("GET", "/dashboard", &[], "");
    assert!(page.contains("230 events need somebody") && page.contains("for 230 reasons"), "{page}");
}
