// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The checks that need a kernel which this machine may not have, in a guest of `run.sh`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

use fief_testkit::{Feature, require, require_if};
use serde_json::Value;

/// What `run.sh` ends with where a kernel cannot be had.
const NO_KERNEL: i32 = 77;

/// Guests have one folder between them.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Where those lie that a guest has.
fn programs() -> PathBuf {
    let built = Path::new(env!("CARGO_BIN_EXE_fief-tests-vm")).parent().expect("a program is in a folder");
    std::env::var_os("VM_PROGRAMS").map_or_else(|| built.to_owned(), PathBuf::from)
}

/// Runs one part of the guest's program on a kernel, and gives back what it said; `None`: there is no such kernel.
fn guest(part: &str, kernel: &str) -> Option<String> {
    let script = tempfile::NamedTempFile::new().expect("a file for the guest's script");
    std::fs::write(script.path(), format!("fief-tests-vm {part} || ended=$?\n")).expect("written");
    guest_of(script.path(), kernel)
}

/// The same of a script.
fn guest_of(script: &Path, kernel: &str) -> Option<String> {
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let output = Command::new(folder().join("run.sh"))
        .arg("-s")
        .arg(script)
        .arg(kernel)
        .env("VM_PROGRAMS", programs())
        // the guest's clock counts instructions: a busy machine makes it slower, not wrong
        .env("VM_SECONDS", "3000")
        .stdin(Stdio::null())
        .output()
        .expect("the script starts");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    if !require_if(&format!("kernel {kernel} for guests"), output.status.code() != Some(NO_KERNEL), false) {
        return None;
    }
    // first what failed: who shows a part of a long message shows its begin
    let failed: Vec<_> = said.lines().filter(|line| line.starts_with("FAILED")).collect();
    let failed = failed.join("\n");
    assert!(output.status.success(), "{failed}\n{said}\n{}", String::from_utf8_lossy(&output.stderr));
    Some(said)
}

#[test]
fn the_scheduler_holds_what_policies_say() {
    if !(require(Feature::Root) && require(Feature::Vm)) {
        return;
    }
    let Some(said) = guest("schedule briefly", "7.0") else { return };
    assert!(said.contains("ok shares are held"), "{said}");
    assert!(said.contains("ok a request of a better class that waits in the queue"), "{said}");
    assert!(said.contains("ok another scheduler that has the CPUs is named"), "{said}");
    assert!(said.contains("ok down gives the CPUs back"), "{said}");
}

/// The oldest kernel, whose verifier knows least. (Lanes need interfaces that its guest has no module for.)
#[test]
fn the_oldest_kernel_takes_every_program() {
    if !(require(Feature::Root) && require(Feature::Vm)) {
        return;
    }
    let Some(said) = guest("loads", "6.12") else { return };
    assert!(said.contains("ok the kernel takes all programs"), "{said}");
}

/// What each experiment of `experiments` measures in a full run.
const FIGURES: [(&str, &str); 6] = [
    (
        "cpu-shares",
        "worst_error_points window_error_points smp_error_points
        cgroup_worst_error_points cgroup_window_error_points cgroup_smp_error_points",
    ),
    ("cpu-limits", "worst_error_points"),
    (
        "kernel-work",
        "total_points neighbour_kept total_by_kernel_points thread_points receive_points unlimited_points unlimited_receive_points",
    ),
    ("combined", "worst_error_points combined_percent pruned_percent reset_percent charged_error_points"),
    (
        "media",
        "spread one_spread shared_spread greedy_spread apart_spread eevdf_spread cgroup_spread
        one_vs_share shared_vs_share greedy_vs_share shared_charged_error
        shared_vs_one greedy_vs_one apart_vs_one eevdf_vs_one cgroup_vs_one frame_ms
        jitter_p99_ms shared_jitter_p99_ms greedy_jitter_p99_ms apart_jitter_p99_ms eevdf_jitter_p99_ms cgroup_jitter_p99_ms
        edf_missed fair_missed rr_missed eevdf_missed
        edf_clip_jitter_p99_ms fair_clip_jitter_p99_ms rr_clip_jitter_p99_ms eevdf_clip_jitter_p99_ms",
    ),
    (
        "switch-cost",
        "vs_scx_simple vs_eevdf scx_simple_vs_eevdf
        fief_fewest_ns scx_simple_charging_fewest_ns eevdf_charging_fewest_ns
        fief_most_ns scx_simple_charging_most_ns eevdf_charging_most_ns
        fork_vs_scx_simple exec_vs_scx_simple pipe_vs_scx_simple select_vs_scx_simple
        fork_vs_eevdf exec_vs_eevdf pipe_vs_eevdf select_vs_eevdf",
    ),
];

/// The names of an experiment's figures, which are the last of its lines. Each figure has to say what it means.
fn figures(said: &str, name: &str) -> BTreeSet<String> {
    let lines = said.lines().skip_while(|line| line.strip_prefix("lab ") != Some(name)).skip(1);
    let objects: Vec<Value> = lines.map_while(|line| serde_json::from_str(line).ok()).collect();
    let is_least = objects.iter().any(|object| object["least"].is_string());
    assert!(is_least, "{name} has not ended, or was not asked for its least form: {said}");
    let Some(Value::Object(figures)) = objects.last() else { panic!("{name} has no figures: {said}") };
    for figure in figures.keys() {
        let meaning = objects.iter().find(|object| object["figure"] == *figure);
        let meaning = meaning.unwrap_or_else(|| panic!("{figure} of {name} says what it is"));
        let words = ["metric", "unit", "load"].map(|word| meaning[word].as_str().unwrap_or_default());
        assert!(words.iter().all(|word| !word.is_empty()), "{meaning}");
    }
    figures.keys().cloned().collect()
}

/// Each once in its smallest form, as those of `fief-lab`'s own tests. What the figures say is for a full run.
#[test]
fn experiments_of_the_scheduler_run_to_their_end() {
    if !(require(Feature::Root) && require(Feature::Vm)) {
        return;
    }
    let lab = programs().join("fief-lab");
    assert!(lab.exists(), "{} is not there: cargo build -p fief-lab", lab.display());
    let Some(said) = guest_of(&folder().join("experiments"), "7.0") else { return };
    for (name, expected) in FIGURES {
        let expected: BTreeSet<String> = expected.split_whitespace().map(str::to_owned).collect();
        assert_eq!(figures(&said, name), expected, "{name}: {said}");
    }
}
