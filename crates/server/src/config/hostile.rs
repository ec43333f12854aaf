//! Configuration that was damaged is used or refused with the place that is wrong, never a panic.

use postrider_testkit::hostile::damaged_text;

use super::*;

const SAMPLE: &str = r#"
[outbox]
exchange = "shop.events"
[relay]
lease_ms = 4000
[[exchange]]
name = "shop.events"
format = "cloudevents"
[[queue]]
name = "billing"
bind = ["shop.order.*", "shop.events:shop.refund.#"]
ordered = true
[queue.retry]
max_retries = 3
delays = ["500ms", "1m", "2h"]
[[consumer]]
name = "invoicing"
queue = "billing"
max_rate = 100.0
[[push]]
name = "erp"
keys = ["shop.order.*"]
url = "https://erp.example.com/hooks"
secrets = ["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"]
status = { 404 = "ack", 500-503 = "retry" }
[[triage.rule]]
name = "mail"
every = "15m"
queue = "billing"
"#;

#[test]
fn settings_in_any_state_are_used_or_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("postrider.toml");
    let mut used = 0;
    for seed in 0..400 {
        std::fs::write(&path, damaged_text(seed, SAMPLE)).unwrap();
        let flags = Flags { file: Some(path.clone()), values: Vec::new(), broker_alone: false };
        match Config::load(&flags, &Environment::from([])) {
            Ok(_) => used += 1,
            Err(error) => {
                assert!(!error.problem.is_empty() && !error.to_string().contains("MfKQ9r8GKYqr"), "{error}");
            }
        }
    }
    assert!(used > 10, "only {used} of the damaged files could be used");
}

#[test]
fn the_environment_in_any_state_is_used_or_refused() {
    let urls =
        ["amqp://u:p@mq:5672/%2f", "postgres://p@db:5432/x?sslmode=require", "redis://:p@cache:6379/3"];
    for (name, sample) in ["RABBITMQ_URL", "DATABASE_URL", "REDIS_URL"].into_iter().zip(urls) {
        for seed in 0..150 {
            let text = damaged_text(seed, sample);
            let flags = Flags { file: None, values: Vec::new(), broker_alone: false };
            let _used_or_refused = Config::load(&flags, &Environment::from([(name, text.as_str())]));
        }
    }
}
