//! The little HTTP/1.1 that the management API needs: one request per connection, JSON both ways.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use url::Url;

const LIMIT: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) body: Vec<u8>,
}

/// Sends one request to `base` (with its user and password) and reads the whole answer.
pub(crate) async fn request(method: &str, base: &str, path: &str, body: Option<&Value>) -> Result<Response> {
    let exchange = async {
        let base = Url::parse(base).with_context(|| format!("not an address: {base}"))?;
        let host = base.host_str().context("an address without a host")?;
        let port = base.port_or_known_default().context("an address without a port")?;
        let mut stream = TcpStream::connect((host, port)).await?;
        stream.write_all(&encode(method, &base, path, body)).await?;
        let mut answer = Vec::new();
        // Some servers keep the connection for a next request, whatever we say.
        while !is_whole(&answer) && stream.read_buf(&mut answer).await? > 0 {}
        decode(&answer)
    };
    tokio::time::timeout(LIMIT, exchange).await.context("no answer to an HTTP request")?
}

fn encode(method: &str, base: &Url, path: &str, body: Option<&Value>) -> Vec<u8> {
    let host = base.host_str().unwrap_or_default();
    let login =
        BASE64_STANDARD.encode(format!("{}:{}", base.username(), base.password().unwrap_or_default()));
    let body = body.map(Value::to_string).unwrap_or_default();
    format!(
        "{method} {path} HTTP/1.1\r\nhost: {host}\r\nauthorization: Basic {login}\r\nconnection: close\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

/// Whether an answer that tells its length is there.
fn is_whole(answer: &[u8]) -> bool {
    let Some(end) = answer.windows(4).position(|four| four == b"\r\n\r\n") else { return false };
    let head = String::from_utf8_lossy(&answer[..end]).to_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse().ok());
    length.is_some_and(|length: usize| answer.len() >= end + 4 + length)
}

fn decode(answer: &[u8]) -> Result<Response> {
    let end =
        answer.windows(4).position(|four| four == b"\r\n\r\n").context("an HTTP answer without an end")?;
    let head = String::from_utf8_lossy(&answer[..end]).to_lowercase();
    let status = head.split_whitespace().nth(1).and_then(|code| code.parse().ok());
    let status = status.context("an HTTP answer without a status")?;
    let body = &answer[end + 4..];
    let chunked = head.lines().any(|line| line.starts_with("transfer-encoding:") && line.contains("chunked"));
    let body = if chunked { join_chunks(body)? } else { body.to_vec() };
    Ok(Response { status, body })
}

/// Each chunk is its size in hexadecimal, its bytes, and a line end; the last one is empty.
fn join_chunks(mut rest: &[u8]) -> Result<Vec<u8>> {
    let mut whole = Vec::new();
    loop {
        let line = rest.windows(2).position(|two| two == b"\r\n").context("a chunk without a size")?;
        let size = str::from_utf8(&rest[..line])?.split(';').next().unwrap_or_default().trim();
        let size = usize::from_str_radix(size, 16).context("a chunk size that is no number")?;
        rest = &rest[line + 2..];
        if size == 0 {
            return Ok(whole);
        }
        if rest.len() < size + 2 {
            bail!("a chunk was cut short");
        }
        whole.extend_from_slice(&rest[..size]);
        rest = &rest[size + 2..];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_answer_is_read() {
        let response = decode(b"HTTP/1.1 201 Created\r\ncontent-length: 2\r\n\r\n{}").unwrap();
        assert_eq!((response.status, response.body.as_slice()), (201, b"{}".as_slice()));
        assert!(is_whole(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"));
        assert!(!is_whole(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{"));
    }

    #[test]
    fn chunks_are_joined() {
        let answer = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n[1,\r\n2\r\n2]\r\n0\r\n\r\n";
        assert_eq!(decode(answer).unwrap().body, b"[1,2]");
    }

    #[test]
    fn an_answer_cut_short_is_an_error() {
        assert!(decode(b"HTTP/1.1 200 OK\r\n").is_err());
        assert!(decode(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nff\r\nabc").is_err());
    }
}
