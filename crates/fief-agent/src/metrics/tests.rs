// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the metrics say, in the words of the format; what Prometheus' own tool says of it is asked where the command is tested.

use std::collections::BTreeSet;

use fief::Reason;
use fief_control::{
    ContainerView, LoadView, QueueClassView, QueueView, SchedulerView, ShutOut, UnguardedInterface, VerdictView,
};
use fief_policy::Mode;

use super::*;
use crate::series::tests::{container, snapshot};

fn verdict(container: &str, rule: Option<u32>, count: u64) -> VerdictView {
    VerdictView {
        listener: "web".into(),
        container: container.into(),
        rule,
        reason: Reason::SynRate,
        monitored: false,
        count,
    }
}

fn class(container: &str, p99: u64) -> QueueClassView {
    QueueClassView {
        container: container.into(),
        waiting: 3,
        in_service: 1,
        length: 100,
        wait_max_ns: 5_000_000_000,
        reserve: 0,
        entered: 10,
        released: 5,
        refused_full: 1,
        refused_wait: 2,
        gone: 0,
        latency: None,
        waited_ns: 1_500_000_000,
        wait_p50_ns: None,
        wait_p99_ns: Some(p99),
        waits: fief_control::Waits::default(),
    }
}

pub(crate) fn front() -> FrontView {
    FrontView {
        taken_ns: 1,
        interfaces: Vec::new(),
        listeners: vec!["web".into()],
        verdicts: vec![verdict("shop", Some(1), 3), verdict("shop/b", None, 4), verdict("shop/c", None, 5)],
        loads: vec![LoadView {
            listener: "web".into(),
            level: "busy",
            queue_percent: 30,
            cpu_ppm: Some(1),
            drops_per_second: 0,
            age_ns: 1,
        }],
        queues: vec![QueueView {
            listener: "web".into(),
            places: 4,
            finds: true,
            places_below: None,
            in_service: 2,
            waiting: 6,
            length: 100,
            memory: 0,
            too_long: 0,
            would_wait: 0,
            uncounted: 0,
            carried_again: 0,
            classes: vec![class("shop/b", 2_000_000), class("shop/c", 3_000_000)],
        }],
        shut_out: vec![ShutOut { source: "10.0.0.0/24".into(), why: Reason::SynIsolated, remaining_ns: 1 }],
        proven_sources: 7,
        notes: Vec::new(),
    }
}

pub(crate) fn status() -> Status {
    Status {
        in_force: true,
        policy: None,
        since: Some(SystemTime::UNIX_EPOCH + std::time::Duration::from_millis(1_500)),
        mode: Some(Mode::Enforce),
        sha256: None,
        origin: None,
        builds: [7, 7],
        failures: Vec::new(),
        interfaces: vec!["eth0".into()],
        unguarded: [("eth1", WhyUnguarded::NotNamed), ("eth2", WhyUnguarded::NotNamed), ("lo", WhyUnguarded::Loopback)]
            .map(|(name, why)| UnguardedInterface { name: name.into(), why })
            .into(),
        listeners: Vec::new(),
        units: Vec::new(),
        charged: true,
        scheduler: SchedulerView::Off,
        enforced: Vec::new(),
        unenforced: Vec::new(),
        problems: vec!["one".into()],
    }
}

fn scrape(most: usize) -> Scrape {
    let containers = vec![
        container("shop", 8, None, 1_250_000_000),
        container("shop/b", 9, Some(8), 1),
        container("shop/c", 10, Some(8), 2_000_000_000),
    ];
    scrape_of(most, containers, front(), status())
}

pub(crate) fn scrape_of(most: usize, containers: Vec<ContainerView>, front: FrontView, status: Status) -> Scrape {
    let moment = Moment { snapshot: snapshot(containers), front };
    let series = SeriesOptions { most, applications: false };
    let in_force = Some((Arc::new(moment), Arc::new(status)));
    let status_age = Some(Duration::from_secs(3600));
    Scrape { in_force, status_age, series, told: Arc::default(), record_failures: Some(2) }
}

pub(crate) fn text(scrape: Scrape, format: Format) -> String {
    let mut text = Vec::new();
    write(scrape, format, &mut text).expect("memory");
    String::from_utf8(text).expect("text")
}

