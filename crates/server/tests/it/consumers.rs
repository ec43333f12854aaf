//! `postrider consumers` on the embedded default.

use super::process::Folder;

const QUEUES: &str = "[[queue]]\nname = 'billing'\nbind = ['shop.order.*']\nordered = true\non_dead = 'park'\n\
    [queue.retry]\nexponential = { base = '1s', max = '1m', steps = 3 }\n[queue.retry.class.timeout]\nmax_retries = 2\n\
    [[consumer]]\nname = 'billing'\nmax_concurrency = 4\n";

fn folder() -> Folder {
    let folder = Folder::new();
    folder.write("postrider.toml", QUEUES);
    folder
}

#[test]
fn a_consumer_is_paused_and_resumed_by_name() {
    let folder = folder();
    let state = || folder.run(&["consumers", "ls", "--json"]).assert(0, "").json()[0].clone();
    assert_eq!(state()["state"], "active");
    folder.run(&["consumers", "pause", "billing", "--dry-run"]).assert(0, "nothing was changed");
    assert_eq!(state()["state"], "active");
    folder
        .run(&["consumers", "pause", "billing", "--reason", "the bank is down"])
        .assert(0, "billing is paused");
    folder.run(&["consumers", "pause", "billing"]).assert(0, "was paused already");
    let paused = state();
    assert_eq!(
        (&paused["state"], &paused["pause"]["reason"]),
        (&"paused".into(), &"the bank is down".into())
    );
    folder.run(&["consumers", "ls"]).assert(0, "the bank is down");
    folder.run(&["consumers", "resume", "billing", "--dry-run"]).assert(0, "would resume billing");
    folder.run(&["consumers", "resume", "billing"]).assert(0, "billing goes on");
    folder.run(&["consumers", "resume", "billing"]).assert(0, "was not paused");
    assert_eq!(state()["state"], "active");
}

#[test]
fn names_and_keys_that_nobody_knows_are_told() {
    let folder = folder();
    folder.run(&["consumers", "pause", "biling"]).assert(2, "there is no consumer biling");
    folder.run(&["consumers", "resume", "biling"]).assert(2, "there is no consumer biling");
    folder.run(&["consumers", "release", "billing", "order/1", "--yes"]).assert(2, "no parked key order/1");
    assert_eq!(folder.run(&["consumers", "held", "--json"]).json(), serde_json::json!([]));
    Folder::new().run(&["consumers", "ls"]).assert(0, "no consumer has started");
}

#[test]
fn a_queue_that_cannot_be_is_told() {
    let folder = Folder::new();
    for (queue, told) in [
        ("on_dead = 'park'", "without ordered = true"),
        ("retry = { delays = [] }", "retries without delays"),
        ("retry = { status = { teapot = { max_retries = 1 } } }", "write 429, 4xx"),
    ] {
        folder.write("postrider.toml", &format!("[[queue]]\nname = 'billing'\n{queue}\n"));
        folder.run(&["consumers", "ls"]).assert(2, told);
    }
}
