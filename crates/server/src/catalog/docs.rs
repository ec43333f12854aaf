//! The catalogue as pages: which events there are and where they go, what each says; and the runbook of Redis, with the settings that
//! are in use. The pages in `docs/` are made by these, and a test keeps them so.

use std::fmt::Write as _;

use postrider::topology::{Layout, RoutingKey};
use serde_json::Value;

use super::{Catalog, Entry};
use crate::config::Settings;

const MADE: &str = "<!-- Made by `postrider generate`; edit the catalogue, not this page. -->\n\n";

/// `docs/event-routing-keys.md`
pub(crate) fn routing_keys(catalog: &Catalog, layout: &Layout) -> String {
    let mut page = format!("# Events and their routing keys\n{MADE}");
    let _ = writeln!(
        page,
        "Every event is published to the topic exchange `{}`, with its type as the routing key: `<domain>.<action>`.\n",
        layout.exchange
    );
    page.push_str("| routing key | what happened | published by | goes to |\n|---|---|---|---|\n");
    for (name, entry) in &catalog.entries {
        let queues = RoutingKey::new(name).map(|key| {
            let queues = layout.topology.route(&layout.exchange, &key);
            // What nobody wants goes where it can be found, which is nobody's queue.
            let wanted = queues.iter().filter(|queue| !queue.as_str().ends_with(".unroutable"));
            let names: Vec<_> = wanted.map(|queue| format!("`{queue}`")).collect();
            if names.is_empty() { "nobody yet".to_owned() } else { names.join(", ") }
        });
        let _ = writeln!(
            page,
            "| `{name}` | {} | {} | {} |",
            entry.description,
            entry.owner.as_deref().unwrap_or(""),
            queues.unwrap_or_default()
        );
    }
    page
}

/// `docs/event-schemas.md`
pub(crate) fn schemas(catalog: &Catalog) -> String {
    let mut page = format!("# What events say\n{MADE}");
    page.push_str(
        "Schemas only grow: fields are added, never removed or renamed, and `postrider schema check` refuses anything else. A change \
         that breaks readers gets a new `schema_version`, which the payload says from then on. Bodies of more than 256 KiB are \
         stored elsewhere, and the event has a reference.\n",
    );
    for (name, entry) in &catalog.entries {
        let _ = write!(page, "\n## {name}\n{}\n\n", entry.description);
        page.push_str("| field | type | always there | personal | what it is |\n|---|---|---|---|---|\n");
        fields("", &entry.schema, &mut page);
        example(entry, &mut page);
    }
    page
}

fn fields(at: &str, schema: &Value, page: &mut String) {
    let required: Vec<&str> = schema
        .get("required")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    for (name, field) in schema.get("properties").and_then(Value::as_object).into_iter().flatten() {
        let place = if at.is_empty() { name.clone() } else { format!("{at}.{name}") };
        let kind = match (field.get("enum").and_then(Value::as_array), field.get("type")) {
            (Some(values), _) => {
                values.iter().map(|value| format!("`{value}`")).collect::<Vec<_>>().join(" ").replace('"', "")
            }
            (None, Some(Value::String(kind))) => kind.clone(),
            (None, Some(other)) => other.to_string(),
            (None, None) => String::new(),
        };
        let always = if required.contains(&name.as_str()) { "yes" } else { "" };
        let personal = if field.get("x-pii") == Some(&Value::Bool(true)) { "yes" } else { "" };
        let what = field.get("description").and_then(Value::as_str).unwrap_or("");
        let _ = writeln!(page, "| `{place}` | {kind} | {always} | {personal} | {what} |");
        fields(&place, field, page);
    }
}

fn example(entry: &Entry, page: &mut String) {
    if let Some(example) = &entry.example {
        let text = serde_json::to_string_pretty(example).unwrap_or_default();
        let _ = write!(page, "\n```json\n{text}\n```\n");
    }
}

