//! Topic matching: `*` is exactly one word, `#` is any number of words, none included.

/// Whether a topic binding wants a routing key.
pub fn topic_matches(pattern: &str, key: &str) -> bool {
    // Many are this one, and every delivery asks.
    if pattern == "#" {
        return true;
    }
    let pattern: Vec<&str> = words(pattern);
    let key: Vec<&str> = words(key);
    // matched[k]: the pattern read so far matches the first k words of the key.
    let mut matched = vec![false; key.len() + 1];
    matched[0] = true;
    for want in pattern {
        if want == "#" {
            let first = matched.iter().position(|m| *m).unwrap_or(matched.len());
            matched[first..].fill(true);
        } else {
            for k in (1..=key.len()).rev() {
                matched[k] = matched[k - 1] && (want == "*" || want == key[k - 1]);
            }
            matched[0] = false;
        }
    }
    matched[key.len()]
}

/// An empty text has no words; otherwise dots separate words, and a word may be empty.
fn words(text: &str) -> Vec<&str> {
    if text.is_empty() { Vec::new() } else { text.split('.').collect() }
}

#[cfg(test)]
mod tests {
    use super::topic_matches;

    #[test]
    fn star_is_one_word_and_hash_is_any() {
        for (pattern, key, wanted) in [
            ("order.*", "order.created", true),
            ("order.*", "order", false),
            ("order.*", "order.line.added", false),
            ("order.#", "order", true),
            ("order.#", "order.line.added", true),
            ("#", "", true),
            ("#", "a.b", true),
            ("*", "", false),
            ("", "", true),
            ("", "a", false),
            ("*.*.*", "ecommerce.order.completed", true),
            ("*.*.*", "order.completed", false),
            ("#.created", "created", true),
            ("#.#.created", "a.created", true),
            ("a.#.b", "a.b", true),
            ("a.#.b", "a.x.y.b", true),
            ("a.#.b.#", "a.b.c", true),
            ("stock_*.*", "stock_adjustment.posted", false),
        ] {
            assert_eq!(topic_matches(pattern, key), wanted, "{pattern} on {key}");
        }
    }
}
