//! Judges a run: the client's log against the tables, the push receiver and the books.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;
use postrider::EventId;
use postrider::progress::{JobId, completion_id};
use sqlx::{Connection as _, Executor as _, PgConnection};

use super::load::{Kind, Log};
use super::stage::{Stage, TENANT};

/// What came of the events. Each list is of ids and whom they are about; all empty: the promises were kept.
#[derive(Debug, Clone, Default)]
pub struct Judgement {
    /// Committed, and neither applied nor dead nor waiting.
    pub lost: Vec<String>,
    /// Applied more than once.
    pub doubled: Vec<String>,
    /// Applied after a later one of the same key.
    pub out_of_order: Vec<String>,
    /// Applied, and nobody committed it.
    pub without_cause: Vec<String>,
    /// Dead, though nothing was wrong with them.
    pub dead_in_health: Vec<String>,
    /// What else does not hold.
    pub broken: Vec<String>,
    /// Effects that were compared.
    pub effects: u64,
    /// Dead letters.
    pub dead: u64,
    /// Calls that the push receiver had more than once, under one id.
    pub repeated_calls: u64,
    /// Entries in the books.
    pub entries: u64,
    /// Jobs that completed, once each.
    pub jobs: u64,
}

impl Judgement {
    /// Whether everything that was promised holds.
    pub fn is_clean(&self) -> bool {
        let lists = [&self.lost, &self.doubled, &self.out_of_order, &self.without_cause, &self.broken];
        lists.iter().all(|list| list.is_empty())
    }

    /// The first events of each kind of finding.
    pub(super) fn suspects(&self) -> BTreeSet<String> {
        let lists = [&self.lost, &self.doubled, &self.out_of_order, &self.without_cause, &self.broken];
        let id = |finding: &String| finding.split([' ', ':']).next().map(str::to_owned);
        lists.iter().flat_map(|list| list.iter().take(2).filter_map(id)).collect()
    }

    /// Everything that was wrong, for people; the first of each.
    pub fn findings(&self) -> Vec<String> {
        let lists = [
            ("lost", &self.lost),
            ("doubled", &self.doubled),
            ("out of order", &self.out_of_order),
            ("without cause", &self.without_cause),
            ("dead in health", &self.dead_in_health),
            ("broken", &self.broken),
        ];
        let shown = |(what, list): &(&str, &Vec<String>)| {
            list.iter().take(10).map(|one| format!("{what}: {one}")).collect::<Vec<_>>()
        };
        lists.iter().flat_map(shown).collect()
    }
}

/// One effect: who, which event, its key and number.
type Effect = (String, String, Option<String>, Option<i64>);

/// Compares the log with what is there.
pub(super) async fn judge(stage: &Stage, log: &Log) -> Result<Judgement> {
    let mut found = Judgement::default();
    let mut connection = PgConnection::connect(&stage.postgres.url()).await?;
    let read = "SELECT consumer, event_id, ordering_key, number FROM chaos_effect ORDER BY position";
    let effects: Vec<Effect> = sqlx::query_as(read).fetch_all(&mut connection).await?;
    found.effects = effects.len() as u64;
    let told = "SELECT concat_ws(E'\\t', position, at, process, consumer, event_id, ordering_key, attempt) FROM chaos_effect \
                ORDER BY position";
    tell(stage, &mut connection, "effects.tsv", told).await?;
    let told = "SELECT concat_ws(E'\\t', position, created_at, published_at, id, ordering_key, attempts) FROM postrider.event_outbox \
                ORDER BY position";
    tell(stage, &mut connection, "outbox.tsv", told).await?;
    // What no queue wanted is dead for everybody.
    let read = "SELECT CASE WHEN reason = 'unroutable' THEN '' ELSE queue END, event_id FROM postrider.dead_letter \
                WHERE event_id IS NOT NULL";
    let letters: Vec<(String, String)> = sqlx::query_as(read).fetch_all(&mut connection).await?;
    found.dead = letters.len() as u64;
    let read = "SELECT id::text, status FROM postrider.event_outbox";
    let outbox: BTreeMap<String, String> =
        sqlx::query_as(read).fetch_all(&mut connection).await?.into_iter().collect();
    let dead: BTreeSet<_> = letters.iter().map(|(queue, id)| (queue.as_str(), id.as_str())).collect();

    for id in log.committed.keys().filter(|id| !outbox.contains_key(id.as_str())) {
        found.lost.push(format!("{id}: its commit was answered, and it is not in the outbox"));
    }
    for (id, status) in &outbox {
        match status.as_str() {
            "published" => {}
            "dead" => found.dead_in_health.push(format!("{id} in the outbox")),
            other => found.broken.push(format!("{id} is still {other} in the outbox")),
        }
    }
    let is_dead = |queue: &str, id: &str| {
        let is_dead = dead.contains(&(queue, id)) || dead.contains(&("", id));
        is_dead || outbox.get(id).is_some_and(|status| status == "dead")
    };
    let wanted = |kinds: &[Kind]| {
        let of = log.committed.iter().filter(|(_, kind)| kinds.contains(kind));
        of.map(|(id, kind)| (id.to_string(), *kind)).collect::<BTreeMap<_, _>>()
    };
    let completions = log.jobs.iter().filter_map(|job| Some(completion_id(&JobId::new(job).ok()?)));
    let completions: BTreeMap<_, _> = completions.map(|id: EventId| (id.to_string(), Kind::Order)).collect();
    let orders = wanted(&[Kind::Order, Kind::Rejected]);
    for (consumer, wanted) in
        [("free", &orders), ("ordered", &orders), ("solo", &wanted(&[Kind::Solo])), ("jobs", &completions)]
    {
        let queue = format!("chaos.{consumer}");
        let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
        for (_, id, ..) in effects.iter().filter(|(who, ..)| who == consumer) {
            *counts.entry(id).or_default() += 1;
        }
        for (id, kind) in wanted {
            match counts.get(id.as_str()).copied().unwrap_or(0) {
                0 if is_dead(&queue, id) => {
                    // A queue without a binding makes dead letters of its events; that is what a deleted binding means.
                    if *kind == Kind::Order {
                        found.dead_in_health.push(format!("{id} for {consumer}"));
                    }
                }
                0 => found.lost.push(format!("{id} for {consumer}")),
                1 => {}
                times => found.doubled.push(format!("{id} for {consumer}, {times} times")),
            }
            if *kind == Kind::Rejected && counts.contains_key(id.as_str()) {
                found.without_cause.push(format!("{id} for {consumer}, which was rejected"));
            }
        }
        let unknown = counts.keys().filter(|id| !wanted.contains_key(**id));
        found.without_cause.extend(unknown.map(|id| format!("{id} for {consumer}")));
        if consumer == "jobs" {
            found.jobs = counts.len() as u64;
        }
    }
    found.out_of_order = out_of_order(&effects);
    hook(stage, &mut found, &wanted(&[Kind::Hook]), &is_dead);
    books(stage, &mut connection, &mut found, &wanted(&[Kind::Salary]), &is_dead).await?;
    Ok(found)
}

