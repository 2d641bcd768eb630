// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Compiles for user space: the parts of the scheduler and of the queue that decide, which are portable C, and the parts of the core
//! that hold references, with a kernel of their own (src/kernel.h).

fn main() {
    let bpf = "../../bpf";
    println!("cargo::rerun-if-changed={bpf}/sched");
    println!("cargo::rerun-if-changed={bpf}/abi.h");
    println!("cargo::rerun-if-changed={bpf}/abi");
    println!("cargo::rerun-if-changed={bpf}/front/classes.bpf.h");
    println!("cargo::rerun-if-changed={bpf}/front/pace.bpf.h");
    println!("cargo::rerun-if-changed={bpf}/front/stands.bpf.h");
    println!("cargo::rerun-if-changed=src");
    for folder in ["core", "flow", "include"] {
        println!("cargo::rerun-if-changed={bpf}/{folder}");
    }
    let folders = [bpf.to_owned(), format!("{bpf}/core"), format!("{bpf}/include")];
    cc::Build::new().files(["src/core.c", "src/users.c"]).includes(folders).warnings(false).flag("-w").compile("core");
    cc::Build::new()
        .files(["src/order.c", "src/classes.c", "src/calls.c"])
        .includes(["src/apart".to_owned(), bpf.to_owned(), format!("{bpf}/sched"), format!("{bpf}/include")])
        .warnings(true)
        .flag_if_supported("-Wno-sign-compare")
        .flag_if_supported("-Wno-unknown-pragmas")
        .flag_if_supported("-Wno-unused-function")
        .flag_if_supported("-Wno-unused-parameter")
        .compile("order");
}
