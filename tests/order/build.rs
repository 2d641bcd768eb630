// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Compiles the parts of the scheduler that decide, which are portable C, for user space.

fn main() {
    let bpf = "../../bpf";
    println!("cargo::rerun-if-changed={bpf}/sched");
    println!("cargo::rerun-if-changed={bpf}/abi.h");
    println!("cargo::rerun-if-changed={bpf}/abi");
    println!("cargo::rerun-if-changed=src/order.c");
    cc::Build::new()
        .file("src/order.c")
        .includes([bpf.to_owned(), format!("{bpf}/sched"), format!("{bpf}/include")])
        .warnings(true)
        .flag_if_supported("-Wno-sign-compare")
        .flag_if_supported("-Wno-unused-function")
        .flag_if_supported("-Wno-unused-parameter")
        .compile("order");
}
