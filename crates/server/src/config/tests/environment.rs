//! The environment: every setting of one value, checked as strictly as the file, and no password in what is said.

use super::load;

#[test]
fn the_environment_is_checked_as_strictly() {
    for (name, value, said) in [
        ("POSTRIDER_RELAY__BATCH_SIZE", "many", "relay.batch_size: must be a whole number, not \"many\""),
        ("POSTRIDER_RELAY__BATCHSIZE", "5", "relay.batchsize: there is no such setting"),
        ("POSTRIDER_RELAY_BATCH_SIZE", "5", "did you mean POSTRIDER_RELAY__BATCH_SIZE?"),
        ("RABBITMQ_PORT", "-1", "RABBITMQ_PORT: broker.port: invalid value"),
        ("ENABLE_DUAL_PUBLISH", "yes", "must be true or false"),
        ("RABBITMQ_URL", "http://u:hunter2@mq", "RABBITMQ_URL: broker.url: http:// is not supported here"),
    ] {
        let problem = load("", [(name, value)]).unwrap_err().to_string();
        assert!(problem.contains(said), "{name} said {problem:?}");
        assert!(!problem.contains("hunter2"));
    }
    // Variables that only look like ours are left alone, such as those of Kubernetes for services named postrider-http and -broker.
    load("", [("POSTRIDER_TEST_FOLDER", "x"), ("RABBITMQ_SERVICE_HOST", "10.0.0.1")]).unwrap();
    load("", [("POSTRIDER_HTTP_SERVICE_HOST", "10.0.0.1"), ("POSTRIDER_BROKER_PORT", "tcp://10.0.0.1:1")])
        .unwrap();
}

#[test]
fn every_setting_of_one_value_can_come_from_the_environment() {
    let config = load(
        "",
        [
            ("POSTRIDER_HTTP__CERT_FILE", "/nowhere/cert.pem"),
            ("POSTRIDER_LEDGER__SIGNING_KEY_FILE", "/nowhere/ledger.key"),
            ("POSTRIDER_BROKER__TLS__CA_FILE", "/nowhere/ca.pem"),
        ],
    );
    let settings = config.unwrap().settings;
    assert_eq!(settings.http.cert_file.to_str(), Some("/nowhere/cert.pem"));
    assert_eq!(settings.ledger.signing_key_file.to_str(), Some("/nowhere/ledger.key"));
    assert_eq!(settings.broker.tls.ca_file(), Some("/nowhere/ca.pem".into()));
}

#[test]
fn a_url_is_no_host_and_its_password_is_not_shown() {
    for (name, value) in [
        ("REDIS_HOST", "redis://:hunter2@cache"),
        ("RABBITMQ_HOST", "amqp://u:hunter2@mq"),
        ("RABBITMQ_HOST", "u:hunter2@mq"),
    ] {
        let problem = load("", [(name, value)]).unwrap_err().to_string();
        assert!(problem.contains("a whole url goes into"), "{problem}");
        assert!(!problem.contains("hunter2"), "{problem}");
    }
}
