// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Experiments of the lab, each once to its end in the smallest form: that they run and name their figures. What the
//! figures say is for a quiet machine.

use fief_testkit::{Feature, alone, require};
use serde_json::Value;
use tempfile::TempDir;

use crate::{lab, page};

/// In so short a time a busy machine may serve nobody whom a figure is of; then it is measured once more.
const TRIES: usize = 3;

/// What it printed, and its report; nothing where it failed.
fn once(name: &str) -> Option<(Vec<Value>, TempDir)> {
    let report = tempfile::tempdir().expect("a folder");
    let mut lab = lab(name);
    lab.args(["--json", "--report"]).arg(report.path()).env("FIEF_LAB_LEAST", "1");
    let ended = lab.output().expect("fief starts");
    if !ended.status.success() {
        eprintln!("{name} failed: {ended:?}");
        return None;
    }
    let text = String::from_utf8(ended.stdout).expect("text");
    let objects = text.lines().map(|line| serde_json::from_str(line).expect("an object a line")).collect();
    Some((objects, report))
}

/// `measured` have a value; `named` may have none in this form. The report has a plot, and can be read.
fn runs_to_its_end(name: &str, measured: &[&str], named: &[&str]) {
    if ![Feature::Root, Feature::NetNs, Feature::Cgroup2, Feature::Bpf, Feature::Nginx].into_iter().all(require) {
        return;
    }
    let _alone = alone();
    let lacks = |objects: &[Value]| {
        let figures = objects.last().expect("the figures are the last line");
        measured.iter().any(|figure| !figures[figure].is_number())
    };
    let mut tries = (0..TRIES).filter_map(|_| once(name));
    let (mut objects, mut report) = tries.next().unwrap_or_else(|| panic!("{name} failed {TRIES} times"));
    while lacks(&objects) {
        let Some(again) = tries.next() else { break };
        (objects, report) = again;
    }
    assert!(page::plots(report.path()) > 0, "the report of {name} has no plot");
    if require(Feature::Chromium) {
        [false, true].into_iter().for_each(|is_dark| page::is_read(report.path(), is_dark));
    }
    let figures = objects.last().expect("the figures are the last line");
    for figure in measured {
        assert!(figures[figure].is_number(), "{figure} in {figures}");
    }
    for figure in named {
        assert!(figures.get(figure).is_some(), "{figure} in {figures}");
    }
    for figure in figures.as_object().expect("an object").keys() {
        let meaning = objects.iter().find(|object| object["figure"] == *figure);
        let meaning = meaning.unwrap_or_else(|| panic!("{figure} says what it is"));
        let words = ["metric", "unit", "load"].map(|word| meaning[word].as_str().unwrap_or_default());
        assert!(words.iter().all(|word| !word.is_empty()), "{meaning}");
    }
}

#[test]
fn syn_flood_measures_those_who_are_known_and_those_who_come_for_the_first_time() {
    let measured = [
        "useful_70k",
        "useful_200k",
        "spoofed_70k",
        "syncookies2_70k",
        "nft_200k",
        "newcomer_p50_s",
        "newcomer_p90_s",
        "newcomer_p50_budget_s",
        "newcomer_p90_budget_s",
        "newcomer_p90_resend_s",
        "newcomer_p90_syncookies2_s",
        "newcomer_p90_nft_s",
    ];
    // those beside Fief may serve nobody in so short a flood, and nothing can be held against that
    let named = [
        "vs_syncookies2_70k",
        "vs_nft_200k",
        "newcomer_p90_synproxy_s",
        "newcomer_p90_isolated_into_s",
        "time_to_isolate_by_server_s",
        "by_server_70k",
    ];
    runs_to_its_end("syn-flood", &measured, &named);
}

#[test]
fn demo_shows_nginx_and_go() {
    if !require(Feature::Go) {
        return;
    }
    runs_to_its_end("demo", &["nginx.t200_vs_plain", "go.t200_vs_plain"], &[]);
}

#[test]
fn primitives_measures_each_operation() {
    let measured = [
        "bind_vs_getppid",
        "bind_vs_cgroup",
        "create_destroy_vs_socket",
        "bind_contended",
        "foreign_sockopt",
        "usage_ns",
        "pass_ns",
    ];
    runs_to_its_end("primitives", &measured, &[]);
}

