// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What was meant by a value of the wrong type: the same value as it should have been written, where that can be guessed.

use toml::de::{DeInteger, DeValue};

use crate::vocabulary::{Key, Section, Shape};

/// `full`: the key with the tables before it.
pub(crate) fn remedy(full: &str, key: &Key, value: &DeValue<'_>) -> String {
    let Key { shape, example, .. } = key;
    match (shape, value) {
        (Shape::Percent | Shape::PercentOrMax | Shape::WholePercent, DeValue::Integer(digits))
            if digits.radix() == 10 =>
        {
            format!("write {full} = \"{}%\"", digits.as_str())
        }
        (Shape::Percent | Shape::PercentOrMax, DeValue::Float(digits)) => match digits.as_str().parse::<f64>() {
            Ok(part) if part > 0.0 && part <= 1.0 => {
                let percent = (part * 1_000_000.0).round() / 10_000.0;
                format!("write {full} = \"{percent}%\"")
            }
            Ok(percent) if percent > 1.0 && percent <= 100.0 => {
                format!("write {full} = \"{percent}%\"")
            }
            _ => format!("write {full} = {example}"),
        },
        (Shape::Weight | Shape::Priority | Shape::Version | Shape::Count | Shape::Rate, DeValue::String(text))
            if text.parse::<u32>().is_ok() =>
        {
            format!("write {full} = {text}, without the quotes")
        }
        (Shape::Rate, DeValue::String(text)) if rate(text).is_some() => {
            format!("write {full} = {}", rate(text).expect("asked before"))
        }
        (Shape::Flag, DeValue::String(text)) if text == "true" || text == "false" => {
            format!("write {full} = {text}, without the quotes")
        }
        (Shape::Duration | Shape::DurationOrTable(_) | Shape::Seconds, DeValue::Integer(digits))
            if digits.radix() == 10 =>
        {
            format!("write {full} = \"{}s\"", digits.as_str())
        }
        (Shape::Prefixes | Shape::Interfaces, DeValue::String(text)) => format!("write {full} = [\"{text}\"]"),
        (Shape::Ports, DeValue::Integer(port)) if port.as_str().parse::<u16>().is_ok() => {
            format!("write {full} = \"{}\"", port.as_str())
        }
        (Shape::Address, DeValue::Integer(port)) if port.as_str().parse::<u16>().is_ok() => {
            format!("write {full} = \"0.0.0.0:{port}\"")
        }
        (Shape::BitRate, DeValue::Integer(_)) => {
            format!("write the unit, in quotes, as in {full} = {example}")
        }
        (Shape::Choice(words), DeValue::Integer(digits)) if words.contains(&digits.as_str()) => {
            format!("write {full} = \"{}\"", digits.as_str())
        }
        (Shape::Table(section), DeValue::String(text)) if section.key(PER_SECOND).is_some() && rate(text).is_some() => {
            format!("write {full} = {{ {PER_SECOND} = {} }}", rate(text).expect("asked before"))
        }
        (Shape::Table(section), DeValue::Integer(digits)) if section.key(PER_SECOND).is_some() && is_some(digits) => {
            format!("write {full} = {{ {PER_SECOND} = {} }}", digits.as_str())
        }
        (Shape::Table(section), DeValue::String(text)) if has_rate(section) && rate(text).is_some() => {
            with_burst(full, &rate(text).expect("asked before").to_string())
        }
        (Shape::Table(section), DeValue::Integer(digits)) if has_rate(section) && is_some(digits) => {
            with_burst(full, digits.as_str())
        }
        (Shape::Table(_) | Shape::NamedPatterns, _) if example.starts_with('{') => format!("write {full} = {example}"),
        (Shape::Table(section), _) => {
            let first = section.keys.first().expect("every section has keys");
            format!("write {full}.{} = {}", first.name, first.example)
        }
        (Shape::Named(_), _) => {
            format!("write a header [{full}.NAME] above the keys of each {full}")
        }
        _ => format!("write {full} = {example}"),
    }
}

const PER_SECOND: &str = "per-second";
/// Of connection requests.
const RATE: &str = "rate";

fn with_burst(full: &str, number: &str) -> String {
    format!("write {full} = {{ {RATE} = {number}, burst = {number} }}")
}

fn has_rate(section: &Section) -> bool {
    section.key(RATE).is_some_and(|key| matches!(key.shape, Shape::Rate))
}

/// A number a second as other programs write it: "50/s", "50r/s", "50".
fn rate(text: &str) -> Option<u32> {
    let unit_at = text.find(|character: char| !character.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(unit_at);
    let known = ["", "/s", "r/s", "/sec", "/second", "rps"].contains(&unit.trim());
    number.parse().ok().filter(|rate| known && *rate > 0)
}

/// Whether an integer is a rate as it is written.
fn is_some(digits: &DeInteger<'_>) -> bool {
    digits.radix() == 10 && digits.as_str().parse::<u32>().is_ok_and(|rate| rate > 0)
}

pub(crate) fn type_of(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a text",
        DeValue::Integer(_) => "an integer",
        DeValue::Float(_) => "a decimal number",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "an array",
        DeValue::Table(_) => "a table",
    }
}
