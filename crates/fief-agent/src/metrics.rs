// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The metrics: which there are, and what of a reading they are made of. The crate prometheus-client writes them in both formats.
//!
//! Names, units and labels are a promise; `docs/metrics.md` lists them.

use std::collections::BTreeMap;
use std::fmt::{Error, Write};
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use fief::Usage;
use fief_control::{FrontView, Moment, Snapshot, Status, WhyUnguarded};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeCounterValue, EncodeGaugeValue, EncodeLabelValue, EncodeMetric, prometheus_text, text,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};

use crate::series::{self, Series, SeriesOptions};
use crate::told::Told;

type Result = std::result::Result<(), Error>;

/// A value of a label, and where the sample of it stands.
type Counter = (&'static str, fn(&Usage) -> u64);

/// One moment, or that nothing is in force.
#[derive(Debug, Default)]
pub(crate) struct Scrape {
    pub(crate) in_force: Option<(Arc<Moment>, Arc<Status>)>,
    /// How old the status is.
    pub(crate) status_age: Option<Duration>,
    pub(crate) series: SeriesOptions,
    /// By the scrapes before.
    pub(crate) told: Arc<Mutex<Told>>,
    /// What a record could not write.
    pub(crate) record_failures: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    OpenMetrics,
    /// The older text format.
    Text,
}

impl Format {
    pub(crate) fn kind(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Text => prometheus_text::CONTENT_TYPE,
        }
    }
}

/// Writes all metrics of a moment as they are made: of many containers they are some megabytes.
pub(crate) fn write(scrape: Scrape, format: Format, to: &mut dyn io::Write) -> io::Result<()> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(scrape));
    let mut to = Text { to, failed: None };
    let written = match format {
        Format::OpenMetrics => text::encode(&mut to, &registry),
        Format::Text => prometheus_text::encode(&mut to, &registry),
    };
    match (written, to.failed) {
        (Ok(()), _) => Ok(()),
        (Err(_), failed) => Err(failed.unwrap_or_else(|| io::Error::other("the metrics cannot be written"))),
    }
}

/// Keeps the error that std::fmt has no room for.
struct Text<'a> {
    to: &'a mut dyn io::Write,
    failed: Option<io::Error>,
}

impl Write for Text<'_> {
    fn write_str(&mut self, text: &str) -> Result {
        self.to.write_all(text.as_bytes()).map_err(|error| {
            self.failed = Some(error);
            Error
        })
    }
}

/// Families, one after the other.
struct Families<'a, 'e> {
    encoder: &'a mut DescriptorEncoder<'e>,
}

