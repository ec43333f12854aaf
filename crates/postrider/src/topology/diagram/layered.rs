//! Where things go in a picture: in layers from left to right, ordered so that few lines cross.
//!
//! The classic steps, each simple because topologies are small: turn lines round until there is no ring, put each node one
//! layer behind the furthest that leads to it, let long lines pass through a bend in every layer between, order each layer
//! by where its neighbours are, then draw near what belongs together.

/// How often the layers are put in order, and moved near their neighbours.
const SWEEPS: usize = 12;

/// A layout in layers. The first `nodes` places are the nodes, the others bends of lines.
pub(super) struct Layered {
    /// The layer of each place.
    pub(super) layer: Vec<usize>,
    /// The middle of each place from above.
    pub(super) y: Vec<f64>,
    /// For each line the places it passes, both ends included, from left to right.
    pub(super) lines: Vec<Vec<usize>>,
    /// Whether a line points from right to left.
    pub(super) turned: Vec<bool>,
}

/// Places `nodes` nodes joined by `edges`; a place of a layer takes `height`, a bend `bend`.
pub(super) fn place(nodes: usize, edges: &[(usize, usize)], height: f64, bend: f64) -> Layered {
    let turned = turn_rings(nodes, edges);
    let forward: Vec<(usize, usize)> = edges
        .iter()
        .zip(&turned)
        .map(|((from, to), turned)| if *turned { (*to, *from) } else { (*from, *to) })
        .collect();
    let mut layer = layers(nodes, &forward);
    let mut lines = Vec::with_capacity(edges.len());
    for (from, to) in &forward {
        let mut line = vec![*from];
        for passed in layer[*from] + 1..layer[*to] {
            line.push(layer.len());
            layer.push(passed);
        }
        line.push(*to);
        lines.push(line);
    }
    let mut columns = vec![Vec::new(); layer.iter().max().map_or(0, |last| last + 1)];
    for (place, layer) in layer.iter().enumerate() {
        columns[*layer].push(place);
    }
    let near = neighbours(layer.len(), &lines);
    let room = |place: usize| if place < nodes { height } else { bend };
    order(&mut columns, &near);
    let y = heights(&columns, &near, layer.len(), room);
    Layered { layer, y, lines, turned }
}

/// Which lines close a ring when followed from the first node on. A line from a node to itself is left out of the order.
fn turn_rings(nodes: usize, edges: &[(usize, usize)]) -> Vec<bool> {
    #[derive(Clone, Copy, PartialEq)]
    enum Seen {
        New,
        Open,
        Done,
    }
    fn visit(node: usize, edges: &[(usize, usize)], seen: &mut [Seen], turned: &mut [bool]) {
        seen[node] = Seen::Open;
        for (number, (from, to)) in edges.iter().enumerate() {
            if *from != node {
                continue;
            }
            match seen[*to] {
                Seen::Open => turned[number] = true,
                Seen::New => visit(*to, edges, seen, turned),
                Seen::Done => {}
            }
        }
        seen[node] = Seen::Done;
    }
    let (mut seen, mut turned) = (vec![Seen::New; nodes], vec![false; edges.len()]);
    // Begin where nothing leads to, so that lines run as messages do.
    let is_first = |node: &usize| !edges.iter().any(|(_, to)| to == node);
    let first = (0..nodes).filter(is_first);
    for node in first.chain(0..nodes).collect::<Vec<_>>() {
        if seen[node] == Seen::New {
            visit(node, edges, &mut seen, &mut turned);
        }
    }
    turned
}

fn layers(nodes: usize, forward: &[(usize, usize)]) -> Vec<usize> {
    let mut layer = vec![0; nodes];
    // Without rings this ends after at most so many rounds as there are nodes.
    for _ in 0..nodes {
        for (from, to) in forward.iter().filter(|(from, to)| from != to) {
            layer[*to] = layer[*to].max(layer[*from] + 1);
        }
    }
    layer
}

/// For each place those it is joined to, to the left and to the right.
fn neighbours(places: usize, lines: &[Vec<usize>]) -> Vec<[Vec<usize>; 2]> {
    let mut near = vec![[Vec::new(), Vec::new()]; places];
    for line in lines {
        for pair in line.windows(2) {
            near[pair[0]][1].push(pair[1]);
            near[pair[1]][0].push(pair[0]);
        }
    }
    near
}

