//! `postrider topology` against a running RabbitMQ, as people use it.

use postrider_testkit::servers::{RabbitVersion, TestVhost, shared};

use super::process::Folder;

postrider_testkit::on_each_rabbitmq!(
    a_plan_is_saved_applied_once_and_then_there_is_nothing_to_do,
    what_is_exported_reads_back_and_routes_the_same,
    every_preset_is_applied_and_leaves_no_drift,
    drift_and_pruning_have_their_exit_codes,
    without_the_plugin_it_is_declared_and_the_unprotected_are_named,
);

const SHOP: &str = "
[outbox]
exchange = 'shop.events'

[[exchange]]
name = 'shop.events'

[[queue]]
name = 'billing'
bind = ['shop.order.*', 'shop.refund.#']
retry = { max_retries = 3, delays = ['5s', '1m'] }
";

/// A folder whose commands work on a vhost of the test's own. No database is needed for any of this.
async fn folder(version: RabbitVersion) -> (TestVhost, Folder) {
    let vhost = shared().unwrap().vhost_on(version).await.unwrap();
    let folder = Folder::new()
        .with("RABBITMQ_URL", &vhost.amqp_url)
        .with("RABBITMQ_MANAGEMENT_URL", &vhost.management_url);
    (vhost, folder)
}

async fn a_plan_is_saved_applied_once_and_then_there_is_nothing_to_do(version: RabbitVersion) {
    let (_vhost, folder) = folder(version).await;
    folder.write("postrider.toml", SHOP);
    let ran = folder
        .run(&["topology", "plan", "--out", "shop.plan"])
        .assert(3, "to add, 0 to change, 0 to replace");
    assert!(ran.out.contains("  + queue billing (quorum)"), "{ran:?}");
    assert!(!ran.err.contains("guest:guest"), "{ran:?}");
    folder.run(&["topology", "apply", "shop.plan"]).assert(2, "--yes");
    folder.run(&["topology", "apply", "shop.plan", "--dry-run"]).assert(0, "to add");
    folder.run(&["topology", "apply", "shop.plan", "--yes"]).assert(0, "applied");
    folder.run(&["topology", "apply", "shop.plan", "--yes"]).assert(3, "the broker has changed since");
    folder.run(&["topology", "plan"]).assert(0, "nothing to do");
    folder.run(&["topology", "apply", "--yes"]).assert(0, "nothing to do");
    folder.run(&["topology", "drift"]).assert(0, "has what it should have");
    let json = folder.run(&["topology", "plan", "--json"]).assert(0, "").json();
    assert_eq!(json["steps"].as_array().unwrap().len(), 0);

    // Another ladder and another type: a queue is replaced, and what it says is what happens.
    folder.write("postrider.toml", &SHOP.replace("retry =", "kind = 'classic'\nretry ="));
    let ran = folder.run(&["topology", "plan"]).assert(3, "to replace");
    assert!(ran.out.contains("-/+ queue billing\n      x-queue-type: \"quorum\" → \"classic\""), "{ran:?}");
}

async fn what_is_exported_reads_back_and_routes_the_same(version: RabbitVersion) {
    let (_vhost, folder) = folder(version).await;
    folder.write("postrider.toml", SHOP);
    folder.run(&["topology", "apply", "--yes"]).assert(0, "applied");
    for key in ["shop.order.paid", "shop.refund", "shop.refund.a.b", "invoice.paid"] {
        let offline = folder.run(&["topology", "route", key, "--json"]).assert(0, "").json();
        let live = folder.run(&["topology", "route", key, "--json", "--live"]).assert(0, "").json();
        assert_eq!(offline["queues"], live["queues"], "{key}");
    }
    let exported = folder.run(&["topology", "export"]).assert(0, "");
    folder.write("postrider.toml", &exported.out);
    folder.run(&["topology", "drift"]).assert(0, "has what it should have");
    let again = folder.run(&["topology", "export"]).assert(0, "");
    assert_eq!(again.out, exported.out);
}

async fn every_preset_is_applied_and_leaves_no_drift(version: RabbitVersion) {
    for (preset, set) in [
        ("fis", vec![]),
        ("event-bus", vec!["service=wms-stock", "service=billing"]),
        ("ratatoskr", vec!["queue=mail", "exchange=letters", "keys=mail.#"]),
        ("smap", vec![]),
        ("holdco", vec![]),
    ] {
        for strict in [false, true] {
            let (vhost, folder) = folder(version).await;
            let strict = format!("strict={strict}");
            let mut args = vec!["--preset", preset, "--set", &strict];
            args.extend(set.iter().flat_map(|set| ["--set", set]));
            // A preset that names a virtual host would share it with other tests: its rendering, without that, is the same.
            let rendered = folder.run(&[&["topology", "render"], &args[..]].concat()).assert(0, "");
            let here = rendered
                .out
                .lines()
                .filter(|line| !line.starts_with("vhost ="))
                .collect::<Vec<_>>()
                .join("\n");
            folder.write("postrider.toml", &here);
            folder.run(&["topology", "apply", "--yes"]).assert(0, "applied");
            folder.run(&["topology", "drift"]).assert(0, "has what it should have");
            vhost.close().await.unwrap();
        }
    }
}

async fn drift_and_pruning_have_their_exit_codes(version: RabbitVersion) {
    let (_vhost, folder) = folder(version).await;
    folder.write("postrider.toml", SHOP);
    folder.run(&["topology", "apply", "--yes"]).assert(0, "applied");
    // An earlier configuration had one key and one delay less.
    let less = SHOP.replace("'shop.order.*', ", "").replace(", '1m'", "");
    folder.write("postrider.toml", &less);
    let ran =
        folder.run(&["topology", "drift"]).assert(3, "binding shop.events → billing for \"shop.order.*\"");
    assert!(ran.out.contains("queue billing.wait.1m"), "{ran:?}");
    folder.run(&["topology", "apply", "--yes"]).assert(0, "nothing to do");
    folder.run(&["topology", "apply", "--prune", "--yes"]).assert(0, "applied");
    folder.run(&["topology", "drift"]).assert(0, "has what it should have");
    // What exists as another kind of exchange cannot be changed, and nothing else is then.
    folder.write(
        "postrider.toml",
        &less.replace("name = 'shop.events'", "name = 'shop.events'\nkind = 'fanout'"),
    );
    folder.run(&["topology", "apply", "--yes"]).assert(3, "nothing was changed");
}

async fn without_the_plugin_it_is_declared_and_the_unprotected_are_named(version: RabbitVersion) {
    let (vhost, folder) = folder(version).await;
    let folder = folder.with("RABBITMQ_MANAGEMENT_URL", "http://127.0.0.1:1");
    folder.write("postrider.toml", SHOP);
    folder.run(&["topology", "plan"]).assert(1, "rabbitmq-plugins enable");
    folder.run(&["topology", "apply"]).assert(2, "--yes");
    let ran = folder.run(&["topology", "apply", "--yes"]).assert(0, "declared");
    assert!(ran.err.contains("postrider.queue.billing"), "{ran:?}");
    // A wrong password is something else: nothing is declared then.
    let wrong = vhost.management_url.replace("guest:guest@", "guest:hunter2@");
    let folder = Folder::new().with("RABBITMQ_URL", &vhost.amqp_url).with("RABBITMQ_MANAGEMENT_URL", &wrong);
    let ran = folder.run(&["topology", "apply", "--yes"]).assert(4, "refused the user name or the password");
    assert!(!ran.err.contains("hunter2"), "{ran:?}");
}
