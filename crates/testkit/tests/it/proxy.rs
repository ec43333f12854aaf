//! The fault proxy does what it says, to a server that sends back what it is sent.

use std::time::Duration;

use postrider_testkit::proxy::{Proxy, Weather};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

const LONG: Duration = Duration::from_mins(1);
const SHORT: Duration = Duration::from_millis(200);

/// A server that sends everything back, and a proxy in front of it.
async fn echo() -> Proxy {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let (mut from, mut to) = stream.split();
                let _ended = tokio::io::copy(&mut from, &mut to).await;
            });
        }
    });
    Proxy::start(address.to_string()).await.unwrap()
}

async fn connect(proxy: &Proxy) -> TcpStream {
    timeout(LONG, TcpStream::connect(proxy.address)).await.unwrap().unwrap()
}

/// What comes back; nothing when the connection ends.
async fn ask(stream: &mut TcpStream, words: &[u8]) -> Option<Vec<u8>> {
    stream.write_all(words).await.ok()?;
    let mut answer = vec![0; words.len()];
    stream.read_exact(&mut answer).await.ok()?;
    Some(answer)
}

#[tokio::test]
async fn in_clear_weather_everything_passes() {
    let proxy = echo().await;
    let mut stream = connect(&proxy).await;
    assert_eq!(ask(&mut stream, b"hello").await.as_deref(), Some(&b"hello"[..]));
    assert_eq!((proxy.counters().accepted(), proxy.counters().open()), (1, 1));
    assert_eq!(proxy.counters().passed(), 10);
}

#[tokio::test]
async fn a_cut_ends_what_is_open_and_what_comes() {
    for weather in [Weather::Cut, Weather::Reset] {
        let proxy = echo().await;
        let mut stream = connect(&proxy).await;
        assert!(ask(&mut stream, b"hello").await.is_some());
        proxy.set(weather);
        assert_eq!(timeout(LONG, ask(&mut stream, b"hello")).await.unwrap(), None);
        let mut late = connect(&proxy).await;
        assert_eq!(timeout(LONG, ask(&mut late, b"hello")).await.unwrap(), None);
        assert_eq!((proxy.counters().severed(), proxy.counters().refused()), (1, 1));
        proxy.set(Weather::Clear);
        assert!(ask(&mut connect(&proxy).await, b"again").await.is_some());
    }
}

#[tokio::test]
async fn a_reset_is_told_from_an_orderly_end() {
    let proxy = echo().await;
    let mut stream = connect(&proxy).await;
    assert!(ask(&mut stream, b"hello").await.is_some());
    proxy.set(Weather::Reset);
    let error = timeout(LONG, stream.read(&mut [0; 1])).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
}

#[tokio::test]
async fn a_half_open_connection_is_silent_and_goes_on_later() {
    let proxy = echo().await;
    let mut stream = connect(&proxy).await;
    assert!(ask(&mut stream, b"hello").await.is_some());
    proxy.set(Weather::HalfOpen);
    stream.write_all(b"anybody?").await.unwrap();
    let mut answer = [0; 8];
    assert!(timeout(SHORT, stream.read_exact(&mut answer)).await.is_err());
    proxy.set(Weather::Clear);
    let mut rest = Vec::new();
    timeout(LONG, stream.read_buf(&mut rest)).await.unwrap().unwrap();
    assert!(b"anybody?".starts_with(&rest));
}

#[tokio::test]
async fn a_swallowed_reply_is_gone_and_so_is_the_connection_afterwards() {
    let proxy = echo().await;
    let mut stream = connect(&proxy).await;
    assert!(ask(&mut stream, b"hello").await.is_some());
    proxy.set(Weather::SwallowReplies);
    stream.write_all(b"hello").await.unwrap();
    assert!(timeout(SHORT, stream.read(&mut [0; 5])).await.is_err());
    while proxy.counters().swallowed() < 5 {
        tokio::task::yield_now().await;
    }
    proxy.set(Weather::Clear);
    let ended = timeout(LONG, stream.read(&mut [0; 5])).await.unwrap();
    assert!(!matches!(ended, Ok(1..)), "{ended:?}");
}

#[tokio::test]
async fn a_limit_closes_a_connection_in_the_middle() {
    let proxy = echo().await;
    proxy.set(Weather::LimitThenClose(10));
    let mut stream = connect(&proxy).await;
    assert!(ask(&mut stream, b"hello").await.is_some());
    let _last = timeout(LONG, ask(&mut stream, b"hello")).await.unwrap();
    assert_eq!(timeout(LONG, ask(&mut stream, b"hello")).await.unwrap(), None);
    assert_eq!(proxy.counters().severed(), 1);
}

#[tokio::test]
async fn slow_weather_is_slow_and_complete() {
    for weather in [Weather::Latency(Duration::from_millis(30)), Weather::Trickle(4)] {
        let proxy = echo().await;
        proxy.set(weather);
        let mut stream = connect(&proxy).await;
        let clock = postrider::Clock::system();
        let begun = clock.monotonic();
        assert_eq!(ask(&mut stream, b"hello, world").await.as_deref(), Some(&b"hello, world"[..]));
        assert!(clock.since(begun) >= Duration::from_millis(30), "{weather:?}");
    }
}
