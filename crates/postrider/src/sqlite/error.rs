//! What SQLite said, in the words of the store.

use crate::store::{StoreError, StoreErrorKind};

/// Sorts an error of the driver by what can be done about it, and says so.
pub(crate) fn from_sqlite(error: sqlx::Error) -> StoreError {
    let (kind, message) = match &error {
        sqlx::Error::Database(database) => {
            let code = database.code().and_then(|code| code.parse::<u32>().ok()).unwrap_or(0);
            sort(code, database.message())
        }
        sqlx::Error::PoolTimedOut | sqlx::Error::PoolClosed | sqlx::Error::WorkerCrashed => (
            StoreErrorKind::Unavailable,
            "the SQLite file is not open for reading any more, or all readers are busy; nothing was changed, try again"
                .to_owned(),
        ),
        sqlx::Error::Io(io) => (
            StoreErrorKind::Unavailable,
            format!("the SQLite file cannot be reached ({io}); nothing was committed, check the disk and the folder"),
        ),
        other => (StoreErrorKind::Other, format!("SQLite was used in a wrong way, which is a bug: {other}")),
    };
    StoreError::new(kind, message).because(error)
}

/// `SQLITE_IOERR_SHMSIZE`: the index of the log cannot be made as large as it has to be.
const NO_ROOM_FOR_INDEX: u32 = 4874;

/// The kind and the text for an (extended) result code.
fn sort(code: u32, said: &str) -> (StoreErrorKind, String) {
    let text = |what: &str| format!("{what} (SQLite says: {said})");
    // Who opens a file on a full disk fails at its index before anything else.
    let kind = if code == NO_ROOM_FOR_INDEX { 13 } else { code & 0xff };
    match kind {
        5 | 6 | 9 => (
            StoreErrorKind::Contended,
            text(
                "another process is writing to the SQLite file and did not finish in time; nothing was committed, try again",
            ),
        ),
        13 => (
            StoreErrorKind::Unavailable,
            text(
                "the disk that holds the SQLite file is full; nothing was committed, free some space and try again",
            ),
        ),
        10 => (
            StoreErrorKind::Unavailable,
            text(
                "reading or writing the SQLite file failed; nothing was committed, check the disk and try again",
            ),
        ),
        14 => (
            StoreErrorKind::Unavailable,
            text("the SQLite file cannot be opened; check that its folder exists and may be written to"),
        ),
        7 => (StoreErrorKind::Unavailable, text("out of memory; nothing was committed, try again")),
        3 | 8 | 23 => (
            StoreErrorKind::Denied,
            text(
                "the SQLite file may not be written to; nothing was committed, check the rights on file and folder",
            ),
        ),
        11 => (
            StoreErrorKind::Other,
            text(
                "the SQLite file is damaged; stop everything that uses it, keep a copy, and restore a backup or run \
                  sqlite3's .recover on the copy",
            ),
        ),
        26 => (
            StoreErrorKind::Other,
            text("the file is not an SQLite database; choose another path or move it away"),
        ),
        19 => constraint(code, said),
        1 if said.starts_with("no such table") || said.starts_with("no such column") => (
            StoreErrorKind::Schema,
            text("the SQLite file lacks a part of the schema; open it with this version to migrate it"),
        ),
        _ => (
            StoreErrorKind::Other,
            text("SQLite refused a statement, which is a bug; nothing of it was written"),
        ),
    }
}

/// A broken rule of a table; SQLite names the table and the column.
fn constraint(code: u32, said: &str) -> (StoreErrorKind, String) {
    const COMMIT_HOOK: u32 = 531;
    const DATATYPE: u32 = 3091;
    if said.contains("event_outbox.id") {
        return (
            StoreErrorKind::Duplicate,
            "an event with this id was committed before; nothing was written".to_owned(),
        );
    }
    if said.contains("event_inbox.event_id") {
        return (
            StoreErrorKind::Contended,
            "the event was applied by another transaction meanwhile; nothing of this one was written"
                .to_owned(),
        );
    }
    if code == COMMIT_HOOK {
        let text = "something tried to commit or to write outside its transaction; nothing of it was written: leave BEGIN, \
                    COMMIT and ROLLBACK to the store";
        return (StoreErrorKind::Other, text.to_owned());
    }
    // A sum that leaves 64 bits is a float to SQLite, which no column of a strict table takes.
    if code == DATATYPE && said.contains("REAL value in INTEGER column") {
        let text =
            format!("a number is more than its column can hold; nothing was written (SQLite says: {said})");
        return (StoreErrorKind::OutOfRange, text);
    }
    (
        StoreErrorKind::Invalid,
        format!("the input breaks a rule of its table; nothing was written (SQLite says: {said})"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_sorted_by_what_can_be_done() {
        for (code, said, kind) in [
            (5, "database is locked", StoreErrorKind::Contended),
            (517, "database is locked", StoreErrorKind::Contended),
            (13, "database or disk is full", StoreErrorKind::Unavailable),
            (778, "disk I/O error", StoreErrorKind::Unavailable),
            (14, "unable to open database file", StoreErrorKind::Unavailable),
            (1544, "attempt to write a readonly database", StoreErrorKind::Denied),
            (26, "file is not a database", StoreErrorKind::Other),
            (2067, "UNIQUE constraint failed: event_outbox.id", StoreErrorKind::Duplicate),
            (
                1555,
                "UNIQUE constraint failed: event_inbox.consumer_name, event_inbox.event_id",
                StoreErrorKind::Contended,
            ),
            (2067, "UNIQUE constraint failed: orders.number", StoreErrorKind::Invalid),
            (275, "CHECK constraint failed: payload_is_json", StoreErrorKind::Invalid),
            (
                3091,
                "cannot store REAL value in INTEGER column ledger_balance.debits",
                StoreErrorKind::OutOfRange,
            ),
            (
                3091,
                "cannot store TEXT value in INTEGER column ledger_balance.debits",
                StoreErrorKind::Invalid,
            ),
            (1, "no such table: event_outbox", StoreErrorKind::Schema),
        ] {
            assert_eq!(sort(code, said).0, kind, "{code} {said}");
        }
    }

    #[test]
    fn a_full_disk_is_told_wherever_it_shows() {
        for (code, said) in [(13, "database or disk is full"), (4874, "disk I/O error")] {
            assert!(sort(code, said).1.contains("is full; nothing was committed, free some space"), "{code}");
        }
    }
}
