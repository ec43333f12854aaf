//! Payloads as text, and never as anything else.

/// A body as people read it.
pub(crate) fn for_people(body: &[u8]) -> String {
    if let Ok(text) = std::str::from_utf8(body) {
        let is_json = serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok();
        if is_json { pretty_json(text) } else { text.to_owned() }
    } else {
        let hex: Vec<String> = body.iter().take(256).map(|byte| format!("{byte:02x}")).collect();
        let rest = if body.len() > 256 { " …" } else { "" };
        format!("not UTF-8; its first bytes:\n{}{rest}", hex.join(" "))
    }
}

/// JSON on lines of its own, to the letter: every number and every order of keys is as it was sent.
fn pretty_json(text: &str) -> String {
    fn new_line(out: &mut String, depth: usize) {
        out.push('\n');
        out.extend(std::iter::repeat_n("  ", depth));
    }
    let (mut out, mut depth, mut quoted, mut escaped) =
        (String::with_capacity(text.len() * 2), 0, false, false);
    let mut chars = text.chars().filter(|c| !c.is_ascii_control()).peekable();
    while let Some(c) = chars.next() {
        if quoted {
            out.push(c);
            quoted = escaped || c != '"';
            escaped = c == '\\' && !escaped;
            continue;
        }
        match c {
            '"' => {
                quoted = true;
                out.push(c);
            }
            ' ' => {}
            '{' | '[' => {
                out.push(c);
                while chars.next_if_eq(&' ').is_some() {}
                if chars.peek().is_some_and(|next| !matches!(next, '}' | ']')) {
                    depth += 1;
                    new_line(&mut out, depth);
                } else {
                    out.extend(chars.next());
                }
            }
            '}' | ']' => {
                depth = depth.saturating_sub(1);
                new_line(&mut out, depth);
                out.push(c);
            }
            ',' => {
                out.push(c);
                new_line(&mut out, depth);
            }
            ':' => out.push_str(": "),
            _ => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::pretty_json;

    #[test]
    fn json_is_laid_out_to_the_letter() {
        let text = r#"{ "z": 12345678901234567890.10, "a": ["x, {y}: \"q\"", {}, [ ] ],"n":null}"#;
        let laid_out = pretty_json(text);
        let wanted = [
            "{",
            "  \"z\": 12345678901234567890.10,",
            "  \"a\": [",
            "    \"x, {y}: \\\"q\\\"\",",
            "    {},",
            "    []",
            "  ],",
            "  \"n\": null",
            "}",
        ];
        assert_eq!(laid_out, wanted.join("\n"));
    }
}
