// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Compiles the parts of the scheduler and of the queue that decide, which are portable C, for user space.

fn main() {
    let bpf = "../../bpf";
    println!("cargo::rerun-if-changed={bpf}/sched");
    println!("cargo::rerun-if-changed={bpf}/abi.h");
    println!("cargo::rerun-if-changed={bpf}/abi");
    println!("cargo::rerun-if-changed={bpf}/front/classes.bpf.h");
    println!("cargo::rerun-if-changed=src");
    cc::Build::new()
        .files(["src/order.c", "src/classes.c"])
        .includes([bpf.to_owned(), format!("{bpf}/sched"), format!("{bpf}/include")])
        .warnings(true)
        .flag_if_supported("-Wno-sign-compare")
        .flag_if_supported("-Wno-unknown-pragmas")
        .flag_if_supported("-Wno-unused-function")
        .flag_if_supported("-Wno-unused-parameter")
        .compile("order");
}
