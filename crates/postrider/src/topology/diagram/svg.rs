//! As SVG, with colours for light and for dark pages.

use std::fmt::Write as _;

use super::layered::{self, Layered};
use super::{Edge, Picture, Shape, Style};

const NODE_HEIGHT: f64 = 44.0;
const NODE_GAP: f64 = 22.0;
const BEND_HEIGHT: f64 = 26.0;
const MARGIN: f64 = 24.0;
/// How wide a character is, at most, in the two sizes of text.
const NAME_CHARACTER: f64 = 7.9;
const SMALL_CHARACTER: f64 = 6.2;
const PADDING: f64 = 28.0;
/// Between layers, beside the labels there.
const CORRIDOR: f64 = 60.0;

const LOOK: &str = "\
  :root { color-scheme: light dark; }\n\
  .page { fill: #ffffff; } .name { fill: #1b1f24; font: 600 13px ui-monospace, monospace; }\n\
  .detail, .label { fill: #57606a; font: 11px ui-sans-serif, sans-serif; }\n\
  .label { paint-order: stroke; stroke: #ffffff; stroke-width: 5px; stroke-linejoin: round; }\n\
  .exchange { fill: #ddf4ff; stroke: #0969da; } .queue { fill: #dafbe1; stroke: #1a7f37; }\n\
  .aside { fill: #fff8c5; stroke: #9a6700; }\n\
  .bound { fill: none; stroke: #57606a; } .dead { fill: none; stroke: #bc4c00; stroke-dasharray: 5 4; }\n\
  .head { fill: #57606a; } .dead-head { fill: #bc4c00; }\n\
  @media (prefers-color-scheme: dark) {\n\
    .page { fill: #0d1117; } .name { fill: #e6edf3; } .detail, .label { fill: #9da7b3; }\n\
    .label { stroke: #0d1117; }\n\
    .exchange { fill: #0c2d6b; stroke: #58a6ff; } .queue { fill: #04260f; stroke: #3fb950; }\n\
    .aside { fill: #341a00; stroke: #d29922; }\n\
    .bound { stroke: #8b949e; } .dead { stroke: #f0883e; } .head { fill: #8b949e; } .dead-head { fill: #f0883e; }\n\
  }\n";

pub(super) fn draw(picture: &Picture) -> String {
    let edges: Vec<_> = picture.edges.iter().map(|edge| (edge.from, edge.to)).collect();
    let placed = layered::place(picture.nodes.len(), &edges, NODE_HEIGHT + NODE_GAP, BEND_HEIGHT);
    let page = Page::of(picture, placed);
    let height = page.height();
    let width = page.columns.last().map_or(0.0, |column| column.0 + column.1) + MARGIN;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" width=\"{width:.0}\" \
         height=\"{height:.0}\" role=\"img\">\n<style>\n{LOOK}</style>\n\
         <defs>\n{}{}</defs>\n<rect class=\"page\" width=\"100%\" height=\"100%\"/>\n",
        arrow("arrow", "head"),
        arrow("dead-arrow", "dead-head"),
    );
    for (number, edge) in picture.edges.iter().enumerate() {
        page.line(&mut svg, number, edge);
    }
    for number in 0..picture.nodes.len() {
        page.node(&mut svg, number);
    }
    // Labels last, so that no line runs through one.
    for (number, edge) in picture.edges.iter().enumerate() {
        page.label(&mut svg, number, edge);
    }
    svg.push_str("</svg>\n");
    svg
}

fn arrow(id: &str, class: &str) -> String {
    format!(
        "<marker id=\"{id}\" viewBox=\"0 0 8 8\" refX=\"7\" refY=\"4\" markerWidth=\"8\" markerHeight=\"8\" \
         orient=\"auto-start-reverse\"><path class=\"{class}\" d=\"M0 0.5 8 4 0 7.5z\"/></marker>\n"
    )
}

/// A picture with everything in its place.
struct Page<'a> {
    picture: &'a Picture,
    placed: Layered,
    /// Where each layer begins, and how wide it is.
    columns: Vec<(f64, f64)>,
    widths: Vec<f64>,
}

impl<'a> Page<'a> {
    fn of(picture: &'a Picture, placed: Layered) -> Self {
        let wide = |text: &str, character: f64| character * characters(text);
        let widths: Vec<f64> = picture
            .nodes
            .iter()
            .map(|node| PADDING + wide(&node.name, NAME_CHARACTER).max(wide(&node.detail, SMALL_CHARACTER)))
            .collect();
        let layers = placed.layer.iter().max().map_or(0, |last| last + 1);
        let mut columns = Vec::with_capacity(layers);
        let mut x = MARGIN;
        for layer in 0..layers {
            let inside = widths.iter().zip(&placed.layer).filter(|(_, at)| **at == layer);
            let width = inside.map(|(width, _)| *width).fold(0.0, f64::max);
            columns.push((x, width));
            // The label of a line stands before its last layer.
            let labels = picture.edges.iter().enumerate().filter(|(number, _)| {
                let line = &placed.lines[*number];
                placed.layer[line[line.len() - 1]] == layer + 1
            });
            let label = labels.map(|(_, edge)| wide(&edge.label, SMALL_CHARACTER)).fold(0.0, f64::max);
            x += width + CORRIDOR + label;
        }
        Self { picture, placed, columns, widths }
    }

