//! What many pages are made of: times, numbers, states, tables that go on.

use jiff::Timestamp;
use maud::{Markup, html};
use postrider::store::LetterStatus;

use super::search::Search;

/// A time, exact. The script shows it as its reader wants.
pub(super) fn time(at: Timestamp) -> Markup {
    html! { time datetime=(at) { (at.strftime("%Y-%m-%d %H:%M:%S")) " UTC" } }
}

/// How long ago, in one unit; exact when pointed at.
pub(super) fn ago(at: Timestamp, now: Timestamp) -> Markup {
    html! { time class="ago" datetime=(at) title=(at) { (span(now.duration_since(at).as_secs())) " ago" } }
}

/// A length of time in one unit.
pub(super) fn span(seconds: i64) -> String {
    match seconds.max(0) {
        s @ 0..60 => format!("{s} s"),
        s @ 60..3600 => format!("{} min", s / 60),
        s @ 3600..172_800 => format!("{} h", s / 3600),
        s => format!("{} d", s / 86_400),
    }
}

/// A number to the last digit, in groups of three.
pub(super) fn number(count: u64) -> String {
    let digits = count.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push('\u{202f}');
        }
        text.push(digit);
    }
    text
}

/// A rate, with as much of it as people read.
pub(super) fn rate(per_second: f64) -> String {
    if per_second <= 0.0 {
        "0".to_owned()
    } else if per_second < 10.0 {
        format!("{per_second:.1}")
    } else {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "it is positive and far from the limit"
        )]
        number(per_second.round() as u64)
    }
}

/// A state as a pill: good, bad, warn, or nothing of these.
pub(super) fn pill(mood: &str, text: &str) -> Markup {
    html! { span class={ "pill " (mood) } { (text) } }
}

/// How a state of anything looks.
pub(super) fn state(word: &str) -> Markup {
    let mood =
        match word {
            "ok" | "applied" | "published" | "done" | "active" | "valid" | "DONE" | "replayed"
            | "finished" => "good",
            "dead" | "failed" | "tripped" | "unsubscribed" | "unavailable" | "dead in the outbox"
            | "open" => "bad",
            "paused"
            | "degraded"
            | "waiting"
            | "behind"
            | "parked"
            | "held"
            | "running"
            | "not published yet"
            | "published, not applied yet"
            | "given up or waiting"
            | "replayed, not published yet"
            | "PROCESSING"
            | "CRAWLING" => "warn",
            _ => "",
        };
    pill(mood, word)
}

/// What became of a dead letter.
pub(super) fn letter_state(status: LetterStatus) -> Markup {
    state(status.as_str())
}

/// Nothing there, and what that means.
pub(super) fn empty(title: &str, more: &str) -> Markup {
    html! { div class="empty" { b { (title) } @if !more.is_empty() { span { (more) } } } }
}

/// A table, or what its absence means.
pub(super) fn table(header: &[&str], rows: &[Markup], nothing: (&str, &str)) -> Markup {
    html! {
        @if rows.is_empty() {
            (empty(nothing.0, nothing.1))
        } @else {
            div class="scroll" { table {
                thead { tr { @for name in header {
                    @if let Some(name) = name.strip_prefix('#') { th scope="col" class="n" { (name) } }
                    @else { th scope="col" { (name) } }
                } } }
                tbody { @for row in rows { (row) } }
            } }
        }
    }
}

/// The way to the next page, and back to the first.
pub(super) fn pager(path: &str, search: &Search, name: &str, next: Option<String>) -> Markup {
    let first = search.clone().with(name, None::<&str>).at(path);
    let begun = search.get(name).is_some();
    html! {
        @if begun || next.is_some() {
            div class="pager" {
                @if begun { a href=(first) { "← To the newest" } } @else { span {} }
                @if let Some(next) = next {
                    a rel="next" href=(search.clone().with(name, Some(next)).at(path)) { "Older →" }
                }
            }
        }
    }
}

/// A field of a filter.
pub(super) fn filter(search: &Search, name: &str, label: &str, hint: &str) -> Markup {
    html! {
        label class="field" { span { (label) }
            input type="text" name=(name) value=[search.get(name)] placeholder=(hint) autocomplete="off";
        }
    }
}

/// A choice of a filter.
pub(super) fn choice(search: &Search, name: &str, label: &str, choices: &[(&str, &str)]) -> Markup {
    let now = search.get(name).unwrap_or_default();
    html! {
        label class="field" { span { (label) }
            select name=(name) { @for (value, shown) in choices {
                option value=(value) selected[now == *value] { (shown) }
            } }
        }
    }
}

/// A name as a part of a path, whatever is in it.
pub(super) fn segment(name: &str) -> String {
    let escaped: String = url::form_urlencoded::byte_serialize(name.as_bytes()).collect();
    // In a path a plus is a plus.
    escaped.replace('+', "%20")
}

/// The first line, and no more of it than fits.
pub(super) fn short(text: &str, most: usize) -> String {
    let line = text.lines().next().unwrap_or_default();
    if line.chars().count() > most {
        return format!("{}…", line.chars().take(most).collect::<String>());
    }
    line.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_numbers_are_exact_and_readable() {
        assert_eq!(number(7), "7");
        assert_eq!(number(1_234_567), "1\u{202f}234\u{202f}567");
        assert_eq!(number(u64::MAX).replace('\u{202f}', ""), u64::MAX.to_string());
    }

    #[test]
    fn a_name_stays_one_part_of_a_path() {
        assert_eq!(segment("a/b c?d#e\"<"), "a%2Fb%20c%3Fd%23e%22%3C");
    }

    #[test]
    fn what_comes_from_outside_stays_text() {
        let row = html! { td { "<script>alert(1)</script>" } };
        let drawn = table(&["#A"], &[row], ("", "")).into_string();
        assert!(drawn.contains("&lt;script&gt;") && !drawn.contains("<script"), "{drawn}");
    }
}