#[test]
fn rebind_holds_charges_against_work() {
    runs_to_its_end("rebind", &["worst_error_points", "ring_vs_getppid", "record_ns", "ring_ns", "bind_ns"], &[]);
}

/// Where the kernel does, `--vm` boots another one all the same, and the figures are of that one.
#[test]
fn switch_cost_names_the_machine_that_takes_schedulers() {
    if !require(Feature::Root) || std::path::Path::new("/sys/kernel/sched_ext").exists() {
        return;
    }
    let ended = lab("switch-cost").output().expect("fief starts");
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(!ended.status.success() && said.contains("fief lab switch-cost --vm"), "{said}");
}

#[test]
fn metrics_measures_the_agent_and_the_record() {
    let measured = [
        "scrape_ms",
        "scrape_worst_ms",
        "cpu_percent",
        "rss_mib",
        "mib_per_day",
        "replay_ms",
        "start_ms",
        "start_exec_ms",
        "start_alone_ms",
    ];
    runs_to_its_end("metrics", &measured, &[]);
}

#[test]
fn service_measures_changes_of_policy_and_of_programs_restarts_and_adoption() {
    let measured = [
        "requests_lost",
        "restart_lost",
        "restart_lost_stock",
        "unclassified",
        "adopt_ms",
        "reload_ms",
        "gap_ms",
        "reload_gap_ms",
        "upgrade_gap_ms",
        "accounts_lost_ns",
        "upgrade_accounts_lost_ns",
        "upgrade_requests_lost",
        "upgrade_ms",
        "held_lost",
        "probes_unanswered",
    ];
    // in one restart the stock server may lose nothing
    runs_to_its_end("service", &measured, &["restart_lost_vs_stock", "served_least", "upgrade_served_least"]);
}

#[test]
fn priority_clients_compares_every_way_with_plain_nginx() {
    let measured = [
        "single.flatness",
        "single.p99_flatness",
        "single.t40_vs_plain",
        "single.p99_t40_vs_plain",
        "single.throughput",
        "single.throughput_least",
        "copies.flatness",
        "haproxy1.t40",
        "haproxy8.t40",
        "haproxy.t40",
        "single.t40_vs_haproxy",
        "application.t40",
    ];
    runs_to_its_end("priority-clients", &measured, &[]);
}

#[test]
fn accounting_compares_containers_with_clocks_of_others() {
    let measured = [
        "misattribution",
        "misattribution_ratio_error",
        "thread_error",
        "reader_lag_ms",
        "total_error",
        "container_per_request",
        "nginx_throughput",
        "nginx_throughput_core",
        "nginx_throughput_core_floor",
        "nginx_throughput_core_vs_floor",
        "nginx_throughput_core_persistent",
        "nginx_split_error_points",
        "switch_ns",
        "pipe_pingpong",
        "pipe_pingpong_floor",
    ];
    let cpu = ["nginx_cpu_core", "nginx_cpu"].into_iter().flat_map(|name| {
        let each = move |suffix: &'static str| ["", "_floor", "_vs_floor"].map(|word| format!("{name}{word}{suffix}"));
        ["", "_persistent"].into_iter().flat_map(each)
    });
    let cpu: Vec<String> = cpu.collect();
    let all: Vec<&str> = measured.into_iter().chain(cpu.iter().map(String::as_str)).collect();
    runs_to_its_end("accounting", &all, &[]);
}

#[test]
fn whole_is_held_against_plain_nginx_by_the_number_of_clients() {
    let of_each = ["p50", "p99", "throughput", "cpu"];
    let loads = [1, 5, 20, 40, 100];
    let names = loads.into_iter().flat_map(|clients| of_each.map(|figure| format!("{figure}_{clients}")));
    let names = names.flat_map(|name| ["", "_persistent", "_floor", "_queue"].map(|word| format!("{name}{word}")));
    let on_one_core = ["whole_cpu", "whole_cpu_queue", "whole_cpu_floor", "whole_cpu_vs_floor_persistent"];
    let all: Vec<String> = names.chain(on_one_core.map(str::to_owned)).collect();
    runs_to_its_end("whole", &all.iter().map(String::as_str).collect::<Vec<_>>(), &[]);
}

