// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How often each verdict fell, how loaded the listeners are, and who is shut out now.

use serde::Serialize;

use super::queues;

use crate::cli::Explain;
use crate::failure::Result;
use crate::look::{self, Reader};
use crate::output::{Align, Output, Table, notes, printable};
use crate::quantity::{count, counted, duration, or_dash};
use fief_control::{FrontView, LoadView, ShutOut, VerdictView};

pub fn run(args: &Explain, output: &mut Output) -> Result<()> {
    let mut view = Reader::open()?.front()?;
    if let Some(listener) = &args.listener {
        only(&mut view, listener)?;
    }
    match args.json {
        true => objects(&view, output),
        false => output.text(page(&view)),
    }
}

/// Leaves what is about one listener.
fn only(view: &mut FrontView, listener: &str) -> Result<()> {
    if !view.listeners.iter().any(|name| name == listener) {
        let names: Vec<&str> = view.listeners.iter().map(String::as_str).collect();
        return Err(look::no_listener(listener, &names, "the policy in force"));
    }
    view.verdicts.retain(|verdict| verdict.listener == listener);
    view.loads.retain(|load| load.listener == listener);
    view.queues.retain(|queue| queue.listener == listener);
    Ok(())
}

/// The names are a promise to programs; `docs/cli.md` lists them.
#[derive(Serialize)]
#[serde(tag = "record", rename_all = "kebab-case")]
enum Object<'a> {
    Front {
        taken_ns: u64,
        interfaces: &'a [String],
        listeners: &'a [String],
        proven_sources: usize,
        notes: &'a [String],
    },
    Verdict(Counted<'a>),
    Load {
        listener: &'a str,
        level: &'a str,
        queue_percent: u32,
        cpu_ppm: Option<u32>,
        drops_per_second: u32,
        age_ns: u64,
    },
    ShutOut {
        source: &'a str,
        reason: &'a str,
        remaining_ns: u64,
    },
}

/// A verdict and how often it fell.
#[derive(Debug, Serialize)]
pub struct Counted<'a> {
    pub listener: &'a str,
    pub container: &'a str,
    pub rule: Option<u32>,
    /// Of which kind the rule is.
    pub client_rule: Option<u32>,
    pub request_rule: Option<u32>,
    pub reason: &'a str,
    /// It was let pass all the same.
    pub monitored: bool,
    pub count: u64,
}

impl<'a> Counted<'a> {
    pub fn of(view: &'a VerdictView) -> Self {
        Self {
            listener: &view.listener,
            container: &view.container,
            rule: view.rule,
            client_rule: view.client_rule(),
            request_rule: view.request_rule(),
            reason: view.reason.as_str(),
            monitored: view.monitored,
            count: view.count,
        }
    }
}

fn objects(view: &FrontView, output: &mut Output) -> Result<()> {
    output.json(&Object::Front {
        taken_ns: view.taken_ns,
        interfaces: &view.interfaces,
        listeners: &view.listeners,
        proven_sources: view.proven_sources,
        notes: &view.notes,
    })?;
    for verdict in &view.verdicts {
        output.json(&Object::Verdict(Counted::of(verdict)))?;
    }
    for LoadView { listener, level, queue_percent, cpu_ppm, drops_per_second, age_ns } in &view.loads {
        let (queue_percent, cpu_ppm) = (*queue_percent, *cpu_ppm);
        let (drops_per_second, age_ns) = (*drops_per_second, *age_ns);
        output.json(&Object::Load { listener, level, queue_percent, cpu_ppm, drops_per_second, age_ns })?;
    }
    queues::objects(&view.queues, output)?;
    for ShutOut { source, why, remaining_ns } in &view.shut_out {
        output.json(&Object::ShutOut { source, reason: why.as_str(), remaining_ns: *remaining_ns })?;
    }
    Ok(())
}

fn page(view: &FrontView) -> String {
    let at = match (view.interfaces.is_empty(), view.loads.is_empty()) {
        (true, true) => "the front door is nowhere: no listener is guarded".to_owned(),
        (true, false) => {
            "the front door is nowhere: listeners have lost their guard, apply the policy again".to_owned()
        }
        (false, _) => format!("the front door is at {}", view.interfaces.join(", ")),
    };
    let mut page = format!("{}; {}\n", printable(&at), counted(view.proven_sources, "proven source"));
    page.push_str(&notes(&view.notes));
    if !view.loads.is_empty() {
        page.push_str(&format!("\n{}", loads(&view.loads)));
    }
    if !view.queues.is_empty() {
        page.push_str(&format!("\n{}", queues::page(&view.queues)));
    }
    if !view.verdicts.is_empty() {
        page.push_str(&format!("\n{}", verdicts(&view.verdicts)));
    }
    if !view.shut_out.is_empty() {
        page.push_str(&format!("\n{}", shut_out(&view.shut_out)));
    }
    page
}

/// By listener, container, rule and reason.
pub fn verdicts<'v>(verdicts: impl IntoIterator<Item = &'v VerdictView>) -> Table {
    let mut table = Table::new(&[
        ("LISTENER", Align::Left),
        ("CONTAINER", Align::Left),
        ("RULE", Align::Left),
        ("REASON", Align::Left),
        ("COUNT", Align::Right),
        ("DONE", Align::Left),
        ("WHICH ARE", Align::Left),
    ]);
    for verdict in verdicts {
        let done = match (verdict.reason.lets_pass(), verdict.monitored) {
            (true, _) => "passed",
            (false, true) => "passed (monitor)",
            (false, false) => "refused",
        };
        table.push([
            verdict.listener.clone(),
            verdict.container.clone(),
            or_dash(rule(verdict)),
            verdict.reason.to_string(),
            count(verdict.count),
            done.into(),
            verdict.reason.means().into(),
        ]);
    }
    table
}

