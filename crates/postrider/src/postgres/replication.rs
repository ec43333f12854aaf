//! A connection that streams PostgreSQL's log, as small as a relay needs it: connect, log in, make a slot, read.
//!
//! Nothing waits for ever: each step has a time limit, and a server that falls silent is given up. What is read and not yet
//! asked for is bounded in bytes. Dropping any part of it closes the connection, and a temporary slot ends with it.

mod login;
mod reader;
mod tls;
mod trouble;
mod wire;

pub(super) use reader::{Heard, Reader};
pub(super) use tls::{Pem, Tls, Verify};
pub(super) use trouble::Trouble;

use std::future::Future;
use std::path::PathBuf;
use std::time::Duration;

use postgres_protocol::message::backend::Message;
use postgres_protocol::message::frontend;
use secrecy::SecretString;
use tokio::net::{TcpStream, UnixStream};

use self::wire::{Answer, Wire};
use crate::clock::Clock;

/// PostgreSQL's time begins in the year 2000: so many microseconds after 1970.
pub(super) const EPOCH: i64 = 946_684_800_000_000;

/// The largest message before somebody has logged in, and while commands are answered.
const SMALL: usize = 64 << 10;
/// The largest message of a stream. PostgreSQL sends a row in one; a larger row ends the stream and is polled.
const LARGE: usize = 256 << 20;

/// Where to connect, and as whom.
pub(super) struct Address {
    pub(super) place: Place,
    pub(super) port: u16,
    pub(super) user: String,
    pub(super) password: Option<SecretString>,
    pub(super) database: String,
    pub(super) application_name: String,
    pub(super) tls: Option<Tls>,
    /// Each answer comes within this time, unless a command says otherwise.
    pub(super) limit: Duration,
}

/// Where a server listens.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Place {
    Host(String),
    /// The folder of its socket. TLS is not spoken there.
    Socket(PathBuf),
}

/// A connection that takes commands.
pub(super) struct Session {
    wire: Wire,
    limit: Duration,
}

impl Session {
    /// Connects and logs in, or says why not.
    pub(super) async fn connect(address: &Address) -> Result<Self, Trouble> {
        let connecting = async {
            let mut wire = dial(address).await?;
            login::log_in(&mut wire, address).await?;
            Ok(wire)
        };
        Ok(Self { wire: within(address.limit, connecting).await?, limit: address.limit })
    }

    /// Runs a command whose answer does not matter.
    pub(super) async fn run(&mut self, command: &str, limit: Duration) -> Result<(), Trouble> {
        let Self { wire, .. } = self;
        within(limit, async {
            wire.send(|out| frontend::query(command, out)).await?;
            loop {
                if let Answer::Message(Message::ReadyForQuery(_)) = wire.receive().await? {
                    return Ok(());
                }
            }
        })
        .await
    }

    /// Begins to stream from a slot, which must be of this connection.
    pub(super) async fn start(self, slot: &str, publication: &str, clock: Clock) -> Result<Reader, Trouble> {
        let Self { mut wire, limit } = self;
        let command = format!(
            "START_REPLICATION SLOT {slot} LOGICAL 0/0 (proto_version '1', publication_names '{publication}', binary 'true')"
        );
        within(limit, async {
            wire.send(|out| frontend::query(&command, out)).await?;
            match wire.receive().await? {
                Answer::CopyBoth => Ok(()),
                Answer::Message(_) => Err(Trouble::unexpected("in answer to START_REPLICATION")),
            }
        })
        .await?;
        wire.allow(LARGE);
        Ok(Reader::start(wire, limit, clock))
    }
}

async fn dial(address: &Address) -> Result<Wire, Trouble> {
    match &address.place {
        Place::Socket(folder) => {
            let file = folder.join(format!(".s.PGSQL.{}", address.port));
            Ok(Wire::new(UnixStream::connect(file).await?, SMALL))
        }
        Place::Host(host) => {
            let tcp = TcpStream::connect((host.as_str(), address.port)).await?;
            // Answers are small, and the server waits for some of them.
            tcp.set_nodelay(true)?;
            match &address.tls {
                Some(tls) => tls.upgrade(tcp, host, SMALL).await,
                None => Ok(Wire::new(tcp, SMALL)),
            }
        }
    }
}

/// The time limit of one step.
async fn within<T>(
    limit: Duration,
    step: impl Future<Output = Result<T, Trouble>> + Send,
) -> Result<T, Trouble> {
    tokio::time::timeout(limit, step).await.unwrap_or(Err(Trouble::Silent(limit)))
}
