//! `postrider topology` as people use it, without any server.

use super::process::Folder;

#[test]
fn presets_are_listed_with_their_parameters() {
    let folder = Folder::new();
    let ran = folder.run(&["topology", "presets"]).assert(0, "");
    for word in ["fis", "event-bus", "ratatoskr", "smap", "holdco", "retry_delay_ms", "strict"] {
        assert!(ran.out.contains(word), "{word}: {ran:?}");
    }
    let lines = folder.run(&["topology", "presets", "-o", "jsonl"]).assert(0, "");
    assert_eq!(lines.out.lines().count(), 5);
}

#[test]
fn what_is_rendered_can_be_used_as_the_configuration() {
    let folder = Folder::new();
    let set = ["--preset", "event-bus", "--set", "service=wms-cincout", "--set", "service=wms-stock"];
    let rendered = folder.run(&[&["topology", "render"], &set[..]].concat()).assert(0, "");
    folder.write("postrider.toml", &rendered.out);
    let again = folder.run(&["topology", "render"]).assert(0, "");
    assert_eq!(again.out, rendered.out);
    let ran = folder.run(&["topology", "route", "anything.at.all"]).assert(0, "");
    assert!(ran.out.contains("it reaches queue wms.queue.wms-cincout"), "{ran:?}");
    assert!(ran.out.contains("it reaches queue wms.queue.wms-stock"), "{ran:?}");
    assert!(ran.out.contains("after 5000 ms: it goes to wms.queue.wms-stock"), "{ran:?}");
}

#[test]
fn a_route_is_explained_binding_by_binding() {
    let folder = Folder::new();
    folder.write("postrider.toml", "[topology]\npreset = 'fis'\n");
    let ran = folder.run(&["topology", "route", "ecommerce.order.completed"]).assert(0, "");
    assert!(ran.out.contains("✓ \"*.*.*\" for queue fis.ingestion.queue wants it"), "{ran:?}");
    let ran = folder.run(&["topology", "route", "order.completed"]).assert(0, "");
    assert!(ran.out.contains("on to the alternate exchange fis.unroutable.exchange"), "{ran:?}");
    assert!(ran.out.contains("it reaches queue fis.ingestion.dlq.queue"), "{ran:?}");
    let json = folder.run(&["topology", "route", "order.completed", "--json"]).assert(0, "").json();
    assert_eq!(json["queues"][0]["queue"], "fis.ingestion.dlq.queue");
    folder
        .run(&["topology", "route", "a.b", "--exchange", "nope"])
        .assert(1, "there are fis.events.exchange");
}

#[test]
fn a_pattern_that_matches_nothing_is_doubted() {
    let folder = Folder::new();
    let args = ["topology", "render", "--preset", "holdco", "--set", "strict=true"];
    folder.run(&args).assert(0, "\"stock_*.*\", which matches no event");
}

#[test]
fn names_that_a_presets_parameters_make_meet_no_others() {
    let folder = Folder::new();
    for (preset, set, said) in [
        ("ratatoskr", ["queue=a", "exchange=a.dlq"], "exchange: a.dlq is declared twice"),
        ("ratatoskr", ["queue=a", "exchange=amq.topic"], "is the broker's own"),
        ("holdco", ["queues=a.dlq:#,a:#", "strict=true"], "queue: a.dlq is declared twice"),
    ] {
        let args = ["topology", "render", "--preset", preset, "--set", set[0], "--set", set[1]];
        folder.run(&args).assert(2, said);
    }
}

#[test]
fn diagrams_are_drawn() {
    let folder = Folder::new();
    let ran = folder.run(&["topology", "diagram", "--preset", "smap"]).assert(0, "");
    assert!(ran.out.starts_with("flowchart LR"), "{ran:?}");
    let ran = folder.run(&["topology", "diagram", "--preset", "holdco", "--format", "svg"]).assert(0, "");
    assert!(ran.out.starts_with("<svg"), "{ran:?}");
}

#[test]
fn what_is_not_understood_is_exit_2_and_says_what_there_is() {
    let folder = Folder::new();
    folder.run(&["topology", "render", "--preset", "fiss"]).assert(2, "there are fis, event-bus");
    let with = |set: &str| folder.run(&["topology", "render", "--preset", "ratatoskr", "--set", set]);
    with("delay=5").assert(2, "it has queue, exchange, keys, retry_delay_ms, event_id, strict");
    with("retry_delay_ms=soon").assert(2, "a whole number of milliseconds");
    with("queue").assert(2, "write NAME=VALUE");
    folder.run(&["topology", "render", "--set", "a=b"]).assert(2, "--preset");
}

#[test]
fn what_nobody_wants_becomes_one_dead_letter() {
    let folder = Folder::new();
    folder.write("postrider.toml", "[topology]\npreset = 'fis'\n[http]\nlisten = '127.0.0.1:0'\n");
    let said =
        folder.run(&["publish", "order.completed", "--data", "{\"eventId\": \"evt_1\"}", "--id", "evt_1"]);
    said.assert(0, "it goes to fis.ingestion.dlq.queue, as a dead letter");
    let serving = folder.serve(&[]);
    serving.wait_for_metric("postrider_dead_letters_collected_total 1");
    let page = folder.run(&["dlq", "ls", "--json"]).assert(0, "").json();
    let letters = page["letters"].as_array().unwrap();
    assert_eq!((letters.len(), letters[0]["reason"].as_str()), (1, Some("unroutable")), "{page}");
    assert_eq!(letters[0]["event_id"], "evt_1");
}
