//! What a preset migrates, and who consumes its queues meanwhile.

use super::{load, problem};

#[test]
fn the_old_queue_of_a_preset_is_consumed_beside_the_new_one() {
    let both = "[topology]\npreset = 'smap'\n[[consumer]]\nname = 'smtp'\nqueue = 'smtp_send_email_v2'\n\
        [[consumer]]\nname = 'smtp-legacy'\nqueue = 'smtp_send_email'\ninbox = 'smtp'";
    let config = load(both, []).unwrap();
    let old = config.own.consumers[1].service.clone();
    let topology = &config.own.layout.topology;
    let plain = load("[topology]\npreset = 'smap'", []).unwrap().own.layout.topology;
    let declared = topology.find_queue(old.name());
    assert_eq!(declared, plain.find_queue(old.name()), "the old queue stays as it is");
    assert_eq!(old.bindings[0].exchange.as_str(), "smtp_send_email_exc");
    assert!(topology.find_queue(&old.dead_letter_queue).is_some());
    assert!(old.wait_queues.iter().all(|wait| topology.find_queue(&wait.name).is_some()));
    for name in ["smtp", "smtp-legacy"] {
        let inbox = config.inbox_of(&postrider::topology::ConsumerName::new(name).unwrap());
        assert_eq!(inbox.unwrap().as_str(), "smtp");
    }
    let legacy = config.migration.unwrap().legacy;
    assert_eq!(legacy.queue.as_ref(), Some(old.name()));
    assert_eq!(legacy.waits.len(), old.wait_queues.len(), "they go with the queue");
    let told = problem("[topology]\npreset = 'smap'\n[[consumer]]\nname = 'smap.events.unroutable'");
    assert!(told.contains("which no [[queue]] declares"), "{told}");
}

#[test]
fn a_template_with_a_forgotten_slash_is_named_with_its_setting() {
    let with = |to: &str| {
        format!("[topology]\npreset = 'smap'\n[migration]\nlegacy_template = '{{\"to\": \"{to}\"}}'")
    };
    let told = problem(&with("data/email"));
    assert!(told.contains("migration.legacy_template") && told.contains("\"/data/email\""), "{told}");
    assert!(load(&with("/data/email"), []).is_ok() && load(&with("=data/email"), []).is_ok());
}

#[test]
fn a_preset_migrates_what_it_knows_but_for_what_is_said() {
    let migration = |more: &str| {
        let config = load(&format!("[topology]\npreset = 'smap'\n[migration]\n{more}"), []).unwrap();
        let of = config.migration.unwrap();
        let events: Vec<_> = of.events.iter().map(ToString::to_string).collect();
        (of.legacy.exchange.to_string(), of.legacy.queue.unwrap().to_string(), events.join(" "))
    };
    let said = |exchange: &str, queue: &str, events: &str| (exchange.into(), queue.into(), events.into());
    assert_eq!(migration(""), said("smtp_send_email_exc", "smtp_send_email", "email.#"));
    assert_eq!(
        migration("events = ['email.#', 'subscription.*']\nlegacy_queue = 'mail'"),
        said("smtp_send_email_exc", "mail", "email.# subscription.*")
    );
    assert_eq!(migration("legacy_exchange = 'old'\nlegacy_queue = 'mail'"), said("old", "mail", "#"));
}
