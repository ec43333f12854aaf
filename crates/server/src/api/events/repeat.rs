//! An id that was committed before: by the same event, or by another one.

use postrider::Event;

use crate::api::Api;
use crate::api::problem::{Code, Problem};

/// What is wrong with an event whose id the outbox knows. Where the outbox has forgotten what it said, it is taken for a
/// repeat: consumers tell a conflict by their inbox.
pub(super) async fn problem(api: &Api, event: &Event) -> Problem {
    let Some(id) = &event.id else {
        return Problem::new(Code::DuplicateEvent, "an event with this id was committed before");
    };
    let known = match api.backend.committed(id).await {
        Ok(known) => known,
        Err(error) => return error.into(),
    };
    let same = known.is_none_or(|known| known.is_repeated_by(event));
    let (code, detail) = if same {
        (Code::DuplicateEvent, "this event was committed before; nothing was written now")
    } else {
        let detail = "an event with this id and another type, payload, tenant or aggregate id was committed before; nothing was \
                      written now. Give this one an id of its own";
        (Code::EventConflict, detail)
    };
    Problem::new(code, detail).about(id)
}
