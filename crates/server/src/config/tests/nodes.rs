//! RabbitMQ's addresses: several of them, passwords of every kind, and certificates instead of passwords.

use super::{Backends, load};

const DATABASE: (&str, &str) = ("DATABASE_URL", "postgres://p@db/x");

fn shown(url: &str) -> String {
    load("", [DATABASE, ("RABBITMQ_URL", url)]).unwrap().backends.to_string()
}

#[test]
fn several_urls_hide_every_password_however_they_are_separated() {
    for between in [",", ", ", " ,", ",\n"] {
        for scheme in ["amqp", "AMQP", "amqps"] {
            let shown = shown(&format!("amqp://u:hunter2@a/v{between}{scheme}://u:hunter2@b:5673/v"));
            let second = format!("amqp://u@a/v,{}://u@b:5673/v", scheme.to_lowercase());
            assert!(shown.ends_with(&second), "{between:?}: {shown}");
        }
    }
    for url in ["amqp://u:p@a/v amqp://u:hunter2@b/v", "amqp://u:p@a/v;amqp://u:hunter2@b/v"] {
        let problem = load("", [DATABASE, ("RABBITMQ_URL", url)]).unwrap_err().to_string();
        assert!(problem.contains("separated by commas") && !problem.contains("hunter2"), "{problem}");
    }
    // Without a virtual host the second one's scheme is taken for a part of the first one's host. A line break is taken for nothing.
    for between in [";", "\n", " "] {
        let url = format!("amqp://u:p@a{between}amqp://u:hunter2@b/v");
        let problem = load("", [DATABASE, ("RABBITMQ_URL", url.as_str())]).unwrap_err().to_string();
        assert!(!problem.contains("hunter2"), "{between:?}: {problem}");
    }
    let problem = load("", [("REDIS_URL", "redis://:p@a,redis://:hunter2@b/0")]).unwrap_err().to_string();
    assert!(!problem.contains("hunter2"), "{problem}");
}

#[test]
fn several_hosts_may_have_a_port_each() {
    let nodes = shown("amqp://u:p@amqp1:5673,amqps2,[::1]:5674/v?heartbeat=5");
    let each = "amqp://u@amqp1:5673/v,amqp://u@amqps2/v,amqp://u@[::1]:5674/v";
    assert!(nodes.ends_with(&format!("RabbitMQ at {each}")), "{nodes}");
}

#[test]
fn a_password_arrives_as_it_was_set() {
    let password = ("RABBITMQ_PASS", "50%25,a&b@c");
    let by_host = [DATABASE, ("RABBITMQ_HOST", "mq"), ("RABBITMQ_USER", "u"), password];
    let by_url = [DATABASE, ("RABBITMQ_URL", "amqp://u@mq:5672/%2f"), password];
    for config in [load("", by_host).unwrap(), load("", by_url).unwrap()] {
        let Backends::Networked { broker, .. } = &config.backends else { panic!("{}", config.backends) };
        assert_eq!(broker.url.get(), Some("amqp://u:50%2525%2Ca&b%40c@mq:5672/%2f"));
        let management = config.management.as_ref().unwrap();
        assert_eq!(management.url.get(), Some("http://u:50%2525%2Ca&b%40c@mq:15672/"));
    }
    let in_url = load("", [DATABASE, ("RABBITMQ_URL", "amqp://u:p,w@a,b:5673/v")]).unwrap();
    assert_eq!(in_url.management.unwrap().url.get(), Some("http://u:p%2Cw@a:15672/"));
}

#[test]
fn a_certificate_needs_neither_a_user_nor_a_password() {
    assert!(shown("amqps://mq/v?auth_mechanism=EXTERNAL").ends_with("RabbitMQ at amqps://mq/v"));
}
