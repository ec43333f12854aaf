//! One attempt to connect to one node: TCP, TLS, AMQP handshake, all under one time limit.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use secrecy::ExposeSecret as _;
use tokio::net::{TcpStream, lookup_host};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::amqp::{Connection, Error, Identity, Login};
use super::config::{Node, RabbitMqTls};
use super::fault::{self, TlsTrouble};
use crate::broker::BrokerError;

/// Connects to a node, or says why not. Its name may stand for several addresses: `turn` says with which to begin, so that one that takes
/// connections and no more is not all that is ever tried.
pub(super) async fn dial(
    node: &Node,
    tls: &RabbitMqTls,
    name: &str,
    limit: Duration,
    turn: usize,
) -> Result<Connection, BrokerError> {
    let explain = |error| fault::connecting(&node.place, &node.user, &node.vhost, node.tls, error);
    let connecting = async {
        let stream = reach(node, limit, turn).await?;
        connect(stream, node, tls, name).await
    };
    match timeout(limit, connecting).await {
        Ok(connected) => connected.map_err(explain),
        Err(_) => Err(explain(io::Error::from(io::ErrorKind::TimedOut).into())),
    }
}

/// The first of its addresses that takes a connection. One that swallows packets has its share of the time and no more.
async fn reach(node: &Node, limit: Duration, turn: usize) -> io::Result<TcpStream> {
    let addresses = in_turn(lookup_host((node.host.as_str(), node.port)).await?.collect(), turn);
    let share = limit / u32::try_from(addresses.len()).unwrap_or(u32::MAX).max(1);
    let mut why = io::Error::new(io::ErrorKind::NotFound, "its name has no address");
    for address in addresses {
        why = match timeout(share, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => error,
            Err(_) => io::ErrorKind::TimedOut.into(),
        };
    }
    Err(why)
}

/// With every turn another one comes first.
fn in_turn(mut addresses: Vec<SocketAddr>, turn: usize) -> Vec<SocketAddr> {
    let first = turn.checked_rem(addresses.len()).unwrap_or(0);
    addresses.rotate_left(first);
    addresses
}

async fn connect(stream: TcpStream, node: &Node, tls: &RabbitMqTls, name: &str) -> Result<Connection, Error> {
    let identity = if node.by_certificate {
        Identity::External
    } else {
        Identity::Plain { user: &node.user, password: node.password.expose_secret() }
    };
    let (vhost, heartbeat, frame_max) = (node.vhost.as_str(), node.heartbeat, node.frame_max);
    let login = Login { identity, vhost, name, heartbeat, frame_max };
    // Acks and single publishes go out at once.
    stream.set_nodelay(true)?;
    if !node.tls {
        return Connection::open(stream, &login).await;
    }
    let server = ServerName::try_from(node.host.clone())
        .map_err(|why| trouble(format!("{:?} cannot be in a certificate: {why}", node.host)))?;
    let encrypted = connector(tls)?.connect(server, stream).await;
    Connection::open(encrypted.map_err(TlsTrouble::if_it_is)?, &login).await
}

/// Trusts the CA file if there is one, else the system's authorities; shows our certificate if there is one.
fn connector(tls: &RabbitMqTls) -> io::Result<TlsConnector> {
    // The process needs one provider of cryptography. Whoever came first (the binary's main, another driver) stays.
    let _installed_before = rustls::crypto::ring::default_provider().install_default();

    let mut trusted = RootCertStore::empty();
    match &tls.ca_file {
        Some(file) => trusted.add_parsable_certificates(certificates(file, "CA file")?),
        None => trusted.add_parsable_certificates(rustls_native_certs::load_native_certs().certs),
    };
    if trusted.is_empty() {
        return Err(trouble("there is no authority to trust on this machine; give a CA file".to_owned()));
    }
    let config = ClientConfig::builder().with_root_certificates(trusted);
    let config = match (&tls.client_cert_file, &tls.client_key_file) {
        (Some(cert), Some(key)) => {
            let chain = certificates(cert, "client certificate")?;
            let read = PrivateKeyDer::from_pem_file(key);
            let unreadable = |why| trouble(format!("the client key {} cannot be read: {why}", key.display()));
            config
                .with_client_auth_cert(chain, read.map_err(unreadable)?)
                .map_err(|why| trouble(format!("{why}; check the certificate files")))?
        }
        (None, None) => config.with_no_client_auth(),
        _ => return Err(trouble("a client certificate needs both its file and its key file".to_owned())),
    };
    Ok(TlsConnector::from(Arc::new(config)))
}

fn certificates(file: &Path, what: &str) -> io::Result<Vec<CertificateDer<'static>>> {
    let read = CertificateDer::pem_file_iter(file).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let unreadable = |why: String| trouble(format!("the {what} {} cannot be read: {why}", file.display()));
    match read {
        Ok(found) if found.is_empty() => Err(unreadable("it holds no certificate".to_owned())),
        Ok(found) => Ok(found),
        Err(why) => Err(unreadable(why.to_string())),
    }
}

fn trouble(text: String) -> io::Error {
    io::Error::other(TlsTrouble(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn with_every_turn_another_address_comes_first() {
        let addresses: Vec<SocketAddr> =
            [1, 2, 3].map(|last| SocketAddr::from(([10, 0, 0, last], 5672))).into();
        let first = |turn| in_turn(addresses.clone(), turn)[0];
        assert_eq!([0, 1, 2, 3].map(first), [addresses[0], addresses[1], addresses[2], addresses[0]]);
        assert_eq!(in_turn(addresses.clone(), 2).len(), 3);
        assert!(in_turn(Vec::new(), 5).is_empty());
    }
}
