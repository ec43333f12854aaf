//! An id that was committed before: by the same event, or by another one.

use postrider::Event;
use postrider::store::Committed;

use crate::api::Api;
use crate::api::problem::{Code, Problem};

/// What is wrong with an event whose id the outbox knows.
pub(super) async fn problem(api: &Api, event: &Event) -> Problem {
    let ids = event.id.as_slice();
    match api.backend.committed(ids).await {
        Ok(known) => told(ids.first().and_then(|id| known.get(id)), event),
        Err(error) => error.into(),
    }
}

/// The same, where it was asked what is known of it. What the outbox has forgotten is taken for a repeat: consumers tell a conflict by
/// their inbox.
pub(super) fn told(known: Option<&Committed>, event: &Event) -> Problem {
    let same = known.is_none_or(|known| known.is_repeated_by(event));
    let (code, detail) = if same {
        (Code::DuplicateEvent, "this event was committed before; nothing was written now")
    } else {
        let detail = "an event with this id and another type, payload, tenant or aggregate id was committed before; nothing was \
                      written now. Give this one an id of its own";
        (Code::EventConflict, detail)
    };
    let problem = Problem::new(code, detail);
    match &event.id {
        Some(id) => problem.about(id),
        None => problem,
    }
}
