//! `postrider db grants`: roles with no more rights than each part of Postrider needs, as SQL for an administrator to read and run.
//!
//! Roles do not log in: they are granted to the users that do. A process that runs several parts gets several of them.

use std::fmt::Write as _;

use crate::exit::usage;

/// A part of Postrider, and what it does to which tables.
struct Part {
    name: &'static str,
    /// For people who read the SQL.
    does: &'static str,
    /// Rights on tables of the schema `postrider`.
    rights: &'static [(&'static str, &'static [&'static str])],
    /// Rights on every outbox, the default one and those of [[outbox.table]].
    outboxes: &'static str,
    /// Functions it may call.
    functions: &'static [&'static str],
    /// Sequences it takes numbers from, besides those of the outboxes.
    sequences: &'static [&'static str],
}

const PUBLISH: &str = "publish(text, jsonb, text, text, text, text, text, timestamptz, timestamptz, text, text, text, text, text, \
                       text, text, text)";

const MARK: &str = "inbox_mark(text, text[], text[], bytea[])";

const ALL: &str = "SELECT, INSERT, UPDATE, DELETE";

#[rustfmt::skip] // a table
const PARTS: [Part; 5] = [
    Part {
        name: "producer",
        does: "a service: commits events, by one function, and can do nothing else",
        rights: &[],
        outboxes: "",
        functions: &[PUBLISH],
        sequences: &[],
    },
    Part {
        name: "relay",
        does: "serve --roles relay: publishes what is committed, and marks it",
        rights: &[
            ("SELECT", &["schema_version", "outbox", "dead_letter"]),
            ("UPDATE (streamer, streamer_until, stream_slot)", &["outbox"]),
            ("SELECT, UPDATE", &["outbox_slot"]),
            (ALL, &["outbox_relay", "bus_migration_relay", "event_delivery"]),
            ("SELECT, INSERT, UPDATE", &["bus_migration"]),
            ("INSERT", &["audit_log"]),
            ("UPDATE (status, resolved_at, replay_error)", &["dead_letter"]),
        ],
        outboxes: "SELECT, UPDATE",
        functions: &[],
        sequences: &["bus_migration_version"],
    },
    Part {
        name: "consumer",
        does: "serve --roles collector,push,progress, and services that consume: inbox, dead letters, operations, jobs",
        rights: &[
            ("SELECT", &["schema_version", "outbox", "bus_migration", "event_outbox_id", "dead_letter_group", "dead_letter_hour", "push_subscription", "push_secret"]),
            (ALL, &["event_inbox", "inbox_memory", "duty", "claim", "consumer", "consumer_control", "consumer_crash", "held_event", "pull_word"]),
            (ALL, &["progress_job", "progress_item", "progress_page", "push_attempt", "operation", "operation_item", "schedule"]),
            ("SELECT, INSERT, UPDATE", &["dead_letter"]),
            ("SELECT, INSERT", &["audit_log", "pull_key"]),
        ],
        outboxes: "SELECT, INSERT",
        functions: &[PUBLISH, "new_id()", MARK],
        sequences: &["claim_token"],
    },
    Part {
        name: "ledger",
        does: "serve --roles ledger, and `postrider ledger`: entries are added and never changed",
        rights: &[
            ("SELECT", &["schema_version", "outbox", "bus_migration", "event_inbox"]),
            ("SELECT, INSERT, UPDATE", &["ledger_tenant", "ledger_book", "ledger_account", "ledger_rules", "ledger_rate", "ledger_period"]),
            ("SELECT, INSERT, UPDATE", &["ledger_balance", "ledger_day"]),
            ("SELECT, INSERT", &["ledger_entry", "ledger_line", "ledger_checkpoint", "audit_log"]),
            ("SELECT, INSERT, UPDATE", &["claim", "consumer"]),
            ("SELECT", &["consumer_control"]),
            // What it refuses and no broker can carry; to see whether it is there already is to read its key.
            ("INSERT, SELECT (key)", &["dead_letter"]),
        ],
        outboxes: "SELECT, INSERT",
        functions: &["new_id()"],
        sequences: &["claim_token"],
    },
    Part {
        name: "dashboard",
        does: "serve --roles api: reads everything, commits events, starts operations, unparks keys, pauses and resumes; pull and the \
               ledger's routes need consumer and ledger too",
        rights: &[
            ("SELECT", &["schema_version", "outbox", "outbox_slot", "outbox_relay", "event_outbox_id", "event_inbox", "inbox_memory", "duty"]),
            ("SELECT", &["consumer", "consumer_crash", "held_event", "dead_letter_group", "dead_letter_hour", "schedule", "push_attempt"]),
            // Unparking makes the slot's relay look at everything again.
            ("UPDATE (epoch)", &["outbox_slot"]),
            // A corrected event takes the place of the one that its key is parked behind.
            ("UPDATE (event_id)", &["held_event"]),
            ("SELECT", &["progress_job", "progress_item", "progress_page"]),
            ("SELECT", &["ledger_tenant", "ledger_book", "ledger_account", "ledger_rules", "ledger_rate", "ledger_period", "ledger_entry"]),
            ("SELECT", &["ledger_line", "ledger_balance", "ledger_day", "ledger_checkpoint"]),
            ("SELECT, INSERT", &["audit_log"]),
            ("SELECT, INSERT, UPDATE", &["api_token", "claim", "dead_letter"]),
            ("SELECT", &["bus_migration_relay", "event_delivery"]),
            ("SELECT, INSERT, UPDATE", &["bus_migration"]),
            (ALL, &["operation", "operation_item", "consumer_control", "push_subscription", "push_secret"]),
        ],
        outboxes: "SELECT, INSERT, UPDATE (status, attempts, available_at)",
        functions: &[PUBLISH, "new_id()"],
        sequences: &["claim_token", "bus_migration_version"],
    },
];