    fn height(&self) -> f64 {
        let lowest = self.placed.y.iter().copied().fold(0.0, f64::max);
        lowest + f64::midpoint(NODE_HEIGHT, NODE_GAP) + 2.0 * MARGIN
    }

    fn y(&self, place: usize) -> f64 {
        self.placed.y[place] + MARGIN
    }

    /// Where a line meets a place, from the left or from the right. A bend is as wide as its layer.
    fn edge_of(&self, place: usize, right: bool) -> f64 {
        let (x, column) = self.columns[self.placed.layer[place]];
        match self.widths.get(place) {
            Some(width) if right => x + width,
            None if right => x + column,
            _ => x,
        }
    }

    fn line(&self, svg: &mut String, number: usize, edge: &Edge) {
        let places = &self.placed.lines[number];
        let mut path = String::new();
        if edge.from == edge.to {
            let (x, y) = (self.edge_of(edge.from, true), self.y(edge.from));
            let _ = write!(
                path,
                "M{x:.1} {:.1}C{1:.1} {2:.1} {1:.1} {3:.1} {x:.1} {3:.1}",
                y - 8.0,
                x + 40.0,
                y - 8.0,
                y + 8.0
            );
        } else {
            let _ = write!(path, "M{:.1} {:.1}", self.edge_of(places[0], true), self.y(places[0]));
            for pair in places.windows(2) {
                let (x1, y1) = (self.edge_of(pair[0], true), self.y(pair[0]));
                let (x2, y2) = (self.edge_of(pair[1], false), self.y(pair[1]));
                if pair[0] >= self.picture.nodes.len() {
                    let _ = write!(path, "L{x1:.1} {y1:.1}");
                }
                let middle = f64::midpoint(x1, x2);
                let _ = write!(path, "C{middle:.1} {y1:.1} {middle:.1} {y2:.1} {x2:.1} {y2:.1}");
            }
        }
        let (class, arrow) = match edge.style {
            Style::Bound => ("bound", "arrow"),
            Style::Dead => ("dead", "dead-arrow"),
        };
        let end = if self.placed.turned[number] && edge.from != edge.to { "start" } else { "end" };
        let _ = writeln!(
            svg,
            "<path class=\"{class}\" stroke-width=\"1.5\" d=\"{path}\" marker-{end}=\"url(#{arrow})\"/>"
        );
    }

    fn label(&self, svg: &mut String, number: usize, edge: &Edge) {
        let places = &self.placed.lines[number];
        let [.., from, to] = places.as_slice() else { return };
        if edge.label.is_empty() {
            return;
        }
        let x = f64::midpoint(self.edge_of(*from, true), self.edge_of(*to, false));
        // Two lines between the same two places, there and back, share the middle: the way back goes below.
        let twin = |other: &Vec<usize>| other.ends_with(&[*from, *to]);
        let shared = self.placed.lines.iter().filter(|line| twin(line)).count() > 1;
        let back = if shared && self.placed.turned[number] { 14.0 } else { 0.0 };
        let y = f64::midpoint(self.y(*from), self.y(*to)) + 4.0 + back;
        let label = escaped(&edge.label);
        let _ = writeln!(
            svg,
            "<text class=\"label\" x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"middle\">{label}</text>"
        );
    }

    fn node(&self, svg: &mut String, number: usize) {
        let node = &self.picture.nodes[number];
        let (x, y) = (self.edge_of(number, false), self.y(number) - NODE_HEIGHT / 2.0);
        let (width, round) = (self.widths[number], if node.shape == Shape::Exchange { 22.0 } else { 6.0 });
        let class = match node.shape {
            Shape::Exchange => "exchange",
            Shape::Queue => "queue",
            Shape::Aside => "aside",
        };
        let middle = x + width / 2.0;
        let _ = writeln!(
            svg,
            "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{NODE_HEIGHT}\" rx=\"{round}\"/>\n\
             <text class=\"name\" x=\"{middle:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>\n\
             <text class=\"detail\" x=\"{middle:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            y + 19.0,
            escaped(&node.name),
            y + 35.0,
            escaped(&node.detail),
        );
    }
}

fn characters(text: &str) -> f64 {
    f64::from(u32::try_from(text.chars().count()).unwrap_or(u32::MAX))
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
