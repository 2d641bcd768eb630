// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The checks that need a kernel which this machine may not have, in a guest of `run.sh`.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

use fief_testkit::{Feature, require, require_if};

/// What `run.sh` ends with where a kernel cannot be had.
const NO_KERNEL: i32 = 77;

/// Guests have one folder between them.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Runs one part of the guest's program on a kernel, and gives back what it said; `None`: there is no such kernel.
fn guest(part: &str, kernel: &str) -> Option<String> {
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let programs = Path::new(env!("CARGO_BIN_EXE_fief-tests-vm")).parent().expect("a program is in a folder");
    let script = tempfile::NamedTempFile::new().expect("a file for the guest's script");
    std::fs::write(script.path(), format!("fief-tests-vm {part} || ended=$?\n")).expect("written");
    let output = Command::new(folder.join("run.sh"))
        .arg("-s")
        .arg(script.path())
        .arg(kernel)
        .env("VM_PROGRAMS", std::env::var_os("VM_PROGRAMS").unwrap_or_else(|| programs.into()))
        // the guest's clock counts instructions: a busy machine makes it slower, not wrong
        .env("VM_SECONDS", "3000")
        .stdin(Stdio::null())
        .output()
        .expect("the script starts");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    if !require_if(&format!("kernel {kernel} for guests"), output.status.code() != Some(NO_KERNEL), false) {
        return None;
    }
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
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