/// The SQL, for roles whose names begin with `prefix`.
pub(super) fn sql(prefix: &str) -> anyhow::Result<String> {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    let fits = !prefix.is_empty() && prefix.len() <= 40 && prefix.chars().all(plain);
    if !fits {
        return Err(usage("--prefix has lower-case letters, digits and _ only, 40 at most"));
    }
    let mut sql = HEAD.replace("{prefix}", prefix);
    role(
        &mut sql,
        prefix,
        "migrator",
        "db migrate and outbox archive: owns the schema, and the outboxes that were made elsewhere",
    );
    let _ = write!(sql, "{}", SCHEMA.replace("{prefix}", prefix));
    // The function that publishes runs with its rights, into every outbox.
    outboxes(&mut sql, &format!("{prefix}_migrator"), "SELECT, INSERT");
    for part in &PARTS {
        role(&mut sql, prefix, part.name, part.does);
        rights(&mut sql, prefix, part);
    }
    sql.push_str(TAIL);
    Ok(sql)
}

fn role(sql: &mut String, prefix: &str, name: &str, does: &str) {
    // Writing to a String cannot fail.
    let _ = write!(
        sql,
        "\n-- {prefix}_{name}: {does}.\nSELECT 'CREATE ROLE {prefix}_{name} NOLOGIN' WHERE to_regrole('{prefix}_{name}') IS NULL \\gexec\n",
    );
}

fn rights(sql: &mut String, prefix: &str, part: &Part) {
    let role = format!("{prefix}_{}", part.name);
    let _ = writeln!(sql, "GRANT USAGE ON SCHEMA postrider TO {role};");
    for (rights, tables) in part.rights {
        let tables: Vec<_> = tables.iter().map(|table| format!("postrider.{table}")).collect();
        let _ = writeln!(sql, "GRANT {rights} ON {} TO {role};", tables.join(", "));
    }
    for sequence in part.sequences {
        let _ = writeln!(sql, "GRANT USAGE ON SEQUENCE postrider.{sequence} TO {role};");
    }
    for function in part.functions {
        let _ = writeln!(sql, "GRANT EXECUTE ON FUNCTION postrider.{function} TO {role};");
    }
    if !part.outboxes.is_empty() {
        outboxes(sql, &role, part.outboxes);
    }
}

/// Rights on every outbox, wherever it is, and to read what lies beside it.
fn outboxes(sql: &mut String, role: &str, rights: &str) {
    // Who appends takes positions, who streams looks how far they are.
    let positions = if rights.contains("INSERT") { "USAGE" } else { "SELECT" };
    let _ = writeln!(
        sql,
        "SELECT DISTINCT format('GRANT USAGE ON SCHEMA %I TO {role}', schema_name) FROM postrider.outbox \\gexec\n\
             SELECT format('GRANT {rights} ON %I.%I TO {role}', schema_name, table_name) FROM postrider.outbox \\gexec\n\
             SELECT format('GRANT {positions} ON SEQUENCE %I.%I TO {role}', schema_name, table_name || '_position') \
             FROM postrider.outbox WHERE to_regclass(format('%I.%I', schema_name, table_name || '_position')) IS NOT NULL \\gexec\n\
             SELECT format('GRANT SELECT ON %I.%I TO {role}', schema_name, table_name || beside) \
             FROM postrider.outbox, unnest(ARRAY['_id', '_archive']) beside \
             WHERE to_regclass(format('%I.%I', schema_name, table_name || beside)) IS NOT NULL \\gexec"
    );
}

