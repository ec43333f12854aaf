//! Secrets and payloads that are planted everywhere, and looked for in everything that is said.

use postrider::rabbitmq::RabbitMqTls;
use postrider::rabbitmq::management::{Management, ManagementConfig};
use postrider_testkit::receiver::{Receiver, Reply};
use postrider_testkit::servers::TestVhost;
use rustix::process::Signal;
use serde_json::Value;

use super::networked::servers;
use super::process::{Folder, Serving};

/// In every secret and every payload, and in nothing else.
const CANARY: &str = "c4n4ry";

fn secret(of: &str) -> String {
    format!("{CANARY}-{of}")
}

fn silent(place: &str, said: &str) {
    let line = said.lines().find(|line| line.contains(CANARY));
    assert!(line.is_none(), "{place} tells a secret: {}", line.unwrap_or_default());
}

/// The same of what shows payloads and answers to whoever may see them.
fn keeps_secrets(place: &str, said: &str) {
    silent(place, &said.replace(&secret("payload"), "").replace(&secret("answer"), ""));
}

/// Everything that can be asked for, as an admin.
fn ask_everything(serving: &Serving, bearer: &str) {
    let get = |path: &str| serving.http("GET", path, &[("authorization", bearer)], "");
    let read = |path: &str| -> Value { serde_json::from_str(&get(path).2).unwrap_or(Value::Null) };
    let document = read("/v1/openapi.json");
    let text = |value: &Value| value.to_string().trim_matches('"').to_owned();
    let event = text(&read("/v1/events")["events"][0]["id"]);
    let letter = text(&read("/v1/dlq/messages")["messages"][0]["id"]);
    let mut asked = 0;
    for (path, methods) in document["paths"].as_object().unwrap() {
        // The stream says once a second what the overview says.
        if methods.get("get").is_none() || path == "/v1/stream" {
            continue;
        }
        let of_letter = path.starts_with("/v1/dlq/");
        let filled = path.replace("{id}", if of_letter { &letter } else { &event });
        let filled = filled.replace("{name}", "erp").replace("{tenant}", "nobody").replace(['{', '}'], "");
        let (status, head, body) = get(&filled);
        silent(&filled, &head);
        let shows = ["/v1/events/{id}", "/v1/events/{id}/timeline", "/v1/dlq/messages/{id}"];
        if shows.contains(&path.as_str()) || path.ends_with("/attempts") {
            assert_eq!(status, 200, "{filled}: {body}");
            keeps_secrets(&filled, &body);
        } else {
            silent(&filled, &body);
        }
        asked += 1;
    }
    assert!(asked > 40, "{asked}");
}

/// What the command line says of it, which goes into tickets.
fn say_everything(folder: &Folder) {
    for words in [
        &["dlq", "groups"][..],
        &["dlq", "ls", "--json"],
        &["outbox", "status"],
        &["outbox", "status", "--json"],
        &["outbox", "ls", "--json"],
        &["doctor"],
        &["doctor", "--json"],
        &["audit"],
        &["db", "status"],
        &["db", "grants"],
        &["consumers", "ls", "--json"],
        &["push", "ls", "--json"],
        &["token", "ls", "--json"],
        &["ops", "ls", "--json"],
        &["progress", "ls", "--json"],
        &["migration", "status", "--json"],
        &["topology", "render"],
        &["topology", "export"],
        &["topology", "drift"],
        &["topology", "diagram"],
        &["generate", "asyncapi"],
        &["generate", "grafana"],
        &["generate", "alerts"],
        &["generate", "openapi"],
        &["generate", "config-schema"],
    ] {
        let ran = folder.run(words);
        silent(&words.join(" "), &ran.out);
        silent(&words.join(" "), &ran.err);
    }
}

