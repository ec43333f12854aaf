//! TLS for the API: connections that finish their handshake, and no waiting for those that do not.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use axum::serve::Listener;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// How long a client may take for its handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// So many handshakes at the same time; more clients wait to be accepted.
const HANDSHAKES: usize = 256;

/// Reads a certificate with its chain, and its key.
pub(super) fn config(cert_file: &Path, key_file: &Path) -> anyhow::Result<Arc<ServerConfig>> {
    let shown = |file: &Path| file.display().to_string();
    let certificates = CertificateDer::pem_file_iter(cert_file)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .with_context(|| format!("http.cert_file {} cannot be read as PEM", shown(cert_file)))?;
    let key = PrivateKeyDer::from_pem_file(key_file)
        .with_context(|| format!("http.key_file {} cannot be read as PEM", shown(key_file)))?;
    let config = ServerConfig::builder().with_no_client_auth().with_single_cert(certificates, key);
    let config = config.with_context(|| {
        format!("the certificate {} and the key {} do not go together", shown(cert_file), shown(key_file))
    })?;
    Ok(Arc::new(config))
}

/// A listener whose connections have TLS.
pub(super) struct TlsListener {
    ready: mpsc::Receiver<(TlsStream<TcpStream>, SocketAddr)>,
    address: SocketAddr,
}

impl TlsListener {
    /// Shakes hands in tasks of their own: a client that says nothing keeps nobody waiting. Each connection gets the certificate of
    /// its time.
    pub(super) fn new(
        mut listener: TcpListener,
        config: watch::Receiver<Arc<ServerConfig>>,
    ) -> io::Result<Self> {
        let address = listener.local_addr()?;
        let (sender, ready) = mpsc::channel(HANDSHAKES);
        let shaking = Arc::new(Semaphore::new(HANDSHAKES));
        tokio::spawn(async move {
            while !sender.is_closed() {
                let Ok(slot) = shaking.clone().acquire_owned().await else { return };
                let (stream, peer) = tokio::select! {
                    () = sender.closed() => return,
                    accepted = Listener::accept(&mut listener) => accepted,
                };
                let (acceptor, sender) = (TlsAcceptor::from(config.borrow().clone()), sender.clone());
                tokio::spawn(async move {
                    let _slot = slot;
                    match tokio::time::timeout(HANDSHAKE, acceptor.accept(stream)).await {
                        Ok(Ok(stream)) => _ = sender.send((stream, peer)).await,
                        Ok(Err(error)) => tracing::debug!(%peer, %error, "a TLS handshake failed"),
                        Err(_) => tracing::debug!(%peer, "a TLS handshake took too long"),
                    }
                });
            }
        });
        Ok(Self { ready, address })
    }
}

impl Listener for TlsListener {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        match self.ready.recv().await {
            Some(ready) => ready,
            // The accepting task lives as long as this listener.
            None => std::future::pending().await,
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.address)
    }
}
