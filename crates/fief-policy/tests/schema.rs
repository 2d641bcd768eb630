// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The schema for editors and the page of keys are current.

mod example;

use serde_json::Value;

const SCHEMA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/policy.schema.json");
const PAGE: &str = include_str!("../../../docs/policy.md");

/// `UPDATE=1 cargo test -p fief-policy --test schema` writes the file anew.
#[test]
fn the_committed_schema_is_the_vocabularys() {
    let current = serde_json::to_string_pretty(&fief_policy::schema()).expect("JSON") + "\n";
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(SCHEMA, &current).expect("docs is writable");
    }
    let committed = std::fs::read_to_string(SCHEMA).expect("docs/policy.schema.json");
    assert!(committed == current, "docs/policy.schema.json is old: run this test with UPDATE=1");
}

/// All keys with the tables around them: `cpu.share`, `address`.
fn keys(schema: &Value, prefix: &str, found: &mut Vec<String>) {
    let Some(properties) = schema["properties"].as_object() else {
        return;
    };
    for (key, schema) in properties {
        let named = schema["additionalProperties"].is_object();
        let listed = schema["items"]["properties"].is_object();
        if named {
            keys(&schema["additionalProperties"], "", found);
        } else if listed {
            keys(&schema["items"], "", found);
        } else if schema["properties"].is_object() {
            keys(schema, &format!("{prefix}{key}."), found);
        } else {
            found.push(format!("{prefix}{key}"));
        }
    }
}

#[test]
fn the_page_has_a_row_for_every_key() {
    let mut found = Vec::new();
    keys(&fief_policy::schema(), "", &mut found);
    assert!(found.len() >= 60, "{found:?}");
    for key in found {
        assert!(PAGE.contains(&format!("\n| `{key}` |")), "docs/policy.md has no row for `{key}`");
    }
}

#[test]
fn every_key_of_the_examples_is_in_the_schema() {
    fn check(value: &toml::Value, schema: &Value, place: &str) {
        match value {
            toml::Value::Table(table) => {
                for (key, value) in table {
                    let known = &schema["properties"][key];
                    let schema = if known.is_null() { &schema["additionalProperties"] } else { known };
                    assert!(schema.is_object(), "{place}.{key} is not in the schema");
                    check(value, schema, &format!("{place}.{key}"));
                }
            }
            toml::Value::Array(items) => {
                items.iter().for_each(|item| check(item, &schema["items"], place));
            }
            toml::Value::String(text) if schema["enum"].is_array() => {
                let words = schema["enum"].as_array().expect("it is one");
                assert!(words.iter().any(|word| word == text), "{place} cannot be {text}");
            }
            _ => {}
        }
    }
    for (_, text) in example::examples() {
        check(&text.parse::<toml::Table>().expect("TOML").into(), &fief_policy::schema(), "policy");
    }
}

#[test]
fn the_policies_on_the_page_are_accepted() {
    let mut blocks =
        PAGE.split("```toml\n").skip(1).map(|rest| rest.split("```").next().unwrap_or_default()).peekable();
    assert!(blocks.peek().is_some(), "the page shows a policy");
    for block in blocks {
        fief_policy::parse(block, "docs/policy.md").unwrap_or_else(|errors| panic!("{errors}"));
    }
}