/// Puts each layer in the order of its neighbours, from left to right and back again.
fn order(columns: &mut [Vec<usize>], near: &[[Vec<usize>; 2]]) {
    let mut rank = vec![0.0; near.len()];
    let number = |column: &[usize], rank: &mut [f64]| {
        for (at, place) in (0_u32..).zip(column) {
            rank[*place] = f64::from(at);
        }
    };
    for column in columns.iter() {
        number(column, &mut rank);
    }
    for sweep in 0..SWEEPS {
        let side = sweep % 2;
        let mut visit = |column: &mut Vec<usize>| {
            column.sort_by(|a, b| {
                let wish = |place: &usize| mean(&near[*place][side], &rank).unwrap_or(rank[*place]);
                wish(a).total_cmp(&wish(b))
            });
            number(column, &mut rank);
        };
        if side == 0 {
            columns.iter_mut().for_each(&mut visit);
        } else {
            columns.iter_mut().rev().for_each(&mut visit);
        }
    }
}

/// How far down each place is: near its neighbours, in its order, and clear of those above and below.
fn heights(
    columns: &[Vec<usize>],
    near: &[[Vec<usize>; 2]],
    places: usize,
    room: impl Fn(usize) -> f64,
) -> Vec<f64> {
    let mut y = vec![0.0; places];
    for column in columns {
        let mut below = 0.0;
        for place in column {
            y[*place] = below + room(*place) / 2.0;
            below += room(*place);
        }
    }
    for _ in 0..SWEEPS {
        for column in columns {
            let wish = |place: &usize| {
                let both = near[*place].concat();
                mean(&both, &y).unwrap_or(y[*place])
            };
            let wishes: Vec<f64> = column.iter().map(wish).collect();
            spread(column, &wishes, &mut y, &room);
        }
    }
    let top = (0..places).map(|place| y[place] - room(place) / 2.0).fold(f64::INFINITY, f64::min);
    for y in &mut y {
        *y -= top;
    }
    y
}

/// Gives each place of a layer its wish, as far as the order and the room for each allow: those that would overlap share
/// the middle of their wishes.
fn spread(column: &[usize], wishes: &[f64], y: &mut [f64], room: &impl Fn(usize) -> f64) {
    // Blocks of places that touch: where the block begins by its members' wishes, and who is in it.
    let mut blocks: Vec<(f64, f64, Vec<usize>)> = Vec::new();
    for (place, wish) in column.iter().zip(wishes) {
        let mut block = (wish - room(*place) / 2.0, room(*place), vec![*place]);
        while let Some((top, size, _)) = blocks.last() {
            if top + size <= block.0 {
                break;
            }
            let Some((top, size, mut members)) = blocks.pop() else { break };
            let (mine, theirs) = (count(&block.2), count(&members));
            let start = (top * theirs + (block.0 - size) * mine) / (theirs + mine);
            members.extend(block.2);
            block = (start, size + block.1, members);
        }
        blocks.push(block);
    }
    for (mut top, _, members) in blocks {
        for place in members {
            y[place] = top + room(place) / 2.0;
            top += room(place);
        }
    }
}

fn count(members: &[usize]) -> f64 {
    f64::from(u32::try_from(members.len()).unwrap_or(u32::MAX))
}

fn mean(places: &[usize], of: &[f64]) -> Option<f64> {
    (!places.is_empty()).then(|| places.iter().map(|place| of[*place]).sum::<f64>() / count(places))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_has_one_line_that_runs_back() {
        let placed = place(3, &[(0, 1), (1, 2), (2, 1)], 50.0, 20.0);
        assert_eq!(placed.layer, [0, 1, 2]);
        assert_eq!(placed.turned, [false, false, true]);
    }

    #[test]
    fn a_long_line_bends_in_every_layer_between() {
        let placed = place(3, &[(0, 1), (1, 2), (0, 2)], 50.0, 20.0);
        assert_eq!(placed.lines[2], [0, 3, 2]);
        assert_eq!(placed.layer[3], 1);
    }

    #[test]
    fn nothing_overlaps() {
        let edges: Vec<_> = (1..8).map(|to| (0, to)).collect();
        let placed = place(8, &edges, 50.0, 20.0);
        let mut middles: Vec<_> = placed.y[1..].to_vec();
        middles.sort_by(f64::total_cmp);
        assert!(middles.windows(2).all(|pair| pair[1] - pair[0] >= 49.9), "{middles:?}");
    }
}
