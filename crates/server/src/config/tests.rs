//! The layers, and what is said about bad input.

mod environment;
mod migrating;
mod nodes;

use std::fs;

use super::*;

fn load(file: &str, environment: impl Into<Environment>) -> Result<Config, ConfigError> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("postrider.toml");
    fs::write(&path, file).unwrap();
    let flags = Flags { file: Some(path.clone()), values: Vec::new(), broker_alone: false };
    let shorten = |mut error: ConfigError| {
        error.origin = error.origin.replace(&path.display().to_string(), "postrider.toml");
        error
    };
    Config::load(&flags, &environment.into()).map_err(shorten)
}

fn problem(file: &str) -> String {
    load(file, []).unwrap_err().to_string()
}

#[test]
fn the_default_file_has_every_setting_with_a_sentence_and_nothing_else() {
    // Every field of `Settings` is required and no other is allowed: that it parses is the proof.
    Layers::new(DEFAULTS).unwrap().read().unwrap();
    let lines: Vec<_> = DEFAULTS.lines().collect();
    for (at, line) in
        lines.iter().enumerate().filter(|(_, line)| line.contains(" = ") && !line.starts_with('#'))
    {
        let above = lines[at - 1];
        assert!(above.starts_with("# ") && above.ends_with('.'), "no sentence above line {}: {line}", at + 1);
    }
}

#[test]
fn the_examples_in_the_default_file_work() {
    let (_, examples) = DEFAULTS.split_once("# Your own topology, in short form:\n#\n").unwrap();
    let (short, long) = examples.split_once("#\n# Everything else is derived").unwrap();
    let (_, long) = long.split_once("#\n").unwrap();
    let uncommented = |text: &str| {
        let lines = text.lines().map(|line| line.strip_prefix("# ").unwrap_or(""));
        lines.collect::<Vec<_>>().join("\n")
    };
    let names = |config: &Config| {
        let queues = config.own.layout.topology.queues.iter();
        queues.map(|queue| queue.name.to_string()).collect::<Vec<_>>()
    };
    let config = load(&uncommented(short), []).unwrap();
    assert_eq!(
        names(&config),
        [
            "billing",
            "billing.wait.1s",
            "billing.wait.5s",
            "billing.wait.1m",
            "billing.wait.15m",
            "billing.dlq",
            "postrider.events.unroutable",
            "shop.events.unroutable"
        ]
    );
    assert_eq!(config.own.consumers[0].name.as_str(), "invoicing");
    let config = load(&uncommented(long), []).unwrap();
    assert_eq!(names(&config), ["mail", "mail.failed", "mail.later", "postrider.events.unroutable"]);
    let mail = &config.own.layout.topology.queues[0];
    assert_eq!(mail.policy.delivery_limit, Some(postrider::topology::DeliveryLimit::Times(5)));
    assert!(mail.policy.safe_dead_lettering);
    assert_eq!(mail.arguments.len(), 4);
    assert_eq!(config.own.layout.topology.doubts(), Vec::<String>::new());
}

#[test]
fn with_nothing_set_it_is_the_embedded_default() {
    let config = Config::load(&Flags::default(), &Environment::default()).unwrap();
    assert_eq!(config.backends.to_string(), "SQLite file .postrider/postrider.db with the embedded broker");
    assert_eq!(config.settings.relay.max_attempts, 10);
}

#[test]
fn the_environment_wins_over_the_file_and_flags_over_both() {
    let file = "[relay]\nbatch_size = 100\nlanes = 2\n[log]\nlevel = 'warn'";
    let environment = [("POSTRIDER_RELAY__BATCH_SIZE", "200"), ("POSTRIDER_LOG__LEVEL", "debug")];
    let config = load(file, environment).unwrap();
    assert_eq!((config.settings.relay.batch_size, config.settings.relay.lanes), (200, 2));
    assert_eq!(config.settings.relay.lease_ms, 10_000);
    let flags = Flags {
        file: None,
        values: vec![("--log-level", "log.level", "trace".to_owned())],
        broker_alone: false,
    };
    assert_eq!(Config::load(&flags, &environment.into()).unwrap().settings.log.level, "trace");
}