/// `docs/redis-runbook.md`
pub(crate) fn redis_runbook(settings: &Settings) -> String {
    let (redis, progress) = (&settings.redis, &settings.progress);
    let prefix = &progress.key_prefix;
    format!(
        "# Redis: a runbook\n{MADE}\
Redis helps and decides nothing: it may be lost entirely, at any moment. What is in it is rebuilt from the database.

## What is there
| keys | database | what | stays |
|---|---|---|---|
| `CONSUMER:ik:TENANT:EVENT` | that of `redis.url`; 0 with `REDIS_HOST` | notes on applied events, asked before the inbox | {hours} hours after the last change |
| `{prefix}{{ID}}` | {db} (`redis.state_db`, `REDIS_STATE_DB`) | a job: `status`, `total`, `done` (failed items too), `errors` | {days} days after the last change |
| `{{{prefix}}}:shown` | the same | `1` while Redis has not lost its data | for ever |

A Redis Cluster works for both: name one of its nodes, and set `REDIS_STATE_DB=0`, the only database it has. All keys of a job are in one
slot; while that slot moves to another node, marks may be told to try again. An eviction policy is for the whole server, not for a database.

## See how a job stands
```sh
redis-cli -n {db} HGETALL '{prefix}project-7'
postrider progress get project-7     # what the database says: this is what counts
```

## Alerts
| alert | what it means | what to do |
|---|---|---|
| `postrider_progress_alerts_total{{alert=\"unavailable\"}}` | Redis did not answer after 1, 2 and 4 s | restart it or let it come back; changes are kept and shown then |
| `postrider_progress_alerts_total{{alert=\"memory\"}}` | more than {percent} % of `maxmemory` is used | raise `maxmemory`, or lower `progress.ttl_days`; finished jobs stay in the database |

## When
- **Redis is down**: nothing. Events are published and handled; every duplicate costs a trip to the database. Progress is shown late.
- **Redis lost its data**: nothing. `serve` sees it within 5 s and writes the jobs again, whole, with their time to live (all that are not done, and
  those made within twice that time); `postrider progress` shows them all the while. A single key that expired or was evicted is written again when somebody reads the job here (`GET
  /v1/progress/ID`, `postrider progress get ID`) or it changes.
- **Redis is full**: with `maxmemory-policy volatile-ttl` it evicts keys that end soonest, which is fine. With `noeviction` writes
  fail, which counts as an outage of Redis and of nothing else.
- **Redis is down, and a service has no database** (`RedisProgress` of the library): Redis alone has these jobs, so keep it persistent
  (`appendonly yes`, `noeviction`). A call waits 1, 2 and 4 s and is then an error to try again; with `Keeping` around it the caller goes on,
  and up to 100,000 marks and steps are kept in the memory of the process (`postrider_progress_kept_updates`) and made in their order when
  Redis is back. A process that dies meanwhile loses what it kept: end it with `Keeping::settled`, or let the events come again.
- **A key has another type than hash**: somebody else uses the prefix. `postrider` refuses it with an error that names the key; choose
  another `progress.key_prefix`.
",
        hours = redis.idempotency_ttl_hours,
        days = progress.ttl_days,
        db = redis.state_db,
        percent = progress.memory_alert_percent,
    )
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use super::*;
    use crate::config::{Config, Environment, Flags};

    fn root() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
    }

    /// `POSTRIDER_TOPOLOGY__PRESET=smap postrider generate PAGE > docs/PAGE.md` makes a page anew.
    #[test]
    fn the_pages_are_what_the_catalogue_gives() {
        let environment = Environment::from([("POSTRIDER_TOPOLOGY__PRESET", "smap")]);
        let config = Config::load(&Flags::default(), &environment).unwrap();
        let catalog = Catalog::read(&root().join("catalog")).unwrap();
        for (page, made) in [
            ("event-routing-keys", routing_keys(&catalog, &config.own.layout)),
            ("event-schemas", schemas(&catalog)),
            ("redis-runbook", redis_runbook(&config.settings)),
        ] {
            let written = std::fs::read_to_string(root().join(format!("docs/{page}.md"))).unwrap();
            assert!(written == made, "docs/{page}.md is not what `postrider generate {page}` makes");
        }
    }

    #[test]
    fn the_catalogue_of_this_repository_may_be_released() {
        let catalog = Catalog::read(&root().join("catalog")).unwrap();
        assert_eq!(catalog.faults(), Vec::new());
        assert_eq!(catalog.entries, catalog.released, "run `postrider schema release`");
    }
}
