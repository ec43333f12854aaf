//! A proxy between a program and a server, through which the network can be bad: slow, cut, silent, or deaf in one direction.
//!
//! It counts what it does, so that a test can prove that a fault has landed.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result};
use postrider::Clock;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// What the network is like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Weather {
    /// As it should be.
    Clear,
    /// Everything arrives this much later.
    Latency(Duration),
    /// Connections are closed, and new ones too.
    Cut,
    /// Connections end with a reset, and so do new ones.
    Reset,
    /// Connections stay open, new ones are accepted, and nothing passes in either direction.
    HalfOpen,
    /// Requests arrive, and the answers are thrown away. Such a connection is of no use afterwards, and is reset when the
    /// weather changes.
    SwallowReplies,
    /// So many bytes every ten milliseconds, in each direction.
    Trickle(usize),
    /// After so many bytes of answers a connection is closed.
    LimitThenClose(u64),
}

/// What a proxy has done so far.
#[derive(Debug, Default)]
pub struct Counters {
    accepted: AtomicU64,
    open: AtomicU64,
    severed: AtomicU64,
    refused: AtomicU64,
    swallowed: AtomicU64,
    passed: AtomicU64,
}

impl Counters {
    /// Connections that were accepted and passed on.
    pub fn accepted(&self) -> u64 {
        self.accepted.load(Ordering::Relaxed)
    }

    /// Connections that are open now.
    pub fn open(&self) -> u64 {
        self.open.load(Ordering::Relaxed)
    }

    /// Connections that the weather ended.
    pub fn severed(&self) -> u64 {
        self.severed.load(Ordering::Relaxed)
    }

    /// Connections that were turned away.
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Bytes of answers that were thrown away.
    pub fn swallowed(&self) -> u64 {
        self.swallowed.load(Ordering::Relaxed)
    }

    /// Bytes that passed, in both directions.
    pub fn passed(&self) -> u64 {
        self.passed.load(Ordering::Relaxed)
    }
}

/// A proxy in front of one server. Ends when it is dropped, with all its connections.
pub struct Proxy {
    /// Where it listens.
    pub address: SocketAddr,
    weather: watch::Sender<Weather>,
    counters: Arc<Counters>,
    serving: JoinHandle<()>,
}

impl Proxy {
    /// Listens on a free port of loopback, in front of this address.
    pub async fn start(server: impl Into<String>) -> Result<Self> {
        let server = server.into();
        let listener =
            TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.context("the proxy cannot listen")?;
        let (address, counters) = (listener.local_addr()?, Arc::new(Counters::default()));
        let (weather, watched) = watch::channel(Weather::Clear);
        let counting = counters.clone();
        let serving = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(carry(client, server.clone(), watched.clone(), counting.clone()));
            }
        });
        Ok(Self { address, weather, counters, serving })
    }

    /// In front of the server that a url names; returns the url through the proxy too.
    pub async fn in_front_of(url: &str) -> Result<(Self, String)> {
        let parsed = url::Url::parse(url).context("the server has no url")?;
        let host = parsed.host_str().context("the url names no host")?;
        let port = parsed.port().context("the url names no port")?;
        let proxy = Self::start(format!("{host}:{port}")).await?;
        let through = url.replacen(&format!("{host}:{port}"), &proxy.address.to_string(), 1);
        Ok((proxy, through))
    }

    /// Changes the weather, for open connections too.
    pub fn set(&self, weather: Weather) {
        self.weather.send_replace(weather);
    }

    /// What it has done.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.serving.abort();
        self.weather.send_replace(Weather::Cut);
    }
}

/// One connection, from its beginning to its end.
async fn carry(
    mut client: TcpStream,
    server: String,
    mut weather: watch::Receiver<Weather>,
    counters: Arc<Counters>,
) {
    loop {
        match *weather.borrow_and_update() {
            Weather::Cut => return count(&counters.refused, 1),
            Weather::Reset => {
                let _gone = client.set_zero_linger();
                return count(&counters.refused, 1);
            }
            Weather::HalfOpen => {}
            _ => break,
        }
        if weather.changed().await.is_err() {
            return;
        }
    }
    let Ok(mut upstream) = TcpStream::connect(&server).await else { return count(&counters.refused, 1) };
    let (_, _) = (client.set_nodelay(true), upstream.set_nodelay(true));
    count(&counters.accepted, 1);
    count(&counters.open, 1);
    let ended = {
        let (from_client, to_client) = client.split();
        let (from_server, to_server) = upstream.split();
        let requests = pass(from_client, to_server, weather.clone(), &counters, false);
        let answers = pass(from_server, to_client, weather.clone(), &counters, true);
        // Whichever ends first ends the connection.
        tokio::select! {
            ended = requests => ended,
            ended = answers => ended,
        }
    };
    counters.open.fetch_sub(1, Ordering::Relaxed);
    if ended != Ended::Itself {
        count(&counters.severed, 1);
    }
    if ended == Ended::Reset {
        let (_, _) = (client.set_zero_linger(), upstream.set_zero_linger());
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ended {
    Itself,
    Weather,
    Reset,
}

/// One direction of a connection.
async fn pass(
    mut from: ReadHalf<'_>,
    mut to: WriteHalf<'_>,
    mut weather: watch::Receiver<Weather>,
    counters: &Counters,
    answers: bool,
) -> Ended {
    let clock = Clock::system();
    let mut buffer = vec![0; 16 * 1024];
    let (mut total, mut deaf) = (0_u64, false);
    loop {
        let now = *weather.borrow_and_update();
        // An answer is missing in the middle of the stream: nobody can make sense of what would follow.
        let now = if deaf && now != Weather::SwallowReplies { Weather::Reset } else { now };
        match now {
            Weather::Cut => return Ended::Weather,
            Weather::Reset => return Ended::Reset,
            Weather::HalfOpen => {
                if weather.changed().await.is_err() {
                    return Ended::Itself;
                }
                continue;
            }
            _ => {}
        }
        let most =
            if let Weather::Trickle(bytes) = now { bytes.clamp(1, buffer.len()) } else { buffer.len() };
        let read = tokio::select! {
            changed = weather.changed() => match changed {
                Ok(()) => continue,
                Err(_) => return Ended::Itself,
            },
            read = from.read(&mut buffer[..most]) => read,
        };
        let Ok(read @ 1..) = read else { return Ended::Itself };
        match now {
            Weather::Latency(delay) => clock.sleep(delay).await,
            Weather::Trickle(_) => clock.sleep(Duration::from_millis(10)).await,
            _ => {}
        }
        if answers && now == Weather::SwallowReplies {
            count(&counters.swallowed, read as u64);
            deaf = true;
            continue;
        }
        if to.write_all(&buffer[..read]).await.is_err() {
            return Ended::Itself;
        }
        count(&counters.passed, read as u64);
        total += read as u64;
        if let Weather::LimitThenClose(limit) = now
            && answers
            && total >= limit
        {
            return Ended::Weather;
        }
    }
}

fn count(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Ordering::Relaxed);
}