#[test]
fn the_names_of_the_seeds_work() {
    let config = load(
        "[store]\nurl = 'postgres://app@db/shop'",
        [
            ("RABBITMQ_HOST", "mq"),
            ("RABBITMQ_PORT", "tcp://10.0.0.1:5673"),
            ("RABBITMQ_USER", "app"),
            ("RABBITMQ_PASS", "p/w"),
            ("REDIS_HOST", "cache"),
            ("REDIS_PASSWORD", "s"),
            ("REDIS_STATE_DB", "1"),
            ("METRICS_TOKEN", "m"),
            ("ENABLE_DUAL_PUBLISH", "false"),
        ],
    )
    .unwrap();
    let Backends::Networked { broker, .. } = &config.backends else { panic!("{}", config.backends) };
    assert_eq!(broker.url.get(), Some("amqp://app:p%2Fw@mq:5673/%2f"));
    let redis = config.redis.as_ref().unwrap();
    assert_eq!(
        redis.url.get(),
        Some("redis://:s@cache:6379/0"),
        "idempotency keys are not in the state database"
    );
    let state = crate::wiring::state_redis(&config, redis).url;
    assert_eq!(secrecy::ExposeSecret::expose_secret(&state), "redis://:s@cache:6379/1");
    assert_eq!(config.settings.http.metrics_token.get(), Some("m"));
    assert!(!config.settings.migration.dual_publish);
    assert_eq!(
        config.backends.to_string(),
        "PostgreSQL at postgres://app@db/shop with RabbitMQ at amqp://app@mq:5673/%2f"
    );
}

#[test]
fn several_nodes_hide_every_password() {
    let file = "[store]\nurl = 'postgres://app:hunter2@db/shop'\n\
        [broker]\nurl = 'amqp://u:hunter2@a:5672/v,amqp://u:hunter2@b:5672/v'";
    let config = load(file, []).unwrap();
    let shown = config.backends.to_string();
    assert_eq!(
        shown,
        "PostgreSQL at postgres://app@db/shop with RabbitMQ at amqp://u@a:5672/v,amqp://u@b:5672/v"
    );
    let Backends::Networked { broker, .. } = &config.backends else { panic!("{shown}") };
    assert_eq!(broker.url.get(), Some("amqp://u:hunter2@a:5672/v,amqp://u:hunter2@b:5672/v"));
}

#[test]
fn a_secret_may_come_from_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let secret = folder.path().join("secret");
    fs::write(&secret, "from-file\n").unwrap();
    let path = secret.to_str().unwrap();
    for name in ["METRICS_TOKEN_FILE", "POSTRIDER_HTTP__METRICS_TOKEN_FILE"] {
        let config = load("", [(name, path)]).unwrap();
        assert_eq!(config.settings.http.metrics_token.get(), Some("from-file"), "{name}");
    }
    let both = load("", [("METRICS_TOKEN", "x"), ("METRICS_TOKEN_FILE", path)]).unwrap_err();
    assert!(both.to_string().contains("keep one of them"), "{both}");
    let absent = load("", [("METRICS_TOKEN_FILE", "/nowhere/secret")]).unwrap_err();
    assert!(absent.to_string().contains("/nowhere/secret"), "{absent}");
}

#[test]
fn bad_input_is_named_with_its_line_and_what_is_allowed() {
    for (file, said) in [
        (
            "[relay]\nbatchsize = 5",
            "postrider.toml, line 2: relay.batchsize: unknown field `batchsize`, expected one of",
        ),
        ("\n[relais]\nx = 5", "line 2: relais: unknown field `relais`"),
        (
            "[relay]\nbatch_size = 'many'",
            "line 2: relay.batch_size: invalid type: string \"many\", expected u32",
        ),
        ("[relay]\nbatch_size = 0", "line 2: relay.batch_size: must be from 1 to 10000"),
        ("[relay]\nlanes = 70000", "line 2: relay.lanes: invalid value: integer `70000`, expected u16"),
        ("[log]\nformat = 'xml'", "line 2: log.format: unknown variant `xml`, expected `text` or `json`"),
        ("[log]\nlevel = 'loud,,='", "line 2: log.level: must be error, warn"),
        ("[log]\nlevel = 'inof'", "line 2: log.level: must be error, warn"),
        ("[http]\nlisten = 'here'", "line 2: http.listen: "),
        ("[store]\npath = ':memory:'", "line 2: store.path: must be the path of a file"),
        ("[http\n", "line 1: not TOML"),
        (
            "[[queue]]\nname = 'q'\nbind = ['no.such:key']",
            "line 1: queue: q is bound to \"no.such\", which no [[exchange]]",
        ),
        ("[[queue]]\nname = 'q'\nbind = [5]", "line 3: queue.bind: a binding is"),
        (
            "[[queue]]\nname = 'q'\nretry = { delays = ['soon'] }",
            "line 3: queue.retry.delays: a delay is text with a unit",
        ),
        ("[[queue]]\nname = 'q'\n[[queue]]\nname = 'q.dlq'", "q.dlq is declared twice"),
        ("[[queue]]\nbind = []", "missing field `name`"),
        ("[[consumer]]\nname = 'c'", "consumer: c consumes c, which no [[queue]] declares"),
        ("[store]\nurl = 'mysql://x'", "store.url: mysql:// is not supported here; expected postgres://"),
        ("[store]\nurl = 'postgres://u@h/d'", "line 2: store.url: PostgreSQL goes together with RabbitMQ"),
        ("[broker]\nhost = 'mq'\nuser = 'u'", "line 2: broker.host: no password; set RABBITMQ_PASS"),
        ("[broker]\nurl = 'amqp://mq'", "line 2: broker.url: no user; set RABBITMQ_USER"),
    ] {
        let problem = problem(file);
        assert!(problem.contains(said), "{file:?} said {problem:?}");
    }
}