fn has(text: &str, lines: &[&str]) {
    for line in lines {
        assert!(text.lines().any(|one| one == *line), "{line} in\n{text}");
    }
}

#[test]
fn both_formats_say_the_same_of_a_moment() {
    let lines = [
        "fief_in_force 1",
        "fief_problems 1",
        "fief_interfaces{state=\"guarded\"} 1",
        "fief_interfaces{state=\"not-named\"} 2",
        "fief_interfaces{state=\"loopback\"} 1",
        "fief_interfaces{state=\"came-later\"} 0",
        "fief_record_failures_total 2",
        "fief_policy_applied_timestamp_seconds 1.5",
        "fief_container_cpu_seconds_total{container=\"shop\",kind=\"thread\"} 1.25",
        "fief_container_threads{container=\"shop\"} 1",
        "fief_verdicts_total{listener=\"web\",container=\"shop\",rule=\"1\",reason=\"syn-rate\",monitored=\"false\"} 3",
        "fief_listener_level{listener=\"web\",level=\"busy\"} 1",
        "fief_listener_level{listener=\"web\",level=\"overloaded\"} 0",
        "fief_listener_accept_queue_ratio{listener=\"web\"} 0.3",
        "fief_queue_waited_seconds_total{listener=\"web\",container=\"shop/b\"} 1.5",
        "fief_queue_wait_seconds{listener=\"web\",container=\"shop/c\",part=\"0.99\"} 0.003",
        "fief_core_errors_total{error=\"table_full\"} 2",
        "fief_cpu_charged 1",
    ];
    has(&text(scrape(10), Format::Text), &lines);
    has(&text(scrape(10), Format::OpenMetrics), &lines);
    has(&text(Scrape::default(), Format::Text), &["fief_in_force 0"]);
}

/// A file may be read long after its agent has ended.
#[test]
fn numbers_say_when_they_were_read() {
    let begun = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("it is later").as_secs_f64();
    let time = |text: &str, what: &str| {
        let series = format!("fief_read_timestamp_seconds{{what=\"{what}\"}} ");
        text.lines().find_map(|line| line.strip_prefix(&series)?.parse::<f64>().ok())
    };
    let own = text(scrape(10), Format::Text);
    let [metrics, status] = ["metrics", "status"].map(|what| time(&own, what).expect(what));
    assert!(metrics >= begun && (metrics - status - 3600.0).abs() < 0.001, "{own}");
    let nothing = text(Scrape::default(), Format::Text);
    assert!(time(&nothing, "metrics") >= Some(begun) && time(&nothing, "status").is_none(), "{nothing}");
}

#[test]
fn what_has_no_series_of_its_own_is_summed_everywhere() {
    let text = text(scrape(1), Format::Text);
    has(
        &text,
        &[
            "fief_containers_summed 2",
            "fief_container_threads{container=\"all others\"} 2",
            "fief_verdicts_total{listener=\"web\",container=\"all others\",rule=\"\",reason=\"syn-rate\",monitored=\"false\"} 9",
            "fief_queue_waiting{listener=\"web\",container=\"all others\"} 6",
            "fief_queue_wait_seconds{listener=\"web\",container=\"all others\",part=\"0.99\"} 0.003",
        ],
    );
    let series: Vec<_> =
        text.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.rsplit_once(' ')).collect();
    let distinct: BTreeSet<_> = series.iter().map(|(labels, _)| labels).collect();
    assert_eq!(distinct.len(), series.len(), "no series is there twice");
}

