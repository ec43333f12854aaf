//! What PostgreSQL's errors mean to us.
//!
//! The text for people never has a password or a payload in it: what PostgreSQL adds as DETAIL to a broken rule is the whole
//! row, so it is left out, and so is the driver's error behind it.

use sqlx::error::DatabaseError;
use sqlx::postgres::PgDatabaseError;

use crate::store::{StoreError, StoreErrorKind};

/// An error of a statement.
pub(super) fn failed(doing: &str, place: &str, cause: sqlx::Error) -> StoreError {
    match &cause {
        sqlx::Error::Database(answer) => of_answer(doing, place, answer.as_ref()).keeping(cause),
        sqlx::Error::PoolTimedOut => {
            let message = format!(
                "no connection to PostgreSQL at {place} came about in time while {doing}; nothing was changed, try again"
            );
            StoreError::new(StoreErrorKind::Unavailable, message)
        }
        sqlx::Error::PoolClosed => {
            let message = format!("the connections to PostgreSQL at {place} were closed while {doing}");
            StoreError::new(StoreErrorKind::Unavailable, message)
        }
        sqlx::Error::Io(_) | sqlx::Error::Tls(_) | sqlx::Error::WorkerCrashed | sqlx::Error::BeginFailed => {
            let message = format!(
                "the connection to PostgreSQL at {place} was lost while {doing} ({cause}); try again"
            );
            StoreError::new(StoreErrorKind::Unavailable, message).because(cause)
        }
        _ if hung_up(&cause) => {
            let message = format!(
                "PostgreSQL at {place} was not available while {doing} (whoever listens there hangs up at once); try again"
            );
            StoreError::new(StoreErrorKind::Unavailable, message).because(cause)
        }
        _ => StoreError::new(
            StoreErrorKind::Other,
            format!("{doing} on PostgreSQL at {place} failed: {cause}"),
        )
        .because(cause),
    }
}

/// Somebody took the connection and closed it, as a proxy does that has no server behind it. The driver takes the nothing that it read for
/// an answer.
fn hung_up(cause: &sqlx::Error) -> bool {
    matches!(cause, sqlx::Error::Protocol(text) if text.contains("SSLRequest: 0x00"))
}

pub(super) const TLS_ADVICE: &str = "check sslmode, sslrootcert and that the server's certificate names this host; nothing was sent without TLS";

/// An error of the first connection.
pub(super) fn not_connected(place: &str, cause: sqlx::Error) -> StoreError {
    let (kind, advice) = match &cause {
        sqlx::Error::Database(answer) if answer.message().contains("unsupported startup parameter") => (
            StoreErrorKind::Invalid,
            "this is PgBouncer; connect to PostgreSQL itself, or use session mode and ignore_startup_parameters there",
        ),
        sqlx::Error::Database(answer) => match answer.code().as_deref() {
            Some("28P01" | "28000") => (StoreErrorKind::Denied, "check user, password and pg_hba.conf"),
            Some("3D000") => (StoreErrorKind::Schema, "create the database, or correct its name in the URL"),
            Some("42501") => (StoreErrorKind::Denied, "grant CONNECT on the database to this user"),
            Some("53300") => {
                (StoreErrorKind::Unavailable, "raise max_connections of the server, or use fewer here")
            }
            code => (kind_of(code.unwrap_or("")), "see the server's log"),
        },
        // A certificate that is not accepted comes as an I/O error of invalid data.
        sqlx::Error::Io(io) if io.kind() == std::io::ErrorKind::InvalidData => {
            (StoreErrorKind::Denied, TLS_ADVICE)
        }
        sqlx::Error::Io(_) => {
            (StoreErrorKind::Unavailable, "check host and port, and that the server runs; then try again")
        }
        sqlx::Error::Tls(_) => (StoreErrorKind::Denied, TLS_ADVICE),
        sqlx::Error::Configuration(_) => (StoreErrorKind::Invalid, "correct the URL"),
        _ if hung_up(&cause) => (
            StoreErrorKind::Unavailable,
            "whoever listens there hangs up at once: check that the server behind it runs; then try again",
        ),
        _ => (StoreErrorKind::Other, "see the server's log"),
    };
    // The driver adds a line of PostgreSQL's own source, which says nothing to anybody here.
    let said = match &cause {
        sqlx::Error::Database(answer) => answer.message().to_owned(),
        sqlx::Error::Io(io) => io.to_string(),
        _ => cause.to_string(),
    };
    StoreError::new(kind, format!("cannot connect to PostgreSQL at {place}: {said}; {advice}")).because(cause)
}

/// The URL cannot be used. Its text is not repeated, for the password in it.
pub(super) fn unreadable_url(cause: &dyn std::fmt::Display) -> StoreError {
    let message = format!(
        "the database URL cannot be read ({cause}); it should look like postgres://user:password@host:5432/database"
    );
    StoreError::new(StoreErrorKind::Invalid, message)
}

/// Nobody gave a connection back in time.
pub(super) fn all_in_use(doing: &str, place: &str, connections: u32) -> StoreError {
    let message = format!(
        "all {connections} connections to PostgreSQL at {place} were in use while {doing}; nothing was changed. Try again; where \
         handlers take their time, raise max_connections or lower the concurrency of consumers"
    );
    StoreError::new(StoreErrorKind::Busy, message)
}