#[test]
fn a_file_that_was_named_must_be_there() {
    let flags =
        Flags { file: Some("/nowhere/postrider.toml".into()), values: Vec::new(), broker_alone: false };
    let absent = Config::load(&flags, &Environment::default()).unwrap_err();
    assert!(
        absent.to_string().starts_with("/nowhere/postrider.toml: cannot read the configuration"),
        "{absent}"
    );
}

#[test]
fn a_reload_knows_what_changed_and_tells_no_secret() {
    let before = load("[broker]\npassword = 'a'", []).unwrap();
    let after = load("[broker]\npassword = 'b'\n[log]\nlevel = 'debug'", []).unwrap();
    assert_eq!(before.changed(&after), ["broker.password", "log.level"]);
    assert!(!format!("{after:?}").contains("\"b\""));
}

#[test]
fn a_preset_brings_its_exchange_its_format_and_its_virtual_host() {
    let servers = [("DATABASE_URL", "postgres://p@db/x"), ("RABBITMQ_URL", "amqp://u:p@mq:5672/%2f")];
    let config = load("[topology]\npreset = 'fis'", servers).unwrap();
    assert_eq!(config.own.layout.exchange.as_str(), "fis.events.exchange");
    assert!(
        config.backends.to_string().ends_with("RabbitMQ at amqp://u@mq:5672/%2ffis"),
        "{}",
        config.backends
    );
    let config = load("[topology]\npreset = 'fis'\n[outbox]\nexchange = 'fis.domain.exchange'", []).unwrap();
    assert_eq!(config.own.layout.exchange.as_str(), "fis.domain.exchange");
    let smap = load("[topology]\npreset = 'smap'", []).unwrap().own.layout;
    assert_eq!(smap.format(&smap.exchange).as_str(), "smap");
}

#[test]
fn a_queue_of_your_own_joins_a_preset() {
    let file = "[topology]\npreset = 'holdco'\nset = { queues = 'notifications' }\n\
        [[queue]]\nname = 'orders'\nbind = ['order.*']\n[[consumer]]\nname = 'mail'\nqueue = 'notifications'";
    let own = load(file, []).unwrap().own;
    let key = postrider::topology::RoutingKey::new("order.created").unwrap();
    let reached: Vec<_> = own.layout.topology.route(&own.layout.exchange, &key);
    assert_eq!(reached.iter().map(|queue| queue.as_str()).collect::<Vec<_>>(), ["notifications", "orders"]);
    assert_eq!(own.layout.services.len(), 2);
    assert_eq!(own.consumers[0].service.name().as_str(), "notifications");
}

#[test]
fn strict_is_what_is_written_and_no_more() {
    let file = "[topology]\nstrict = true\n[[queue]]\nname = 'orders'\nbind = ['order.*']";
    let layout = load(file, []).unwrap().own.layout;
    assert_eq!(layout.topology.policies(true), []);
    assert_eq!(layout.topology.exchanges.len(), 1);
    assert!(layout.collected().is_empty());
}