impl Families<'_, '_> {
    fn counters<const N: usize, L: EncodeLabelValue, V: EncodeCounterValue>(
        &mut self,
        (name, unit, help): (&str, Option<Unit>, &str),
        samples: impl IntoIterator<Item = ([(&'static str, L); N], V)>,
    ) -> Result {
        let mut family = self.encoder.encode_descriptor(name, help, unit.as_ref(), MetricType::Counter)?;
        for (labels, value) in samples {
            ConstCounter::new(value).encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }

    fn gauges<const N: usize, L: EncodeLabelValue, V: EncodeGaugeValue>(
        &mut self,
        (name, unit, help): (&str, Option<Unit>, &str),
        samples: impl IntoIterator<Item = ([(&'static str, L); N], V)>,
    ) -> Result {
        let mut family = self.encoder.encode_descriptor(name, help, unit.as_ref(), MetricType::Gauge)?;
        for (labels, value) in samples {
            ConstGauge::new(value).encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }

    fn gauge<V: EncodeGaugeValue>(&mut self, about: (&str, Option<Unit>, &str), value: V) -> Result {
        let none: [(&'static str, &str); 0] = [];
        self.gauges(about, [(none, value)])
    }
}

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result {
        let mut families = Families { encoder: &mut encoder };
        let version = [([("version", env!("CARGO_PKG_VERSION"))], 1_u64)];
        families.gauges(("fief_agent_build_info", None, "Version of the agent."), version)?;
        let in_force = u64::from(self.in_force.is_some());
        families.gauge(("fief_in_force", None, "Whether a policy is in force."), in_force)?;
        when_read(&mut families, self.status_age)?;
        if let Some(failures) = self.record_failures {
            let about = ("fief_record_failures", None, "Readings that the record could not keep.");
            let none: [(&str, &str); 0] = [];
            families.counters(about, [(none, failures)])?;
        }
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((moment, status)) = &self.in_force else {
            *told = Told::default();
            return Ok(());
        };
        let Moment { snapshot, front } = &**moment;
        let mut series = Series::of(snapshot, self.series);
        told.hold_times(&mut series.rows, snapshot.cpus);
        policy(&mut families, status)?;
        containers(&mut families, snapshot, &series)?;
        machine(&mut families, snapshot)?;
        verdicts(&mut families, front, &series, self.series.most)?;
        listeners(&mut families, front)?;
        queues(&mut families, front, &series, &mut told, snapshot.cpus)
    }
}

/// A file outlives its agent, and who listens is looked for seldom.
fn when_read(families: &mut Families, status_age: Option<Duration>) -> Result {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let ages = [("metrics", Some(Duration::ZERO)), ("status", status_age)];
    let times =
        ages.into_iter().filter_map(|(what, age)| Some(([("what", what)], now.saturating_sub(age?).as_secs_f64())));
    let about =
        "When this was read, and the status that problems, interfaces and the time of the policy are of, since 1970.";
    families.gauges(("fief_read_timestamp", Some(Unit::Seconds), about), times)
}

fn policy(families: &mut Families, status: &Status) -> Result {
    let problems = status.problems.len() as u64;
    families.gauge(("fief_problems", None, "What fief status says does not work; 0 is healthy."), problems)?;
    let open = |why: WhyUnguarded| status.unguarded.iter().filter(|open| open.why == why).count() as u64;
    let states = [
        ("guarded", status.interfaces.len() as u64),
        ("loopback", open(WhyUnguarded::Loopback)),
        ("not-named", open(WhyUnguarded::NotNamed)),
        ("came-later", open(WhyUnguarded::CameLater)),
    ];
    let about = "Interfaces that are up: guarded by the front door, or why not.";
    let states = states.map(|(state, count)| ([("state", state)], count));
    families.gauges(("fief_interfaces", None, about), states)?;
    let since = status.since.and_then(|since| since.duration_since(SystemTime::UNIX_EPOCH).ok());
    let Some(since) = since else { return Ok(()) };
    let about = ("fief_policy_applied_timestamp", Some(Unit::Seconds), "When the policy was put in force, since 1970.");
    families.gauge(about, since.as_secs_f64())
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

fn containers(families: &mut Families, snapshot: &Snapshot, series: &Series) -> Result {
    let rows = &series.rows;
    families.gauge(("fief_containers", None, "Containers there are."), snapshot.containers.len() as u64)?;
    let about = (
        "fief_containers_summed",
        None,
        "Containers that would have series of their own and are counted as \"all others\" for want of room.",
    );
    families.gauge(about, series.left_out as u64)?;
    let by = |label: &'static str, values: [Counter; 2]| {
        rows.iter().flat_map(move |row| {
            let of = move |(value, read): Counter| {
                ([("container", row.container.as_str()), (label, value)], read(&row.usage))
            };
            values.map(of)
        })
    };
    // most containers never have most of these, and a line for each would be most of a scrape
    let is_used = |(_, count): &([(&'static str, &str); 2], u64)| *count > 0;
    let cpu = by("kind", [("thread", |u| u.thread_ns), ("receive", |u| u.receive_ns)]);
    let about = "CPU time, of threads and of protocol work on packets for its sockets.";
    let cpu = cpu.map(|(labels, ns)| (labels, seconds(ns)));
    families.counters(("fief_container_cpu", Some(Unit::Seconds), about), cpu)?;
    let packets = by("direction", [("in", |u| u.packets_in), ("out", |u| u.packets_out)]);
    families.counters(("fief_container_packets", None, "Packets of its sockets."), packets.filter(is_used))?;
    let bytes = by("direction", [("in", |u| u.bytes_in), ("out", |u| u.bytes_out)]);
    let about = "Bytes of these packets, from the network layer up.";
    families.counters(("fief_container_network", Some(Unit::Bytes), about), bytes.filter(is_used))?;
    let disk = by("direction", [("read", |u| u.disk_read_bytes), ("write", |u| u.disk_write_bytes)]);
    families.counters(
        ("fief_container_disk", Some(Unit::Bytes), "Bytes read from and written to disks."),
        disk.filter(is_used),
    )?;
    let faults = by("kind", [("minor", |u| u.minor_faults), ("major", |u| u.major_faults)]);
    families
        .counters(("fief_container_faults", None, "Page faults; major ones with disk work."), faults.filter(is_used))?;
    let syns = by("outcome", [("seen", |u| u.syns_seen), ("dropped", |u| u.syns_dropped)]);
    let about = "Connection requests of its class: all that were seen, and those of them that the listener dropped.";
    families.counters(("fief_container_syns", None, about), syns.filter(is_used))?;
    let accepts = rows
        .iter()
        .filter(|row| row.usage.accepts > 0)
        .map(|row| ([("container", row.container.as_str())], row.usage.accepts));
    families.counters(("fief_container_accepts", None, "Connections accepted for it."), accepts)?;
    let threads = rows.iter().map(|row| ([("container", row.container.as_str())], row.threads));
    families.gauges(("fief_container_threads", None, "Threads that are bound to it."), threads)?;
    let processes = rows.iter().map(|row| ([("container", row.container.as_str())], row.processes));
    families.gauges(("fief_container_processes", None, "Processes whose main thread is bound to it."), processes)?;
    let sockets = rows.iter().map(|row| ([("container", row.container.as_str())], row.sockets));
    families.gauges(("fief_container_sockets", None, "Labelled sockets that are open."), sockets)
}

fn machine(families: &mut Families, snapshot: &Snapshot) -> Result {
    let about = "Whether CPU time is charged; while nobody needs it, counters of it stand still.";
    families.gauge(("fief_cpu_charged", None, about), u64::from(snapshot.charged))?;
    let kinds = snapshot.system_kinds.iter().map(|(kind, ns)| ([("kind", *kind)], seconds(*ns)));
    let about = ("fief_system_cpu", Some(Unit::Seconds), "CPU time of the container system, by what it went to.");
    families.counters(about, kinds)?;
    let errors = snapshot.failures.iter().map(|(error, count)| ([("error", *error)], *count));
    families
        .counters(("fief_core_errors", None, "What the kernel side could not do, since the installation."), errors)?;
    families.gauge(("fief_units", None, "Cgroups that are managed."), snapshot.units.len() as u64)
}

/// Labels that are one to a reader are summed: two containers may be the same series.
fn summed<K: Ord>(samples: impl IntoIterator<Item = (K, u64)>) -> impl Iterator<Item = (K, u64)> {
    let mut sums = BTreeMap::new();
    samples.into_iter().for_each(|(labels, count)| *sums.entry(labels).or_insert(0) += count);
    sums.into_iter()
}

/// The label `rule` of all rules without series of their own. The others are numbers.
const OTHER_RULES: &str = "others";

/// Labels of a verdict: listener, container, rule, reason, monitored.
type Verdict = [(&'static str, String); 5];
const CONTAINER: usize = 1;
const RULE: usize = 2;

/// By labels. A policy may have a million rules: the busiest have series of their own up to the bound, and the others are summed by
/// container; if these are beyond the bound too, the least busy of them in one.
fn verdict_series(front: &FrontView, series: &Series, most: usize) -> impl Iterator<Item = (Verdict, u64)> {
    let verdicts = front.verdicts.iter().map(|verdict| {
        let labels = [
            ("listener", verdict.listener.clone()),
            ("container", series.label(&verdict.container).to_owned()),
            ("rule", verdict.rule.map_or_else(String::new, |rule| rule.to_string())),
            ("reason", verdict.reason.as_str().to_owned()),
            ("monitored", verdict.monitored.to_string()),
        ];
        (labels, verdict.count)
    });
    let mut busiest: Vec<_> = summed(verdicts).collect();
    let others = less_busy(&mut busiest, most).into_iter().map(|(mut labels, count)| {
        if !labels[RULE].1.is_empty() {
            labels[RULE].1 = OTHER_RULES.to_owned();
        }
        (labels, count)
    });
    let mut others: Vec<_> = summed(others).collect();
    let rest = less_busy(&mut others, most).into_iter().map(|(mut labels, count)| {
        labels[CONTAINER].1 = series::REST.to_owned();
        (labels, count)
    });
    summed(busiest.into_iter().chain(others).chain(rest))
}

/// Takes out those beyond the bound.
fn less_busy(samples: &mut Vec<(Verdict, u64)>, most: usize) -> Vec<(Verdict, u64)> {
    // those that are as busy stay in the order of their labels, and a scrape has the same ones as the scrape before
    samples.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    samples.split_off(most.min(samples.len()))
}

fn verdicts(families: &mut Families, front: &FrontView, series: &Series, most: usize) -> Result {
    let about = "Verdicts of the front door; monitored: it was let pass all the same.";
    families.counters(("fief_verdicts", None, about), verdict_series(front, series, most))?;
    families.gauge(
        ("fief_shut_out_sources", None, "Sources and prefixes that are shut out now."),
        front.shut_out.len() as u64,
    )?;
    families.gauge(
        ("fief_proven_sources", None, "Sources that have returned a cookie, as far as is remembered."),
        front.proven_sources as u64,
    )
}

fn listeners(families: &mut Families, front: &FrontView) -> Result {
    let levels = front.loads.iter().flat_map(|load| {
        ["always", "busy", "overloaded"].map(|level| {
            ([("listener", load.listener.clone()), ("level", level.to_owned())], u64::from(load.level == level))
        })
    });
    families
        .gauges(("fief_listener_level", None, "The level of overload of a listener is 1, the others are 0."), levels)?;
    let queues =
        front.loads.iter().map(|load| ([("listener", load.listener.clone())], f64::from(load.queue_percent) / 100.0));
    let about = "Connections that wait for accept, of the length of the listen queue.";
    families.gauges(("fief_listener_accept_queue", Some(Unit::Other("ratio".to_owned())), about), queues)
}

fn queues(families: &mut Families, front: &FrontView, series: &Series, told: &mut Told, cpus: u32) -> Result {
    let by_queue = |read: fn(&fief_control::QueueView) -> u64| {
        summed(front.queues.iter().map(move |queue| ([("listener", queue.listener.clone())], read(queue))))
    };
    families.gauges(
        ("fief_queue_places", None, "Requests that the server gets at a time."),
        by_queue(|q| q.places.into()),
    )?;
    families.gauges(
        ("fief_queue_in_service", None, "Requests that the server works on."),
        by_queue(|q| q.in_service.into()),
    )?;
    let classes: Vec<_> =
        front.queues.iter().flat_map(|queue| queue.classes.iter().map(move |class| (queue, class))).collect();
    let labels = |queue: &fief_control::QueueView, class: &fief_control::QueueClassView| {
        [("listener", queue.listener.clone()), ("container", series.label(&class.container).to_owned())]
    };
    let by_class = |read: fn(&fief_control::QueueClassView) -> u64| {
        summed(classes.iter().map(move |(queue, class)| (labels(queue, class), read(class))))
    };
    families.gauges(("fief_queue_waiting", None, "Requests that wait."), by_class(|c| c.waiting.into()))?;
    let mut entered: Vec<_> = by_class(|c| c.entered).collect();
    told.hold_entered(&mut entered, cpus);
    families.counters(("fief_queue_entered", None, "Requests that did not have to wait."), entered)?;
    families.counters(
        ("fief_queue_released", None, "Requests that waited, and went to the server."),
        by_class(|c| c.released),
    )?;
    let waited = by_class(|c| c.waited_ns).map(|(labels, ns)| (labels, seconds(ns)));
    let about = "How long those that waited did, together.";
    families.counters(("fief_queue_waited", Some(Unit::Seconds), about), waited)?;
    let refused = summed(classes.iter().flat_map(|(queue, class)| {
        [("full", class.refused_full), ("wait", class.refused_wait), ("gone", class.gone)].map(|(why, count)| {
            let [listener, container] = labels(queue, class);
            ([listener, container, ("why", why.to_owned())], count)
        })
    }));
    let about = "Requests that got no place: no room, a wait that was or would be too long, or their client went away.";
    families.counters(("fief_queue_refused", None, about), refused)?;
    let waits = classes.iter().flat_map(|(queue, class)| {
        let quantiles = [("0.5", class.wait_p50_ns), ("0.99", class.wait_p99_ns)];
        let known = quantiles.into_iter().filter_map(|(part, ns)| ns.map(|ns| (part, ns)));
        known.map(|(part, ns)| {
            let [listener, container] = labels(queue, class);
            ([listener, container, ("part", part.to_owned())], ns)
        })
    });
    // of two that are one series, the longer wait
    let mut longest = BTreeMap::new();
    waits.for_each(|(labels, ns)| {
        let wait: &mut u64 = longest.entry(labels).or_default();
        *wait = ns.max(*wait);
    });
    let waits = longest.into_iter().map(|(labels, ns)| (labels, seconds(ns)));
    let about = "The wait that this part of the requests did not exceed, to an eighth.";
    families.gauges(("fief_queue_wait", Some(Unit::Seconds), about), waits)
}

#[cfg(test)]
mod board;
#[cfg(test)]
pub(crate) mod tests;
