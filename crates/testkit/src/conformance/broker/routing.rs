//! Messages reach the queues that want them, each once.

use postrider::broker::Published;
use postrider::topology::{Exchange, ExchangeKind, Queue, Topology, topic_matches};

use super::{
    BrokerFixture, Listener, confirm, empty, exchange, message, pattern, queue, queues, said, to_exchange,
    to_queue,
};

const PATTERNS: [&str; 22] = [
    "#",
    "*",
    "",
    "order",
    "order.*",
    "order.#",
    "*.created",
    "#.created",
    "*.*",
    "*.*.*",
    "order.*.added",
    "order.#.added",
    "#.line.#",
    "*.#",
    "#.*",
    "#.#",
    "*.#.*",
    "order.created",
    "Order.created",
    "stock_*.*",
    ".",
    "a.b.#.c.*",
];

const KEYS: [&str; 21] = [
    "",
    "order",
    "created",
    "order.created",
    "Order.created",
    "order.line.added",
    "order.added",
    "order.line.x.added",
    "line",
    "a.line.b",
    "stock_adjustment.posted",
    "a.b.c.d",
    "a.b.x.y.c.d",
    "a.b.c",
    "order.",
    ".created",
    ".",
    "..",
    "order..added",
    "*",
    "#",
];

/// `*` is one word and `#` any number, exactly as [`topic_matches`] has it.
pub async fn topic_patterns_match_words(fixture: &impl BrokerFixture) {
    let broker = fixture.broker().await;
    let shop = exchange("shop");
    let mut topology = Topology::default().exchange(shop.clone(), ExchangeKind::Topic);
    for (n, binding) in PATTERNS.into_iter().enumerate() {
        let name = queue(&format!("q{n}"));
        topology = topology.queue(Queue::quorum(name.clone())).bind(shop.clone(), name, pattern(binding));
    }
    broker.declare(&topology).await.unwrap();
    confirm(&*broker, KEYS.iter().map(|key| to_exchange("shop", key, message(key))).collect()).await;
    for (n, pattern) in PATTERNS.into_iter().enumerate() {
        let wanted: Vec<&str> = KEYS.into_iter().filter(|key| topic_matches(pattern, key)).collect();
        assert_eq!(empty(&*broker, &format!("q{n}")).await, wanted, "bound with {pattern:?}");
    }
}

/// Whatever the key and the binding say.
pub async fn fanout_reaches_every_queue(fixture: &impl BrokerFixture) {
    let broker = fixture.broker().await;
    let topology = queues(["a", "b", "c"])
        .exchange(exchange("news"), ExchangeKind::Fanout)
        .bind(exchange("news"), queue("a"), pattern(""))
        .bind(exchange("news"), queue("b"), pattern("never.matched"));
    broker.declare(&topology).await.unwrap();
    confirm(
        &*broker,
        vec![to_exchange("news", "any.key", message("one")), to_exchange("news", "", message("two"))],
    )
    .await;
    assert_eq!(empty(&*broker, "a").await, ["one", "two"]);
    assert_eq!(empty(&*broker, "b").await, ["one", "two"]);
    assert!(empty(&*broker, "c").await.is_empty(), "c is not bound");
}

/// Equal to the letter; wildcards mean nothing.
pub async fn direct_wants_the_equal_key(fixture: &impl BrokerFixture) {
    let broker = fixture.broker().await;
    let topology = queues(["a", "b"])
        .exchange(exchange("direct"), ExchangeKind::Direct)
        .bind(exchange("direct"), queue("a"), pattern("order.created"))
        .bind(exchange("direct"), queue("b"), pattern("order.*"))
        .bind(exchange("direct"), queue("b"), pattern("order.created"));
    broker.declare(&topology).await.unwrap();
    let keys = ["order.created", "order.*", "order", "ORDER.created", "order.paid"];
    let answers =
        broker.publish(keys.iter().map(|key| to_exchange("direct", key, message(key))).collect()).await;
    assert_answers(&answers, &[true, true, false, false, false]);
    assert_eq!(empty(&*broker, "a").await, ["order.created"]);
    assert_eq!(empty(&*broker, "b").await, ["order.created", "order.*"]);
}

/// Without any binding.
pub async fn the_default_exchange_routes_by_queue_name(fixture: &impl BrokerFixture) {
    let broker = fixture.broker().await;
    broker.declare(&queues(["a.b", "a.*"])).await.unwrap();
    confirm(&*broker, vec![to_queue("a.b", message("one")), to_queue("a.*", message("two"))]).await;
    assert_eq!(empty(&*broker, "a.b").await, ["one"]);
    assert_eq!(empty(&*broker, "a.*").await, ["two"]);
}