#[test]
fn cgi_sandbox_holds_the_programs_against_static_requests() {
    if !require(Feature::Lighttpd) {
        return;
    }
    let measured = ["worst_share_error_points", "static_flatness", "static_vs_expected", "static_uncontrolled"];
    runs_to_its_end("cgi-sandbox", &measured, &["share_uncontrolled", "static_alone"]);
}

#[test]
fn guest_servers_holds_sites_against_each_other_and_their_own_limits() {
    if !require(Feature::Lighttpd) {
        return;
    }
    let measured =
        ["worst_share_error_points", "sub_share_error_points", "aggregate", "rest_error_points", "aggregate_limits"];
    let beside = ["share_error_uncontrolled", "share_error_limits", "site_a_kept", "site_a_kept_uncontrolled"];
    let all: Vec<&str> = measured.into_iter().chain(beside).collect();
    runs_to_its_end("guest-servers", &all, &["site_a_kept_limits", "site_a_flatness"]);
}

#[test]
fn lrp_measures_at_two_backlogs() {
    let measured = ["high_kept_511", "high_kept_4096", "high_kept", "high_kept_plain", "charge_error"];
    runs_to_its_end("lrp", &measured, &[]);
}

#[test]
fn header_control_limits_a_crowd_by_url_and_by_syn() {
    let measured = ["preferred_url", "preferred_syn", "nginx_preferred", "limited_rate_error", "goodput_kept"];
    runs_to_its_end("header-control", &measured, &[]);
}

#[test]
fn classes_measures_three_classes_before_blocking_workers() {
    let measured = [
        "high_share",
        "high_share_queue",
        "high_share_plain",
        "high_flat",
        "high_flat_queue",
        "high_grown",
        "limited_rate_error",
        "limited_low",
    ];
    // in so short a time plain nginx may answer the high client not once
    runs_to_its_end("classes", &measured, &["high_grown_plain", "high_flat_plain"]);
}

#[test]
fn user_vs_kernel_measures_at_two_costs_of_a_request() {
    let measured = ["kept", "kept_url", "kept_url_503", "kept_url_penalty", "server_kept"];
    let cheap = measured.map(|name| format!("{name}_500us"));
    let all: Vec<&str> = measured.into_iter().chain(cheap.iter().map(String::as_str)).collect();
    runs_to_its_end("user-vs-kernel", &all, &[]);
}

#[test]
fn admission_cost_has_its_floor_beside_it() {
    let measured = [
        "admission_cpu",
        "admission_cpu_floor",
        "throughput",
        "throughput_floor",
        "throughput_vs_floor",
        "request_matched_11_characters_ns",
        "request_matched_80_characters_ns",
        "request_matched_160_characters_ns",
    ];
    runs_to_its_end("admission-cost", &measured, &["rules_1m_vs_1"]);
}

#[test]
fn parse_tells_what_a_segment_costs_by_its_place() {
    let measured = [
        "worst_segment_vs_first",
        "verdict_segment_vs_first",
        "worst_segment_vs_first_behind_proxy",
        "worst_segment_vs_first_later_head",
        "worst_segment_vs_first_chunk_line",
        "worst_segment_vs_first_trailer",
        "worst_segment_vs_first_inside_body",
        "core_used",
    ];
    runs_to_its_end("parse", &measured, &["let_round", "refused_wrongly"]);
}

#[test]
fn queue_measures_servers_of_all_kinds_in_closed_and_open_loops() {
    if !require(Feature::Go) {
        return;
    }
    let measured = [
        "nginx.flatness",
        "nginx.throughput_vs_admission",
        "go.flatness_persistent",
        "nginx.alone",
        "nginx.goodput_2x",
        "go.flatness",
        "go.throughput_vs_plain",
        "go.goodput_high_4x",
        "go_tcp.met",
        "go_tcp.plain_met",
        "go_tcp.unpromised_met",
        "go.met",
        "lo_stranger_rate",
        "lo_stranger_rate_floor_persistent",
        "lo_stranger_rate_door",
        "lo_stranger_rate_door_floor_persistent",
        "memory_10k_mib",
        "pick_vs_hash_lookup",
        "contended_sharing",
    ];
    let mut named = vec!["nginx.t200_vs_plain_persistent"];
    if require(Feature::OpenSsl) {
        named.push("nginx_tls.flatness");
    }
    if require(Feature::PostgreSql) {
        named.push("postgresql.t40_vs_plain");
    }
    runs_to_its_end("queue", &measured, &named);
}
