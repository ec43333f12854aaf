//! Every route of the API: who may call it, whose events it is about, whether it changes anything. The one place that says so.
//!
//! Access is decided by this table and the OpenAPI document is made of it. A route that is not here is refused, whoever calls.

mod books;

use std::collections::HashMap;
use std::sync::LazyLock;

use postrider::store::TokenRole::{self, Admin, Operator, Viewer};

/// What a token for one tenant may do with a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tenants {
    /// It gets what is its own, and nothing else.
    Own,
    /// Nothing: what is there belongs to all tenants together.
    All,
}

/// One route.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Route {
    pub(crate) method: &'static str,
    /// Under `/v1`.
    pub(crate) path: &'static str,
    /// The least role; none for what everybody may ask.
    pub(crate) role: Option<TokenRole>,
    pub(crate) tenants: Tenants,
    /// Whether it may change anything: not in read-only mode.
    pub(crate) changes: bool,
    /// Whether the rate limit counts it. Not what programs do as fast as they can: publishing, pulling, probing.
    pub(crate) paced: bool,
    /// The member of the answer that is shown once, and kept nowhere.
    pub(crate) secret: Option<&'static str>,
    pub(crate) summary: &'static str,
    /// What may be asked in the query.
    pub(crate) query: &'static [&'static str],
    /// The schema of the body and of the answer, by their names in the document.
    pub(crate) body: Option<&'static str>,
    pub(crate) answer: Option<&'static str>,
}

const fn get(path: &'static str, role: TokenRole, summary: &'static str) -> Route {
    Route {
        method: "GET",
        path,
        role: Some(role),
        tenants: Tenants::All,
        changes: false,
        paced: true,
        secret: None,
        summary,
        query: &[],
        body: None,
        answer: None,
    }
}

const fn post(path: &'static str, role: TokenRole, summary: &'static str) -> Route {
    Route { method: "POST", changes: true, ..get(path, role, summary) }
}

const fn delete(path: &'static str, role: TokenRole, summary: &'static str) -> Route {
    Route { method: "DELETE", changes: true, ..get(path, role, summary) }
}

impl Route {
    const fn own(self) -> Self {
        Self { tenants: Tenants::Own, ..self }
    }
    const fn unpaced(self) -> Self {
        Self { paced: false, ..self }
    }
    const fn open(self) -> Self {
        Self { role: None, tenants: Tenants::Own, paced: false, ..self }
    }
    const fn harmless(self) -> Self {
        Self { changes: false, ..self }
    }
    const fn shows(self, secret: &'static str) -> Self {
        Self { secret: Some(secret), ..self }
    }
    /// What the router writes to the audit log for a change of the books, which nobody else does. Why may stand in the query.
    pub(crate) fn logged(&self) -> Option<String> {
        let path = self.path.strip_prefix("/ledger/{tenant}").filter(|_| self.changes)?;
        let words = path.split('/').filter(|part| !part.is_empty() && !part.starts_with('{'));
        let words: Vec<_> = if path.is_empty() { vec!["book"] } else { words.collect() };
        Some(format!("ledger.{}", words.join(".")))
    }
    const fn asks(self, query: &'static [&'static str]) -> Self {
        Self { query, ..self }
    }
    const fn takes(self, body: &'static str) -> Self {
        Self { body: Some(body), ..self }
    }
    const fn gives(self, answer: &'static str) -> Self {
        Self { answer: Some(answer), ..self }
    }
}

const PAGE: &[&str] = &["cursor", "limit"];
/// Which outbox, by its label or its table; the default one, where none is named.
const OUTBOX: &[&str] = &["outbox"];
const LETTERS: &[&str] = &[
    "consumer",
    "queue",
    "type",
    "event_id",
    "reason",
    "error_class",
    "fingerprint",
    "tenant",
    "aggregate_id",
    "text",
    "since",
    "until",
    "min_attempts",
    "max_attempts",
    "status",
    "cursor",
    "limit",
];

/// All of them.
pub(crate) fn routes() -> impl Iterator<Item = &'static Route> {
    ROUTES.iter().chain(books::ROUTES)
}

