// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Compiles the front room's parsers, which are portable C, for user space.

fn main() {
    let bpf = "../../bpf";
    println!("cargo::rerun-if-changed={bpf}/front");
    println!("cargo::rerun-if-changed={bpf}/include");
    println!("cargo::rerun-if-changed={bpf}/abi.h");
    println!("cargo::rerun-if-changed=src/parser.c");
    cc::Build::new()
        .file("src/parser.c")
        .includes([bpf.to_owned(), format!("{bpf}/include"), format!("{bpf}/front")])
        .warnings(true)
        .flag_if_supported("-Wno-sign-compare")
        .compile("parser");
}