/// A rule by its kind: both are counted from 1.
pub fn rule(verdict: &VerdictView) -> Option<String> {
    let client = verdict.client_rule().map(|rule| format!("client {rule}"));
    client.or_else(|| verdict.request_rule().map(|rule| format!("request {rule}")))
}

fn loads(loads: &[LoadView]) -> Table {
    let mut table = Table::new(&[
        ("LISTENER", Align::Left),
        ("LEVEL", Align::Left),
        ("QUEUE", Align::Right),
        ("CPU", Align::Right),
        ("DROPS/S", Align::Right),
        ("AS OF", Align::Left),
    ]);
    for load in loads {
        table.push([
            load.listener.clone(),
            if load.level == "always" { "not loaded".into() } else { load.level.into() },
            format!("{}%", load.queue_percent),
            or_dash(load.cpu_ppm.map(|ppm| format!("{}%", ppm / 10_000))),
            load.drops_per_second.to_string(),
            format!("{} ago", duration(load.age_ns)),
        ]);
    }
    table
}

fn shut_out(sources: &[ShutOut]) -> Table {
    let mut table = Table::new(&[("SHUT OUT", Align::Left), ("REASON", Align::Left), ("STILL", Align::Right)]);
    for source in sources {
        table.push([source.source.clone(), source.why.to_string(), duration(source.remaining_ns)]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use fief::Reason;

    fn view() -> FrontView {
        let verdict = |reason, monitored, count| VerdictView {
            listener: "web".into(),
            container: "shop".into(),
            rule: Some(1),
            reason,
            monitored,
            count,
        };
        FrontView {
            queues: Vec::new(),
            taken_ns: 1,
            interfaces: vec!["eth0".into()],
            listeners: vec!["web".into(), "api".into()],
            verdicts: vec![
                verdict(Reason::SynTaken, false, 12),
                verdict(Reason::SynRate, false, 3),
                verdict(Reason::SynRate, true, 4),
            ],
            loads: vec![LoadView {
                listener: "web".into(),
                level: "busy",
                queue_percent: 30,
                cpu_ppm: Some(850_000),
                drops_per_second: 2,
                age_ns: 10_000_000,
            }],
            shut_out: vec![ShutOut {
                source: "10.88.3.0/24".into(),
                why: Reason::SynIsolated,
                remaining_ns: 2_000_000_000,
            }],
            proven_sources: 20,
            notes: vec!["what comes in at eth1 is not guarded".into()],
        }
    }

    #[test]
    fn the_page_tells_what_was_done_from_what_would_have_been() {
        let page = page(&view());
        let begin = "the front door is at eth0; 20 proven sources\nnote: what comes in at eth1 is not guarded\n";
        assert!(page.starts_with(begin), "{page}");
        let line = |of: &str| page.lines().find(|line| line.contains(of)).unwrap_or_else(|| panic!("{of} in {page}"));
        assert!(line("syn-taken").contains("passed"), "{page}");
        assert!(line(" 3  ").contains("refused"), "{page}");
        assert!(line(" 4  ").contains("passed (monitor)"), "{page}");
        assert!(line("busy").contains("30%  85%"), "{page}");
        let loads = view().loads.into_iter().map(|load| LoadView { cpu_ppm: None, ..load }).collect();
        assert!(super::page(&FrontView { loads, ..view() }).contains("30%    -"), "no CPU time is charged");
        assert!(line("10.88.3.0/24").contains("syn-isolated"), "{page}");
    }

    #[test]
    fn a_front_door_that_is_nowhere_says_why() {
        let nowhere = |loads| page(&FrontView { interfaces: Vec::new(), loads, ..view() });
        let unguarded = nowhere(Vec::new());
        assert!(unguarded.starts_with("the front door is nowhere: no listener is guarded; "), "{unguarded}");
        let lost = nowhere(view().loads);
        assert!(lost.starts_with("the front door is nowhere: listeners have lost their guard, apply"), "{lost}");
    }

    #[test]
    fn one_listener_is_picked_and_an_unknown_one_named_with_those_there_are() {
        let mut some = view();
        only(&mut some, "api").expect("there is one");
        assert!(some.verdicts.is_empty() && some.loads.is_empty());
        let failure = only(&mut view(), "wbe").expect_err("no such listener");
        assert_eq!(
            failure.to_string(),
            "no listener is called wbe; did you mean web? the policy in force has web, api"
        );
    }

    #[test]
    fn every_name_of_the_objects_is_in_the_documentation() {
        let page = include_str!("../../../../../docs/cli.md");
        let (view, no_names) = (view(), Vec::new());
        let verdict = Object::Verdict(Counted::of(&view.verdicts[0]));
        let front = Object::Front {
            taken_ns: 1,
            interfaces: &no_names,
            listeners: &no_names,
            proven_sources: 0,
            notes: &no_names,
        };
        let load = Object::Load {
            listener: "web",
            level: "busy",
            queue_percent: 1,
            cpu_ppm: Some(1),
            drops_per_second: 1,
            age_ns: 1,
        };
        let shut_out = Object::ShutOut { source: "10.1.1.1", reason: "syn-penalty", remaining_ns: 1 };
        for object in [front, verdict, load, shut_out] {
            let object = serde_json::to_value(object).expect("texts and numbers");
            for name in object.as_object().expect("an object").keys() {
                assert!(page.contains(&format!("`{name}`")), "{name} is missing");
            }
        }
        for reason in Reason::ALL {
            assert!(page.contains(&format!("`{reason}`")), "{reason} is missing");
        }
    }
}
