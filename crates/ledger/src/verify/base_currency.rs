//! The currency that the books are kept in, against what entries say of it. It stands in `ledger_book` alone, but every line in it was
//! taken as it is, every other one at a rate, and seals name it.

use super::Problem;
use super::tally::Tally;

/// Names a base currency that is not the one by which the entries were made: the newest seal says another, or lines contradict and none
/// agrees.
pub(super) fn check(base: &str, sealed: Option<(u64, &str)>, tally: &Tally, problems: &mut Vec<Problem>) {
    if let Some((seal, said)) = sealed.filter(|(_, said)| *said != base) {
        let text = format!("the base currency is {base}; by the seal in entry {seal} it is {said}");
        problems.push(Problem::new("base_currency_changed", Some(seal), text));
        return;
    }
    let (mut agreeing, mut contradicting) = (0, 0);
    for (_, currency, held) in tally.iter() {
        if currency == base {
            agreeing += held.plain;
            contradicting += held.converted;
        } else {
            contradicting += held.plain;
        }
    }
    if agreeing == 0 && contradicting > 0 {
        let text = format!(
            "the base currency is {base}, and {contradicting} lines were made by another one: they have a rate in {base}, or none in \
             another currency"
        );
        problems.push(Problem::new("base_currency_changed", None, text));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_tell_which_currency_was_taken_as_it_is() {
        let mut tally = Tally::default();
        let found = |base: &str, sealed: Option<(u64, &str)>, tally: &Tally| {
            let mut problems = Vec::new();
            check(base, sealed, tally, &mut problems);
            problems.iter().map(|problem| problem.entry).collect::<Vec<_>>()
        };
        assert!(found("EUR", None, &tally).is_empty(), "no entry says anything");
        tally.of("bank", "USD").converted = 2;
        assert!(found("EUR", None, &tally).is_empty());
        assert_eq!(found("USD", None, &tally), [None]);
        tally.of("bank", "EUR").plain = 1;
        assert!(found("EUR", None, &tally).is_empty());
        assert_eq!(found("GBP", None, &tally), [None]);
        assert!(found("EUR", Some((7, "EUR")), &tally).is_empty());
        assert_eq!(found("EUR", Some((7, "USD")), &tally), [Some(7)]);
    }
}
