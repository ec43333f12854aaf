//! How a stream connects: by the same URL as the pools, on a connection of its own kind.

use std::path::PathBuf;
use std::time::Duration;

use pgwire_replication::{PgWireError, ReplicationClient, ReplicationConfig, SslMode, TlsConfig};
use secrecy::{ExposeSecret as _, SecretString};
use sha2::Digest as _;
use sqlx::postgres::{PgConnectOptions, PgSslMode};

use super::super::{OutboxTable, PostgresConfig};
use crate::clock::Clock;

/// Rows that wait between the connection and the relay, at most.
const BUFFERED: usize = 128;
/// How often the server is told how far we are.
const STATUS: Duration = Duration::from_secs(1);
/// PostgreSQL cuts longer names.
const LONGEST_NAME: usize = 63;

/// Where to connect, and as whom.
pub(in crate::postgres) struct Door {
    host: String,
    port: u16,
    user: String,
    password: SecretString,
    database: String,
    tls: TlsConfig,
    application_name: String,
}

impl Door {
    pub(in crate::postgres) fn new(config: &PostgresConfig, options: &PgConnectOptions) -> Self {
        let url = url::Url::parse(config.url.expose_secret()).ok();
        let parameter = |names: &[&str]| {
            let pairs = url.as_ref()?.query_pairs();
            pairs
                .into_iter()
                .find(|(name, _)| names.contains(&name.as_ref()))
                .map(|(_, value)| value.into_owned())
        };
        let file = |names: &[&str]| parameter(names).map(PathBuf::from);
        let password = url.as_ref().and_then(|url| url.password()).map(decoded);
        let host = match options.get_socket() {
            Some(folder) => folder.display().to_string(),
            None => options.get_host().to_owned(),
        };
        let mode = match options.get_ssl_mode() {
            _ if host.starts_with('/') => SslMode::Disable,
            PgSslMode::Disable | PgSslMode::Allow => SslMode::Disable,
            PgSslMode::Prefer => SslMode::Prefer,
            PgSslMode::Require => SslMode::Require,
            PgSslMode::VerifyCa => SslMode::VerifyCa,
            PgSslMode::VerifyFull => SslMode::VerifyFull,
        };
        Self {
            host,
            port: options.get_port(),
            user: options.get_username().to_owned(),
            password: password.or_else(|| parameter(&["password"])).unwrap_or_default().into(),
            database: options.get_database().unwrap_or(options.get_username()).to_owned(),
            tls: TlsConfig {
                mode,
                ca_pem_path: file(&["sslrootcert", "ssl-root-cert", "ssl-ca"]),
                sni_hostname: None,
                client_cert_pem_path: file(&["sslcert", "ssl-cert"]),
                client_key_pem_path: file(&["sslkey", "ssl-key"]),
            },
            application_name: config.application_name.clone(),
        }
    }

    /// Connects, makes the slot and begins. The slot ends with this connection.
    pub(super) async fn open(&self, slot: &str, publication: &str) -> Result<ReplicationClient, PgWireError> {
        let mut config = ReplicationConfig::new(
            self.host.clone(),
            self.user.clone(),
            self.password.expose_secret().to_owned(),
            self.database.clone(),
            slot,
            publication,
        )
        .with_port(self.port)
        .with_tls(self.tls.clone());
        config.buffer_events = BUFFERED;
        config.status_interval = STATUS;
        config.binary = true;
        config.application_name = Some(self.application_name.clone());
        let mut client = ReplicationClient::connect_gated(config).await?;
        let make = format!("CREATE_REPLICATION_SLOT {slot} TEMPORARY LOGICAL pgoutput NOEXPORT_SNAPSHOT");
        client.simple_query(&make).await?;
        client.start().await?;
        client.wait_started().await?;
        Ok(client)
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

    #[test]
    fn the_url_says_everything() {
        let url = "postgres://me:p%40ss+w%2Frd@db.example:5433/shop?sslmode=verify-full&sslrootcert=/ca.pem";
        let door = Door::new(&PostgresConfig::new(url), &PgConnectOptions::from_str(url).unwrap());
        assert_eq!((door.host.as_str(), door.port, door.user.as_str()), ("db.example", 5433, "me"));
        assert_eq!((door.password.expose_secret(), door.database.as_str()), ("p@ss+w/rd", "shop"));
        assert_eq!(door.tls.mode, SslMode::VerifyFull);
        assert_eq!(door.tls.ca_pem_path, Some(PathBuf::from("/ca.pem")));
    }
}
