// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Records of the system's journal, in its native protocol: fields for programs beside a sentence for people. The crate
//! tracing-journald writes them.
//!
//! They are of events ([`crate::events`]), seen by a thread of its own: a journal that does not read holds nobody up. The looks cost a
//! thousandth of a CPU at most, a fifth of what the agent may use with its scrapes; those of a large installation are further apart.

use std::io;
use std::os::linux::fs::MetadataExt;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use fief_control::{ErrorKind, FrontView, Result, Status, cpu_spent};
use tracing::Dispatch;
use tracing::dispatcher;
use tracing_journald::{Priority, PriorityMappings};
use tracing_subscriber::layer::SubscriberExt;

use crate::events::{Event, Fields, Kind, Look, Seen, Weight};
use crate::reading::Readings;

/// Between two looks, unless they are costly.
const EVERY: Duration = Duration::from_secs(5);
/// The bound of the agent is half of a hundredth, with its scrapes.
const TIMES_ITS_COST: u32 = 1000;

/// What `journalctl -t` takes.
const IDENTIFIER: &str = "fief-agent";

/// A connection to the journal.
#[derive(Debug)]
pub(crate) struct Journal {
    to: Dispatch,
    scope: String,
}

/// Whether standard error is the journal's, as it is for a service of systemd, which says so by device and inode
/// (`JOURNAL_STREAM` in systemd.exec(5)), and the journal takes records.
pub fn reads_standard_error() -> bool {
    let stream = std::env::var("JOURNAL_STREAM").unwrap_or_default();
    let meta = std::fs::metadata("/proc/self/fd/2");
    let is_journals = meta.is_ok_and(|meta| stream == format!("{}:{}", meta.st_dev(), meta.st_ino()));
    // with another root than the machine's it is out of reach
    is_journals && tracing_journald::layer().is_ok()
}

impl Journal {
    /// Errors: no journal listens.
    pub(crate) fn open(scope: &str) -> io::Result<Self> {
        let journal = tracing_journald::Layer::new()?
            .with_field_prefix(None)
            .with_syslog_identifier(IDENTIFIER.to_owned())
            .with_priority_mappings(PriorityMappings {
                warn: Priority::Warning,
                info: Priority::Notice,
                debug: Priority::Informational,
                ..PriorityMappings::new()
            });
        Ok(Self { to: Dispatch::new(tracing_subscriber::registry().with(journal)), scope: scope.to_owned() })
    }

    fn write(&self, (kind, fields): &Event) {
        macro_rules! record {
            ($level:ident) => {
                tracing::$level!(
                    message_id = message_id(*kind),
                    fief_event = kind.as_str(),
                    fief_scope = self.scope.as_str(),
                    fief_mode = fields.mode,
                    fief_listener = fields.listener.as_deref(),
                    fief_source = fields.source.as_deref(),
                    fief_reason = fields.reason,
                    fief_seconds = fields.seconds,
                    fief_level = fields.level,
                    fief_level_before = fields.before,
                    fief_error = fields.error,
                    fief_count = fields.count,
                    "{}",
                    fields.message
                )
            };
        }
        dispatcher::with_default(&self.to, || match kind.weight() {
            Weight::Warning => record!(warn),
            Weight::Notice => record!(info),
            Weight::Informational => record!(debug),
        });
    }

    /// Until the other end of `ended` is dropped.
    pub(crate) fn keep(&self, readings: &Readings, ended: &Receiver<()>) {
        let (mut seen, mut failed, mut spent) = (Seen::default(), false, cpu_spent());
        loop {
            match look(readings, &mut seen) {
                Ok(events) => {
                    events.iter().for_each(|event| self.write(event));
                    failed = false;
                }
                Err(error) if !failed => {
                    self.write(&(Kind::Problem, Fields { message: error.to_string(), ..Fields::default() }));
                    failed = true;
                }
                Err(_) => {}
            }
            // what counted only behind the one before counts here
            let before = std::mem::replace(&mut spent, cpu_spent());
            if !matches!(ended.recv_timeout(pause(spent - before)), Err(RecvTimeoutError::Timeout)) {
                return;
            }
        }
    }
}

/// After a look that cost so much.
fn pause(cost: Duration) -> Duration {
    EVERY.max(cost * TIMES_ITS_COST)
}

fn look(readings: &Readings, seen: &mut Seen) -> Result<Vec<Event>> {
    turn(readings.status_and_front_now(), || readings.fief.in_force(), seen)
}

/// A first apply that was killed, or is at work, is no policy, as in the metrics.
fn turn(
    read: Result<(Arc<Status>, FrontView)>,
    in_force: impl FnOnce() -> bool,
    seen: &mut Seen,
) -> Result<Vec<Event>> {
    match read {
        Ok((status, _)) if !status.in_force => Ok(seen.turn(None)),
        Ok((status, front)) => Ok(seen.turn(Some(&Look { status: &status, front: &front }))),
        Err(error) if error.kind() == ErrorKind::NotFound && !in_force() => Ok(seen.turn(None)),
        Err(error) => Err(error),
    }
}

/// By which `journalctl MESSAGE_ID=` finds all of a kind, whatever language or version their sentence is of.
fn message_id(kind: Kind) -> &'static str {
    match kind {
        Kind::PolicyInForce | Kind::PolicyGone => "44bf278c6aed4e1b82b03055c1477459",
        Kind::Problem => "7ecbc197f01b400089f5cf01ee09da43",
        Kind::ProblemGone => "fe839c378d644f6f81ad77ad708270b4",
        Kind::ShutOut => "499f3a96832744cd8f883afdc1dfdf83",
        Kind::LetIn => "dd82f8f685bb4fceb1145acc2a7ef6ed",
        Kind::Level => "ea4e1329b14d487a854ec4b751708ace",
        Kind::Failure => "e30f6eb495014404b1bbd353292ed9b5",
    }
}

#[cfg(test)]
mod tests {
    use fief_control::Error;

    use super::*;
    use crate::metrics::tests::{front, status};

    #[test]
    fn a_first_apply_that_is_half_done_is_no_policy() {
        type Read = Result<(Arc<Status>, FrontView)>;
        let half = || -> Read { Ok((Arc::new(Status { in_force: false, ..status() }), front())) };
        let refused = || -> Read { Err(Error::new(ErrorKind::NotFound, "no policy has come into force")) };
        let of = |read: Read, in_force: bool, seen: &mut Seen| turn(read, || in_force, seen).map(|events| events.len());
        for read in [&half as &dyn Fn() -> Read, &refused] {
            let mut seen = Seen::default();
            assert_eq!(of(read(), false, &mut seen).expect("it is known"), 0, "nothing is told");
            assert!(of(Ok((Arc::new(status()), front())), true, &mut seen).expect("read") > 1);
            let gone = turn(read(), || false, &mut seen).expect("it is known");
            assert!(matches!(&gone[..], [(Kind::PolicyGone, _)]), "{gone:?}");
        }
        of(refused(), true, &mut Seen::default()).expect_err("something else is not there");
    }

    #[test]
    fn looks_cost_a_fifth_of_what_the_agent_may_use_however_long_they_are() {
        for cost in [1, 5, 6, 250, 60_000].map(Duration::from_millis) {
            let part = cost.as_secs_f64() / (cost + pause(cost)).as_secs_f64();
            assert!(part <= 0.001, "{cost:?}: {part}");
        }
        assert_eq!(pause(Duration::from_millis(5)), EVERY);
    }
}
