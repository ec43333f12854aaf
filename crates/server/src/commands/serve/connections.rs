//! The connections of the API: so many at a time, and none for a client that sends nothing.
//!
//! A client has `http.idle_timeout_ms` to send the whole head of its next request, whether it says nothing or one byte at a
//! time; then its connection is closed. One that takes nothing of its answer for as long loses it, too. So clients that hang cost a
//! connection for a while and never a request's place, and those that wait to be accepted get in. Bodies have the time of their
//! request.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::response::Response;
use axum::serve::Listener;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use postrider::Clock;
use rustix::net::sockopt::set_socket_send_buffer_size;
use rustix::process::{Resource, getrlimit, setrlimit};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt as _;

use super::patient::Patient;
use crate::api::Peer;
use crate::config::Http;

/// A request's line and headers may have so many bytes.
const MOST_HEAD: usize = 64 * 1024;
/// So much of an answer is on its way at most. The system calls a buffer writable again when a third of it is free: one that has grown to
/// megabytes would make a client that reads slowly look like one that reads nothing.
const SEND_BUFFER: usize = 128 * 1024;

/// What is sent over a socket.
pub(super) trait OverSocket {
    /// The socket.
    fn socket(&self) -> &TcpStream;
}

impl OverSocket for TcpStream {
    fn socket(&self) -> &TcpStream {
        self
    }
}

impl OverSocket for TlsStream<TcpStream> {
    fn socket(&self) -> &TcpStream {
        self.get_ref().0
    }
}

/// Serves until `stop`, then until the requests that were begun are answered.
pub(super) async fn serve<L>(
    mut listener: L,
    router: Router,
    http: &Http,
    clock: Clock,
    stop: CancellationToken,
) where
    L: Listener<Addr = SocketAddr>,
    L::Io: OverSocket,
{
    allow_open_files();
    let (room, tasks) = (Arc::new(Semaphore::new(http.max_connections)), TaskTracker::new());
    let mut protocol = http1::Builder::new();
    protocol.timer(TokioTimer::new()).header_read_timeout(idle(http)).max_buf_size(MOST_HEAD);
    // Who says that it will send no more (`nc -N`, a script that shuts its side down) still waits for its answer.
    protocol.half_close(true);
    loop {
        let accepting = async {
            // Who finds no room waits to be accepted.
            let place = room.clone().acquire_owned().await.ok()?;
            let (stream, peer) = listener.accept().await;
            Some((place, stream, peer))
        };
        let accepted = tokio::select! {
            () = stop.cancelled() => break,
            accepted = accepting => accepted,
        };
        let Some((place, stream, peer)) = accepted else { break };
        let (router, protocol, stop) = (router.clone(), protocol.clone(), stop.clone());
        let (clock, patience) = (clock.clone(), idle(http));
        tasks.spawn(async move {
            let _place = place;
            // Without a copy of the socket nobody knows whether a client has left, and it is waited for.
            let there = Peer::of(stream.socket()).ok();
            // As it was, it serves as well, if not the slowest.
            let _as_it_was = set_socket_send_buffer_size(stream.socket(), SEND_BUFFER);
            let service = service_fn(move |request| answer(router.clone(), request, peer, there.clone()));
            let stream = TokioIo::new(Patient::new(stream, clock, patience));
            let mut connection = std::pin::pin!(protocol.serve_connection(stream, service));
            let ended = tokio::select! {
                ended = connection.as_mut() => ended,
                () = stop.cancelled() => {
                    connection.as_mut().graceful_shutdown();
                    connection.await
                }
            };
            if let Err(error) = ended {
                tracing::debug!(%peer, %error, "a connection ended early");
            }
        });
    }
    tasks.close();
    tasks.wait().await;
}

async fn answer(
    router: Router,
    request: hyper::Request<Incoming>,
    peer: SocketAddr,
    there: Option<Peer>,
) -> Result<Response, Infallible> {
    let mut request = request.map(Body::new);
    request.extensions_mut().insert(ConnectInfo(peer));
    if let Some(there) = there {
        request.extensions_mut().insert(there);
    }
    router.oneshot(request).await
}

fn idle(http: &Http) -> Duration {
    Duration::from_millis(http.idle_timeout_ms)
}

/// A connection is an open file, and a shell's usual limit of them is lower than what the system allows. What cannot be
/// raised stays: then clients wait to be accepted sooner.
fn allow_open_files() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::debug!(%error, "the limit of open files stays as it is");
    }
}
