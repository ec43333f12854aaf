//! How a stream connects: by the same URL as the pools, on a connection of its own kind.

use std::path::PathBuf;
use std::time::Duration;

use secrecy::SecretString;
use sha2::Digest as _;
use sqlx::ConnectOptions as _;
use sqlx::postgres::{PgConnectOptions, PgSslMode};

use super::super::replication::{Address, Pem, Place, Reader, Session, Tls, Trouble, Verify};
use super::super::{OutboxTable, PostgresConfig};
use crate::clock::Clock;

/// A slot is ready when all transactions that were writing have ended; one that takes longer is waited for next time.
const SLOT_LIMIT: Duration = Duration::from_mins(10);
/// PostgreSQL cuts longer names.
const LONGEST_NAME: usize = 63;

/// Where to connect, and as whom.
pub(in crate::postgres) struct Door(Address);

/// Why it stayed shut.
pub(super) enum NotOpen {
    /// The slot was not ready in time.
    Slot,
    Trouble(Trouble),
}

impl Door {
    pub(in crate::postgres) fn new(config: &PostgresConfig, options: &PgConnectOptions) -> Self {
        let place = match options.get_socket() {
            Some(folder) => Place::Socket(folder.clone()),
            None => Place::Host(options.get_host().trim_matches(['[', ']']).to_owned()),
        };
        // The driver shows its secrets and files in a URL only. What it cannot write into one is kept out of it.
        let url = options.clone().host("host").username("user").database("database").to_url_lossy();
        let pem = |wanted: &str| {
            let (_, value) = url.query_pairs().find(|(name, _)| name == wanted)?;
            Some(match value.strip_prefix("file: ") {
                Some(file) => Pem::File(PathBuf::from(file)),
                None => Pem::Text(value.into_owned()),
            })
        };
        let (optional, verify) = match options.get_ssl_mode() {
            PgSslMode::Disable | PgSslMode::Allow => (true, None),
            PgSslMode::Prefer => (true, Some(Verify::Nothing)),
            PgSslMode::Require => (false, Some(Verify::Nothing)),
            PgSslMode::VerifyCa => (false, Some(Verify::Authority)),
            PgSslMode::VerifyFull => (false, Some(Verify::AuthorityAndName)),
        };
        let tls = verify.map(|verify| Tls {
            optional,
            verify,
            authority: pem("sslrootcert"),
            certificate: pem("sslcert"),
            key: pem("sslkey"),
        });
        Self(Address {
            place,
            port: options.get_port(),
            user: options.get_username().to_owned(),
            password: url.password().map(|password| SecretString::from(decoded(password))),
            database: options.get_database().unwrap_or(options.get_username()).to_owned(),
            application_name: config.application_name.clone(),
            tls,
            limit: config.acquire_limit,
        })
    }

    /// Connects, makes the slot and begins. The slot ends with this connection.
    pub(super) async fn open(&self, slot: &str, publication: &str, clock: Clock) -> Result<Reader, NotOpen> {
        let mut session = Session::connect(&self.0).await?;
        let make = format!("CREATE_REPLICATION_SLOT {slot} TEMPORARY LOGICAL pgoutput NOEXPORT_SNAPSHOT");
        session.run(&make, SLOT_LIMIT).await.map_err(|trouble| match trouble {
            Trouble::Silent(_) => NotOpen::Slot,
            other => NotOpen::Trouble(other),
        })?;
        Ok(session.start(slot, publication, clock).await?)
    }
}

impl From<Trouble> for NotOpen {
    fn from(trouble: Trouble) -> Self {
        Self::Trouble(trouble)
    }
}

/// The publication of an outbox. Names are read in lower case there.
pub(super) fn publication(table: &OutboxTable) -> String {
    let plain = format!("postrider_{}_{}", table.schema(), table.table());
    let lower = plain.to_ascii_lowercase();
    if plain == lower && plain.len() <= LONGEST_NAME {
        return plain;
    }
    let hash = sha2::Sha256::digest(plain.as_bytes());
    let hash = hash.iter().take(4).fold(String::new(), |text, byte| format!("{text}{byte:02x}"));
    format!("{}_{hash}", &lower[..lower.len().min(LONGEST_NAME - 9)])
}

/// A slot of its own for every stream: names are shared by all databases of a server.
pub(super) fn slot(table: &OutboxTable, clock: &Clock) -> String {
    let table = table.table().to_ascii_lowercase();
    format!("postrider_{}_{}", &table[..table.len().min(20)], clock.new_id().simple())
}

/// A password as it is, from a URL, in which `+` is no space.
fn decoded(text: &str) -> String {
    let text = format!("p={}", text.replace('+', "%2B"));
    url::form_urlencoded::parse(text.as_bytes())
        .next()
        .map(|(_, value)| value.into_owned())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::str::FromStr as _;

    use secrecy::ExposeSecret as _;

    use super::*;

    #[test]
    fn names_are_lower_case_short_and_tell_tables_apart() {
        assert_eq!(publication(&OutboxTable::default()), "postrider_postrider_event_outbox");
        let one = publication(&OutboxTable::new("fis.Outbox").unwrap());
        let other = publication(&OutboxTable::new("fis.outbox").unwrap());
        assert_ne!(one, other);
        assert_eq!(one, one.to_ascii_lowercase());
        let long = OutboxTable::new(&format!("{}.{}", "s".repeat(40), "t".repeat(40))).unwrap();
        assert!(publication(&long).len() <= LONGEST_NAME);
        assert!(slot(&long, &Clock::system()).len() <= LONGEST_NAME);
    }

    fn door(url: &str) -> Address {
        Door::new(&PostgresConfig::new(url), &PgConnectOptions::from_str(url).unwrap()).0
    }

    #[test]
    fn the_url_says_everything() {
        let door = door(
            "postgres://m%40e:p%40ss+w%2Frd@db.example:5433/shop?sslmode=verify-full&sslrootcert=/a%20b/ca.pem&sslkey=k.pem",
        );
        assert_eq!(door.place, Place::Host("db.example".to_owned()));
        assert_eq!((door.port, door.user.as_str(), door.database.as_str()), (5433, "m@e", "shop"));
        assert_eq!(door.password.unwrap().expose_secret(), "p@ss+w/rd");
        let tls = door.tls.unwrap();
        assert_eq!((tls.optional, tls.verify), (false, Verify::AuthorityAndName));
        assert_eq!(tls.authority, Some(Pem::File(PathBuf::from("/a b/ca.pem"))));
        assert_eq!((tls.certificate, tls.key), (None, Some(Pem::File(PathBuf::from("k.pem")))));
    }

    #[test]
    fn tls_is_spoken_unless_it_is_refused() {
        assert!(door("postgres://me@db/shop?sslmode=disable").tls.is_none());
        let preferred = door("postgres://me@[::1]/shop?sslmode=prefer");
        assert_eq!(preferred.place, Place::Host("::1".to_owned()));
        assert!(preferred.tls.is_some_and(|tls| tls.optional && tls.verify == Verify::Nothing));
        let required = door("postgres://me@%2Frun%2Fpg/shop?sslmode=require");
        assert_eq!(required.place, Place::Socket(PathBuf::from("/run/pg")));
        assert!(required.tls.is_some_and(|tls| !tls.optional && tls.verify == Verify::Nothing));
    }
}
