//! From the parser's tree to ours. What we do not work out is refused here, before any event meets it.

use cel::common::ast::{CallExpr, Expr, IdedExpr, LiteralValue, SelectExpr, operators};
use cel::parser::Parser;

use super::expression::{Function, Node, Variable};
use super::value::Value;
use crate::decimal::Decimal;

/// The longest text of an expression, in bytes.
const MAX_BYTES: usize = 1000;
/// The deepest nesting of brackets, for which the parser takes more of the stack than for anything else.
const MAX_DEPTH: u16 = 12;
/// How many operators may stand in one another, as those of a long sum do: each is worked out by one call within another. A sum of members
/// that fits into the longest text has fewer.
const MAX_OPERATORS: usize = 120;
/// The most digits of a number with a point or an exponent: what the parser's float has for certain.
const MAX_DIGITS: usize = 15;

pub(super) fn translate(text: &str) -> Result<Node, String> {
    if text.len() > MAX_BYTES {
        return Err(format!("it is longer than {MAX_BYTES} bytes"));
    }
    short_numbers(text)?;
    nesting(text)?;
    let parsed =
        Parser::new().max_recursion_depth(MAX_DEPTH).parse(text).map_err(|errors| errors.to_string())?;
    let tree = node(&parsed)?;
    match tree.depth() {
        deep if deep > MAX_OPERATORS => {
            Err(format!("{deep} operators stand in one another, and {MAX_OPERATORS} may"))
        }
        _ => Ok(tree),
    }
}

fn node(expression: &IdedExpr) -> Result<Node, String> {
    match &expression.expr {
        Expr::Literal(literal) => constant(literal),
        Expr::Ident(name) if name == "payload" => Ok(Node::Variable(Variable::Payload)),
        Expr::Ident(name) => Err(format!("it names {name}; there are payload and event")),
        Expr::Select(select) => member(select),
        Expr::Call(call) => self::call(call),
        Expr::List(list) => Ok(Node::List(list.elements.iter().map(node).collect::<Result<_, _>>()?)),
        Expr::Comprehension(_) => Err("there are no loops over lists".to_owned()),
        Expr::Map(_) | Expr::Struct(_) => Err("there are no maps or structs".to_owned()),
        Expr::Unspecified => Err("it is empty".to_owned()),
    }
}

fn constant(literal: &LiteralValue) -> Result<Node, String> {
    let number =
        |text: String| text.parse().map(Value::Number).map_err(|error| format!("the number {text} {error}"));
    Ok(Node::Literal(match literal {
        LiteralValue::Boolean(truth) => Value::Bool(*truth.inner()),
        LiteralValue::Int(int) => number(int.inner().to_string())?,
        LiteralValue::UInt(int) => number(int.inner().to_string())?,
        // The shortest decimal that the float stands for: the one that was written, as it has 15 digits at most.
        LiteralValue::Double(double) => number(double.inner().to_string())?,
        LiteralValue::String(text) => Value::Text(text.inner().to_owned().into()),
        LiteralValue::Null => Value::Null,
        LiteralValue::Bytes(_) => return Err("there are no bytes".to_owned()),
    }))
}

fn member(select: &SelectExpr) -> Result<Node, String> {
    if matches!(&select.operand.expr, Expr::Ident(name) if name == "event") {
        let variable = match select.field.as_str() {
            "id" => Variable::Id,
            "type" => Variable::Type,
            "tenant" => Variable::Tenant,
            "aggregate_id" => Variable::AggregateId,
            "occurred_at" => Variable::OccurredAt,
            other => {
                return Err(format!("event has id, type, tenant, aggregate_id and occurred_at, not {other}"));
            }
        };
        return Ok(Node::Variable(variable));
    }
    let (of, name) = (Box::new(node(&select.operand)?), select.field.clone());
    Ok(if select.test { Node::Has { of, name } } else { Node::Member { of, name } })
}

