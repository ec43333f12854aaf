//! What is said of Redis: whether it answers, and what its limit of memory means here.

use postrider::progress::view::View as _;

use super::Report;
use crate::commands::Context;
use crate::wiring::{self, RedisFacts};

/// From here on Redis is at its limit: it evicts or refuses before it is above, or, where the limit was set below what it had, after.
const FULL: f64 = 0.99;

/// Redis may be lost at any moment, so nothing about it is a failure.
pub(super) async fn examine(context: &Context, report: &mut Report) {
    let Some(server) = &context.config.redis else { return };
    match wiring::redis_facts(&context.config, server).await {
        Ok(facts) if facts.refuses_writes => {
            let told = format!(
                "Redis {} at {} is a replica that refuses writes: it is left alone, and everything works without it, slower; name its \
                 primary, or promote it",
                facts.version, server.shown
            );
            report.warn("redis", told);
        }
        Ok(facts) => {
            report.ok("redis", format!("Redis {} at {} answers", facts.version, server.shown));
            let (harmless, told) = settings(&facts);
            if harmless {
                report.ok("redis settings", told);
            } else {
                report.warn("redis settings", told);
            }
            examine_state(context, report).await;
        }
        Err(error) => {
            report.warn("redis", format!("{} {error}; everything works without it, slower", server.shown));
        }
    }
}

/// The database of Redis in which jobs are shown, which may be another than that of the keys.
async fn examine_state(context: &Context, report: &mut Report) {
    let Ok(Some(view)) = wiring::job_view(&context.config) else { return };
    let number = context.config.settings.redis.state_db;
    match view.remembers().await {
        Ok(_) => report.ok("redis state", format!("jobs are shown in database {number}")),
        Err(error) => {
            report.warn("redis state", format!("jobs are not shown in database {number}: {error}"));
        }
    }
}

/// What maxmemory and its policy mean for the keys that are kept there, and whether that is fine.
fn settings(facts: &RedisFacts) -> (bool, String) {
    let RedisFacts { maxmemory, maxmemory_policy: policy, .. } = facts;
    let full = facts.memory_used().map_or(String::new(), |used| format!(", {:.0} % used", used * 100.0));
    let is_full = facts.memory_used().is_some_and(|used| used >= FULL);
    let megabytes = maxmemory >> 20;
    match policy.as_str() {
        _ if *maxmemory == 0 => (
            false,
            "maxmemory is not set: idempotency keys grow until they end, or the machine's memory does; set it".to_owned(),
        ),
        "" => (!is_full, format!("maxmemory is {megabytes} MB{full}; the policy is not told")),
        "noeviction" if is_full => (
            false,
            format!(
                "maxmemory is {megabytes} MB{full}, noeviction: it is full, so new keys are refused. Nothing is lost or repeated by \
                 that: every event asks the database, which is slower, and jobs' progress is not shown. Give it more memory, or \
                 set maxmemory-policy to volatile-ttl, by which the keys that end soonest make room"
            ),
        ),
        "noeviction" => (
            true,
            format!(
                "maxmemory is {megabytes} MB{full}, noeviction: when it is full new keys are refused, and their duplicates ask the \
                 database; jobs' progress is not shown then either"
            ),
        ),
        "volatile-ttl" | "volatile-lru" | "volatile-lfu" | "volatile-random" if is_full => (
            false,
            format!(
                "maxmemory is {megabytes} MB{full}, {policy}: it is full, so idempotency keys and shown jobs vanish before their time. \
                 No effect is lost or repeated by that; duplicates of what vanished ask the database. Give it more memory, or \
                 let keys end sooner (redis.idempotency_ttl_hours). Where other keys never end, writes may be refused, too"
            ),
        ),
        "volatile-ttl" | "volatile-lru" | "volatile-lfu" | "volatile-random" => (
            true,
            format!(
                "maxmemory is {megabytes} MB{full}, {policy}: when it is full idempotency keys and shown jobs vanish before their \
                 time. No effect is lost or repeated by that; duplicates of what vanished ask the database. The policy is for \
                 the whole server, not for one of its databases"
            ),
        ),
        _ => (
            false,
            format!(
                "maxmemory is {megabytes} MB{full}, {policy}: when it is full any key may vanish, those of other applications \
                 too. No effect of ours is lost or repeated by that; volatile-ttl spares keys that never end"
            ),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_redis_does_when_it_is_full_is_said() {
        let facts = |maxmemory: u64, policy: &str| RedisFacts {
            version: "7.0.15".to_owned(),
            maxmemory_policy: policy.to_owned(),
            maxmemory,
            used_memory: 1 << 30,
            cluster: false,
            refuses_writes: false,
        };
        for (maxmemory, policy, fine, told) in [
            (0, "noeviction", false, "set it"),
            (2 << 30, "volatile-ttl", true, "2048 MB, 50 % used, volatile-ttl"),
            (2 << 30, "noeviction", true, "when it is full new keys are refused"),
            (1 << 30, "noeviction", false, "it is full, so new keys are refused"),
            ((1 << 30) * 100 / 127, "noeviction", false, "127 % used"),
            (1 << 30, "volatile-ttl", false, "100 % used, volatile-ttl: it is full"),
            (2 << 30, "allkeys-lru", false, "other applications"),
        ] {
            let (harmless, text) = settings(&facts(maxmemory, policy));
            assert_eq!(harmless, fine, "{text}");
            assert!(text.contains(told), "{text}");
        }
    }
}