/// A queue wants a message or it does not.
pub async fn two_matching_bindings_deliver_once(fixture: &impl BrokerFixture) {
    let broker = fixture.broker().await;
    let topology = queues(["orders"])
        .exchange(exchange("shop"), ExchangeKind::Topic)
        .bind(exchange("shop"), queue("orders"), pattern("order.*"))
        .bind(exchange("shop"), queue("orders"), pattern("#.created"));
    broker.declare(&topology).await.unwrap();
    confirm(&*broker, vec![to_exchange("shop", "order.created", message("once"))]).await;
    assert_eq!(empty(&*broker, "orders").await, ["once"]);
}

/// It goes from one alternate to the next, keeps its key, and is returned only when the last has no queue for it.
pub async fn unwanted_messages_take_the_alternate_exchange(fixture: &impl BrokerFixture) {
    let broker = fixture.broker().await;
    let mut topology = queues(["orders", "paid", "rest"])
        .exchange(exchange("rest"), ExchangeKind::Direct)
        .bind(exchange("shop"), queue("orders"), pattern("order.*"))
        .bind(exchange("money"), queue("paid"), pattern("#.paid"))
        .bind(exchange("rest"), queue("rest"), pattern("lost.and.found"));
    for (name, alternate) in [("money", "rest"), ("shop", "money")] {
        topology.exchanges.push(Exchange {
            alternate: Some(exchange(alternate)),
            ..Exchange::new(exchange(name), ExchangeKind::Topic)
        });
    }
    broker.declare(&topology).await.unwrap();
    let keys = ["order.paid", "invoice.paid", "lost.and.found", "nobody.cares"];
    let answers =
        broker.publish(keys.iter().map(|key| to_exchange("shop", key, message(key))).collect()).await;
    assert_answers(&answers, &[true, true, true, false]);
    assert_eq!(empty(&*broker, "orders").await, ["order.paid"]);
    assert_eq!(empty(&*broker, "paid").await, ["invoice.paid"]);
    let mut rest = Listener::on(&*broker, "rest", 10).await;
    assert_eq!(rest.take_one().await.routing_key.as_str(), "lost.and.found");
}

fn assert_answers(answers: &[Published], confirmed: &[bool]) {
    let fits = |(answer, confirmed): (&Published, &bool)| match answer {
        Published::Confirmed => *confirmed,
        Published::Returned(_) => !*confirmed,
        Published::Refused(_) | Published::Unfit(_) | Published::Declined(_) | Published::Unknown(_) => false,
    };
    assert!(answers.len() == confirmed.len() && answers.iter().zip(confirmed).all(fits), "{answers:?}");
}

/// Names are UTF-8, and a word is a word in every script.
pub async fn unicode_names_and_keys_route(fixture: &impl BrokerFixture) {
    let broker = fixture.broker().await;
    let topology = queues(["Bestellungen für Größe ü", "订单"])
        .exchange(exchange("магазин 🛒"), ExchangeKind::Topic)
        .bind(exchange("магазин 🛒"), queue("Bestellungen für Größe ü"), pattern("заказ.*"))
        .bind(exchange("магазин 🛒"), queue("订单"), pattern("#.создан ✓"));
    broker.declare(&topology).await.unwrap();
    confirm(
        &*broker,
        vec![
            to_exchange("магазин 🛒", "заказ.создан ✓", message("beide")),
            to_exchange("магазин 🛒", "заказ.оплачен", message("eins")),
        ],
    )
    .await;
    let mut first = Listener::on(&*broker, "Bestellungen für Größe ü", 10).await;
    let taken = first.take(2).await;
    assert_eq!(said(&taken), ["beide", "eins"]);
    assert_eq!(taken[0].routing_key.as_str(), "заказ.создан ✓");
    assert_eq!(taken[0].exchange.as_str(), "магазин 🛒");
    assert_eq!(empty(&*broker, "订单").await, ["beide"]);
}

/// 255 bytes, which is what a name may have.
pub async fn the_longest_names_and_keys_route(fixture: &impl BrokerFixture) {
    let broker = fixture.broker().await;
    let long = "ü".repeat(127) + "x";
    let topology = queues([&long]).exchange(exchange(&long), ExchangeKind::Topic).bind(
        exchange(&long),
        queue(&long),
        pattern(&long),
    );
    broker.declare(&topology).await.unwrap();
    confirm(&*broker, vec![to_exchange(&long, &long, message("through the exchange"))]).await;
    confirm(&*broker, vec![to_queue(&long, message("past it"))]).await;
    assert_eq!(empty(&*broker, &long).await, ["through the exchange", "past it"]);
}
