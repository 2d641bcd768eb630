// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The listen shim's own tests, which are in C beside it and need neither privilege nor BPF.

use std::process::Command;

#[test]
fn the_shim_keeps_its_order() {
    let output = Command::new("make")
        .args(["--silent", "-C", concat!(env!("CARGO_MANIFEST_DIR"), "/../../shim"), "test"])
        .arg(format!("OUT={}", env!("CARGO_TARGET_TMPDIR")))
        .env_remove("MAKEFLAGS")
        .output()
        .expect("make is there, since the build needs it");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
