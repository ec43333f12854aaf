//! What lies beyond the chain: entries and lines under numbers that it does not reach, where no hash is compared.
//!
//! Lines between the first entry and the head whose entry is missing need no look of their own: the gap where it was is named.

use super::Problem;
use crate::books::Bounds;

/// Names the entry and the line that are farthest from the chain, on both sides of it.
pub(super) fn check(stored: &Bounds, problems: &mut Vec<Problem>) {
    let Bounds { head, entries, lines } = *stored;
    let number = |number: i64| u64::try_from(number).ok();
    let mut last = head;
    if let Some((lowest, highest)) = entries {
        if highest > head {
            let text = format!(
                "the head of the chain says entry {head}, and there is an entry {highest}: the chain does not know what is beyond its head"
            );
            problems.push(Problem::new("head_differs", number(highest), text));
            last = highest;
        }
        if lowest < 1 {
            let text = format!("there is an entry {lowest}; entries are numbered from 1 on");
            problems.push(Problem::new("head_differs", None, text));
        }
    }
    let Some((lowest, highest)) = lines else { return };
    let strays = [(lowest, lowest < 1), (highest, highest > last)];
    for (entry, _) in strays.into_iter().filter(|(_, is_stray)| *is_stray) {
        let text = format!("there are lines of entry {entry}, and no such entry");
        problems.push(Problem::new("lines_without_entry", number(entry), text));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(
        head: i64,
        entries: Option<(i64, i64)>,
        lines: Option<(i64, i64)>,
    ) -> Vec<(&'static str, Option<u64>)> {
        let mut problems = Vec::new();
        check(&Bounds { head, entries, lines }, &mut problems);
        problems.iter().map(|problem| (problem.code, problem.entry)).collect()
    }

    #[test]
    fn what_is_beyond_the_chain_is_named_once() {
        assert!(found(0, None, None).is_empty());
        assert!(found(5, Some((1, 5)), Some((1, 4))).is_empty(), "a seal has no lines");
        assert_eq!(found(5, Some((1, 9)), Some((1, 9))), [("head_differs", Some(9))]);
        assert_eq!(found(5, Some((1, 5)), Some((1, 77))), [("lines_without_entry", Some(77))]);
        assert_eq!(
            found(5, Some((1, 9)), Some((-3, 77))),
            [("head_differs", Some(9)), ("lines_without_entry", None), ("lines_without_entry", Some(77))]
        );
        assert_eq!(found(0, None, Some((0, 0))), [("lines_without_entry", Some(0))], "named once");
    }
}
