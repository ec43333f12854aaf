//! Where push may go: by name, by address, and when a name changes its mind.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::BoxFuture;
use postrider::push::{Allowed, Answer, Form, Names, SendError, Sender, SenderParts, SystemNames};
use postrider::topology::ConsumerName;
use postrider::{Clock, Event, Incoming};
use postrider_testkit::receiver::{Receiver, Reply};

/// Answers for every name, one answer after the other; the last one repeats.
struct Told {
    answers: Vec<Vec<IpAddr>>,
    asked: AtomicUsize,
    names: Mutex<Vec<String>>,
}

impl Told {
    fn new(answers: &[&[&str]]) -> Arc<Self> {
        let answers = answers.iter().map(|all| all.iter().map(|ip| ip.parse().unwrap()).collect()).collect();
        Arc::new(Self { answers, asked: AtomicUsize::new(0), names: Mutex::default() })
    }
}

impl Names for Told {
    fn resolve<'a>(&'a self, name: &'a str) -> BoxFuture<'a, std::io::Result<Vec<IpAddr>>> {
        self.names.lock().unwrap().push(name.to_owned());
        let number = self.asked.fetch_add(1, Ordering::SeqCst).min(self.answers.len() - 1);
        Box::pin(std::future::ready(Ok(self.answers[number].clone())))
    }
}

fn sender(url: &str, allow: &[&str], names: Arc<dyn Names>) -> Sender {
    let parts = SenderParts {
        form: Form::Bare,
        headers: &BTreeMap::new(),
        secrets: Vec::new(),
        limit: Duration::from_secs(20),
        allowed: Allowed::new(allow).unwrap(),
        names,
    };
    Sender::new(url.parse().unwrap(), parts, Clock::system()).unwrap()
}

async fn answer(sender: &Sender) -> Result<Answer, SendError> {
    let envelope = Event::new("order.placed").unwrap().into_envelope(&Clock::system());
    let event = Incoming::new(ConsumerName::new("mail").unwrap(), envelope, 1);
    sender.send(&event).await
}

async fn send(sender: &Sender) -> Result<u16, SendError> {
    answer(sender).await.map(|answer| answer.status)
}

/// One address or more of every class that a request must not reach.
const INSIDE: [&str; 33] = [
    "127.0.0.1", // loopback
    "127.8.8.8",
    "::1",
    "10.0.0.1", // private
    "172.16.0.1",
    "172.31.255.254",
    "192.168.0.1",
    "fc00::1",
    "fd00::1",
    "169.254.1.1", // link-local
    "fe80::1",
    "fec0::1",
    "169.254.169.254", // metadata
    "fd00:ec2::254",
    "168.63.129.16",
    "192.0.0.192",
    "100.100.100.200", // shared
    "100.64.0.1",
    "0.0.0.0", // nobody's
    "::",
    "::ffff:127.0.0.1", // mapped and translated
    "::ffff:169.254.169.254",
    "::127.0.0.1",
    "64:ff9b::7f00:1",
    "64:ff9b:1::1",
    "2002:7f00:1::",
    "2001::1",
    "224.0.0.1", // multicast, broadcast, reserved
    "ff02::1",
    "255.255.255.255",
    "240.0.0.1",
    "198.18.0.1", // benchmarks, documentation
    "2001:db8::1",
];

#[tokio::test]
async fn a_name_that_leads_inside_is_refused_and_nobody_is_called() {
    let receiver = Receiver::start(|_, _| Reply::status(200)).await;
    let port = receiver.address.port();
    for inside in INSIDE {
        for answers in [&[inside][..], &["1.1.1.1", inside][..], &[inside, "1.1.1.1"][..]] {
            for scheme in ["https", "http"] {
                let url = format!("{scheme}://rebound.example:{port}/");
                let refused = send(&sender(&url, &["http"], Told::new(&[answers]))).await;
                assert!(matches!(refused, Err(SendError::Unsafe(_))), "{url} at {answers:?}: {refused:?}");
            }
        }
    }
    let refused = send(&sender(&format!("http://localhost:{port}/"), &["http"], Arc::new(SystemNames))).await;
    assert!(matches!(refused, Err(SendError::Unsafe(_))), "{refused:?}");
    assert!(receiver.requests().is_empty());
}

