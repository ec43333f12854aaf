//! The figures that have a target as a picture: a bar for each ratio, with a line where it should be.

use std::fmt::Write as _;

use super::{Better, Figure};

/// Of the picture, in pixels: its width, where bars begin, how long the longest is, and how far apart they are.
const WIDTH: usize = 1080;
const BARS: f64 = 700.0;
const LONGEST: f64 = 300.0;
const STEP: usize = 26;
const TOP: usize = 44;

/// An SVG document: light or dark as the reader's page is. Where no figure has a target, all are in it.
pub(crate) fn chart(figures: &[Figure]) -> String {
    let aimed: Vec<&Figure> = figures.iter().filter(|figure| figure.target.is_some()).collect();
    let figures = if aimed.is_empty() { figures.iter().collect() } else { aimed };
    let height = TOP + STEP * figures.len() + 16;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"system-ui, sans-serif\" font-size=\"12\">\n\
         <style>text{{fill:#1f2328}}.bar{{fill:#4c78a8}}.short{{fill:#e08a3c}}.aim{{stroke:#1f2328;stroke-width:2}}\
         @media(prefers-color-scheme:dark){{text{{fill:#e6edf3}}.aim{{stroke:#e6edf3}}}}</style>\n\
         <text x=\"12\" y=\"24\" font-size=\"14\">Over the raw limit of the same run; the line is the target</text>\n"
    );
    for (place, figure) in figures.iter().enumerate() {
        let y = TOP + STEP * place;
        let class = if figure.is_reached() { "bar" } else { "short" };
        let (bar, aim) = lengths(figure);
        let (middle, better) =
            (y + 13, if figure.better == Better::Lower { " (less is better)" } else { "" });
        // Writing to a string cannot fail.
        let _ = writeln!(
            svg,
            "<text x=\"12\" y=\"{middle}\">{}{better}</text><rect class=\"{class}\" x=\"{BARS}\" y=\"{y}\" width=\"{bar:.0}\" height=\"18\" rx=\"2\"/>\
             <text x=\"{:.0}\" y=\"{middle}\">{:.2}</text>",
            escaped(&called(figure, &figures)),
            BARS + bar.max(aim.unwrap_or_default()) + 8.0,
            figure.ratio
        );
        if let Some(aim) = aim {
            let (x, end) = (BARS + aim, y + 20);
            let _ = writeln!(
                svg,
                "<line class=\"aim\" x1=\"{x:.0}\" x2=\"{x:.0}\" y1=\"{}\" y2=\"{end}\"/>",
                y - 2
            );
        }
    }
    svg.push_str("</svg>\n");
    svg
}

/// Its name, with what it was measured on where another has the same.
fn called(figure: &Figure, all: &[&Figure]) -> String {
    let twins = all.iter().filter(|other| other.name == figure.name).count();
    if twins > 1 { format!("{}, {}", figure.name, figure.backend) } else { figure.name.clone() }
}

/// How long the bar is, and where the target is on it. Each figure has a scale of its own: the larger of ratio, target and 1.
fn lengths(figure: &Figure) -> (f64, Option<f64>) {
    let whole = figure.ratio.max(figure.target.unwrap_or_default()).max(1.0);
    (LONGEST * figure.ratio / whole, figure.target.map(|target| LONGEST * target / whole))
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_is_as_long_as_its_ratio_and_one_that_falls_short_is_marked() {
        let figure =
            |ratio: f64| Figure::median("a < b", "x", "/s", vec![(ratio, 1.0)]).unwrap().aims_at(0.5);
        assert_eq!(lengths(&figure(0.25)), (75.0, Some(150.0)));
        assert_eq!(lengths(&figure(2.0)), (300.0, Some(75.0)));
        let beside = Figure::median("without a target", "x", "/s", vec![(1.0, 1.0)]).unwrap();
        let svg = chart(&[figure(0.25), beside, figure(2.0)]);
        assert_eq!(
            (svg.matches("class=\"short\"").count(), svg.matches("class=\"bar\"").count()),
            (1, 1),
            "{svg}"
        );
        assert!(svg.contains("a &lt; b") && !svg.contains("a < b"), "{svg}");
    }
}
