// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Compiles the sets of clients, which are portable C, for user space.

fn main() {
    let bpf = "../../bpf";
    println!("cargo::rerun-if-changed={bpf}/core/costliest.h");
    println!("cargo::rerun-if-changed={bpf}/abi.h");
    println!("cargo::rerun-if-changed={bpf}/abi");
    println!("cargo::rerun-if-changed=src/costs.c");
    cc::Build::new()
        .file("src/costs.c")
        .includes([bpf.to_owned(), format!("{bpf}/core")])
        .warnings(true)
        .flag_if_supported("-Wno-sign-compare")
        .compile("costs");
}
