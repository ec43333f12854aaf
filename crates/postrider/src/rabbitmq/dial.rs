//! One attempt to connect to one node: TCP, TLS, AMQP handshake, each under the time limit.
//!
//! The driver keeps a thread per connection and waits for a server for ever, in the handshake and in the closing one.
//! A second handle on the socket lets us hang up, so that a server that accepts and then says nothing costs nothing.

use std::io;
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lapin::tcp::{AMQPUriTcpExt, AsyncTcpStream, RustlsConnector, RustlsConnectorConfig, TLSConfig};
use lapin::uri::{AMQPScheme, AMQPUri};
use lapin::{Connection, ConnectionProperties};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::time::timeout;

use super::config::{Node, RabbitMqTls};
use super::fault::{self, TlsTrouble};
use super::transport;
use crate::broker::BrokerError;

/// A second handle on the socket, to hang up without the driver's help.
#[derive(Clone, Default)]
pub(super) struct Socket(Arc<Mutex<Option<TcpStream>>>);

impl Socket {
    /// Ends the connection now. The server puts unsettled deliveries back, unconfirmed publishes are in doubt.
    pub(super) fn hang_up(&self) {
        if let Some(socket) = self.0.lock().unwrap_or_else(PoisonError::into_inner).take() {
            let _already_closed = socket.shutdown(Shutdown::Both);
        }
    }

    fn keep(&self, socket: &impl AsFd) -> io::Result<()> {
        let handle = TcpStream::from(socket.as_fd().try_clone_to_owned()?);
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(handle);
        Ok(())
    }
}

/// Connects to a node, or says why not.
pub(super) async fn dial(
    node: &Node,
    tls: &RabbitMqTls,
    name: &str,
    limit: Duration,
) -> Result<(Connection, Socket), BrokerError> {
    let secure = node.uri.scheme == AMQPScheme::AMQPS;
    let user = node.uri.authority.userinfo.username.clone();
    let explain = |error| fault::connecting(&node.place, &user, &node.uri.vhost, secure, error);

    let socket = Socket::default();
    let (tls, kept) = (tls.clone(), socket.clone());
    let connected = Connection::connector(
        node.uri.clone(),
        transport::runtime(),
        async move |uri: AMQPUri, _sifting| {
            let opening = async {
                let plain = AMQPUri { scheme: AMQPScheme::AMQP, ..uri.clone() };
                let runtime = async_rs::Runtime::tokio_current();
                let stream = plain.connect_with_config_async(TLSConfig::default(), &runtime).await?;
                if let AsyncTcpStream::Plain(tcp) = &stream {
                    // Acks and single publishes go out at once.
                    tcp.get_ref().set_nodelay(true)?;
                    kept.keep(tcp.get_ref())?;
                }
                if !secure {
                    return Ok(stream);
                }
                let connector = connector(&tls)?;
                let encrypted = stream.into_rustls(&connector, &uri.authority.host).await;
                encrypted.map_err(|error| io::Error::other(TlsTrouble::in_handshake(&error)))
            };
            let opened =
                timeout(limit, opening).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
            Ok(transport::sifted(opened?))
        },
        ConnectionProperties::default().with_connection_name(name.into()),
    );
    let why = match timeout(limit, connected).await {
        Ok(Ok(connection)) => return Ok((connection, socket)),
        Ok(Err(error)) => error,
        Err(_) => io::Error::from(io::ErrorKind::TimedOut).into(),
    };
    socket.hang_up();
    Err(explain(why))
}

/// Trusts the CA file if there is one, else the system's authorities; shows our certificate if there is one.
fn connector(tls: &RabbitMqTls) -> io::Result<RustlsConnector> {
    // The process needs one provider of cryptography. Whoever came first (the binary's main, another driver) stays.
    let _installed_before = rustls::crypto::ring::default_provider().install_default();

    let config = match &tls.ca_file {
        Some(file) => {
            let mut config = RustlsConnectorConfig::default();
            config.add_parsable_certificates(certificates(file, "CA file")?);
            config
        }
        None => RustlsConnectorConfig::new_with_native_certs()
            .map_err(|why| trouble(format!("{why}; give a CA file")))?,
    };
    match (&tls.client_cert_file, &tls.client_key_file) {
        (Some(cert), Some(key)) => {
            let chain = certificates(cert, "client certificate")?;
            let read = PrivateKeyDer::from_pem_file(key);
            let unreadable = |why| trouble(format!("the client key {} cannot be read: {why}", key.display()));
            config.connector_with_single_cert(chain, read.map_err(unreadable)?)
        }
        (None, None) => config.connector_with_no_client_auth(),
        _ => return Err(trouble("a client certificate needs both its file and its key file".to_owned())),
    }
    .map_err(|why| trouble(format!("{why}; check the certificate files")))
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
