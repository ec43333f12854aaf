//! As a mermaid flowchart.

use std::fmt::Write as _;

use super::{Picture, Shape, Style};

pub(super) fn draw(picture: &Picture) -> String {
    let mut text = String::from("flowchart LR\n");
    for (number, node) in picture.nodes.iter().enumerate() {
        let label = format!("\"{}<br/>{}\"", escaped(&node.name), escaped(&node.detail));
        let _ = match node.shape {
            Shape::Exchange => writeln!(text, "  n{number}{{{{{label}}}}}"),
            Shape::Queue | Shape::Aside => writeln!(text, "  n{number}[({label})]"),
        };
    }
    for edge in &picture.edges {
        let line = if edge.style == Style::Bound { "-->" } else { "-.->" };
        let label =
            if edge.label.is_empty() { String::new() } else { format!("|\"{}\"|", escaped(&edge.label)) };
        let _ = writeln!(text, "  n{} {line}{label} n{}", edge.from, edge.to);
    }
    text
}

/// Mermaid reads `#…;` as a character and ends a label at a quote.
fn escaped(text: &str) -> String {
    text.replace('#', "#35;").replace('"', "#quot;").replace('<', "#lt;").replace('>', "#gt;")
}
