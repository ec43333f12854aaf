//! Small charts, drawn here as SVG: no script, no style of their own.

use std::fmt::Write as _;

use maud::{Markup, html};

const WIDTH: f64 = 240.0;
const HEIGHT: f64 = 44.0;

/// Values over time as a line with its area, as wide as it is given.
pub(super) fn area(values: &[f64], named: &str) -> Markup {
    let most = values.iter().copied().fold(1.0, f64::max) * 1.15;
    #[expect(clippy::cast_precision_loss, reason = "a hundred points")]
    let step = WIDTH / (values.len().max(2) - 1) as f64;
    let mut line = String::new();
    for (place, value) in values.iter().enumerate() {
        #[expect(clippy::cast_precision_loss, reason = "a hundred points")]
        let x = place as f64 * step;
        let y = HEIGHT - 2.0 - value / most * (HEIGHT - 4.0);
        let _ = write!(line, "{}{x:.1} {y:.1}", if place == 0 { "M" } else { " L" });
    }
    let filled = format!("{line} L{WIDTH} {HEIGHT} L0 {HEIGHT} Z");
    html! {
        svg viewBox={ "0 0 " (WIDTH) " " (HEIGHT) } preserveAspectRatio="none" role="img" aria-label=(named) {
            @if values.len() > 1 {
                path class="area" d=(filled) {}
                path class="stroke" d=(line) {}
            }
        }
    }
}

/// Counts as bars, the largest as the highest; none is a trace, so that time is seen to pass.
pub(super) fn bars(counts: &[u64], named: &str) -> Markup {
    let class = if counts.len() > 24 { "bars wide" } else { "bars" };
    let most = counts.iter().copied().max().unwrap_or(0).max(1);
    #[expect(clippy::cast_precision_loss, reason = "a picture has a hundred steps")]
    let height = |count: u64| if count == 0 { 1.5 } else { 3.0 + 21.0 * count as f64 / most as f64 };
    let wide = 5 * counts.len().max(1);
    html! {
        svg class=(class) viewBox={ "0 0 " (wide) " 24" } preserveAspectRatio="none" role="img" aria-label=(named) {
            @for (place, count) in counts.iter().enumerate() {
                rect class=(if *count == 0 { "bar none" } else { "bar" }) x=(place * 5) width="4"
                    y=(format!("{:.1}", 24.0 - height(*count))) height=(format!("{:.1}", height(*count))) {}
            }
        }
    }
}

/// Attempts as bars, as high as they took long; one that failed has the colour of what needs somebody.
pub(super) fn attempts(took: &[(u64, bool)], named: &str) -> Markup {
    let most = took.iter().map(|(ms, _)| *ms).max().unwrap_or(0).max(1);
    #[expect(clippy::cast_precision_loss, reason = "a picture has a hundred steps")]
    let height = |ms: u64| 3.0 + 21.0 * ms as f64 / most as f64;
    let wide = 5 * took.len().max(1);
    html! {
        svg class="bars wide" viewBox={ "0 0 " (wide) " 24" } preserveAspectRatio="none" role="img" aria-label=(named) {
            @for (place, (ms, failed)) in took.iter().enumerate() {
                rect class=(if *failed { "bar" } else { "bar good" }) x=(place * 5) width="4"
                    y=(format!("{:.1}", 24.0 - height(*ms))) height=(format!("{:.1}", height(*ms))) {}
            }
        }
    }
}

/// How much of a whole.
pub(super) fn meter(part: u64, whole: u64, bad: bool) -> Markup {
    let wide = u128::from(part) * 100 / u128::from(whole.max(1));
    html! {
        svg class="meter" viewBox="0 0 100 8" preserveAspectRatio="none" role="img" aria-label={ (part) " of " (whole) } {
            rect class="track" width="100" height="8" rx="2" {}
            rect class=(if bad { "fill bad" } else { "fill" }) width=(wide.min(100)) height="8" rx="2" {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chart_of_nothing_is_no_chart() {
        assert!(!area(&[], "nothing").into_string().contains("path"));
        let drawn = area(&[0.0, 5.0, 2.5], "rates").into_string();
        assert!(drawn.contains("d=\"M0.0 42.0 L120.0"), "{drawn}");
    }

    #[test]
    fn attempts_are_as_high_as_they_took_long_and_failures_stand_out() {
        let drawn = attempts(&[(0, true), (40, false)], "attempts").into_string();
        assert!(drawn.contains("class=\"bar\" x=\"0\"") && drawn.contains("height=\"3.0\""), "{drawn}");
        assert!(drawn.contains("class=\"bar good\" x=\"5\"") && drawn.contains("height=\"24.0\""), "{drawn}");
    }

    #[test]
    fn a_meter_does_not_overflow() {
        assert!(meter(u64::MAX, u64::MAX, false).into_string().contains("width=\"100\""));
        assert!(meter(5, 0, false).into_string().contains("width=\"100\""));
    }
}
