//! Endpoints that speak HTTP/2, and others, endpoints and clients, that mean no good: what they are called by, and what they cost.

use std::convert::Infallible;
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::sync::{Arc, Mutex};

use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode, Version};
use hyper_util::rt::{TokioExecutor, TokioIo};
use postrider_testkit::receiver::{Receiver, Reply};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::TcpListener;
use tokio::sync::Notify;

use super::process::Folder;
use super::push::until;

/// What came: on which connection, by which protocol, which event.
type Calls = Arc<Mutex<Vec<(usize, Version, String)>>>;

/// An endpoint that speaks nothing but HTTP/2, with a certificate of the folder. When told so, one of its connections falls silent, and stays
/// open.
async fn speaks_http_2(folder: &Folder, falls_silent: &Arc<Notify>) -> (SocketAddr, Calls) {
    let words = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -noenc -days 10 -subj /CN=localhost \
                -addext subjectAltName=IP:127.0.0.1 -addext basicConstraints=critical,CA:FALSE \
                -keyout key.pem -out cert.pem";
    let made =
        Command::new("openssl").args(words.split_whitespace()).current_dir(folder.path()).output().unwrap();
    assert!(made.status.success(), "{made:?}");
    let certificate = CertificateDer::from_pem_file(folder.path().join("cert.pem")).unwrap();
    let key = PrivateKeyDer::from_pem_file(folder.path().join("key.pem")).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let tls = rustls::ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let mut tls = tls.unwrap().with_no_client_auth().with_single_cert(vec![certificate], key).unwrap();
    tls.alpn_protocols = vec![b"h2".to_vec()];
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(tls));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, calls) = (listener.local_addr().unwrap(), Calls::default());
    let (noted, falls_silent) = (calls.clone(), falls_silent.clone());
    tokio::spawn(async move {
        for connection in 0.. {
            let Ok((stream, _)) = listener.accept().await else { return };
            let (acceptor, noted, falls_silent) = (acceptor.clone(), noted.clone(), falls_silent.clone());
            let answer = service_fn(move |request: Request<hyper::body::Incoming>| {
                let id = request.headers()["webhook-id"].to_str().unwrap_or_default().to_owned();
                noted.lock().unwrap().push((connection, request.version(), id));
                let mut response = Response::new(String::new());
                *response.status_mut() = StatusCode::NO_CONTENT;
                async { Ok::<_, Infallible>(response) }
            });
            tokio::spawn(async move {
                let Ok(stream) = acceptor.accept(stream).await else { return };
                let served = http2::Builder::new(TokioExecutor::new());
                let mut served = std::pin::pin!(served.serve_connection(TokioIo::new(stream), answer));
                tokio::select! {
                    _ended = &mut served => {}
                    // Nobody reads from it any more, and nobody closes it.
                    () = falls_silent.notified() => std::future::pending().await,
                }
            });
        }
    });
    (address, calls)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endpoint_that_offers_http_2_is_called_by_it() {
    let folder = Folder::new();
    let (address, calls) = speaks_http_2(&folder, &Arc::default()).await;
    let trusted = folder.path().join("cert.pem");
    let folder = folder.with("SSL_CERT_FILE", trusted.to_str().unwrap());
    let config = format!(
        "[egress]\nallow = ['127.0.0.1']\n[[push]]\nname = 'erp'\nkeys = ['shop.order.*']\n\
         url = 'https://{address}/hook'\nconcurrency = 8\n"
    );
    folder.write("postrider.toml", &config);
    let mut serving = folder.serve(&[]);
    serving.wait_for("pushing");
    for number in 1..=40 {
        let event = format!(r#"{{"type":"shop.order.placed","id":"evt_{number}","data":{{}}}}"#);
        assert_eq!(serving.post_event(&[], &event).0, 202);
    }
    until(|| calls.lock().unwrap().len() == 40).await;
    let calls = calls.lock().unwrap();
    assert!(calls.iter().all(|(_, version, _)| *version == Version::HTTP_2), "{calls:?}");
    let connections: std::collections::HashSet<_> = calls.iter().map(|(connection, ..)| connection).collect();
    assert!(connections.len() <= 8, "a connection is used again: {calls:?}");
}

/// A call that comes too late leaves the connection as it is, by HTTP/2. Without a look at it every later call would go the same way.
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_fell_silent_is_given_up() {
    let (folder, falls_silent) = (Folder::new(), Arc::<Notify>::default());
    let (address, calls) = speaks_http_2(&folder, &falls_silent).await;
    let trusted = folder.path().join("cert.pem");
    let folder = folder.with("SSL_CERT_FILE", trusted.to_str().unwrap());
    let config = format!(
        "[egress]\nallow = ['127.0.0.1']\n[[push]]\nname = 'erp'\nkeys = ['shop.order.*']\n\
         url = 'https://{address}/hook'\nconcurrency = 1\ntimeout = '2s'\n\
         retry = {{ max_retries = 100, delays = ['200ms'] }}\n[[consumer]]\nname = 'erp'\nbreaker_failures = 0\n"
    );
    folder.write("postrider.toml", &config);
    let mut serving = folder.serve(&[]);
    serving.wait_for("pushing");
    let publish = |id: &str| {
        let event = format!(r#"{{"type":"shop.order.placed","id":"{id}","data":{{}}}}"#);
        assert_eq!(serving.post_event(&[], &event).0, 202);
    };
    publish("evt_1");
    until(|| !calls.lock().unwrap().is_empty()).await;
    falls_silent.notify_one();
    publish("evt_2");
    until(|| calls.lock().unwrap().iter().any(|(connection, _, id)| *connection > 0 && id == "evt_2")).await;
}

/// Whoever publishes as soon as the command has returned must not miss the subscription.
#[tokio::test(flavor = "multi_thread")]
async fn a_subscription_that_was_added_gets_the_next_event() {
    let receiver = Receiver::start(|_, _| Reply::status(204)).await;
    let folder = Folder::new();
    folder.write("postrider.toml", "[egress]\nallow = ['127.0.0.1', 'http']\n");
    let url = receiver.url();
    let add = |name: &str| folder.run(&["push", "add", name, "--url", &url, "--keys", "shop.order.*"]);
    add("early").assert(0, "its queue is not bound yet");
    let mut serving = folder.serve(&[]);
    serving.wait_for("serving");
    // On a busy machine it may take longer than the command waits, and the command says so.
    let bound = |name: String| add(&name).assert(0, "its queue is").err.contains("its queue is bound:");
    assert!((0..20).any(|number| bound(format!("erp-{number}"))));
    assert_eq!(serving.post_event(&[], r#"{"type":"shop.order.placed","data":{},"id":"evt_1"}"#).0, 202);
    until(|| receiver.requests().iter().filter(|one| one.header("webhook-id") == "evt_1").count() >= 2).await;
}

#[test]
fn a_subscription_that_is_not_allowed_any_more_is_told_of() {
    let folder = Folder::new();
    folder.write("postrider.toml", "[egress]\nallow = ['127.0.0.1', 'http']\n");
    let add = ["push", "add", "erp", "--url", "http://127.0.0.1:1/", "--keys", "shop.order.*"];
    folder.run(&add).assert(0, "its queue is not bound yet");
    let state = || folder.run(&["push", "ls", "--json"]).json()[0]["state"].clone();
    assert_eq!(state(), "active");
    folder.write("postrider.toml", "");
    assert_eq!(state(), "refused");
    folder.run(&["doctor"]).assert(0, "erp: http://127.0.0.1:1/: http without TLS is not allowed");
}

/// A new secret begins the endpoint anew. The call that is under way is finished by the old one.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_outlasts_its_subscription_is_among_the_attempts() {
    let silent = Receiver::start(|_, _| Reply::Silence).await;
    let folder = Folder::new();
    folder.write("postrider.toml", "[egress]\nallow = ['127.0.0.1', 'http']\n");
    let mut serving = folder.serve(&[]);
    serving.wait_for("serving");
    let url = silent.url();
    folder
        .run(&["push", "add", "erp", "--url", &url, "--keys", "shop.order.*", "--timeout", "4s"])
        .assert(0, "");
    serving.wait_for("pushing");
    assert_eq!(serving.post_event(&[], r#"{"type":"shop.order.placed","data":{},"id":"evt_1"}"#).0, 202);
    until(|| !silent.requests().is_empty()).await;
    folder.run(&["push", "rotate-secret", "erp"]).assert(0, "");
    let first = || folder.run(&["push", "attempts", "erp", "--event", "evt_1", "--json"]).json();
    let is_told = |attempts: serde_json::Value| {
        attempts.as_array().is_some_and(|all| all.iter().any(|one| one["attempt"] == 1))
    };
    until(|| is_told(first())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_endpoints_and_slow_clients_take_little_memory() {
    use std::io::Write as _;

    let endless = Receiver::start(|_, _| Reply::Endless).await;
    let folder = Folder::new();
    let config = format!(
        "[egress]\nallow = ['127.0.0.1', 'http']\n[[push]]\nname = 'erp'\nkeys = ['shop.order.*']\nurl = '{}'\n\
         concurrency = 32\n[[consumer]]\nname = 'erp'\nbreaker_failures = 0\n",
        endless.url()
    );
    folder.write("postrider.toml", &config);
    let mut serving = folder.serve(&[]);
    serving.wait_for("pushing");
    assert_eq!(serving.post_event(&[], r#"{"type":"shop.order.placed","data":{}}"#).0, 202);
    until(|| !endless.requests().is_empty()).await;
    let before = serving.most_memory_kib();
    // Each would send a megabyte and stops half way; their bodies are never whole.
    let half = "x".repeat(500_000);
    let slow: Vec<_> = (0..50)
        .map(|_| {
            let mut stream = TcpStream::connect(&serving.address).unwrap();
            let head = "POST /v1/events HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: 1000000\r\n\r\n";
            stream.write_all(format!("{head}{half}").as_bytes()).unwrap();
            stream
        })
        .collect();
    let batch: Vec<_> = (0..200).map(|_| r#"{"type":"shop.order.placed","data":{}}"#).collect();
    let json = [("content-type", "application/json")];
    let sent = serving.http("POST", "/v1/events:batch", &json, &format!("[{}]", batch.join(",")));
    assert_eq!(sent.0, 202, "{}", sent.2);
    until(|| endless.requests().len() > 200).await;
    drop(slow);
    let grown = serving.most_memory_kib().saturating_sub(before);
    // 25 MB of halves, 32 times 64 KiB of answers, and what a debug build and its allocator add.
    assert!(grown < 150 * 1024, "it grew by {grown} KiB");
}