/// Every page, as an admin.
fn visit_everything(serving: &Serving, bearer: &str) {
    let (status, cookie) = serving.sign_in(bearer.trim_start_matches("Bearer "));
    assert_eq!(status, 303, "{cookie}");
    let cookie = cookie.split(';').next().unwrap();
    for page in [
        "",
        "/failures",
        "/letters",
        "/events",
        "/outbox",
        "/consumers",
        "/topology",
        "/push",
        "/jobs",
        "/migration",
        "/ledger",
        "/operations",
        "/audit-log",
        "/tokens",
        "/push/erp",
        "/style.css",
        "/script.js",
        "/login",
    ] {
        let (status, head, body) =
            serving.http("GET", &format!("/dashboard{page}"), &[("cookie", cookie)], "");
        assert_eq!(status, 200, "{page}");
        silent(page, &head);
        if page == "/push/erp" {
            keeps_secrets(page, &body);
        } else {
            silent(page, &body);
        }
    }
}

/// `scheme://user:secret@place`
fn with_login(url: &str, user: &str, password: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap();
    let place = rest.rsplit_once('@').map_or(rest, |(_, place)| place);
    format!("{scheme}://{user}:{password}@{place}")
}

/// Every step was told to the collector, and no secret with it.
fn spans_are_silent(collector: &Receiver) {
    let spans: String =
        collector.requests().iter().map(|sent| String::from_utf8_lossy(&sent.body).into_owned()).collect();
    for done in ["create shop.order.placed", "send postrider.events", "process billing", "push erp"] {
        assert!(spans.contains(done), "no span {done:?} in {spans}");
    }
    silent("a span", &spans);
}

