//! Connecting: wrong credentials, absent vhosts and hosts, TLS, each told apart.

use super::*;
use postrider::broker::{BrokerError, BrokerErrorKind};
use postrider::rabbitmq::management::ManagementConfig;
use postrider::rabbitmq::{Operator, RabbitMqTls};

postrider_testkit::on_each_rabbitmq!(
    what_is_wrong_is_said_without_the_password,
    a_broker_that_is_not_there_yet_is_waited_for,
    a_node_that_refuses_is_passed_over,
    tls_with_an_authority_of_our_own,
    tls_with_a_certificate_of_our_own,
    tls_of_the_management_api,
);

async fn refused(config: RabbitMqConfig) -> BrokerError {
    RabbitMq::connect(config, Clock::system()).await.map(|_| ()).unwrap_err()
}

async fn what_is_wrong_is_said_without_the_password(version: RabbitVersion) {
    let url = shared().unwrap().amqp_url(version).unwrap().to_owned();
    let wrong = refused(quick(&url.replace("guest:guest", "guest:s3cret"), 5)).await;
    assert_eq!(wrong.kind, BrokerErrorKind::Denied);
    assert!(wrong.message.contains("credentials"), "{wrong}");
    let no_vhost = refused(quick(&url.replace("%2f", "nowhere"), 5)).await;
    assert_eq!(no_vhost.kind, BrokerErrorKind::NotFound);
    assert!(no_vhost.message.contains("nowhere"), "{no_vhost}");
    let nobody = refused(quick("amqp://guest:s3cret@127.0.0.1:1/", 1)).await;
    assert_eq!(nobody.kind, BrokerErrorKind::Unavailable);
    assert!(nobody.message.contains("127.0.0.1:1") && nobody.message.contains("nobody listens"), "{nobody}");
    let unknown = refused(quick("amqp://guest:s3cret@no.such.host.invalid/", 5)).await;
    assert_eq!(unknown.kind, BrokerErrorKind::Unavailable);
    let no_tls = refused(quick(&url.replace("amqp://", "amqps://"), 5)).await;
    assert_eq!(no_tls.kind, BrokerErrorKind::Denied);
    assert!(no_tls.message.contains("TLS"), "{no_tls}");
    for error in [wrong, no_vhost, nobody, unknown, no_tls] {
        assert!(!format!("{error:?} {error}").contains("s3cret"), "{error:?}");
    }
}

async fn a_broker_that_is_not_there_yet_is_waited_for(version: RabbitVersion) {
    let server = Server::start_version(version).await.unwrap();
    let config = quick(&server.amqp_url(), 2);
    server.kill().unwrap();
    let broker = RabbitMq::lazy(config, Clock::system()).unwrap();
    assert!(broker.ping().await.unwrap_err().is_transient());
    assert!(matches!(broker.publish(vec![event("1", "", "q")]).await[0], Published::Unknown(_)));
    server.restart().await.unwrap();
    tokio::time::timeout(Duration::from_secs(20), async { while broker.ping().await.is_err() {} })
        .await
        .unwrap();
    broker.declare(&orders()).await.unwrap();
    broker.close().await;
    assert_eq!(broker.ping().await.unwrap_err().kind, BrokerErrorKind::Closed);
    assert!(matches!(broker.publish(vec![event("1", "events", "order.a")]).await[0], Published::Unknown(_)));
}

async fn a_node_that_refuses_is_passed_over(version: RabbitVersion) {
    let url = shared().unwrap().amqp_url(version).unwrap().to_owned();
    let strange = url.replace("guest:guest", "guest:s3cret");
    let config = quick(&format!("{strange},{url}"), 10);
    RabbitMq::connect(config, Clock::system()).await.unwrap().ping().await.unwrap();
    let by_all = refused(quick(&format!("{strange},{strange}"), 10)).await;
    assert_eq!(by_all.kind, BrokerErrorKind::Denied, "{by_all}");
}

