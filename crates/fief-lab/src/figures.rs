// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The figures of an experiment: a name, a value, and what it has to be.

use serde::Serialize;
use serde_json::{Map, Value, json};

/// What a figure must show.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bound {
    AtMost(f64),
    AtLeast(f64),
}

impl Bound {
    pub fn holds(self, value: f64) -> bool {
        match self {
            Bound::AtMost(most) => value <= most,
            Bound::AtLeast(least) => value >= least,
        }
    }
}

impl std::fmt::Display for Bound {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Bound::AtMost(most) => write!(f, "<= {}", round(*most)),
            Bound::AtLeast(least) => write!(f, ">= {}", round(*least)),
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Figure {
    pub name: String,
    pub value: f64,
    pub bound: Option<Bound>,
    pub meaning: Meaning,
}

/// What a figure is a figure of.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Meaning {
    pub metric: String,
    pub unit: &'static str,
    /// What the machine had to bear meanwhile.
    pub load: String,
}

/// What is said of a bound that does not hold.
pub const MISSED: &str = "MISSED";

impl Figure {
    /// Whether its bound holds, in a word; empty: it has none.
    pub fn verdict(&self) -> &'static str {
        self.bound.map_or("", |bound| if bound.holds(self.value) { "holds" } else { MISSED })
    }

    /// Tells the metric, its unit and the load.
    pub fn of(&mut self, metric: impl Into<String>, unit: &'static str, load: impl Into<String>) {
        self.meaning = Meaning { metric: metric.into(), unit, load: load.into() };
    }

    /// With value, bound and meaning, for whoever does not know the name.
    fn to_json(&self) -> Value {
        let bound = self.bound.map_or(Value::Null, |bound| Value::String(bound.to_string()));
        let holds = self.bound.map(|bound| bound.holds(self.value));
        json!({
            "figure": self.name, "value": number(self.value), "bound": bound, "holds": holds,
            "metric": self.meaning.metric, "unit": self.meaning.unit, "load": self.meaning.load,
        })
    }
}

/// In the order in which they were added.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Figures {
    figures: Vec<Figure>,
}

impl Figures {
    #[must_use = "say what it measures: .of(metric, unit, load)"]
    pub fn add(&mut self, name: impl Into<String>, value: f64) -> &mut Figure {
        self.push(Figure { name: name.into(), value, bound: None, meaning: Meaning::default() })
    }

    #[must_use = "say what it measures: .of(metric, unit, load)"]
    pub fn must(&mut self, name: impl Into<String>, value: f64, bound: Bound) -> &mut Figure {
        self.push(Figure { name: name.into(), value, bound: Some(bound), meaning: Meaning::default() })
    }

    fn push(&mut self, figure: Figure) -> &mut Figure {
        self.figures.push(figure);
        self.figures.last_mut().expect("one was pushed")
    }

    pub fn iter(&self) -> impl Iterator<Item = &Figure> {
        self.figures.iter()
    }

    /// Leaves out what has no bound.
    pub fn bound_only(&mut self) {
        self.figures.retain(|figure| figure.bound.is_some());
    }

    /// One flat object; what could not be measured is null.
    pub fn to_json(&self) -> Value {
        let entries = self.iter().map(|figure| (figure.name.clone(), number(figure.value)));
        Value::Object(entries.collect::<Map<_, _>>())
    }

    /// One object each for those whose meaning was told.
    pub fn told(&self) -> Vec<Value> {
        self.iter().filter(|figure| !figure.meaning.metric.is_empty()).map(Figure::to_json).collect()
    }
}

/// What tests of the experiments ask.
#[cfg(test)]
impl Figures {
    pub fn get(&self, name: &str) -> Option<f64> {
        self.iter().find(|figure| figure.name == name).map(|figure| figure.value)
    }

    /// Those that do not show what they must; a figure that could not be measured is among them.
    pub fn missed(&self) -> impl Iterator<Item = &Figure> {
        self.iter().filter(|figure| figure.bound.is_some_and(|bound| !bound.holds(figure.value)))
    }
}

/// Null if there is none.
fn number(value: f64) -> Value {
    serde_json::Number::from_f64(round(value)).map_or(Value::Null, Value::Number)
}

/// Six significant digits: more would pretend.
fn round(value: f64) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return value;
    }
    let scale = 10f64.powi(5 - value.abs().log10().floor() as i32);
    (value * scale).round() / scale
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_object_has_exactly_the_names_that_were_added() {
        let mut figures = Figures::default();
        let _ = figures.must("single.flatness", 1.234_567_8, Bound::AtMost(1.6));
        let _ = figures.add("haproxy.t40", f64::NAN);
        assert_eq!(figures.to_json(), serde_json::json!({"single.flatness": 1.23457, "haproxy.t40": null}));
    }

    #[test]
    fn a_meaning_comes_with_value_bound_and_load() {
        let mut figures = Figures::default();
        figures.must("wait_s", 2.0, Bound::AtMost(1.3)).of("p90 from SYN to response", "s", "70,000 SYN/s");
        let _ = figures.add("rest", 1.0);
        let told = figures.told();
        assert_eq!(told.len(), 1);
        assert_eq!((&told[0]["bound"], &told[0]["holds"]), (&json!("<= 1.3"), &json!(false)));
        assert_eq!((&told[0]["unit"], &told[0]["load"]), (&json!("s"), &json!("70,000 SYN/s")));
    }

    #[test]
    fn a_figure_that_was_not_measured_is_missed() {
        let mut figures = Figures::default();
        let _ = figures.must("a", f64::NAN, Bound::AtMost(1.0));
        let _ = figures.must("b", 0.9, Bound::AtLeast(0.88));
        let _ = figures.must("c", 0.5, Bound::AtLeast(0.88));
        let missed: Vec<_> = figures.missed().map(|figure| figure.name.as_str()).collect();
        assert_eq!(missed, ["a", "c"]);
    }
}
