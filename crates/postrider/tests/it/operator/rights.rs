//! What stands in the way of looking at a broker, told apart.

use postrider::rabbitmq::management::{Management, ManagementErrorKind};
use postrider_testkit::servers::RabbitMq as Server;
use postrider_testkit::servers::TestVhost;

use super::*;

postrider_testkit::on_each_rabbitmq!(
    wrong_passwords_missing_tags_and_missing_permissions_are_told_apart,
    without_the_right_to_set_policies_the_rest_is_applied,
    a_virtual_host_is_created_where_that_is_allowed,
    what_is_not_the_management_api_is_known,
);

/// Another user of the same broker.
fn as_user(vhost: &TestVhost, user: &str, password: &str) -> String {
    vhost.management_url.replace("guest:guest@", &format!("{user}:{password}@"))
}

async fn make_user(vhost: &TestVhost, name: &str, tags: &str, may_enter: bool) -> String {
    let name = format!("{name}_{}", vhost.name);
    let admin = Management::new(&at(&vhost.management_url)).unwrap();
    admin.create_user(&name, "secret+1", tags).await.unwrap();
    if may_enter {
        admin.grant(&vhost.name, &name).await.unwrap();
    }
    name
}

async fn why(vhost: &TestVhost, management: &str) -> (ManagementErrorKind, String) {
    let error = operator_at(&vhost.amqp_url, management).observe().await.unwrap_err();
    assert!(!error.to_string().contains("secret"), "{error}");
    (error.kind, error.to_string())
}

async fn wrong_passwords_missing_tags_and_missing_permissions_are_told_apart(version: RabbitVersion) {
    let (vhost, _operator) = operator(version).await;
    let (kind, _) = why(&vhost, &as_user(&vhost, "guest", "secret")).await;
    assert_eq!(kind, ManagementErrorKind::WrongPassword);
    let untagged = make_user(&vhost, "untagged", "", true).await;
    let (kind, text) = why(&vhost, &as_user(&vhost, &untagged, "secret%2B1")).await;
    assert!(kind == ManagementErrorKind::MissingRight && text.contains("tag `management`"), "{text}");
    let outside = make_user(&vhost, "outside", "management", false).await;
    let (kind, text) = why(&vhost, &as_user(&vhost, &outside, "secret%2B1")).await;
    assert!(kind == ManagementErrorKind::MissingRight && text.contains("set_permissions"), "{text}");
}

async fn without_the_right_to_set_policies_the_rest_is_applied(version: RabbitVersion) {
    let (vhost, _operator) = operator(version).await;
    let user = make_user(&vhost, "reader", "management", true).await;
    let operator = operator_at(&vhost.amqp_url, &as_user(&vhost, &user, "secret%2B1"));
    let wanted = orders(QueueKind::Quorum).protected();
    let mut limited = wanted.clone();
    limited.queues[0].policy.delivery_limit = Some(postrider::topology::DeliveryLimit::Times(5));
    let plan = apply(&operator, &limited).await;
    assert!(plan.notes.iter().any(|note| note.contains("policymaker")), "{:?}", plan.notes);
    let again = operator.plan(&limited, false).await.unwrap();
    assert!(again.is_empty(), "{again:?}");
    // Whoever has the right sets the rest.
    let admin = operator_at(&vhost.amqp_url, &vhost.management_url);
    assert_eq!(apply(&admin, &limited).await.steps.len(), 1);
    assert!(admin.plan(&limited, false).await.unwrap().is_empty());
}

async fn a_virtual_host_is_created_where_that_is_allowed(version: RabbitVersion) {
    let (vhost, _operator) = operator(version).await;
    let name = format!("{}/inner", vhost.name);
    let config = RabbitMqConfig::new(&vhost.amqp_url).in_vhost(&name).unwrap();
    let wanted = orders(QueueKind::Quorum);
    let user = make_user(&vhost, "manager", "management", true).await;
    let url = as_user(&vhost, &user, "secret%2B1");
    let ordinary = Operator::new(config.clone(), &at(&url), Clock::system()).unwrap();
    let plan = ordinary.plan(&wanted, false).await.unwrap();
    let error = ordinary.apply(&plan, PATIENCE, &|_| {}).await.unwrap_err();
    assert!(error.to_string().contains("administrator"), "{error}");

    let admin = Operator::new(config, &at(&vhost.management_url), Clock::system()).unwrap();
    apply(&admin, &wanted).await;
    assert!(admin.plan(&wanted, false).await.unwrap().is_empty());
    admin.management().delete_vhost(&name).await.unwrap();
}

async fn what_is_not_the_management_api_is_known(version: RabbitVersion) {
    let (vhost, _operator) = operator(version).await;
    let (kind, text) = why(&vhost, "http://guest:guest@127.0.0.1:1").await;
    assert!(kind == ManagementErrorKind::Absent && text.contains("rabbitmq-plugins enable"), "{text}");
    let amqp = vhost.amqp_url.replace("amqp://", "http://");
    let (kind, text) = why(&vhost, amqp.rsplit_once('/').unwrap().0).await;
    assert!(kind == ManagementErrorKind::Absent && text.contains("15672"), "{text}");
}

/// Without the plugin, declaring still works: nothing of that needs it.
#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_was_restarted_without_the_plugin_is_told_from_one_that_is_away() {
    let server = Server::start().await.unwrap();
    let operator = operator_at(&server.amqp_url(), &server.management_url());
    operator.observe().await.unwrap();
    server.kill().unwrap();
    let error = operator.observe().await.unwrap_err();
    assert!(error.kind == ManagementErrorKind::Absent && error.is_transient(), "{error}");
}