#[tokio::test]
async fn an_address_in_any_spelling_is_refused() {
    let receiver = Receiver::start(|_, _| Reply::status(200)).await;
    let port = receiver.address.port();
    let written = |ip: &&str| if ip.contains(':') { format!("[{ip}]") } else { (*ip).to_owned() };
    let spellings = ["127.1", "0x7f.1", "0x7f000001", "2130706433", "0177.0.0.1", "0", "127.0.0.1."];
    for host in INSIDE.iter().map(written).chain(spellings.map(str::to_owned)) {
        let refused =
            send(&sender(&format!("http://{host}:{port}/"), &["http"], Arc::new(SystemNames))).await;
        assert!(matches!(refused, Err(SendError::Unsafe(_))), "{host}: {refused:?}");
    }
    assert!(receiver.requests().is_empty());
}

#[tokio::test]
async fn a_name_that_moves_inside_later_is_refused_then() {
    let receiver = Receiver::start(|_, _| Reply::Status(200, "connection: close\r\n", String::new())).await;
    let url = format!("http://rebound.example:{}/", receiver.address.port());
    // Where it was allowed to be at first is no place that it moves to.
    let moves = INSIDE.iter().filter(|ip| !["127.0.0.1", "::ffff:127.0.0.1"].contains(ip));
    for (number, inside) in moves.enumerate() {
        let names = Told::new(&[&["127.0.0.1"], &[inside]]);
        let sender = sender(&url, &["127.0.0.1", "http"], names.clone());
        assert_eq!(send(&sender).await.unwrap(), 200);
        let refused = send(&sender).await;
        assert!(matches!(refused, Err(SendError::Unsafe(_))), "{inside}: {refused:?}");
        assert_eq!(receiver.requests().len(), number + 1, "{inside}");
        let asked = names.names.lock().unwrap();
        assert_eq!(*asked, ["rebound.example", "rebound.example"], "asked once a connection");
    }
}

#[tokio::test]
async fn a_redirect_is_an_answer_and_is_never_followed() {
    let receiver =
        Receiver::start(|_, _| Reply::Status(302, "location: /elsewhere\r\n", String::new())).await;
    let sender = sender(&receiver.url(), &["127.0.0.1", "http"], Arc::new(SystemNames));
    assert_eq!(send(&sender).await.unwrap(), 302);
    let paths: Vec<_> = receiver.requests().into_iter().map(|request| request.path).collect();
    assert_eq!(paths, ["/hook"]);
}

#[tokio::test]
async fn an_answer_is_read_up_to_64_kib_and_knows_whether_there_was_more() {
    for (length, whole) in [(0, true), (65_536, true), (65_537, false), (1_000_000, false)] {
        let receiver = Receiver::start(move |_, _| Reply::Status(200, "", "x".repeat(length))).await;
        let sender = sender(&receiver.url(), &["127.0.0.1", "http"], Arc::new(SystemNames));
        let answer = answer(&sender).await.unwrap();
        assert_eq!((answer.status, answer.whole), (200, whole), "{length}");
        assert_eq!(answer.body.len(), length.min(65_536));
    }
}

#[tokio::test]
async fn a_connection_is_used_again() {
    let receiver = Receiver::start(|_, _| Reply::status(204)).await;
    let names = Told::new(&[&["127.0.0.1"]]);
    let url = format!("http://sidecar.example:{}/", receiver.address.port());
    let sender = sender(&url, &["127.0.0.0/8", "http"], names.clone());
    for _ in 0..5 {
        assert_eq!(send(&sender).await.unwrap(), 204);
    }
    assert_eq!(names.names.lock().unwrap().len(), 1);
}
