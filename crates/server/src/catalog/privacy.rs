//! Fields that tell who a person is have to say so: `"x-pii": true`. Events carry an id instead where that will do. Pure.

use serde_json::Value;

/// Words in the name of a field that tell of a person.
const PERSONAL: [&str; 34] = [
    "email",
    "emails",
    "mail",
    "phone",
    "phones",
    "telephone",
    "mobile",
    "first_name",
    "given_name",
    "middle_name",
    "last_name",
    "family_name",
    "maiden_name",
    "full_name",
    "surname",
    "username",
    "user_name",
    "birth",
    "birthday",
    "birthdate",
    "dob",
    "gender",
    "address",
    "addresses",
    "street",
    "postcode",
    "postal_code",
    "zip",
    "zipcode",
    "iban",
    "passport",
    "ssn",
    "tax_id",
    "ip",
];

/// Fields that look personal and do not say so.
pub(crate) fn undeclared(schema: &Value) -> Vec<String> {
    let mut found = Vec::new();
    walk("", schema, &mut found);
    found
}

fn walk(at: &str, schema: &Value, found: &mut Vec<String>) {
    for (name, field) in schema.get("properties").and_then(Value::as_object).into_iter().flatten() {
        let at = format!("{at}/{name}");
        let declared = field.get("x-pii").and_then(Value::as_bool);
        if declared.is_none() && (looks_personal(name) || is_email(field)) {
            found.push(format!(
                "{at} looks personal; leave it out and send an id, or say \"x-pii\": true (false if it is not)"
            ));
        }
        walk(&at, field, found);
    }
    if let Some(items) = schema.get("items") {
        walk(&format!("{at}/*"), items, found);
    }
}

fn is_email(field: &Value) -> bool {
    matches!(field.get("format").and_then(Value::as_str), Some("email" | "idn-email"))
}

/// By whole words of the name, in snake or camel case.
pub(super) fn looks_personal(name: &str) -> bool {
    let mut snake = String::new();
    for letter in name.chars() {
        if letter.is_uppercase() {
            snake.push('_');
        }
        snake.extend(letter.to_lowercase());
    }
    let snake = format!("_{}_", snake.replace('-', "_"));
    snake == "_name_" || PERSONAL.iter().any(|word| snake.contains(&format!("_{word}_")))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_personal_field_says_so() {
        let field = |name: &str, schema: Value| json!({ "properties": { "data": { "properties": { name: schema } } } });
        for name in [
            "email",
            "userEmail",
            "emails",
            "phone-number",
            "name",
            "givenName",
            "birthday",
            "billing_address",
            "ip_address",
            "clientIp",
        ] {
            let found = undeclared(&field(name, json!({})));
            assert_eq!(found.len(), 1, "{name}");
            assert!(found[0].starts_with("/data/"), "{found:?}");
            assert!(undeclared(&field(name, json!({ "x-pii": true }))).is_empty());
        }
        assert_eq!(undeclared(&field("contact", json!({ "format": "email" }))).len(), 1);
        for name in ["user_id", "plan_name_id", "mailbox_count", "rename", "emailed", "zipped", "shipped"] {
            assert!(undeclared(&field(name, json!({}))).is_empty(), "{name}");
        }
    }
}