async fn tls_with_an_authority_of_our_own(version: RabbitVersion) {
    let server = Server::start_tls(version).await.unwrap();
    let with = |ca_file| RabbitMqConfig {
        tls: RabbitMqTls { ca_file, ..RabbitMqTls::default() },
        ..quick(&server.amqp_url(), 5)
    };
    let untrusted = refused(with(None)).await;
    assert_eq!(untrusted.kind, BrokerErrorKind::Denied);
    assert!(untrusted.message.contains("CA file"), "{untrusted}");
    let absent = refused(with(Some("/nowhere/ca.pem".into()))).await;
    assert!(absent.message.contains("/nowhere/ca.pem"), "{absent}");
    let plain = refused(quick(&server.amqp_url().replace("amqps://", "amqp://"), 5)).await;
    assert!(plain.message.contains("amqps://"), "{plain}");

    let ca = server.ca_file().unwrap().to_owned();
    let broker = RabbitMq::connect(with(Some(ca)), Clock::system()).await.unwrap();
    broker.declare(&orders()).await.unwrap();
    let batch: Vec<_> = (0..500).map(|i| event(&format!("{i}"), "events", "order.a")).collect();
    assert_eq!(confirmed(&broker.publish(batch).await), 500);
    assert_eq!(drain(&broker, "orders").await.len(), 500);
    server.kill().unwrap();
    server.restart().await.unwrap();
    assert_eq!(confirmed(&broker.publish(vec![event("again", "events", "order.a")]).await), 1);
}

async fn tls_with_a_certificate_of_our_own(version: RabbitVersion) {
    let server = Server::start_tls(version).await.unwrap();
    let tls = server.folder().join("tls");
    configure(&server, |text| {
        text.replace("verify_none", "verify_peer").replace("no_peer_cert = false", "no_peer_cert = true")
    })
    .await;
    std::fs::write(tls.join("client.ext"), "basicConstraints=CA:FALSE\nextendedKeyUsage=clientAuth\n")
        .unwrap();
    for command in [
        "req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -noenc -subj /CN=guest -keyout client.key -out client.csr",
        "x509 -req -days 2 -in client.csr -CA ca.pem -CAkey ca.key -CAcreateserial -extfile client.ext -out client.pem",
    ] {
        let mut openssl = std::process::Command::new("openssl");
        assert!(openssl.args(command.split(' ')).current_dir(&tls).output().unwrap().status.success());
    }
    let ca_file = server.ca_file().map(ToOwned::to_owned);
    let without = RabbitMqTls { ca_file, ..RabbitMqTls::default() };
    let with = RabbitMqTls {
        client_cert_file: Some(tls.join("client.pem")),
        client_key_file: Some(tls.join("client.key")),
        ..without.clone()
    };
    let config = |tls| RabbitMqConfig { tls, ..quick(&server.amqp_url(), 5) };
    let refused = refused(config(without)).await;
    assert_eq!(refused.kind, BrokerErrorKind::Denied, "{refused}");
    assert!(refused.message.contains("client certificate"), "{refused}");
    RabbitMq::connect(config(with), Clock::system()).await.unwrap().ping().await.unwrap();
}

async fn tls_of_the_management_api(version: RabbitVersion) {
    let server = Server::start_tls(version).await.unwrap();
    let url = server.secure_management_url().unwrap();
    let looked = async |ca_file| {
        let tls = RabbitMqTls { ca_file, ..RabbitMqTls::default() };
        let connection = RabbitMqConfig { tls: tls.clone(), ..quick(&server.amqp_url(), 5) };
        let management = ManagementConfig { url: url.clone().into(), tls, limit: Duration::from_secs(10) };
        let operator = Operator::new(connection, &management, Clock::system()).unwrap();
        let plan = operator.plan(&orders(), false).await?;
        operator.apply(&plan, Duration::ZERO, &|_| {}).await.unwrap();
        operator.plan(&orders(), false).await
    };
    let untrusted = looked(None).await.unwrap_err();
    assert!(untrusted.message.contains("broker.tls.ca_file"), "{untrusted}");
    let trusted = looked(server.ca_file().map(ToOwned::to_owned)).await.unwrap();
    assert!(trusted.is_empty(), "{trusted:?}");
}
