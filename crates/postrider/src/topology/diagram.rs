//! A topology as a picture: what is in it, for mermaid or as SVG.

mod layered;
mod mermaid;
mod svg;

use super::{Exchange, ExchangeName, Layout, Queue, QueueName, ServiceQueue, Topology};

/// What is drawn.
pub(super) struct Picture {
    nodes: Vec<Node>,
    edges: Vec<Edge>,
}

struct Node {
    name: String,
    /// What stands below the name.
    detail: String,
    shape: Shape,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Shape {
    Exchange,
    Queue,
    /// A queue in which messages only wait or lie dead.
    Aside,
}

struct Edge {
    from: usize,
    to: usize,
    label: String,
    style: Style,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Style {
    /// A binding.
    Bound,
    /// Dead letters, expired messages, or what nobody wanted.
    Dead,
}

impl Layout {
    /// A mermaid flowchart.
    pub fn to_mermaid(&self) -> String {
        mermaid::draw(&Picture::of(&self.topology, &self.services))
    }

    /// An SVG that can be read on a light and on a dark page.
    pub fn to_svg(&self) -> String {
        svg::draw(&Picture::of(&self.topology, &self.services))
    }
}

impl Picture {
    fn of(topology: &Topology, services: &[ServiceQueue]) -> Self {
        let exchanges = topology.exchanges.iter().map(|exchange| Node {
            name: exchange.name.to_string(),
            detail: format!("{} exchange", exchange.kind.as_str()),
            shape: Shape::Exchange,
        });
        let queues = topology.queues.iter().map(|queue| Node {
            name: queue.name.to_string(),
            detail: detail(queue),
            shape: if is_aside(queue) { Shape::Aside } else { Shape::Queue },
        });
        let mut picture = Self { nodes: exchanges.chain(queues).collect(), edges: Vec::new() };
        let at = Places { topology };
        for binding in &topology.bindings {
            let ends = (at.exchange(&binding.exchange), at.queue(&binding.queue));
            picture.edge(ends, binding.key.as_str(), Style::Bound);
        }
        for exchange in &topology.exchanges {
            let alternate = exchange.effective_alternate().and_then(|name| at.exchange(name));
            picture.edge((at.exchange(&exchange.name), alternate), "unroutable", Style::Dead);
        }
        for queue in &topology.queues {
            let Some(target) = queue.effective_dead_letter() else { continue };
            let key = target.routing_key.as_ref().map_or("", |key| key.as_str());
            let cause = queue.message_ttl.map_or("rejected".to_owned(), |ttl| format!("after {}", time(ttl)));
            if target.exchange.is_default() {
                let to = QueueName::new(key).ok().and_then(|name| at.queue(&name));
                picture.edge((at.queue(&queue.name), to), &cause, Style::Dead);
            } else {
                let label = if key.is_empty() { cause } else { format!("{cause}: {key}") };
                picture.edge((at.queue(&queue.name), at.exchange(&target.exchange)), &label, Style::Dead);
            }
        }
        for service in services {
            picture.consumer(&at, service);
        }
        picture
    }

    /// What a consumer sends on by itself, where the broker does not do the same.
    fn consumer(&mut self, at: &Places<'_>, service: &ServiceQueue) {
        let main = at.queue(service.name());
        let target = &service.dead_letter;
        let dead = if target.exchange.is_default() {
            at.queue(&service.dead_letter_queue)
        } else {
            at.exchange(&target.exchange)
        };
        let waits = service.wait_queues.iter().map(|wait| (at.queue(&wait.name), "retried"));
        for (to, label) in waits.chain([(dead, "given up")]) {
            let drawn = self.edges.iter().any(|edge| Some(edge.from) == main && Some(edge.to) == to);
            if !drawn {
                self.edge((main, to), label, Style::Dead);
            }
        }
    }

    /// One line between two nodes, however many bindings there are; nothing if one of them is not declared.
    fn edge(&mut self, ends: (Option<usize>, Option<usize>), label: &str, style: Style) {
        let (Some(from), Some(to)) = ends else { return };
        let same = |edge: &&mut Edge| edge.from == from && edge.to == to && edge.style == style;
        match self.edges.iter_mut().find(same) {
            Some(edge) if !label.is_empty() => edge.label = format!("{}, {label}", edge.label),
            Some(_) => {}
            None => self.edges.push(Edge { from, to, label: label.to_owned(), style }),
        }
    }
}

/// Where things stand among the nodes: the exchanges first, then the queues.
struct Places<'a> {
    topology: &'a Topology,
}

impl Places<'_> {
    fn exchange(&self, name: &ExchangeName) -> Option<usize> {
        self.topology.exchanges.iter().position(|exchange: &Exchange| exchange.name == *name)
    }

    fn queue(&self, name: &QueueName) -> Option<usize> {
        let queue = self.topology.queues.iter().position(|queue| queue.name == *name)?;
        Some(self.topology.exchanges.len() + queue)
    }
}

/// Nobody's main queue: messages expire in it, or end in it.
fn is_aside(queue: &Queue) -> bool {
    queue.message_ttl.is_some() || queue.effective_dead_letter().is_none()
}

fn detail(queue: &Queue) -> String {
    let mut parts = vec![format!("{} queue", queue.kind.as_str())];
    parts.extend(queue.message_ttl.map(|ttl| format!("TTL {}", time(ttl))));
    if queue.single_active_consumer {
        parts.push("one active consumer".to_owned());
    }
    parts.join(", ")
}

fn time(time: std::time::Duration) -> String {
    let millis = time.as_millis();
    if millis.is_multiple_of(60_000) && millis > 0 {
        format!("{} min", millis / 60_000)
    } else if millis.is_multiple_of(1_000) {
        format!("{} s", millis / 1_000)
    } else {
        format!("{millis} ms")
    }
}

#[cfg(test)]
mod tests {
    use crate::topology::Preset;

    fn layout(preset: &str, set: &[(&str, &str)]) -> crate::topology::Layout {
        let set: Vec<_> = set.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Preset::find(preset).unwrap().layout(&set).unwrap()
    }

    #[test]
    fn mermaid_says_every_line_once() {
        let drawn = layout("smap", &[("strict", "true")]).to_mermaid();
        assert_eq!(
            drawn,
            "flowchart LR\n  \
             n0{{\"smap.events<br/>topic exchange\"}}\n  \
             n1{{\"smtp_send_email_exc<br/>fanout exchange\"}}\n  \
             n2[(\"smtp_send_email<br/>classic queue\")]\n  \
             n3[(\"smtp_send_email_v2<br/>classic queue\")]\n  \
             n1 --> n2\n  \
             n0 -->|\"email.#35;\"| n3\n"
        );
    }

    #[test]
    fn a_picture_has_every_name_and_is_well_formed() {
        for (preset, set) in [
            ("fis", &[][..]),
            ("event-bus", &[("service", "wms-a"), ("service", "wms-b")]),
            ("ratatoskr", &[("queue", "a<b>&\"c\"")]),
            ("smap", &[]),
            ("holdco", &[]),
        ] {
            let layout = layout(preset, set);
            let svg = layout.to_svg();
            for queue in &layout.topology.queues {
                let escaped =
                    queue.name.as_str().replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
                assert!(svg.contains(&escaped.replace('"', "&quot;")), "{preset}: {}", queue.name);
            }
            assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
            assert!(!svg.contains("NaN"), "{preset}");
        }
        let nothing = layout("smap", &[]);
        let nothing =
            crate::topology::Layout::of(crate::topology::Topology::default(), Vec::new(), nothing.exchange);
        assert!(nothing.to_svg().contains("<svg "));
    }
}
