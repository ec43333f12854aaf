//! A queue that is full and refuses what is new: nobody but those who go there waits for it.

use std::collections::BTreeSet;

use postrider::Event;
use postrider::broker::{Message, Outgoing, Published, Verdict};
use postrider::topology::{Argument, BindingKey, ExchangeKind, ExchangeName, Queue, QueueName, Topology};
use postrider_testkit::effects::Effects;

use super::stage::Stage;

const INVOICES: usize = 10;
const OTHERS: u64 = 50;

pub(super) async fn a_full_queue_holds_up_nothing_but_what_goes_there<S: Effects>(stage: Stage<S>) {
    let running = stage.start(|_| Ok(Vec::new())).await;
    let (exchange, name) = (ExchangeName::new("events").unwrap(), QueueName::new("small").unwrap());
    let arguments = [("x-max-length", Argument::Int(10)), ("x-overflow", "reject-publish".into())]
        .map(|(name, value)| (name.to_owned(), value));
    let small = Queue { arguments: arguments.into(), ..Queue::quorum(name.clone()) };
    let topology = Topology::default().exchange(exchange.clone(), ExchangeKind::Topic).queue(small).bind(
        exchange,
        name.clone(),
        BindingKey::new("invoice.#").unwrap(),
    );
    stage.broker.declare(&topology).await.unwrap();

    let filling = || vec![Outgoing::to_queue(&name, Message::default())];
    stage.until(async || matches!(stage.broker.publish(filling()).await[..], [Published::Declined(_)])).await;

    let mut invoices = BTreeSet::new();
    for number in 0..INVOICES {
        let invoice = Event::new("invoice.paid").unwrap().aggregate_id(format!("i-{number}")).unwrap();
        invoices.insert(stage.commit(invoice).await.to_string());
    }
    for _ in 0..OTHERS {
        stage.commit(Event::new("order.placed").unwrap()).await;
    }
    stage.account(&running, |account| account.applied == OTHERS).await;
    // The invoices are still here, and none of them dies of it, however often it is tried.
    let backlog = stage.store.backlog().await.unwrap();
    assert!(backlog.due + backlog.later > 0 && backlog.dead == 0, "{backlog:?}");

    let mut subscription = stage.broker.subscribe(&name, 10).await.unwrap();
    let settler = subscription.settler();
    let mut came = BTreeSet::new();
    while came.len() < INVOICES {
        let deliveries = subscription.next(10).await.unwrap();
        came.extend(deliveries.iter().filter_map(|delivery| delivery.message.properties.message_id.clone()));
        let acks = deliveries.into_iter().map(|delivery| (delivery.receipt, Verdict::Ack));
        settler.settle(acks.collect()).await.unwrap();
    }
    assert_eq!(came, invoices);
    let left = async || {
        let backlog = stage.store.backlog().await.unwrap();
        backlog.due + backlog.later
    };
    stage.until(async || left().await == 0).await;
}