/// All but the books.
const ROUTES: &[Route] = &[
    get("/health", Viewer, "What works, part by part; 503 while something does not").open(),
    get("/health/live", Viewer, "Whether the process lives; no dependency is checked").open(),
    get("/health/ready", Viewer, "Whether events can be committed").open(),
    get("/openapi.json", Viewer, "This document").open(),
    get("/metrics", TokenRole::Metrics, "What Prometheus scrapes").unpaced(),
    get("/stream", Viewer, "How everything goes, once a second, as server-sent events").gives("Beat"),
    post("/events", Operator, "Commit an event to the outbox")
        .own()
        .unpaced()
        .takes("NewEvent")
        .gives("Taken"),
    post("/events:batch", Operator, "Commit many events together")
        .own()
        .unpaced()
        .takes("NewEvents")
        .gives("BatchAnswer"),
    get("/events", Viewer, "Events in the outbox, the newest first")
        .own()
        .asks(&[
            "type",
            "aggregate_type",
            "aggregate_id",
            "key",
            "tenant",
            "status",
            "outbox",
            "cursor",
            "limit",
        ])
        .gives("EventPage"),
    get("/events/{id}", Viewer, "One event with its payload").own().asks(OUTBOX).gives("Event"),
    get("/events/{id}/timeline", Viewer, "Everything that happened to an event")
        .own()
        .asks(OUTBOX)
        .gives("Timeline"),
    get("/outbox", Viewer, "What waits in an outbox, and which keys stand still")
        .asks(OUTBOX)
        .gives("Outbox"),
    get("/outboxes", Viewer, "All outboxes and what waits in each").gives("Outboxes"),
    post("/outbox/unpark", Operator, "Give the dead events of a key new attempts")
        .takes("Unpark")
        .gives("Unparked"),
    get("/dlq/groups", Viewer, "What failed for the same reason").own().asks(LETTERS).gives("GroupPage"),
    get("/dlq/messages", Viewer, "Dead letters, the newest first").own().asks(LETTERS).gives("LetterPage"),
    get("/dlq/messages/{id}", Viewer, "One dead letter with all that is known of it").own().gives("Letter"),
    post("/dlq/messages/{id}/edit", Operator, "Send a corrected event in the place of a dead letter")
        .own()
        .takes("Edit")
        .gives("Accepted"),
    post("/plans", Viewer, "See what an operation would do, and change nothing")
        .own()
        .harmless()
        .takes("Asked")
        .gives("Planned"),
    post("/operations", Operator, "Carry out a plan").own().takes("Asked").gives("Operation"),
    get("/operations", Viewer, "Operations, the newest first").own().asks(PAGE).gives("OperationPage"),
    get("/operations/{id}", Viewer, "How far one is").own().gives("Operation"),
    post("/operations/{id}/cancel", Operator, "End one before its time")
        .own()
        .takes("Why")
        .gives("Operation"),
    get("/topology", Viewer, "The topology as it is configured").gives("Topology"),
    get("/topology/plan", Viewer, "What the broker lacks of it").gives("TopologyPlan"),
    get("/topology/drift", Viewer, "Whether the broker has it, and nothing more").gives("Drift"),
    get("/topology/diagram.svg", Viewer, "A picture of it"),
    get("/consumers", Viewer, "Consumers and what waits for them").gives("ConsumerPage"),
    post("/consumers/{name}/pause", Operator, "Pause a consumer wherever it runs")
        .takes("Why")
        .gives("Changed"),
    post("/consumers/{name}/resume", Operator, "Let a consumer go on").takes("Why").gives("Changed"),
    get("/consumers/{name}/held", Viewer, "Ordering keys that it holds").gives("HeldPage"),
    post("/consumers/{name}/release", Operator, "Let the events behind a parked one go on without it")
        .takes("Release"),
    get("/audit-log", Viewer, "Who did what, the newest first")
        .asks(&["actor", "action", "subject", "cursor", "limit"])
        .gives("LogPage"),
    get("/tokens", Admin, "Tokens, without their secrets").gives("TokenPage"),
    post("/tokens", Admin, "Make a token; its secret is shown once")
        .takes("NewToken")
        .gives("Token")
        .shows("token"),
    delete("/tokens/{id}", Admin, "Take a token back").asks(&["reason"]),
    post("/queues/{queue}/deliveries", Operator, "Lease deliveries of a queue")
        .unpaced()
        .takes("Lease")
        .gives("Deliveries"),
    post("/queues/{queue}/deliveries:ack", Operator, "Settle deliveries as done")
        .unpaced()
        .takes("Settle")
        .gives("Settled"),
    post("/queues/{queue}/deliveries:retry", Operator, "Have deliveries come again later")
        .unpaced()
        .takes("Settle")
        .gives("Settled"),
    post("/queues/{queue}/deliveries:reject", Operator, "Make deliveries dead letters")
        .unpaced()
        .takes("Settle")
        .gives("Settled"),
    post("/queues/{queue}/deliveries:extend", Operator, "Keep a lease for longer")
        .unpaced()
        .takes("Settle")
        .gives("Settled"),
    get("/subscriptions", Viewer, "Push subscriptions, without their secrets").gives("SubscriptionPage"),
    get("/subscriptions/{name}", Viewer, "One push subscription").gives("Subscription"),
    get("/subscriptions/{name}/attempts", Viewer, "How the last attempts at its endpoint went")
        .asks(&["event_id", "limit"])
        .gives("AttemptPage"),
    post("/subscriptions/{name}/test", Operator, "Send its endpoint an event of its own").gives("Tested"),
    post("/subscriptions/{name}/pause", Operator, "Pause it").takes("Why").gives("Changed"),
    post("/subscriptions/{name}/resume", Operator, "Let it go on").takes("Why").gives("Changed"),
    post("/subscriptions", Admin, "Make a push subscription; its secret is shown once")
        .takes("NewSubscription")
        .gives("Secret")
        .shows("secret"),
    delete("/subscriptions/{name}", Admin, "Remove a push subscription; unbind its queue").asks(&["reason"]),
    post("/subscriptions/{name}/rotate-secret", Admin, "A new secret; the old one signs for a while still")
        .takes("Rotate")
        .gives("Secret")
        .shows("secret"),
    get("/progress", Viewer, "Jobs, the newest first")
        .own()
        .asks(&["status", "tenant", "cursor", "limit"])
        .gives("JobPage"),
    get("/progress/{job}", Viewer, "How far one is").own().gives("Job"),
    post("/progress", Operator, "Begin a job").own().unpaced().takes("NewJob").gives("Job"),
    post("/progress/{job}/steps", Operator, "Take a step of a job")
        .own()
        .unpaced()
        .takes("JobStep")
        .gives("Job"),
    post("/progress/{job}/items", Operator, "Mark items of a job")
        .own()
        .unpaced()
        .takes("JobItems")
        .gives("Marked"),
    get("/migrations", Viewer, "Migrations between buses, and where each stands").gives("MigrationPage"),
    get("/migrations/{name}", Viewer, "Where one stands").gives("Migration"),
    post("/migrations/{name}/compare", Operator, "Compare what both buses carry")
        .takes("Compare")
        .gives("Started"),
    post("/migrations", Admin, "Start to publish to both buses").takes("Step").gives("Migration"),
    post("/migrations/{name}/cutover", Admin, "Publish to the new bus alone")
        .takes("Step")
        .gives("Migration"),
    post("/migrations/{name}/rollback", Admin, "Go back to both buses").takes("Step").gives("Migration"),
    post("/migrations/{name}/finish", Admin, "Remove the old bus").takes("Step").gives("Started"),
];

/// The route of a method and a path as the router knows it, `/v1` included.
pub(crate) fn find(method: &str, path: &str) -> Option<&'static Route> {
    static BY_NAME: LazyLock<HashMap<(&str, &str), &Route>> =
        LazyLock::new(|| routes().map(|route| ((route.method, route.path), route)).collect());
    let method = if method == "HEAD" { "GET" } else { method };
    BY_NAME.get(&(method, path.strip_prefix("/v1")?)).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_route_is_there_twice() {
        let mut seen = std::collections::HashSet::new();
        for route in routes() {
            assert!(seen.insert((route.method, route.path)), "{} {}", route.method, route.path);
        }
    }

    #[test]
    fn what_gives_a_secret_says_which_member_it_is() {
        for route in routes() {
            let gives = route.method == "POST" && matches!(route.answer, Some("Token" | "Secret"));
            assert_eq!(route.secret.is_some(), gives, "{} {}", route.method, route.path);
        }
    }

    #[test]
    fn only_admins_make_what_opens_doors() {
        for route in routes().filter(|route| route.path.starts_with("/tokens")) {
            assert_eq!(route.role, Some(Admin), "{}", route.path);
        }
    }
}