const HEAD: &str = "\
-- Roles for Postrider, with no more rights than each part needs. Read it, then run it with psql as an administrator of the database, after
-- `postrider db migrate`, again after each upgrade, and when an outbox or its archive table was made: psql -f grants.sql DATABASE. Running it again changes nothing that is right.
-- These roles do not log in. Give them to the users that do, each process what it runs:
--   CREATE ROLE billing_relay LOGIN PASSWORD '…' IN ROLE {prefix}_relay;
-- To stream the outbox (relay.mode), the relay's own user needs REPLICATION, and the publication has to be there:
--   ALTER ROLE billing_relay REPLICATION;
--   CREATE PUBLICATION postrider_postrider_event_outbox FOR TABLE postrider.event_outbox
--       WITH (publish = 'insert', publish_via_partition_root = true);
-- Partitions and retention are the owner's: run `postrider outbox archive` as a user in {prefix}_migrator, daily.
\\set ON_ERROR_STOP on
BEGIN;
";

const SCHEMA: &str = "\
ALTER SCHEMA postrider OWNER TO {prefix}_migrator;
SELECT format('ALTER %s %s OWNER TO {prefix}_migrator', CASE relkind WHEN 'S' THEN 'SEQUENCE' ELSE 'TABLE' END, oid::regclass)
    FROM pg_class c WHERE relnamespace = 'postrider'::regnamespace AND relkind IN ('r', 'p', 'S') AND NOT EXISTS (
        SELECT FROM pg_depend d WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.deptype IN ('a', 'i')
            AND c.relkind = 'S') \\gexec
SELECT format('ALTER FUNCTION %s OWNER TO {prefix}_migrator', oid::regprocedure)
    FROM pg_proc WHERE pronamespace = 'postrider'::regnamespace \\gexec
REVOKE ALL ON SCHEMA postrider FROM PUBLIC;
-- Outboxes elsewhere that `db migrate` made are Postrider's too: partitions are made, detached and archived by their owner, in their schema.
SELECT DISTINCT format('GRANT USAGE, CREATE ON SCHEMA %I TO {prefix}_migrator', schema_name)
    FROM postrider.outbox WHERE schema_name <> 'postrider' \\gexec
-- Whoever owned one may write to it and read it as before.
SELECT format('ALTER %s %s OWNER TO {prefix}_migrator', CASE relkind WHEN 'S' THEN 'SEQUENCE' ELSE 'TABLE' END, c.oid::regclass),
        CASE WHEN c.relname IN (o.table_name, o.table_name || '_position') AND c.relowner <> to_regrole('{prefix}_migrator')
            THEN format(CASE relkind WHEN 'S' THEN 'GRANT USAGE ON SEQUENCE %s TO %I' ELSE 'GRANT SELECT, INSERT ON TABLE %s TO %I' END,
                c.oid::regclass, pg_get_userbyid(c.relowner)) END
    FROM postrider.outbox o JOIN pg_namespace n ON n.nspname = o.schema_name JOIN pg_class c ON c.relnamespace = n.oid
    WHERE o.schema_name <> 'postrider' AND o.partitioned AND c.relkind IN ('r', 'p', 'S') AND (c.relname = o.table_name
        OR c.relname ~ ('^' || o.table_name || '_(default|id|position|archive|archive_default|p[0-9]{8})$')) \\gexec
SELECT format('ALTER FUNCTION %s OWNER TO {prefix}_migrator', p.oid::regprocedure)
    FROM postrider.outbox o JOIN pg_namespace n ON n.nspname = o.schema_name JOIN pg_proc p ON p.pronamespace = n.oid
    WHERE o.schema_name <> 'postrider' AND o.partitioned AND p.proname IN (o.table_name || '_added', o.table_name || '_ahead') \\gexec
-- Those that were adopted stay their project's. Retention removes old rows, and their ids where there are any.
SELECT format('GRANT SELECT, DELETE ON %I.%I TO {prefix}_migrator', schema_name, table_name || beside)
    FROM postrider.outbox, unnest(ARRAY['', '_id']) beside
    WHERE NOT partitioned AND to_regclass(format('%I.%I', schema_name, table_name || beside)) IS NOT NULL \\gexec
";

const TAIL: &str = "
COMMIT;
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_roles_cannot_carry_sql() {
        assert!(sql("postrider").unwrap().contains("CREATE ROLE postrider_relay NOLOGIN"));
        for wrong in ["", "a; DROP ROLE b", "Upper", &"x".repeat(41)] {
            assert!(sql(wrong).is_err(), "{wrong}");
        }
    }
}
