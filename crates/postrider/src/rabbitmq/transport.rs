//! What the driver runs on: tokio, with streams whose incoming bytes pass a [sieve](super::sieve).

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use async_rs::traits::Reactor;
use async_rs::util::RuntimeParts;
use async_rs::{Runtime, Tokio};
use futures_io::{AsyncRead, AsyncWrite};
use futures_util::Stream;
use lapin::tcp::AsyncTcpStream;

use super::sieve::Sifted;

/// A connection as tokio makes it, in the clear or encrypted.
pub(super) type Bare = AsyncTcpStream<<Tokio as Reactor>::TcpStream>;

/// The runtime for a connection.
pub(super) fn runtime() -> Runtime<RuntimeParts<Tokio, Sifting>> {
    let tokio = Tokio::current();
    Runtime::new(RuntimeParts::new(tokio.clone(), Sifting(tokio)))
}

/// The stream for the driver. It says plain, because encryption ends below the sieve.
pub(super) fn sifted(stream: Bare) -> AsyncTcpStream<Sifted<Bare>> {
    AsyncTcpStream::Plain(Sifted::new(stream))
}

#[derive(Debug, Clone)]
pub(super) struct Sifting(Tokio);

impl Reactor for Sifting {
    type TcpStream = Sifted<Bare>;
    type Sleep = <Tokio as Reactor>::Sleep;

    /// For other sockets than those that are connected here; the driver has none.
    fn register<H: Read + Write + Send + 'static>(
        &self,
        _socket: H,
    ) -> io::Result<impl AsyncRead + AsyncWrite + Send + Unpin + 'static> {
        Err::<Self::TcpStream, _>(io::ErrorKind::Unsupported.into())
    }

    fn sleep(&self, time: Duration) -> Self::Sleep {
        self.0.sleep(time)
    }

    fn interval(&self, time: Duration) -> impl Stream<Item = Instant> + Send + 'static {
        self.0.interval(time)
    }

    fn tcp_connect_addr(
        &self,
        address: SocketAddr,
    ) -> impl Future<Output = io::Result<Self::TcpStream>> + Send + 'static {
        let connecting = self.0.tcp_connect_addr(address);
        async move { Ok(Sifted::new(AsyncTcpStream::Plain(connecting.await?))) }
    }
}
