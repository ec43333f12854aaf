//! Texts with expressions in braces: `receivable:{payload.customerId}`.

use super::expression::{BadExpression, Expression, Facts};
use super::value::NoValue;

/// A text whose parts in braces are worked out on the event.
#[derive(Debug, Clone)]
pub struct Template(Vec<Part>);

#[derive(Debug, Clone)]
enum Part {
    Text(String),
    Expression(Expression),
}

impl Template {
    /// Reads a text; a brace that does not close is an error.
    pub fn parse(text: &str) -> Result<Self, BadExpression> {
        let (mut parts, mut rest) = (Vec::new(), text);
        while let Some((before, inside)) = rest.split_once('{') {
            let bad = |why: &str| BadExpression { text: text.to_owned(), why: why.to_owned() };
            let (expression, after) = inside.split_once('}').ok_or_else(|| bad("a brace is not closed"))?;
            if !before.is_empty() {
                parts.push(Part::Text(before.to_owned()));
            }
            parts.push(Part::Expression(Expression::parse(expression)?));
            rest = after;
        }
        if !rest.is_empty() {
            parts.push(Part::Text(rest.to_owned()));
        }
        Ok(Self(parts))
    }

    /// The text, where it is the same for every event.
    pub fn fixed(&self) -> Option<&str> {
        match self.0.as_slice() {
            [Part::Text(fixed)] => Some(fixed),
            _ => None,
        }
    }

    /// The text for an event.
    pub fn text(&self, facts: &Facts<'_>) -> Result<String, NoValue> {
        let mut text = String::new();
        for part in &self.0 {
            match part {
                Part::Text(fixed) => text.push_str(fixed),
                Part::Expression(expression) => text.push_str(&expression.value(facts)?.to_text()?),
            }
        }
        Ok(text)
    }
}
