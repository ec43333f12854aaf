//! Published events sent again on the command line.

use rustix::process::Signal;
use serde_json::json;

use super::process::Folder;

const QUEUES: &str = "[[queue]]\nname = 'billing'\nbind = ['shop.order.*']\n[[queue]]\nname = 'late'\n";

#[test]
fn a_replay_is_planned_then_run_and_reaches_the_queue_it_names() {
    let folder = Folder::new().with("USER", "ada");
    folder.write("postrider.toml", QUEUES);
    let range = [
        "outbox",
        "replay",
        "--aggregate-type",
        "shop.order",
        "--from",
        "1h",
        "--to",
        "2999-01-01T00:00:00Z",
    ];
    let replay = |more: &[&str]| folder.run(&[&range[..], more].concat());
    for id in ["one", "two"] {
        folder.run(&["publish", "shop.order.placed", "--data", "{}", "--id", id]).assert(0, "");
    }
    replay(&["--yes"]).assert(0, "no published event matches");
    let serving = folder.serve(&[]);
    serving.wait_for_metric("postrider_relay_published_total 2");

    replay(&["--to-queue", "late"]).assert(2, "add --yes");
    replay(&["--to-queue", "nowhere", "--yes"]).assert(2, "there is no queue nowhere");
    replay(&["--type", "shop.bill.paid", "--yes"]).assert(2, "not of the aggregate type");
    replay(&["--rate", "0", "--yes"]).assert(2, "above 0");
    let plan =
        replay(&["--type", "shop.order.placed", "--limit", "1", "--dry-run", "--json"]).assert(0, "").json();
    assert_eq!((&plan["events"], &plan["total"], &plan["forgotten"]), (&json!(2), &json!(1), &json!([])));
    replay(&["--to-queue", "late", "--reason", "new service", "--yes"]).assert(0, "2 done");
    serving.wait_for_metric("postrider_relay_published_total 4");
    replay(&["--reapply", "--yes"]).assert(0, "apply it once more");
    serving.wait_for_metric("postrider_relay_published_total 6");

    let trace = folder.run(&["event", "trace", "one", "--json"]).assert(0, "").json();
    assert!(trace.to_string().contains("\"late\""), "{trace}");
    let operations = folder.run(&["ops", "ls", "--json"]).assert(0, "").json();
    assert!(operations.to_string().contains("replay_outbox"), "{operations}");
    serving.signal(Signal::TERM);
    assert_eq!(serving.ended().0, 0);

    let swapped = ["outbox", "replay", "--aggregate-type", "a", "--from", "1h", "--to", "2h"];
    folder.run(&swapped).assert(2, "must be before");
}
