// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the files say: the names and numbers of `fief show --json` and `fief usage --json`, a name and its value a line.

use std::fmt;

use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use crate::output::printable;
use crate::record::{Attributes, Place, Usage};
use fief_control::ContainerView;

/// Place and attributes. `parent`: its path.
pub fn status(view: &ContainerView, parent: Option<&str>) -> String {
    let parents = view.parent.zip(parent).into_iter().collect();
    lines(&Place::of(view, &parents)) + &lines(&Attributes::from(&view.attributes))
}

/// The counters.
pub fn usage(view: &ContainerView) -> String {
    lines(&Usage::from(&view.usage))
}

fn lines(record: &impl Serialize) -> String {
    let text = serde_json::to_string(record).expect("records of numbers and texts always serialise");
    let Fields(fields) = serde_json::from_str(&text).expect("what was written can be read");
    fields.into_iter().map(|(name, value)| format!("{name} {}\n", shown(&value))).collect()
}

/// What there is none of is a dash, as in the tables.
fn shown(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => printable(text),
        other => other.to_string(),
    }
}

/// A record's, in its order.
struct Fields(Vec<(String, Value)>);

impl<'de> Deserialize<'de> for Fields {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct InOrder;
        impl<'de> Visitor<'de> for InOrder {
            type Value = Fields;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Fields, M::Error> {
                let mut fields = Vec::new();
                while let Some(field) = map.next_entry()? {
                    fields.push(field);
                }
                Ok(Fields(fields))
            }
        }
        from.deserialize_map(InOrder)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{USAGE_NAMES, sample};

    #[test]
    fn usage_has_the_names_of_the_json_in_their_order() {
        let mut view = sample::container("shop", 8, None);
        view.usage.packets_in = 7;
        let page = usage(&view);
        let names: Vec<_> = page.lines().filter_map(|line| line.split(' ').next()).collect();
        assert_eq!(names, USAGE_NAMES);
        assert!(page.contains("\npackets_in 7\n"), "{page}");
    }

    #[test]
    fn status_has_a_line_for_each_name() {
        let page = status(&sample::container("shop/gold", 9, Some(8)), Some("shop"));
        assert!(page.starts_with("container shop/gold\nid 9\ngeneration 1\nparent shop\nstate alive\npolicy true\n"));
        assert!(page.contains("\ncpu_limit_ppm -\ncpu_weight 100\n"), "{page}");
    }

    #[test]
    fn a_name_cannot_add_a_line() {
        let page = status(&sample::container("x\nstate ended", 9, None), None);
        assert!(page.starts_with("container x\\nstate ended\nid 9\n"), "{page}");
        assert!(page.contains("\nparent -\n"));
    }
}
