//! RabbitMQ for tests: one node and three, crash, pause, TLS.

use anyhow::{Context, Result, bail, ensure};
use lapin::options::{BasicGetOptions, BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Confirmation, Connection, ConnectionProperties};
use postrider_testkit::servers::{RabbitCluster, RabbitMq, RabbitVersion};
use tokio::time::timeout;

use super::tools::{PATIENCE, nothing_left, trusted};

postrider_testkit::on_each_rabbitmq!(
    a_server_survives_a_crash_with_what_it_confirmed,
    a_cluster_of_three_survives_the_loss_of_a_node,
    with_tls_a_server_proves_who_it_is,
);

async fn connect(url: &str) -> Result<Connection> {
    Ok(Connection::connect(url, ConnectionProperties::default()).await?)
}

/// Declares a quorum queue and publishes one persistent message, confirmed.
async fn publish(url: &str, queue: &str) -> Result<()> {
    let connection = connect(url).await?;
    let channel = connection.create_channel().await?;
    channel.confirm_select(ConfirmSelectOptions::default()).await?;
    let mut arguments = FieldTable::default();
    arguments.insert("x-queue-type".into(), AMQPValue::LongString("quorum".into()));
    channel.queue_declare(queue.into(), QueueDeclareOptions::durable(), arguments).await?;
    let properties = BasicProperties::default().with_delivery_mode(2);
    let options = BasicPublishOptions::default();
    let confirm = channel.basic_publish("".into(), queue.into(), options, b"kept", properties).await?.await?;
    ensure!(matches!(confirm, Confirmation::Ack(None)), "not confirmed: {confirm:?}");
    Ok(())
}

/// Takes one message. Asks again while the queue is choosing a leader: until it has one, a request fails or hangs.
async fn take(url: &str, queue: &str) -> Result<Vec<u8>> {
    let ask = async || {
        let channel = connect(url).await?.create_channel().await?;
        let message = channel.basic_get(queue.into(), BasicGetOptions { no_ack: true }).await?;
        anyhow::Ok(message.context("the queue is empty")?.delivery.data)
    };
    let mut last = None;
    for _ in 0..20 {
        match timeout(PATIENCE, ask()).await {
            Ok(Ok(data)) => return Ok(data),
            failed => last = Some(failed),
        }
    }
    bail!("no message from {queue}: {last:?}")
}

async fn a_server_survives_a_crash_with_what_it_confirmed(version: RabbitVersion) -> Result<()> {
    let server = RabbitMq::start_version(version).await?;
    let url = server.amqp_url();
    publish(&url, "kept").await?;
    server.wait_registered("kept").await?;
    server.kill()?;
    assert!(connect(&url).await.is_err());
    server.restart().await?;
    assert_eq!(take(&url, "kept").await?, b"kept");

    server.create_vhost("a/b").await?;
    assert!(server.ctl(&["list_vhosts"]).await?.lines().any(|line| line == "a/b"));
    connect(&url.replace("%2f", "a%2fb")).await?;
    server.delete_vhost("a/b").await?;
    server.delete_vhost("a/b").await?;

    server.pause()?;
    assert!(timeout(PATIENCE, connect(&url)).await.is_err());
    server.resume()?;
    connect(&url).await?;

    let folder = server.folder().to_owned();
    drop(server);
    nothing_left(&folder).await;
    Ok(())
}

async fn a_cluster_of_three_survives_the_loss_of_a_node(version: RabbitVersion) -> Result<()> {
    let cluster = RabbitCluster::start_version(version).await?;
    publish(&cluster.amqp_url(0), "kept").await?;
    cluster.wait_registered("kept").await?;
    cluster.kill(0)?;
    assert!(connect(&cluster.amqp_url(0)).await.is_err());
    cluster.wait_members(1, 2).await?;
    publish(&cluster.amqp_url(1), "more").await?;
    assert_eq!(take(&cluster.amqp_url(2), "kept").await?, b"kept");
    cluster.restart(0).await?;
    cluster.wait_members(2, 3).await?;
    assert_eq!(take(&cluster.amqp_url(0), "more").await?, b"kept");

    let folder = cluster.folder().to_owned();
    drop(cluster);
    nothing_left(&folder).await;
    Ok(())
}

async fn with_tls_a_server_proves_who_it_is(version: RabbitVersion) -> Result<()> {
    let server = RabbitMq::start_tls(version).await?;
    assert!(server.amqp_url().starts_with("amqps://"));
    trusted(&server.amqp_url(), server.ca_file().context("no authority")?).await?;
    let plain = server.amqp_url().replace("amqps", "amqp");
    assert!(!matches!(timeout(PATIENCE, connect(&plain)).await, Ok(Ok(_))), "plain text was accepted");
    Ok(())
}
