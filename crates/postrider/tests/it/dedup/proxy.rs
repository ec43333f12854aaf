//! Stands between a client and a server: counts what is asked, slows answers down, holds them back until enough was asked, or leads
//! to another server.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use postrider::Clock;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

pub(super) struct Proxy {
    pub(super) url: String,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    /// Where new connections go.
    server: Mutex<String>,
    delay_ms: AtomicU64,
    /// `GET`s that have to come before the next answer goes through.
    wanted: AtomicUsize,
    asked: Notify,
    /// How often something was asked.
    questions: AtomicUsize,
    /// How often somebody connected.
    connections: AtomicUsize,
}

/// The host and the port.
fn address(url: &str) -> &str {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let rest = rest.split_once('/').map_or(rest, |(address, _)| address);
    rest.rsplit_once('@').map_or(rest, |(_, address)| address)
}

impl Proxy {
    pub(super) async fn to(url: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let ours = url.replace(address(url), &listener.local_addr().unwrap().to_string());
        let state = Arc::new(State::default());
        let proxy = Self { url: ours, state };
        proxy.lead_to(url);
        let shared = proxy.state.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                shared.connections.fetch_add(1, Ordering::SeqCst);
                let server = shared.server.lock().unwrap().clone();
                let Ok(server) = TcpStream::connect(server).await else { continue };
                let ((from_client, to_client), (from_server, to_server)) =
                    (client.into_split(), server.into_split());
                tokio::spawn(ask(from_client, to_server, shared.clone()));
                tokio::spawn(answer(from_server, to_client, shared.clone()));
            }
        });
        proxy
    }

    /// New connections go there.
    pub(super) fn lead_to(&self, url: &str) {
        address(url).clone_into(&mut self.state.server.lock().unwrap());
    }

    /// How often something was asked so far.
    pub(super) fn questions(&self) -> usize {
        self.state.questions.load(Ordering::SeqCst)
    }

    /// How often somebody connected so far, in vain or not.
    pub(super) fn connections(&self) -> usize {
        self.state.connections.load(Ordering::SeqCst)
    }

    pub(super) fn slow_down(&self, delay: Duration) {
        self.state.delay_ms.store(u64::try_from(delay.as_millis()).unwrap(), Ordering::SeqCst);
    }

    pub(super) fn hold_answers_until(&self, gets: usize) {
        self.state.wanted.store(gets, Ordering::SeqCst);
    }
}

async fn ask(mut client: OwnedReadHalf, mut server: OwnedWriteHalf, state: Arc<State>) {
    let (mut chunk, mut tail) = ([0; 16 * 1024], Vec::new());
    while let Ok(length @ 1..) = client.read(&mut chunk).await {
        // A word may be cut in two by the end of a chunk.
        tail.extend_from_slice(&chunk[..length]);
        let gets = tail.windows(5).filter(|window| window == b"GET\r\n").count();
        tail.drain(..tail.len().saturating_sub(4));
        let _ = state
            .wanted
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |wanted| Some(wanted.saturating_sub(gets)));
        state.asked.notify_waiters();
        state.questions.fetch_add(1, Ordering::SeqCst);
        if server.write_all(&chunk[..length]).await.is_err() {
            return;
        }
    }
}

async fn answer(mut server: OwnedReadHalf, mut client: OwnedWriteHalf, state: Arc<State>) {
    let (mut chunk, clock) = ([0; 16 * 1024], Clock::system());
    while let Ok(length @ 1..) = server.read(&mut chunk).await {
        loop {
            let asked = state.asked.notified();
            if state.wanted.load(Ordering::SeqCst) == 0 {
                break;
            }
            asked.await;
        }
        let delay = Duration::from_millis(state.delay_ms.load(Ordering::SeqCst));
        if !delay.is_zero() {
            clock.sleep(delay).await;
        }
        if client.write_all(&chunk[..length]).await.is_err() {
            return;
        }
    }
}