/// Keeps the lines of a query beside the logs.
async fn tell(stage: &Stage, connection: &mut PgConnection, file: &str, select: &'static str) -> Result<()> {
    let lines: Vec<String> = sqlx::query_scalar(select).fetch_all(connection).await?;
    std::fs::write(stage.folder.join(file), lines.join("\n"))?;
    Ok(())
}

fn out_of_order(effects: &[Effect]) -> Vec<String> {
    let mut last: BTreeMap<&str, i64> = BTreeMap::new();
    let mut wrong = Vec::new();
    for (consumer, id, key, number) in effects {
        if let ("ordered", Some(key), Some(number)) = (consumer.as_str(), key, number)
            && let Some(before) = last.insert(key, *number)
            && before > *number
        {
            wrong.push(format!("{id} of {key}, after number {before}"));
        }
    }
    wrong
}

/// Calls outside happen at least once, under a stable id.
fn hook(
    stage: &Stage,
    found: &mut Judgement,
    wanted: &BTreeMap<String, Kind>,
    is_dead: &dyn Fn(&str, &str) -> bool,
) {
    let mut calls: BTreeMap<String, u64> = BTreeMap::new();
    for request in stage.receiver.requests() {
        *calls.entry(request.header("webhook-id").to_owned()).or_default() += 1;
    }
    found.repeated_calls = calls.values().map(|times| times - 1).sum();
    let missing = wanted.keys().filter(|id| !calls.contains_key(*id) && !is_dead("chaos.hook", id));
    found.lost.extend(missing.map(|id| format!("{id} for the push receiver")));
    let unknown = calls.keys().filter(|id| !wanted.contains_key(*id));
    found.without_cause.extend(unknown.map(|id| format!("{id} for the push receiver")));
}

/// Each salary is an entry; debits equal credits and what the client knows; the chain verifies, and a flipped byte is found.
async fn books(
    stage: &Stage,
    connection: &mut PgConnection,
    found: &mut Judgement,
    wanted: &BTreeMap<String, Kind>,
    is_dead: &dyn Fn(&str, &str) -> bool,
) -> Result<()> {
    let read = "SELECT source_event FROM postrider.ledger_entry WHERE tenant = $1";
    let entries: BTreeSet<String> =
        sqlx::query_scalar(read).bind(TENANT).fetch_all(&mut *connection).await?.into_iter().collect();
    found.entries = entries.len() as u64;
    let missing = wanted.keys().filter(|id| !entries.contains(*id) && !is_dead("chaos.books", id));
    found.lost.extend(missing.map(|id| format!("{id} for the ledger")));
    let unknown = entries.iter().filter(|id| !wanted.contains_key(*id));
    found.without_cause.extend(unknown.map(|id| format!("{id} for the ledger")));
    let sums = "SELECT coalesce(sum(amount) FILTER (WHERE side = 1), 0)::bigint, \
                coalesce(sum(amount) FILTER (WHERE side = 2), 0)::bigint FROM postrider.ledger_line WHERE tenant = $1";
    let (debits, credits): (i64, i64) = sqlx::query_as(sums).bind(TENANT).fetch_one(&mut *connection).await?;
    let model = 1_000 * i64::try_from(entries.len())?;
    if (debits, credits) != (model, model) {
        found.broken.push(format!("debits {debits}, credits {credits}, and both should be {model}"));
    }
    let (verified, said) = stage.try_command(&["ledger", "verify"]).await?;
    if !verified.success() {
        found.broken.push(format!("the books do not verify: {said}"));
    }
    if entries.is_empty() {
        return Ok(());
    }
    // Past every wall, as somebody with the disk in his hands could.
    connection.execute("SET session_replication_role = replica").await?;
    let flip =
        "UPDATE postrider.ledger_line SET amount = amount + 1 WHERE tenant = $1 AND entry = 1 AND line = 1";
    sqlx::query(flip).bind(TENANT).execute(&mut *connection).await?;
    if stage.try_command(&["ledger", "verify"]).await?.0.success() {
        found.broken.push("a changed amount in the books was not found".to_owned());
    }
    let back =
        "UPDATE postrider.ledger_line SET amount = amount - 1 WHERE tenant = $1 AND entry = 1 AND line = 1";
    sqlx::query(back).bind(TENANT).execute(&mut *connection).await?;
    Ok(())
}