/// A policy may have as many rules as it likes; who stores the series has no room for each by container and reason.
#[test]
fn verdicts_of_very_many_rules_are_a_bounded_number_of_series_and_none_is_lost() {
    const MOST: usize = 100;
    let reasons = [Reason::SynRate, Reason::SynIsolated];
    let mut front = front();
    front.verdicts = (1..=6_000)
        .map(|rule| VerdictView {
            reason: reasons[rule as usize % 2],
            monitored: rule % 3 == 0,
            ..verdict(&format!("shop/c{}", rule % 500), Some(rule), u64::from(rule))
        })
        .chain((0..500).map(|at| verdict(&format!("shop/c{at}"), None, 1)))
        .collect();
    let total: u64 = front.verdicts.iter().map(|verdict| verdict.count).sum();
    let containers: Vec<_> = (0..500).map(|at| container(&format!("shop/c{at}"), 8 + at, None, 1)).collect();
    let of = |most| text(scrape_of(most, containers.clone(), front.clone(), status()), Format::Text);
    let series = |text: &str| {
        let lines = text.lines().filter(|line| line.starts_with("fief_verdicts_total{"));
        let split = |line: &str| line.rsplit_once(' ').map(|(labels, count)| (labels.to_owned(), count.to_owned()));
        lines.filter_map(split).collect::<Vec<_>>()
    };
    for most in [0, 1, MOST, 10_000] {
        let series = series(&of(most));
        let sum: u64 = series.iter().map(|(_, count)| count.parse::<u64>().expect("a number")).sum();
        assert_eq!(sum, total, "{most}");
        let distinct: BTreeSet<_> = series.iter().map(|(labels, _)| labels).collect();
        assert_eq!(distinct.len(), series.len(), "{most}: no series is there twice");
        // listener, rule or not, reason, monitored
        assert!(series.len() <= (2 * most + 2 * 2 * 2).min(6_500), "{most}: {} series", series.len());
    }
    let text = of(MOST);
    let busiest = "fief_verdicts_total{listener=\"web\",container=\"shop/c0\",rule=\"6000\",reason=\"syn-rate\",monitored=\"true\"} 6000";
    has(&text, &[busiest]);
    let others = "fief_verdicts_total{listener=\"web\",container=\"shop/c0\",rule=\"others\"";
    assert!(text.contains(others) && !text.contains("rule=\"1000\""), "{text}");
}

/// Prometheus takes a counter that falls for one that began anew.
#[test]
fn what_a_reading_had_too_much_of_does_not_fall_in_any_format() {
    let told = Arc::<Mutex<Told>>::default();
    let tell = |generation: u32, thread_ns: u64, entered: u64, format: Format| {
        let shop = ContainerView { generation, ..container("shop", 8, None, thread_ns) };
        let mut front = front();
        front.queues[0].classes[0].entered = entered;
        text(Scrape { told: Arc::clone(&told), ..scrape_of(10, vec![shop], front, status()) }, format)
    };
    let is_told = |text: &str, seconds: &str, entered: &str| {
        let time = format!("fief_container_cpu_seconds_total{{container=\"shop\",kind=\"thread\"}} {seconds}");
        let all = "fief_queue_entered_total{listener=\"web\",container=\"all others\"}";
        has(text, &[&time, &format!("{all} {entered}")]);
    };
    is_told(&tell(1, 1_250_000_000, 10, Format::Text), "1.25", "20");
    is_told(&tell(1, 1_200_000_000, 9, Format::OpenMetrics), "1.25", "20");
    is_told(&tell(1, 1_750_000_000, 12, Format::Text), "1.75", "22");
    // another container has the name now
    is_told(&tell(2, 250_000_000, 12, Format::Text), "0.25", "22");
    // all was taken down and put in force again: what is always there has a generation that tells nothing
    is_told(&tell(1, 200_000_000, 11, Format::Text), "0.2", "21");
    is_told(&tell(2, 250_000_000, 11, Format::Text), "0.25", "21");
    // nothing was in force in between
    text(Scrape { told: Arc::clone(&told), ..Scrape::default() }, Format::Text);
    is_told(&tell(2, 125_000_000, 11, Format::Text), "0.125", "21");
}

#[test]
fn a_name_cannot_make_a_series_of_its_own() {
    let mut scrape = scrape(10);
    let liar = "x\"} 1\nfief_in_force{a=\"\\";
    let moment = scrape.in_force.as_mut().and_then(|(moment, _)| Arc::get_mut(moment)).expect("in force");
    moment.snapshot = snapshot(vec![container(liar, 8, None, 1)]);
    let text = text(scrape, Format::Text);
    has(&text, &["fief_container_threads{container=\"x\\\"} 1\\nfief_in_force{a=\\\"\\\\\"} 1"]);
}

#[test]
fn every_metric_is_in_the_documentation() {
    let page = include_str!("../../../../docs/metrics.md");
    let text = text(scrape(10), Format::Text);
    let names = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next());
    let missing: Vec<_> =
        names.filter(|name| !page.lines().any(|line| line.split([' ', '{']).next() == Some(name))).collect();
    assert!(missing.is_empty(), "{missing:?}");
}
