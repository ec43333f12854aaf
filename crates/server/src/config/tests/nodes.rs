//! RabbitMQ's addresses: several of them, passwords of every kind, and certificates instead of passwords.

use super::load;

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
}

#[test]
fn names_of_hosts_may_begin_like_a_scheme() {
    assert!(shown("amqp://u:p@amqp1,amqp2:5673/v").ends_with("RabbitMQ at amqp://u@amqp1,amqp2:5673/v"));
}