fn call(call: &CallExpr) -> Result<Node, String> {
    let arguments: Vec<&IdedExpr> = call.target.as_deref().into_iter().chain(&call.args).collect();
    let (function, takes) = match call.func_name.as_str() {
        operators::LOGICAL_AND => (Function::And, 2),
        operators::LOGICAL_OR => (Function::Or, 2),
        operators::LOGICAL_NOT => (Function::Not, 1),
        operators::CONDITIONAL => (Function::If, 3),
        operators::EQUALS => (Function::Equal, 2),
        operators::NOT_EQUALS => (Function::Unequal, 2),
        operators::LESS => (Function::Less, 2),
        operators::LESS_EQUALS => (Function::LessOrEqual, 2),
        operators::GREATER => (Function::Greater, 2),
        operators::GREATER_EQUALS => (Function::GreaterOrEqual, 2),
        operators::ADD => (Function::Add, 2),
        operators::SUBSTRACT => (Function::Subtract, 2),
        operators::MULTIPLY => (Function::Multiply, 2),
        operators::DIVIDE => (Function::Divide, 2),
        operators::NEGATE => (Function::Negate, 1),
        operators::IN => (Function::In, 2),
        operators::INDEX => (Function::Index, 2),
        "decimal" => (Function::Decimal, 1),
        "round" => (Function::Round, 2),
        "abs" => (Function::Abs, 1),
        "min" => (Function::Min, 2),
        "max" => (Function::Max, 2),
        "string" => (Function::String, 1),
        "size" => (Function::Size, 1),
        "startsWith" => (Function::StartsWith, 2),
        "endsWith" => (Function::EndsWith, 2),
        "contains" => (Function::Contains, 2),
        "lowerAscii" => (Function::Lower, 1),
        "upperAscii" => (Function::Upper, 1),
        other => return Err(format!("there is no function {other} with {} arguments", arguments.len())),
    };
    if arguments.len() != takes {
        return Err(format!("{} takes {takes} arguments, not {}", call.func_name, arguments.len()));
    }
    let nodes = arguments.into_iter().map(node).collect::<Result<Vec<_>, _>>()?;
    Ok(folded(function, nodes))
}

/// A minus before a number is that number.
fn folded(function: Function, nodes: Vec<Node>) -> Node {
    match (function, nodes.as_slice()) {
        (Function::Negate, [Node::Literal(Value::Number(number))]) => {
            Node::Literal(Value::Number(Decimal::negated(*number)))
        }
        _ => Node::Call(function, nodes),
    }
}

/// The parser reads numbers with a point or an exponent as floats. With few digits no digit is lost; more are refused.
fn short_numbers(text: &str) -> Result<(), String> {
    for word in outside_quotes(text).split(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '.' | '_'))) {
        // A point may begin a number, or the name of a field behind a bracket.
        if !word.trim_start_matches('.').starts_with(|c: char| c.is_ascii_digit()) || word.starts_with("0x") {
            continue;
        }
        let number = word.split_once(['e', 'E']).map_or(word, |(number, _)| number);
        let digits = number.bytes().filter(u8::is_ascii_digit).count();
        if (word.contains('.') || number.len() < word.len()) && digits > MAX_DIGITS {
            // An exponent with a sign is no part of the word.
            let hint = if number.len() < word.len() {
                "write all of it, with its exponent, in quotes: decimal(\"…\")".to_owned()
            } else {
                format!("write decimal(\"{number}\")")
            };
            return Err(format!("the number {word} has more than {MAX_DIGITS} digits; {hint}"));
        }
    }
    Ok(())
}

/// The parser's own limit counts later than it recurses.
fn nesting(text: &str) -> Result<(), String> {
    let mut depth = 0_i32;
    for c in outside_quotes(text).chars() {
        depth += i32::from(matches!(c, '(' | '[' | '{')) - i32::from(matches!(c, ')' | ']' | '}'));
        if depth > i32::from(MAX_DEPTH) {
            return Err(format!("it is nested deeper than {MAX_DEPTH}"));
        }
    }
    Ok(())
}

/// The text without what stands in quotes.
fn outside_quotes(text: &str) -> String {
    let (mut out, mut quote, mut escaped) = (String::with_capacity(text.len()), None, false);
    for c in text.chars() {
        match quote {
            Some(_) if escaped => escaped = false,
            Some(_) if c == '\\' => escaped = true,
            Some(end) if c == end => quote = None,
            Some(_) => {}
            None if matches!(c, '"' | '\'') => quote = Some(c),
            None => out.push(c),
        }
    }
    out
}
