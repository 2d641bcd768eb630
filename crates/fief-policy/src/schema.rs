// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The JSON schema for editors, made of the vocabulary.
//!
//! Editors complete keys and mark slips with it while one types. It is not the judge: what needs the whole file (sums of
//! shares, unreachable rules) only `fief check` knows.

use serde_json::{Map, Value, json};

use crate::name::LONGEST_NAME;
use crate::vocabulary::{self, Key, Section, Shape};

/// JSON schema (2020-12) of policy files; the committed copy is `docs/policy.schema.json`.
pub fn schema() -> Value {
    let mut schema = table(&vocabulary::POLICY);
    let head = schema.as_object_mut().expect("a table's schema is an object");
    head.insert("$schema".to_owned(), json!("https://json-schema.org/draft/2020-12/schema"));
    head.insert("title".to_owned(), json!("Fief policy"));
    schema
}

fn table(section: &'static Section) -> Value {
    let mut properties = Map::new();
    for key in section.keys.iter().filter(|key| !matches!(key.shape, Shape::Later(_))) {
        properties.insert(key.name.to_owned(), described(key));
    }
    let mut table = json!({
        "type": "object",
        "description": section.doc,
        "properties": properties,
        "additionalProperties": false,
    });
    if !section.required.is_empty() {
        table["required"] = json!(section.required);
    }
    table
}

fn described(key: &'static Key) -> Value {
    let mut schema = shape(&key.shape);
    schema["description"] = json!(key.doc);
    let example: Option<Value> = serde_json::from_str(key.example).ok();
    if let Some(example) = example {
        schema["examples"] = json!([example]);
    }
    schema
}

fn shape(shape: &'static Shape) -> Value {
    /// Of all but containers.
    const NAME: &str = "^[^/\\s]+$";
    const TIME: &str = "^[0-9]+(\\.[0-9]+)?(ms|s|m|h)$";
    const ONE_STAR: &str = "^[^*]*\\*?[^*]*$";
    const PERCENT: &str = "(100(\\.0+)?|[0-9]{1,2}(\\.[0-9]{1,4})?)%";
    match shape {
        Shape::Version => json!({ "const": vocabulary::VERSION }),
        Shape::Choice(words) => json!({ "enum": words }),
        Shape::Percent => json!({ "type": "string", "pattern": format!("^{PERCENT}$") }),
        Shape::Latency => json!({ "type": "string", "pattern": format!("^{PERCENT} in {}", &TIME[1..]) }),
        Shape::PercentOrMax => json!({ "type": "string", "pattern": format!("^({PERCENT}|max)$") }),
        Shape::Weight => integer(&vocabulary::WEIGHT),
        Shape::Priority => integer(&vocabulary::PRIORITY),
        Shape::Bytes => json!({ "anyOf": [
            { "type": "integer", "minimum": vocabulary::LEAST_MEMORY },
            { "type": "string", "pattern": "^([0-9]+(\\.[0-9]+)?[KMGTkmgt]?|max)$" },
        ] }),
        Shape::BitRate => json!({
            "type": "string",
            "pattern": "^([0-9]+(\\.[0-9]+)?[KMGTkmgt]?[Bb][Ii][Tt]|max)$",
        }),
        Shape::Count => json!({ "anyOf": [integer(&vocabulary::DESCENDANTS), { "const": "max" }] }),
        Shape::Flag => json!({ "type": "boolean" }),
        Shape::Address => {
            json!({ "type": "string", "pattern": "^([0-9.]+|\\[[0-9A-Fa-f:.]+\\]):[0-9]+(-[0-9]+)?$" })
        }
        Shape::Ports => json!({ "type": "string", "pattern": "^[0-9]+(-[0-9]+)?$" }),
        Shape::Prefixes => json!({
            "type": "array",
            "minItems": 1,
            "items": { "type": "string", "pattern": "^(any|[0-9.]+(/[0-9]+)?|[0-9A-Fa-f:.]+(/[0-9]+)?|[0-9A-Fa-f:.]+-[0-9A-Fa-f:.]+)$" },
        }),
        Shape::Path => json!({ "type": "string", "minLength": 1 }),
        Shape::Rate => integer(&vocabulary::RATE),
        Shape::Burst => json!({ "anyOf": [integer(&vocabulary::RATE), { "type": "string", "pattern": TIME }] }),
        Shape::WholePercent => json!({ "type": "string", "pattern": "^(100|[1-9][0-9]?)%$" }),
        Shape::Duration => json!({ "type": "string", "pattern": TIME }),
        Shape::Seconds => json!({ "type": "string", "pattern": "^[0-9]+(\\.[0-9]+)?(s|m|h)$" }),
        Shape::Interfaces => json!({
            "type": "array",
            "minItems": 1,
            "uniqueItems": true,
            "items": { "type": "string", "pattern": "^[^/\\s]{1,15}$" },
        }),
        Shape::Words => one_or_more(json!({ "type": "string", "pattern": "^[^*]+$" })),
        Shape::Patterns => one_or_more(json!({ "type": "string", "pattern": ONE_STAR })),
        Shape::NamedPatterns => json!({
            "type": "object",
            "minProperties": 1,
            "additionalProperties": one_or_more(json!({ "type": "string", "pattern": ONE_STAR })),
        }),
        Shape::ChoiceOrTable(words, section) => json!({ "anyOf": [{ "enum": words }, table(section)] }),
        Shape::FlagOrTable(section) => json!({ "anyOf": [{ "type": "boolean" }, table(section)] }),
        Shape::DurationOrTable(section) => {
            json!({ "anyOf": [{ "type": "string", "pattern": TIME }, table(section)] })
        }
        Shape::ChoiceOrCount(words, range) => json!({ "anyOf": [{ "enum": words }, integer(range)] }),
        Shape::ChoiceOrName(words, _) => {
            json!({ "anyOf": [{ "enum": words }, { "type": "string", "pattern": NAME, "maxLength": LONGEST_NAME }] })
        }
        Shape::File => json!({ "type": "string", "pattern": "^/" }),
        Shape::Integer(range) => integer(range),
        Shape::Table(section) => table(section),
        Shape::Named(section) => {
            let has_paths = std::ptr::eq(*section, &raw const vocabulary::CONTAINER);
            let names = if has_paths {
                json!({ "pattern": "^[^/\\s]+(/[^/\\s]+){0,15}$" })
            } else {
                json!({ "pattern": NAME, "maxLength": LONGEST_NAME })
            };
            json!({ "type": "object", "propertyNames": names, "additionalProperties": table(section) })
        }
        Shape::List(section) => {
            let mut item = table(section);
            if section.key("not-from").is_some() {
                item["oneOf"] = json!([{ "required": ["from"] }, { "required": ["not-from"] }]);
            }
            json!({ "type": "array", "minItems": 1, "items": item })
        }
        Shape::Later(_) => unreachable!("keys of later versions are left out of the schema"),
    }
}

fn one_or_more(item: Value) -> Value {
    json!({ "anyOf": [item, { "type": "array", "minItems": 1, "items": item }] })
}

fn integer(range: &std::ops::RangeInclusive<u64>) -> Value {
    json!({ "type": "integer", "minimum": range.start(), "maximum": range.end() })
}
