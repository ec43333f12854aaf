//! The connection is cut at every moment of a subscription's life: it starts again, and never just stays silent.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

postrider_testkit::on_each_rabbitmq!(a_connection_cut_at_any_byte_silences_no_subscription);

/// Moments at which the connection is cut, spread over all that the server says until a message is delivered.
const CUTS: u64 = 40;

async fn a_connection_cut_at_any_byte_silences_no_subscription(version: RabbitVersion) {
    let (vhost, direct) = broker(version).await;
    direct.declare(&orders()).await.unwrap();
    let wire = Wire::to(&vhost.amqp_url).await;
    let whole = round(&direct, &wire, u64::MAX).await;
    for cut in 1..CUTS {
        round(&direct, &wire, whole * cut / CUTS).await;
    }
}

/// Subscribes by a connection that is cut after so many bytes, and takes one message; by the next connection, if need be.
/// Tells how many bytes went through.
async fn round(direct: &RabbitMq, wire: &Wire, cut_after: u64) -> u64 {
    assert_eq!(confirmed(&direct.publish(vec![event("one", "events", "order.a")]).await), 1);
    wire.cut_next_after(cut_after);
    let broker = RabbitMq::lazy(quick(&wire.url, 10), Clock::system()).unwrap();
    let taking = async {
        let mut subscription = loop {
            match broker.subscribe(&queue_name("orders"), 10).await {
                Ok(subscription) => break subscription,
                Err(error) => assert!(error.is_transient(), "{error}"),
            }
        };
        let taken = subscription.next(10).await.unwrap();
        ack(&*subscription.settler(), taken).await;
    };
    let taken = tokio::time::timeout(Duration::from_secs(30), taking).await;
    assert!(taken.is_ok(), "silent since it was cut after {cut_after} bytes");
    broker.close().await;
    wire.carried.load(Ordering::SeqCst)
}

/// Stands between the adapter and the server.
struct Wire {
    url: String,
    /// How many bytes of the server the next connection carries.
    next: Arc<AtomicU64>,
    /// How many the last one carried.
    carried: Arc<AtomicU64>,
}

impl Wire {
    async fn to(url: &str) -> Self {
        let mut address = url::Url::parse(url).unwrap();
        let server = format!("127.0.0.1:{}", address.port().unwrap());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        address.set_port(Some(listener.local_addr().unwrap().port())).unwrap();
        let (next, carried) = (Arc::new(AtomicU64::new(u64::MAX)), Arc::new(AtomicU64::new(0)));
        let wire = Self { url: address.into(), next: Arc::clone(&next), carried: Arc::clone(&carried) };
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let Ok(server) = TcpStream::connect(&server).await else { continue };
                carried.store(0, Ordering::SeqCst);
                let limit = next.swap(u64::MAX, Ordering::SeqCst);
                tokio::spawn(carry(client, server, limit, Arc::clone(&carried)));
            }
        });
        wire
    }

    fn cut_next_after(&self, bytes: u64) {
        self.next.store(bytes, Ordering::SeqCst);
    }
}

/// Carries both ways until the server has said so many bytes, then drops both ends.
async fn carry(mut client: TcpStream, mut server: TcpStream, limit: u64, carried: Arc<AtomicU64>) {
    let (mut from_client, mut to_client) = client.split();
    let (from_server, mut to_server) = server.split();
    let mut from_server = from_server.take(limit);
    let down = async {
        let mut buffer = [0; 4096];
        while let Ok(count @ 1..) = from_server.read(&mut buffer).await {
            if to_client.write_all(&buffer[..count]).await.is_err() {
                break;
            }
            carried.fetch_add(count as u64, Ordering::SeqCst);
        }
    };
    tokio::select! {
        () = down => {}
        _ = tokio::io::copy(&mut from_client, &mut to_server) => {}
    }
}
