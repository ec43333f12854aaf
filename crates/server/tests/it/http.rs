//! The HTTP API of a running `serve`.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use super::process::Folder;

#[test]
fn events_health_and_metrics_over_http() {
    let folder = Folder::new();
    let mut serving = folder.serve(&[]);
    serving.wait_for("serving");
    let (status, accepted) =
        serving.post_event(&[], r#"{"type":"shop.order.placed","data":{"n":1},"id":"evt_1"}"#);
    assert_eq!((status, accepted["id"].as_str()), (202, Some("evt_1")));
    let (status, problem) =
        serving.post_event(&[], r#"{"type":"shop.order.placed","data":{"n":1},"id":"evt_1"}"#);
    assert_eq!((status, problem["code"].as_str()), (409, Some("duplicate_event")));
    let (status, problem) =
        serving.post_event(&[], r#"{"type":"shop.order.placed","data":{"n":2},"id":"evt_1"}"#);
    assert_eq!((status, problem["code"].as_str()), (409, Some("event_conflict")));
    let of = |tenant: &str| {
        format!(r#"{{"type":"shop.order.placed","data":{{"n":1}},"id":"evt_2","tenant":"{tenant}"}}"#)
    };
    assert_eq!(serving.post_event(&[], &of("ta")).0, 202);
    let (status, problem) = serving.post_event(&[], &of("ta"));
    assert_eq!((status, problem["code"].as_str()), (409, Some("duplicate_event")));
    let (status, problem) = serving.post_event(&[], &of("tb"));
    assert_eq!((status, problem["code"].as_str()), (409, Some("event_conflict")), "it is written nowhere");
    let json = [("content-type", "application/json")];
    let (status, _, told) = serving.http("POST", "/v1/events:batch", &json, &format!("[{}]", of("tb")));
    assert!(status == 207 && told.contains("event_conflict") && !told.contains("\"duplicate\""), "{told}");
    let (status, problem) = serving.post_event(&[], "{");
    assert_eq!((status, problem["code"].as_str()), (400, Some("invalid_json")));
    // Members in their order are no object.
    for (path, array) in [("/v1/events", r#"["a.b", {}]"#), ("/v1/progress", r#"["job-1", null, null]"#)] {
        let (status, _, body) = serving.http("POST", path, &[("content-type", "application/json")], array);
        assert_eq!((status, body.contains("invalid_json")), (400, true), "{path}: {body}");
    }

    for path in ["/v1/health", "/v1/health/live", "/v1/health/ready"] {
        let (status, head, body) = serving.http("GET", path, &[], "");
        assert_eq!(status, 200, "{path}: {body}");
        assert!(head.contains("x-request-id: "), "{head}");
    }
    let (status, head, _) = serving.http("GET", "/nothing", &[], "");
    assert!(status == 404 && head.contains("application/problem+json"), "{head}");
    let (status, head, _) = serving.http("DELETE", "/v1/events", &[], "");
    assert!(status == 405 && head.contains("allow: ") && head.contains("post"), "{head}");
    let (status, _, body) =
        serving.http("POST", "/v1/events", &[("content-type", "application/json")], &"x".repeat(2 << 20));
    assert!(status == 413 && body.contains("payload_too_large"), "{body}");
    let (status, _, text) = serving.http("GET", "/v1/metrics", &[], "");
    assert_eq!(status, 200);
    assert!(
        text.contains(r#"postrider_http_requests_total{route="/v1/events",method="POST",status="202"} 2"#),
        "{text}"
    );
}

/// As `nc -N` does, and scripts that write requests one after the other and then say that they are done.
#[test]
fn a_client_that_has_said_everything_still_gets_its_answers() {
    let folder = Folder::new();
    let serving = folder.serve(&["--roles", "api"]);
    let post = |number: u32| {
        let event = format!(r#"{{"type":"shop.order.placed","data":{{}},"id":"evt_{number}"}}"#);
        let length = event.len();
        format!(
            "POST /v1/events HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{event}"
        )
    };
    let mut stream = TcpStream::connect(&serving.address).unwrap();
    stream.set_read_timeout(Some(Duration::from_mins(1))).unwrap();
    stream.write_all((1..=3).map(post).collect::<String>().as_bytes()).unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let mut answers = String::new();
    stream.read_to_string(&mut answers).unwrap();
    assert_eq!(answers.matches("HTTP/1.1 202 Accepted").count(), 3, "{answers}");
    // Who goes away in the middle of a request has said nothing.
    let mut stream = TcpStream::connect(&serving.address).unwrap();
    stream.set_read_timeout(Some(Duration::from_mins(1))).unwrap();
    stream.write_all(post(4).strip_suffix("}").unwrap().as_bytes()).unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let mut answer = String::new();
    let _ended = stream.read_to_string(&mut answer);
    assert!(!answer.contains("202 Accepted"), "{answer}");
    let (status, again) = serving.post_event(&[], r#"{"type":"shop.order.placed","data":{},"id":"evt_4"}"#);
    assert_eq!(status, 202, "{again}");
}

#[test]
fn tokens_decide_once_there_is_one() {
    let folder = Folder::new();
    let serving = folder.serve(&["--roles", "api"]);
    let event = r#"{"type":"a.b","data":{}}"#;
    assert_eq!(serving.post_event(&[], event).0, 202);
    let create =
        |role: &str| folder.run(&["token", "create", "--role", role]).assert(0, "prt_").out.trim().to_owned();
    let (viewer, operator) = (create("viewer"), create("operator"));
    assert_eq!(serving.post_event(&[], event).0, 401);
    assert_eq!(serving.post_event(&[("authorization", &format!("Bearer {viewer}"))], event).0, 403);
    assert_eq!(serving.post_event(&[("authorization", &format!("Bearer {operator}"))], event).0, 202);
    assert_eq!(serving.http("GET", "/v1/metrics", &[], "").0, 401);
    assert_eq!(
        serving.http("GET", "/v1/metrics", &[("authorization", &format!("Bearer {viewer}"))], "").0,
        200
    );
    assert_eq!(serving.http("GET", "/v1/health/live", &[], "").0, 200);
}

#[test]
fn the_metrics_token_works_as_the_seed_has_it() {
    let folder = Folder::new().with("METRICS_TOKEN", "scrape-me");
    let serving = folder.serve(&["--roles", "api"]);
    assert_eq!(serving.http("GET", "/v1/metrics", &[], "").0, 401);
    assert_eq!(serving.http("GET", "/v1/metrics", &[("x-metrics-token", "scrape-me")], "").0, 200);
    assert_eq!(serving.http("GET", "/v1/metrics", &[("authorization", "Bearer scrape-me")], "").0, 200);
    assert_eq!(serving.http("GET", "/v1/metrics", &[("x-metrics-token", "wrong")], "").0, 401);
}

#[test]
fn off_loopback_it_needs_tls_and_a_token() {
    let folder = Folder::new();
    folder.run(&["serve", "--listen", "0.0.0.0:0"]).assert(2, "put a proxy with TLS in front");
    let folder = folder.with("POSTRIDER_HTTP__TLS", "proxy");
    folder.run(&["serve", "--listen", "0.0.0.0:0"]).assert(2, "there is no token yet");
}

#[test]
fn behind_a_proxy_nobody_is_the_owner_of_the_machine() {
    let folder = Folder::new().with("POSTRIDER_HTTP__TLS", "proxy");
    // Every caller comes from the proxy, which is on loopback.
    folder
        .run(&["serve", "--listen", "127.0.0.1:0"])
        .assert(2, "through its proxy, and there is no token yet");
    let token = folder.run(&["token", "create", "--role", "admin"]).assert(0, "").out.trim().to_owned();
    let serving = folder.serve(&["--roles", "api,dashboard"]);
    assert_eq!(serving.http("GET", "/v1/outbox", &[], "").0, 401);
    let bearer = format!("Bearer {token}");
    assert_eq!(serving.http("GET", "/v1/outbox", &[("authorization", &bearer)], "").0, 200);
    // Nor when the last token is gone.
    let id = serving.http("GET", "/v1/tokens", &[("authorization", &bearer)], "").2;
    let id = serde_json::from_str::<serde_json::Value>(&id).unwrap()["tokens"][0]["id"].clone();
    folder.run(&["token", "revoke", id.as_str().unwrap(), "--yes"]).assert(0, "revoked");
    assert_eq!(serving.http("GET", "/v1/outbox", &[], "").0, 401);
    assert_eq!(serving.http("GET", "/dashboard", &[], "").0, 303);
}

#[test]
fn it_does_tls_itself() {
    use std::process::{Command, Stdio};

    let folder = Folder::new();
    let words = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -noenc -days 10 -subj /CN=localhost \
                -addext subjectAltName=IP:127.0.0.1 -keyout key.pem -out cert.pem";
    let made =
        Command::new("openssl").args(words.split_whitespace()).current_dir(folder.path()).output().unwrap();
    assert!(made.status.success(), "{made:?}");
    folder.write("postrider.toml", "[http]\ntls = 'own'\n");
    folder.run(&["serve"]).assert(2, "http.cert_file");
    folder.write("postrider.toml", "[http]\ntls = 'own'\ncert_file = 'key.pem'\nkey_file = 'key.pem'\n");
    folder.run(&["serve", "--listen", "127.0.0.1:0"]).assert(1, "do not go together");
    folder.write("postrider.toml", "[http]\ntls = 'own'\ncert_file = 'cert.pem'\nkey_file = 'key.pem'\n");
    let mut serving = folder.start(&["serve", "--roles", "api", "--listen", "127.0.0.1:0"]);
    let line = serving.wait_for("listening on https://");
    let address = line.rsplit('/').next().unwrap();

    // Somebody who connects and says nothing keeps nobody waiting.
    let _silent = std::net::TcpStream::connect(address).unwrap();
    let ask = ["s_client", "-quiet", "-CAfile", "cert.pem", "-verify_return_error", "-connect", address];
    let mut client = Command::new("openssl");
    client
        .args(ask)
        .current_dir(folder.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut client = client.spawn().unwrap();
    let request = "GET /v1/health/live HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    client.stdin.as_mut().unwrap().write_all(request.as_bytes()).unwrap();
    let answer = client.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&answer.stdout);
    assert!(said.starts_with("HTTP/1.1 200"), "{said} {}", String::from_utf8_lossy(&answer.stderr));
}

#[test]
fn clients_that_send_nothing_lose_their_connection_and_keep_nobody_out() {
    let folder = Folder::new()
        .with("POSTRIDER_HTTP__IDLE_TIMEOUT_MS", "300")
        .with("POSTRIDER_HTTP__MAX_CONNECTIONS", "20");
    let serving = folder.serve(&["--roles", "api"]);
    let silent: Vec<_> = (0..30).map(|_| TcpStream::connect(&serving.address).unwrap()).collect();
    let mut slow = TcpStream::connect(&serving.address).unwrap();
    slow.write_all(b"GET /v1/health/live HTTP/1.1\r\nhost: loc").unwrap();
    assert_eq!(serving.http("GET", "/v1/health/live", &[], "").0, 200);
    for mut stream in silent.into_iter().chain([slow]) {
        stream.set_read_timeout(Some(Duration::from_mins(1))).unwrap();
        let mut answer = Vec::new();
        // Closed, in one way or another; a time-out would be an error of another kind.
        let closed = stream.read_to_end(&mut answer);
        let waited = closed.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock);
        assert!(!waited && !answer.starts_with(b"HTTP/1.1 200"), "{answer:?}");
    }
}

#[test]
fn clients_that_read_nothing_lose_their_connection_and_keep_nobody_out() {
    let folder = Folder::new()
        .with("POSTRIDER_HTTP__IDLE_TIMEOUT_MS", "500")
        .with("POSTRIDER_HTTP__MAX_CONNECTIONS", "2");
    let serving = folder.serve(&["--roles", "api"]);
    let ask = "GET /v1/openapi.json HTTP/1.1\r\nhost: localhost\r\n\r\n".repeat(100);
    let fill = || {
        let mut stream = TcpStream::connect(&serving.address).unwrap();
        stream.set_write_timeout(Some(Duration::from_secs(2))).unwrap();
        // Until the answers that nobody reads fill every buffer on the way, and the questions do.
        while stream.write_all(ask.as_bytes()).is_ok() {}
        stream
    };
    let silent = [fill(), fill()];
    assert_eq!(serving.http("GET", "/v1/health/live", &[], "").0, 200);
    drop(silent);
}

#[test]
fn a_huge_head_is_refused_and_a_connection_closed_half_way_commits_nothing() {
    let folder = Folder::new();
    let serving = folder.serve(&["--roles", "api"]);
    let event = r#"{"type":"a.b","data":{},"id":"half"}"#;
    let exchange = |sent: &str| {
        let mut stream = TcpStream::connect(&serving.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_mins(1))).unwrap();
        // It may answer and close before it has read everything.
        let _refused = stream.write_all(sent.as_bytes());
        let _closed = stream.shutdown(std::net::Shutdown::Write);
        let mut answer = Vec::new();
        let closed = stream.read_to_end(&mut answer);
        assert!(
            !closed.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock),
            "it was left open"
        );
        String::from_utf8_lossy(&answer).into_owned()
    };
    let head = "POST /v1/events HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n";
    let half = exchange(&format!("{head}content-length: 1000\r\n\r\n{event}"));
    assert!(!half.starts_with("HTTP/1.1 2"), "{half}");
    let huge =
        exchange(&format!("{head}x-huge: {}\r\ncontent-length: 36\r\n\r\n{event}", "x".repeat(2_000_000)));
    assert!(huge.is_empty() || huge.starts_with("HTTP/1.1 431"), "{huge}");
    let many = "x-same: y\r\n".repeat(1000);
    let many = exchange(&format!("{head}{many}content-length: 36\r\n\r\n{event}"));
    assert!(many.is_empty() || many.starts_with("HTTP/1.1 431"), "{many}");
    assert_eq!(serving.post_event(&[], r#"{"type":"a.b","data":{},"id":"whole"}"#).0, 202);
    let listed = serving.http("GET", "/v1/events", &[], "").2;
    assert!(listed.contains("whole") && !listed.contains("half"), "{listed}");
}

#[test]
fn a_thousand_idle_connections_are_nothing() {
    let folder = Folder::new();
    let serving = folder.serve(&["--roles", "api"]);
    let mut limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    limit.current = limit.maximum;
    rustix::process::setrlimit(rustix::process::Resource::Nofile, limit).unwrap();
    let idle: Vec<_> = (0..1000).map(|_| TcpStream::connect(&serving.address).unwrap()).collect();
    assert_eq!(serving.post_event(&[], r#"{"type":"a.b","data":{}}"#).0, 202);
    drop(idle);
}

#[test]
fn every_request_is_a_line_of_the_log_without_its_query() {
    let folder = Folder::new();
    let mut serving = folder.serve(&["--roles", "api"]);
    let (status, ..) = serving.http("GET", "/v1/nothing?token=hunter2", &[("x-request-id", "mine")], "");
    assert_eq!(status, 404);
    let line = serving.wait_for("answered");
    assert!(line.contains("mine") && line.contains("404") && !line.contains("hunter2"), "{line}");
}

/// As docs/push.md says it.
#[test]
fn the_access_log_can_be_turned_off_alone() {
    let folder = Folder::new().with("POSTRIDER_LOG__LEVEL", "info,postrider::api=warn");
    let mut serving = folder.serve(&["--roles", "relay,api"]);
    serving.wait_for("serving");
    assert_eq!(serving.http("GET", "/v1/nothing", &[], "").0, 404);
    serving.signal(rustix::process::Signal::TERM);
    let (code, said) = serving.ended();
    assert_eq!(code, 0, "{said:#?}");
    assert!(!said.iter().any(|line| line.contains("answered")), "{said:#?}");
}

/// What no route ever sees: answered with a status alone, as the document says, and the next client is served.
#[test]
fn what_is_no_request_is_answered_with_a_status_alone() {
    let folder = Folder::new();
    let serving = folder.serve(&["--roles", "api"]);
    let long = format!("GET /v1/health/live HTTP/1.1\r\nhost: a\r\nx-long: {}\r\n\r\n", "x".repeat(300_000));
    for (request, status) in [(long, "431"), ("nonsense\r\n\r\n".to_owned(), "400")] {
        let mut stream = TcpStream::connect(&serving.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_mins(1))).unwrap();
        let _cut_off = stream.write_all(request.as_bytes());
        let mut answer = Vec::new();
        let _reset = stream.read_to_end(&mut answer);
        let answer = String::from_utf8_lossy(&answer).into_owned();
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{answer:?}");
        assert_eq!(answer.split_once("\r\n\r\n").map(|(_, body)| body), Some(""), "{answer:?}");
    }
    assert_eq!(serving.http("GET", "/v1/health/live", &[], "").0, 200);
    let document = serving.http("GET", "/v1/openapi.json", &[], "").2;
    assert!(document.contains("(431;"), "{document}");
}
