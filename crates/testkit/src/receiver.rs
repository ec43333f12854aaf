//! An endpoint for push tests: answers as it is told, well or badly, and remembers every request.
#![allow(clippy::unwrap_used, clippy::missing_panics_doc, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// A request as it arrived.
#[derive(Debug, Clone)]
pub struct Request {
    /// `/hook`
    pub path: String,
    /// By name in lower case.
    pub headers: BTreeMap<String, String>,
    /// The body.
    pub body: Vec<u8>,
}

impl Request {
    /// A header; empty when it is absent.
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", String::as_str)
    }
}

/// What is sent back.
#[derive(Debug, Clone)]
pub enum Reply {
    /// A status, more headers, and a body.
    Status(u16, &'static str, String),
    /// These bytes, and the end.
    Raw(&'static str),
    /// A success whose body never ends.
    Endless,
    /// A success whose body stops in the middle, and then nothing for as long as the other side waits.
    Stalls,
    /// Nothing for as long as the other side waits.
    Silence,
}

impl Reply {
    /// A plain status.
    pub fn status(status: u16) -> Self {
        Self::Status(status, "", String::new())
    }
}

/// The endpoint. Ends when it is dropped.
pub struct Receiver {
    /// Where it listens, on loopback.
    pub address: SocketAddr,
    seen: Arc<Mutex<Seen>>,
    serving: JoinHandle<()>,
}

/// What came.
#[derive(Default)]
struct Seen {
    requests: Vec<Request>,
    /// How often each `webhook-id` did: a run of an hour brings more than could be counted again for every request.
    times: HashMap<String, usize>,
}

impl Seen {
    /// Keeps a request. How many came before it under the same id.
    fn keep(&mut self, request: Request) -> usize {
        let times = self.times.entry(request.header("webhook-id").to_owned()).or_default();
        let before = *times;
        *times += 1;
        self.requests.push(request);
        before
    }
}

impl Receiver {
    /// Listens on a free port. `answer` gets the request and how many came before it under the same `webhook-id`.
    pub async fn start(answer: impl Fn(&Request, usize) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (seen, answer) = (Arc::new(Mutex::new(Seen::default())), Arc::new(answer));
        let all = seen.clone();
        let serving = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (seen, answer) = (all.clone(), answer.clone());
                tokio::spawn(async move { converse(stream, &seen, answer.as_ref()).await });
            }
        });
        Self { address, seen, serving }
    }

    /// `http://127.0.0.1:PORT/hook`
    pub fn url(&self) -> String {
        format!("http://{}/hook", self.address)
    }

    /// What came, in the order of arrival.
    pub fn requests(&self) -> Vec<Request> {
        self.seen.lock().unwrap().requests.clone()
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

/// One connection, for as many requests as it brings.
async fn converse(
    mut stream: TcpStream,
    seen: &Mutex<Seen>,
    answer: &(dyn Fn(&Request, usize) -> Reply + Send + Sync),
) {
    let mut buffer = Vec::new();
    while let Some(request) = read_request(&mut stream, &mut buffer).await {
        let before = seen.lock().unwrap().keep(request.clone());
        match answer(&request, before) {
            Reply::Status(status, headers, body) => {
                let head =
                    format!("HTTP/1.1 {status} Whatever\r\n{headers}content-length: {}\r\n\r\n", body.len());
                if stream.write_all(format!("{head}{body}").as_bytes()).await.is_err() {
                    return;
                }
            }
            Reply::Raw(bytes) => {
                let _gone = stream.write_all(bytes.as_bytes()).await;
                return;
            }
            Reply::Endless => {
                let _gone = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await;
                while stream.write_all(&[b'x'; 8192]).await.is_ok() {}
                return;
            }
            Reply::Stalls => {
                let _gone = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf").await;
                return wait_for_the_end(&mut stream).await;
            }
            Reply::Silence => return wait_for_the_end(&mut stream).await,
        }
    }
}

/// Until the other side hangs up.
async fn wait_for_the_end(stream: &mut TcpStream) {
    let mut rest = [0; 64];
    while stream.read(&mut rest).await.is_ok_and(|read| read > 0) {}
}

async fn read_request(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> Option<Request> {
    let end = loop {
        if let Some(end) = buffer.windows(4).position(|window| window == b"\r\n\r\n") {
            break end;
        }
        read_more(stream, buffer).await?;
    };
    let head = String::from_utf8_lossy(&buffer[..end]).into_owned();
    let mut lines = head.split("\r\n");
    let path = lines.next()?.split(' ').nth(1)?.to_owned();
    let pair = |line: &str| {
        let (name, value) = line.split_once(':')?;
        Some((name.trim().to_lowercase(), value.trim().to_owned()))
    };
    let headers: BTreeMap<_, _> = lines.filter_map(pair).collect();
    let length: usize = headers.get("content-length").and_then(|text| text.parse().ok()).unwrap_or(0);
    let whole = end + 4 + length;
    while buffer.len() < whole {
        read_more(stream, buffer).await?;
    }
    let rest = buffer.split_off(whole);
    let body = buffer.split_off(end + 4);
    *buffer = rest;
    Some(Request { path, headers, body })
}

async fn read_more(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> Option<()> {
    let read = stream.read_buf(buffer).await.ok()?;
    (read > 0).then_some(())
}
