//! A way to the broker on which a batch does not get through in time: what did get through counts.

use super::*;
use tokio::io::AsyncReadExt as _;
use tokio::net::{TcpListener, TcpStream};

postrider_testkit::on_each_rabbitmq!(what_was_confirmed_in_time_counts_whatever_became_of_the_rest);

async fn what_was_confirmed_in_time_counts_whatever_became_of_the_rest(version: RabbitVersion) {
    const MESSAGES: usize = 100;
    let (vhost, direct) = broker(version).await;
    direct.declare(&orders()).await.unwrap();
    let narrow = narrow(&vhost.amqp_url, 300_000).await;
    let broker = RabbitMq::connect(quick(&narrow, 5), Clock::system()).await.unwrap();
    let batch = (0..MESSAGES).map(|i| {
        let mut outgoing = event(&format!("{i}"), "events", "order.a");
        outgoing.message.body = vec![b' '; 10_000].into();
        outgoing
    });
    let answers = broker.publish(batch.collect()).await;
    let done = confirmed(&answers);
    assert!((1..MESSAGES).contains(&done), "{done} of them");
    assert!(answers[..done].iter().all(|answer| *answer == Published::Confirmed));
    assert!(answers[done..].iter().all(|answer| matches!(answer, Published::Unknown(_))));
}

/// A way to the server that carries so many bytes to it for each connection, and nothing after that.
async fn narrow(url: &str, bytes: u64) -> String {
    let mut address = url::Url::parse(url).unwrap();
    let server = format!("127.0.0.1:{}", address.port().unwrap());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    address.set_port(Some(listener.local_addr().unwrap().port())).unwrap();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let Ok(server) = TcpStream::connect(&server).await else { continue };
            tokio::spawn(carry(client, server, bytes));
        }
    });
    address.into()
}

async fn carry(mut client: TcpStream, mut server: TcpStream, bytes: u64) {
    let (from_client, mut to_client) = client.split();
    let (mut from_server, mut to_server) = server.split();
    let mut allowed = from_client.take(bytes);
    let up = async {
        let _all_of_it = tokio::io::copy(&mut allowed, &mut to_server).await;
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = up => {}
        _ = tokio::io::copy(&mut from_server, &mut to_client) => {}
    }
}
