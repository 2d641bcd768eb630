// SPDX-License-Identifier: Apache-2.0 OR MIT
//! By which threads, ports and kernel threads a container was charged while this command looked.

use std::num::NonZeroU32;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::cli::Explain;
use crate::clock;
use crate::failure::{Failure, Result};
use crate::look::{self, Reader};
use crate::output::{Align, Output, Table, printable};
use crate::quantity::{counted, duration, part};
use fief_agent::ask::{ChargeQuestion, LONGEST_WATCH};
use fief_control::{ChargeSource, Charges, Error, ErrorKind};

/// How long one look lasts, if nothing else is said.
const LASTS: Duration = Duration::from_secs(1);

/// For another one's watch to end, one of a member of the agent's group: after each of these the agent pauses, for much longer than
/// it is between two tries.
const PATIENCE: Duration = LONGEST_WATCH.saturating_add(Duration::from_secs(2));
const AGAIN: Duration = Duration::from_millis(50);

pub fn run(args: &Explain, container: &str, output: &mut Output) -> Result<()> {
    let reader = Reader::open()?;
    let lasts = args.interval.unwrap_or(LASTS);
    let most = match args.interval {
        None => Some(1),
        Some(_) => args.count.map(NonZeroU32::get),
    };
    let (ended, end) = channel();
    ctrlc::set_handler(move || {
        let _ = ended.send(());
    })
    .map_err(|error| Failure::new(format!("cannot wait for Ctrl-C: {error}")))?;
    let mut watch = match &reader {
        Reader::Kernel(fief) => match in_turn(PATIENCE, &end, || fief.watch(container, lasts)) {
            Some(watch) => Some(watch.map_err(|error| look::failure(fief, error))?),
            None => return Ok(()),
        },
        Reader::Agent(_) if lasts > LONGEST_WATCH => {
            let most = LONGEST_WATCH.as_secs();
            return Err(Failure::usage(format!(
                "the agent watches a container for {most} s at a time at most; name a shorter --interval, or become root"
            )));
        }
        Reader::Agent(_) => None,
    };
    for round in 1_u32.. {
        let charges = match (&reader, &mut watch) {
            (Reader::Kernel(fief), Some(watch)) => {
                if end.recv_timeout(lasts).is_ok() {
                    break;
                }
                watch.look(lasts).map_err(|error| look::failure(fief, error))?
            }
            // it watches while it is asked; between two looks of one user it is there for others
            _ => reader.charges(&ChargeQuestion { container: container.to_owned(), lasts })?,
        };
        if end.try_recv().is_ok() {
            break;
        }
        if round > 1 && !args.json {
            output.line("")?;
        }
        match args.json {
            true => objects(&charges).iter().try_for_each(|object| output.json(object)),
            false => output.text(page(&charges)),
        }?;
        output.flush()?;
        if Some(round) == most {
            break;
        }
    }
    Ok(())
}

/// Waits while somebody else watches, but not for ever. `None`: it was interrupted.
fn in_turn<T>(
    patience: Duration,
    end: &Receiver<()>,
    watch: impl Fn() -> std::result::Result<T, Error>,
) -> Option<std::result::Result<T, Error>> {
    let until = Instant::now() + patience;
    loop {
        match watch() {
            Err(error) if error.kind() == ErrorKind::Exists && Instant::now() < until => {
                if end.recv_timeout(AGAIN).is_ok() {
                    return None;
                }
            }
            watch => return Some(watch),
        }
    }
}

/// The names are a promise to programs; `docs/cli.md` lists them.
#[derive(Serialize)]
struct Object<'a> {
    record: &'static str,
    container: &'a str,
    from_ns: u64,
    to_ns: u64,
    why: &'static str,
    thread: Option<i32>,
    process: Option<i32>,
    name: Option<&'a str>,
    port: Option<u16>,
    kind: Option<&'static str>,
    charged_ns: u64,
    charges: u64,
}

fn objects(charges: &Charges) -> Vec<Object<'_>> {
    let object = |source| Object::of(charges, source);
    charges.sources.iter().map(object).collect()
}

impl<'a> Object<'a> {
    fn of(charges: &'a Charges, source: &'a ChargeSource) -> Self {
        let thread = source.thread.as_ref();
        Self {
            record: "charge",
            container: &charges.container,
            from_ns: charges.from_ns,
            to_ns: charges.to_ns,
            why: source.why.as_str(),
            thread: thread.map(|thread| thread.id),
            process: thread.and_then(|thread| thread.process),
            name: thread.map(|thread| thread.name.as_str()).filter(|name| !name.is_empty()),
            port: source.port,
            kind: source.kind,
            charged_ns: source.ns,
            charges: source.charges,
        }
    }
}

