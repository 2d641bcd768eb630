// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Builds the listen shim, which the library carries with it.

use std::error::Error;
use std::path::Path;
use std::process::Command;

const SHIM: &str = "../../shim";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed={SHIM}");
    println!("cargo::rerun-if-changed=../../bpf/abi.h");
    println!("cargo::rerun-if-changed=../../bpf/abi");
    println!("cargo::rerun-if-env-changed=CC");
    let out = std::env::var("OUT_DIR")?;
    let status = Command::new("make")
        .args(["--silent", "-C", SHIM, &format!("OUT={out}")])
        .env_remove("MAKEFLAGS")
        .status()
        .map_err(|error| format!("cannot start make for {SHIM}: {error}"))?;
    if !status.success() || !Path::new(&out).join("fief-shim.so").exists() {
        return Err(format!("make in {SHIM} ended with {status}").into());
    }
    Ok(())
}