/// The answer did not come.
pub(super) fn no_answer(doing: &str, place: &str) -> StoreError {
    let message = format!(
        "PostgreSQL at {place} did not answer in time while {doing}; the outcome is unknown, try again"
    );
    StoreError::new(StoreErrorKind::Unavailable, message)
}

/// Of an error while committing, what is certain.
pub(super) fn unknown_outcome(mut error: StoreError) -> StoreError {
    if error.kind == StoreErrorKind::Unavailable {
        error.message.push_str(
            ". Whether the transaction was committed is unknown; deliver the event again, the inbox knows the answer",
        );
    }
    error
}

/// COMMIT after a failed statement would have rolled back silently.
pub(super) fn swallowed(mut error: StoreError) -> StoreError {
    if error.kind == StoreErrorKind::Other {
        "a statement of this transaction failed and its error was not passed on; nothing was committed. Return the error \
         from the handler, or run the statement in a savepoint"
            .clone_into(&mut error.message);
    }
    error
}

fn of_answer(doing: &str, place: &str, answer: &dyn DatabaseError) -> StoreError {
    let code = answer.code().unwrap_or_default().into_owned();
    let said = answer.message();
    // The table of ids is named after its outbox.
    let of_ids = answer.constraint().is_some_and(|name| name.ends_with("_id_pkey"));
    if code == "23505" && of_ids && answer.table().is_some_and(|table| table.ends_with("_id")) {
        let detail =
            answer.try_downcast_ref::<PgDatabaseError>().and_then(PgDatabaseError::detail).unwrap_or("");
        let message = format!("an event with this id was committed before: {detail} Nothing was appended");
        return StoreError::new(StoreErrorKind::Duplicate, message);
    }
    let kind = kind_of(&code);
    let message = match kind {
        StoreErrorKind::Unavailable => {
            format!("PostgreSQL at {place} was not available while {doing} ({said}); try again")
        }
        StoreErrorKind::Contended => {
            format!("another transaction was in the way while {doing} ({said}); try again")
        }
        StoreErrorKind::Denied => {
            format!(
                "PostgreSQL at {place} refused {doing}: {said}; give this user a role that may (`postrider db grants` prints them)"
            )
        }
        StoreErrorKind::Schema => {
            format!("the schema of PostgreSQL at {place} does not fit ({said}); run `postrider db migrate`")
        }
        StoreErrorKind::Invalid | StoreErrorKind::OutOfRange => match answer.constraint() {
            Some(rule) => format!("{doing} breaks the rule {rule}; nothing was changed. Correct the input"),
            None => format!("{doing} was refused: {said}; nothing was changed. Correct the input"),
        },
        _ => format!("{doing} on PostgreSQL at {place} failed: {said} ({code})"),
    };
    StoreError::new(kind, message)
}

/// The classes of SQLSTATE that are handled differently.
pub(super) fn kind_of(code: &str) -> StoreErrorKind {
    match code {
        "57P01" | "57P02" | "57P03" | "57P05" | "57014" | "53300" | "53100" | "53200" | "25006" => {
            StoreErrorKind::Unavailable
        }
        "40001" | "40P01" | "55P03" => StoreErrorKind::Contended,
        "42501" => StoreErrorKind::Denied,
        "3F000" | "42P01" | "42703" | "42883" | "3D000" => StoreErrorKind::Schema,
        "22003" => StoreErrorKind::OutOfRange,
        _ if code.starts_with("08") => StoreErrorKind::Unavailable,
        _ if code.starts_with("28") => StoreErrorKind::Denied,
        _ if code.starts_with("22") || code.starts_with("23") => StoreErrorKind::Invalid,
        _ => StoreErrorKind::Other,
    }
}

trait Keeping {
    /// Keeps the driver's error, unless it may repeat the row.
    fn keeping(self, cause: sqlx::Error) -> Self;
}

impl Keeping for StoreError {
    fn keeping(self, cause: sqlx::Error) -> Self {
        match self.kind {
            StoreErrorKind::Invalid | StoreErrorKind::OutOfRange | StoreErrorKind::Duplicate => self,
            _ => self.because(cause),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_have_their_kinds() {
        for (code, kind) in [
            ("57P01", StoreErrorKind::Unavailable),
            ("08006", StoreErrorKind::Unavailable),
            ("40P01", StoreErrorKind::Contended),
            ("28P01", StoreErrorKind::Denied),
            ("42P01", StoreErrorKind::Schema),
            ("23514", StoreErrorKind::Invalid),
            ("22021", StoreErrorKind::Invalid),
            ("22003", StoreErrorKind::OutOfRange),
            ("XX000", StoreErrorKind::Other),
        ] {
            assert_eq!(kind_of(code), kind, "{code}");
        }
    }

    #[tokio::test]
    async fn a_proxy_without_a_server_behind_it_is_not_available() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("postgres://me@{}/nobody", listener.local_addr().unwrap());
        tokio::spawn(async move { while listener.accept().await.is_ok() {} });
        let error = || async {
            use sqlx::Connection as _;
            sqlx::PgConnection::connect(&url).await.unwrap_err()
        };
        for told in [failed("reading", "there", error().await), not_connected("there", error().await)] {
            assert_eq!(told.kind, StoreErrorKind::Unavailable, "{told}");
        }
    }
}
