//! Headers nested as deeply as a frame holds: a client of few lines publishes them, because no driver would, and whoever consumes them
//! must survive it.

use super::*;
use postrider::broker::HeaderValue;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use url::Url;

postrider_testkit::on_each_rabbitmq!(headers_nested_to_the_limit_of_a_frame_are_survived);

async fn headers_nested_to_the_limit_of_a_frame_are_survived(version: RabbitVersion) {
    let (vhost, broker) = broker(version).await;
    broker.declare(&orders()).await.unwrap();
    let mut stranger = Stranger::connect(&vhost.amqp_url).await;
    // As much as fits into the smallest frame that RabbitMQ agrees to by default, 128 KiB, at 5 bytes a level.
    for levels in [3, 600, 25_000] {
        stranger.publish("order.deep", levels).await;
    }
    let mut subscription = broker.subscribe(&queue_name("orders"), 10).await.unwrap();
    let settler = subscription.settler();
    for levels in [3, 600, 25_000] {
        let delivery = soon(&mut *subscription, 1).await.remove(0);
        let headers = &delivery.message.headers;
        assert_eq!(headers["before"], HeaderValue::Bool(true), "{levels} levels");
        assert_eq!(headers["behind"], HeaderValue::Bool(false), "{levels} levels");
        assert_eq!(depth(&headers["deep"]), levels.min(31), "{levels} levels");
        settler.settle(vec![(delivery.receipt, Verdict::Ack)]).await.unwrap();
    }
    assert_eq!(confirmed(&broker.publish(vec![event("after", "events", "order.a")]).await), 1);
    assert_eq!(id_of(&soon(&mut *subscription, 1).await.remove(0).message), "after");
}

fn depth(mut value: &HeaderValue) -> usize {
    let mut depth = 0;
    while let HeaderValue::List(inside) = value {
        depth += 1;
        let Some(first) = inside.first() else { break };
        value = first;
    }
    depth
}

/// As much of AMQP 0-9-1 as it takes to publish one message.
struct Stranger(TcpStream);

impl Stranger {
    async fn connect(url: &str) -> Self {
        let url = Url::parse(url).unwrap();
        let vhost = url.path().trim_start_matches('/').replace("%2f", "/").replace("%2F", "/");
        let address = (url.host_str().unwrap(), url.port().unwrap());
        let mut stranger = Self(TcpStream::connect(address).await.unwrap());
        stranger.0.write_all(b"AMQP\0\0\x09\x01").await.unwrap();
        stranger.hear(10, 10).await;
        let answer = format!("\0{}\0{}", url.username(), url.password().unwrap());
        let start_ok = [&[0; 4], &short("PLAIN")[..], &long(answer.as_bytes()), &short("en_US")].concat();
        stranger.say(0, 10, 11, &start_ok).await;
        // As many channels, and frames as large, as the server likes; no heartbeats.
        let tune = stranger.hear(10, 30).await;
        stranger.say(0, 10, 31, &[&tune[..6], &[0, 0]].concat()).await;
        stranger.say(0, 10, 40, &[short(&vhost), vec![0, 0]].concat()).await;
        stranger.hear(10, 41).await;
        stranger.say(1, 20, 10, &[0]).await;
        stranger.hear(20, 11).await;
        stranger.say(1, 85, 10, &[0]).await;
        stranger.hear(85, 11).await;
        stranger
    }

    /// Publishes a message with a header of so many lists in lists, and waits for its confirm.
    async fn publish(&mut self, key: &str, levels: usize) {
        let mut value = Vec::new();
        for level in 0..levels {
            let inside = 5 * (levels - level - 1);
            value.extend([&b"A"[..], &u32::try_from(inside).unwrap().to_be_bytes()].concat());
        }
        let fields = [
            [short("before"), vec![b't', 1]].concat(),
            [short("deep"), value].concat(),
            [short("behind"), vec![b't', 0]].concat(),
        ]
        .concat();
        let header = [&[0, 60, 0, 0][..], &2_u64.to_be_bytes(), &(1_u16 << 13).to_be_bytes(), &long(&fields)];
        self.say(1, 60, 40, &[vec![0, 0], short("events"), short(key), vec![0]].concat()).await;
        self.send(2, 1, &header.concat()).await;
        self.send(3, 1, b"{}").await;
        self.hear(60, 80).await;
    }

    async fn say(&mut self, channel: u16, class: u16, method: u16, arguments: &[u8]) {
        let payload = [&class.to_be_bytes()[..], &method.to_be_bytes(), arguments].concat();
        self.send(1, channel, &payload).await;
    }

    async fn send(&mut self, kind: u8, channel: u16, payload: &[u8]) {
        let size = u32::try_from(payload.len()).unwrap().to_be_bytes();
        let frame = [&[kind], &channel.to_be_bytes()[..], &size, payload, &[0xCE]].concat();
        self.0.write_all(&frame).await.unwrap();
    }

    /// Waits for a method and gives its arguments.
    async fn hear(&mut self, class: u16, method: u16) -> Vec<u8> {
        let heard = async {
            let mut head = [0; 7];
            self.0.read_exact(&mut head).await.unwrap();
            let size = u32::from_be_bytes([head[3], head[4], head[5], head[6]]);
            let mut payload = vec![0; size as usize + 1];
            self.0.read_exact(&mut payload).await.unwrap();
            payload
        };
        let payload = tokio::time::timeout(Duration::from_secs(30), heard).await.expect("an answer");
        let wanted = [class.to_be_bytes(), method.to_be_bytes()].concat();
        assert_eq!(payload[..4], wanted, "{}", String::from_utf8_lossy(&payload));
        payload[4..payload.len() - 1].to_vec()
    }
}

fn short(text: &str) -> Vec<u8> {
    [&[u8::try_from(text.len()).unwrap()], text.as_bytes()].concat()
}

fn long(bytes: &[u8]) -> Vec<u8> {
    [&u32::try_from(bytes.len()).unwrap().to_be_bytes()[..], bytes].concat()
}
