//! A dry run of rules: what an event would become, through the whole pipeline, on a tenant's books as they are. Nothing is written.

use std::collections::HashSet;

use jiff::Timestamp;
use postrider::Envelope;
use postrider::envelope::TenantId;
use postrider_ledger::books::Head;
use postrider_ledger::chain::Hash;
use postrider_ledger::chart::Chart;
use postrider_ledger::journal_event;
use postrider_ledger::pipeline::{self, Answer, Arrival, Standing};
use serde_json::{Value, json};

/// The entry that it would be, or the refusal. `line` is the event's place in what was given.
pub(crate) fn tried(
    tenant: &TenantId,
    chart: &Chart,
    envelope: Envelope,
    line: usize,
    now: Timestamp,
) -> Option<Value> {
    let (opened, head) = (HashSet::new(), Head { number: 0, hash: Hash::ZERO, version: 0 });
    let standing = Standing { chart, head, opened: &opened, known: &[], referred: &[] };
    let outcome = pipeline::run(tenant, &[Arrival::event(envelope)], &standing, now);
    match (outcome.answers.first(), outcome.page.entries.first()) {
        (Some(Answer::Refused(refusal)), _) => Some(refused(line, refusal.code(), &refusal.to_string())),
        (_, Some(entry)) => {
            let shown = journal_event::payload(entry, chart.book.base_currency);
            Some(json!({"line": line, "rule": shown["rule"], "effectiveOn": shown["effectiveOn"],
                "description": shown["description"], "lines": shown["lines"]}))
        }
        _ => None,
    }
}

/// One that would not be posted.
pub(crate) fn refused(line: usize, code: &str, why: &str) -> Value {
    json!({"line": line, "refused": code, "why": why})
}