#[test]
fn what_is_wrong_with_a_topology_is_said() {
    for (file, said) in [
        (
            "[topology]\npreset = 'fiss'",
            "topology.preset: there is no preset \"fiss\"; there are fis, event-bus",
        ),
        ("[topology]\npreset = 'event-bus'", "preset event-bus needs service"),
        ("[topology]\nset = { a = 'b' }", "a is set, but no topology.preset is named"),
        (
            "[topology]\npreset = 'fis'\nset = { retries = 3 }",
            "no parameter \"retries\"; it has vhost, strict",
        ),
        ("[[exchange]]\nname = 'a'\nalternate = 'b'", "a has the alternate b, which is not declared"),
        (
            "[[queue]]\nname = 'q'\ndead_letter = { exchange = 'nope' }",
            "q sends dead letters to \"nope\", which no [[exchange]] declares",
        ),
        ("[[queue]]\nname = 'q'\ndelivery_limit = -1", "a delivery limit is a whole number or \"unlimited\""),
        (
            "[[queue]]\nname = 'q'\narguments = { x-message-ttl = 5 }",
            "q has x-message-ttl among its arguments; it has a setting of its own",
        ),
    ] {
        let problem = problem(file);
        assert!(problem.contains(said), "{file:?} said {problem:?}");
    }
}

#[test]
fn what_is_rendered_reads_back_as_it_was() {
    let presets = [
        "preset = 'fis'",
        "preset = 'event-bus'\nset = { service = ['wms-cincout', 'noprefix'] }",
        "preset = 'ratatoskr'\nset = { retry_delay_ms = 1500, keys = 'a.*,b.#', queue = 'odd \"name\"' }",
        "preset = 'smap'",
        "preset = 'holdco'\nset = { queues = 'orders.consumer,erp.sync,own:a.b+c.*' }",
    ];
    let files = presets.iter().flat_map(|preset| {
        ["false", "true"].map(|strict| format!("[topology]\n{preset}\nstrict = {strict}"))
    });
    let own = "[[queue]]\nname = 'q'\nbind = ['a.*']\nmax_length = 5\nmax_length_bytes = 7000\narguments = { x-note = 'a\u{200b}b' }\nprefetch = 7\nsingle_active_consumer = true\npolicy = { max_length = 4, max_length_bytes = 100 }";
    for file in files.chain([own.to_owned()]) {
        let sorted = |text: &str| {
            let mut layout = load(text, []).unwrap().own.layout;
            layout.topology.bindings.sort_by_key(|binding| format!("{binding:?}"));
            layout
        };
        let first = sorted(&file);
        let rendered = to_toml(&first);
        let again = sorted(&rendered);
        assert_eq!(again, first, "{rendered}");
    }
}

#[test]
fn keys_in_redis_are_one_inboxs_own() {
    let queues = "[[queue]]\nname = 'a'\n[[queue]]\nname = 'b'\n";
    for wrong in [
        "[[consumer]]\nname = 'a'\nkey_prefix = 'b'\n[[consumer]]\nname = 'b'\n",
        "[[consumer]]\nname = 'a'\nkey_prefix = 'http'\n",
    ] {
        let told = problem(&format!("{queues}{wrong}"));
        assert!(told.contains("another key_prefix"), "{told}");
    }
    let shared = "[[consumer]]\nname = 'a'\n[[consumer]]\nname = 'b'\ninbox = 'a'\n";
    load(&format!("{queues}{shared}"), []).unwrap();
}

#[test]
fn an_inbox_that_forgets_too_soon_is_refused() {
    for (file, days) in [
        ("[outbox]\nretention_days = 60\n", 60),
        ("[inbox]\nretention_days = 20\n", 30),
        ("[[queue]]\nname = 'slow'\n[queue.retry]\nmax_retries = 20\ndelays = ['24h']\n", 50),
    ] {
        let told = problem(file);
        assert!(
            told.contains("inbox.retention_days") && told.contains(&format!("at least {days}")),
            "{told}"
        );
    }
    let servers =
        "[store]\nurl = 'postgres://app:x@localhost/app'\n[broker]\nurl = 'amqp://app:x@localhost'\n";
    for (file, days) in [
        ("[inbox]\nretention_days = 36\n", 37),
        ("[outbox]\npartition = 'month'\n", 61),
        (
            "[[push]]\nname = 'hook'\nurl = 'https://example.com/'\nkeys = ['a.b']\nretry = { max_retries = 20, delays = ['24h'] }\n",
            57,
        ),
    ] {
        let told = problem(&format!("{servers}{file}"));
        assert!(told.contains(&format!("at least {days}")), "{told}");
    }
    load(servers, []).unwrap();
    load("[inbox]\nretention_days = 50\n[[queue]]\nname = 'slow'\n[queue.retry]\nmax_retries = 20\ndelays = ['24h']\n", []).unwrap();
}