/// A RabbitMQ user whose password is a canary.
async fn user_of(vhost: &TestVhost) -> String {
    let user = format!("canary_{}", vhost.name);
    let management = ManagementConfig {
        url: vhost.management_url.clone().into(),
        tls: RabbitMqTls::default(),
        limit: std::time::Duration::from_secs(30),
    };
    let admin = Management::new(&management).unwrap();
    admin.create_user(&user, &secret("rabbitmq"), "administrator").await.unwrap();
    admin.grant(&vhost.name, &user).await.unwrap();
    user
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_that_is_said_has_a_secret_or_a_payload_in_it() {
    let (_, database, vhost) = servers().await;
    let user = user_of(&vhost).await;
    let endpoint = Receiver::start(|request, _| match request.header("x-aggregate-id") {
        "refused" => Reply::Status(422, "", secret("answer")),
        "fails" => Reply::Status(500, "", secret("answer")),
        _ => Reply::status(200),
    })
    .await;
    // A collector that hears every span and hangs up, which is told in the log.
    let collector = Receiver::start(|_, _| Reply::Raw("")).await;
    let eu = postrider_testkit::servers::shared().unwrap().database().await.unwrap();

    let folder = Folder::new();
    folder.write("redis-password", &secret("redis"));
    folder.write(
        "postrider.toml",
        &format!(
            "[egress]\nallow = ['127.0.0.1', 'http']\n\
             [[queue]]\nname = 'billing'\nbind = ['shop.order.*']\nretry = {{ max_retries = 1, delays = ['50ms'] }}\n\
             [[push]]\nname = 'erp'\nqueue = 'billing'\nurl = '{}?key={}'\n\
             secrets = ['whsec_{}']\nheaders = {{ authorization = 'Bearer {}' }}\n\
             [[outbox.table]]\nname = 'postrider.event_outbox'\nlabel = 'eu'\nurl = '{}'\n",
            endpoint.url(),
            secret("url"),
            // Base64 that reads as the canary.
            "c4n4ry99c4n4ry99c4n4ry99c4n4ry99",
            secret("header"),
            with_login(&eu.url, "postgres", &secret("eu")),
        ),
    );
    // Redis asks for no password here, so it refuses this one, and that is told; everything works without it.
    let redis = postrider_testkit::servers::shared().unwrap().redis_url;
    let password_file = folder.path().join("redis-password").display().to_string();
    let folder = folder
        .with("DATABASE_URL", &with_login(&database.url, "postgres", &secret("postgres")))
        .with("RABBITMQ_URL", &with_login(&vhost.amqp_url, &user, &secret("rabbitmq")))
        .with("RABBITMQ_MANAGEMENT_URL", &with_login(&vhost.management_url, &user, &secret("rabbitmq")))
        .with("REDIS_URL", &redis)
        .with("POSTRIDER_REDIS__PASSWORD_FILE", &password_file)
        .with("METRICS_TOKEN", &secret("metrics"))
        .with(
            "OTEL_EXPORTER_OTLP_ENDPOINT",
            &format!("http://me:{}@{}", secret("collector"), collector.address),
        )
        .with("OTEL_EXPORTER_OTLP_HEADERS", &format!("authorization=Bearer {}", secret("otlp")));

    for words in
        [&["db", "migrate"][..], &["doctor"], &["push", "ls"], &["serve", "--help"], &["topology", "plan"]]
    {
        let ran = folder.run(&[words, &["--log-level", "trace"]].concat());
        silent(&words.join(" "), &ran.out);
        silent(&words.join(" "), &ran.err);
    }
    let token =
        folder.run(&["token", "create", "--role", "operator", "--name", "canary"]).assert(0, "prt_").out;
    let bearer = format!("Bearer {}", token.trim());
    let authorized = [("authorization", bearer.as_str())];
    let mut serving = folder.serve(&["--log-level", "trace"]);
    serving.wait_for("serving");
    for aggregate in ["taken", "refused", "fails"] {
        let event = format!(
            r#"{{"type":"shop.order.placed","aggregate_id":"{aggregate}","data":{{"card":"{}"}}}}"#,
            secret("payload")
        );
        assert_eq!(serving.post_event(&authorized, &event).0, 202);
    }
    let text = |metrics: &(u16, String, String)| metrics.2.clone();
    let scrape = || serving.http("GET", "/v1/metrics", &[("x-metrics-token", &secret("metrics"))], "");
    let mut metrics = scrape();
    for _ in 0..600 {
        if text(&metrics).contains("postrider_dead_letters_collected_total 2") {
            break;
        }
        std::thread::park_timeout(std::time::Duration::from_millis(100));
        metrics = scrape();
    }
    assert!(text(&metrics).contains("postrider_dead_letters_collected_total 2"), "{}", text(&metrics));
    silent("metrics", &text(&metrics));

    // What is refused is not repeated in the log, and tokens are never repeated at all.
    let garbage = format!(r#"{{"type": "{}"#, secret("garbage"));
    let _problem = serving.post_event(&authorized, &garbage);
    let wrong = format!("Bearer {}", secret("token"));
    for (path, headers) in [
        ("/v1/events", vec![("authorization", wrong.as_str())]),
        ("/v1/metrics", vec![("x-metrics-token", wrong.as_str())]),
        ("/v1/health", vec![]),
    ] {
        let (_, head, body) = serving.http("GET", path, &headers, "");
        silent(path, &head);
        silent(path, &body);
    }
    say_everything(&folder);
    let admin = folder.run(&["token", "create", "--role", "admin"]).assert(0, "prt_").out;
    let admin = format!("Bearer {}", admin.trim());
    ask_everything(&serving, &admin);
    visit_everything(&serving, &admin);
    serving.signal(Signal::TERM);
    let (code, said) = serving.ended();
    assert_eq!(code, 0, "{said:#?}");
    silent("the log", &said.join("\n"));
    assert!(said.iter().any(|line| line.contains("the collector does not take spans")), "{said:#?}");
    spans_are_silent(&collector);
    // One line for each failure.
    let died = said.iter().filter(|line| line.contains("an event failed as often as it may")).count();
    assert_eq!(died, 1, "{said:#?}");
}

#[test]
fn mistakes_in_the_configuration_do_not_repeat_secrets() {
    for (name, value) in [
        ("DATABASE_URL", format!("mysql://me:{}@localhost/x", secret("postgres"))),
        ("RABBITMQ_URL", format!("amqp://me:{}@localhost:notaport/", secret("rabbitmq"))),
        ("REDIS_URL", format!("http://me:{}@localhost", secret("redis"))),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", format!("ftp://me:{}@localhost", secret("otlp"))),
        ("OTEL_EXPORTER_OTLP_HEADERS", secret("otlp")),
        ("RABBITMQ_PORT", secret("port")),
    ] {
        let folder = Folder::new()
            .with("DATABASE_URL", "postgres://localhost/x")
            .with("RABBITMQ_URL", "amqp://localhost")
            .with(name, &value);
        let ran = folder.run(&["serve"]);
        assert_ne!(ran.code, 0, "{name}");
        if name != "RABBITMQ_PORT" {
            silent(name, &ran.err);
        }
    }
}