fn page(charges: &Charges) -> String {
    let all = charges.ns();
    let below = if charges.below { " and what is below it" } else { "" };
    let head = format!(
        "{} {}{below}: {} of CPU time in {}, by {}\n",
        clock::wall_second(charges.to_ns),
        printable(&charges.container),
        duration(all),
        duration(charges.to_ns.saturating_sub(charges.from_ns)),
        counted(charges.sources.len(), "source"),
    );
    if charges.sources.is_empty() {
        return head;
    }
    let mut table = Table::new(&[
        ("TIME", Align::Right),
        ("%", Align::Right),
        ("CHARGES", Align::Right),
        ("WHY", Align::Left),
        ("WHO", Align::Left),
    ]);
    for source in &charges.sources {
        let fraction = source.ns as f64 / all.max(1) as f64;
        let charges = source.charges.to_string();
        table.push([duration(source.ns), part(fraction), charges, source.why.means().to_owned(), who(source)]);
    }
    format!("{head}{table}")
}

/// `nginx[812]`, and with the thread's number where it is not the process's own: `worker[812/815]`.
fn who(source: &ChargeSource) -> String {
    match (&source.thread, source.port, source.kind) {
        (Some(thread), _, _) => {
            let name = if thread.name.is_empty() { "?" } else { &thread.name };
            match thread.process {
                Some(process) if process != thread.id => format!("{name}[{process}/{}]", thread.id),
                _ => format!("{name}[{}]", thread.id),
            }
        }
        (None, Some(port), _) => format!("port {port}"),
        (None, None, Some(kind)) => kind.to_owned(),
        (None, None, None) => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use fief_control::{ChargedThread, Why};

    fn charges() -> Charges {
        let source = |why, ns| ChargeSource { why, thread: None, port: None, kind: None, ns, charges: 3 };
        let thread = ChargedThread { id: 815, process: Some(812), name: "worker".into() };
        Charges {
            container: "shop".into(),
            below: true,
            from_ns: 1_000_000_000,
            to_ns: 2_000_000_000,
            sources: vec![
                ChargeSource { thread: Some(thread), ..source(Why::Follow, 750_000_000) },
                ChargeSource { port: Some(443), ..source(Why::Packet, 250_000_000) },
                source(Why::Rest, 0),
            ],
        }
    }

    #[test]
    fn another_ones_watch_is_waited_for_but_not_for_ever() {
        let (ended, end) = channel();
        let fails = |kind| Err::<u32, _>(Error::new(kind, "no"));
        let tries = Cell::new(0);
        let third = || {
            tries.set(tries.get() + 1);
            if tries.get() < 3 { fails(ErrorKind::Exists) } else { Ok(7) }
        };
        assert_eq!(in_turn(PATIENCE, &end, third).and_then(std::result::Result::ok), Some(7));
        let kind = |patience, kind| match in_turn(patience, &end, || fails(kind)) {
            Some(Err(error)) => Some(error.kind()),
            _ => None,
        };
        assert_eq!(kind(AGAIN * 2, ErrorKind::Exists), Some(ErrorKind::Exists));
        assert_eq!(kind(PATIENCE, ErrorKind::NotFound), Some(ErrorKind::NotFound));
        ended.send(()).expect("somebody listens");
        assert_eq!(kind(PATIENCE, ErrorKind::Exists), None, "interrupted");
    }

    #[test]
    fn a_page_says_how_much_why_and_by_whom() {
        let page = page(&charges());
        let first = page.lines().next().expect("a head");
        assert!(first.ends_with("shop and what is below it: 1.000 s of CPU time in 1.000 s, by 3 sources"), "{page}");
        let lines: Vec<_> = page.lines().skip(2).map(|line| line.split_whitespace().collect::<Vec<_>>()).collect();
        assert_eq!(lines[0][..4], ["750", "ms", "75.0", "3"], "{page}");
        assert!(lines[0].ends_with(&["connections", "or", "files", "worker[812/815]"]), "{page}");
        assert!(lines[1].ends_with(&["sockets", "port", "443"]), "{page}");
        let none = super::page(&Charges { sources: Vec::new(), below: false, ..charges() });
        assert!(none.ends_with(" shop: 0 of CPU time in 1.000 s, by 0 sources\n"), "{none}");
    }

    #[test]
    fn a_thread_is_named_with_its_process() {
        let source = |id, process, name: &str| ChargeSource {
            why: Why::Home,
            thread: Some(ChargedThread { id, process, name: name.into() }),
            port: None,
            kind: None,
            ns: 1,
            charges: 1,
        };
        assert_eq!(who(&source(7, Some(7), "nginx")), "nginx[7]");
        assert_eq!(who(&source(8, Some(7), "nginx")), "nginx[7/8]");
        assert_eq!(who(&source(8, None, "")), "?[8]");
    }

    #[test]
    fn every_name_of_the_object_is_in_the_documentation() {
        let page = include_str!("../../../../../docs/cli.md");
        let charges = charges();
        let object = serde_json::to_value(&objects(&charges)[0]).expect("texts and numbers");
        for name in object.as_object().expect("an object").keys() {
            assert!(page.contains(&format!("`{name}`")), "{name} is missing");
        }
        for why in [Why::Home, Why::Call, Why::Follow, Why::Program, Why::Writeback, Why::Packet, Why::Lane]
            .into_iter()
            .chain([Why::Kernel, Why::KernelThread, Why::Unmanaged, Why::Rest])
        {
            assert!(page.contains(&format!("`{}`", why.as_str())), "{} is missing", why.as_str());
        }
    }
}
