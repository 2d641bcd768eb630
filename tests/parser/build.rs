// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Compiles the front room's parsers, which are portable C, for user space.

fn main() {
    let bpf = "../../bpf";
    println!("cargo::rerun-if-changed={bpf}/front");
    println!("cargo::rerun-if-changed={bpf}/include");
    println!("cargo::rerun-if-changed={bpf}/abi.h");
    println!("cargo::rerun-if-changed={bpf}/abi");
    println!("cargo::rerun-if-changed=src/parser.c");
    let mut build = cc::Build::new();
    // cargo-fuzz says so by a cfg. The C is then watched as the Rust code is; the sanitizers want the compiler of rustc's.
    println!("cargo::rerun-if-env-changed=CARGO_CFG_FUZZING");
    println!("cargo::rerun-if-env-changed=CLANG");
    if std::env::var_os("CARGO_CFG_FUZZING").is_some() {
        build.compiler(std::env::var_os("CLANG").unwrap_or_else(|| "clang-19".into()));
        build.flag("-fsanitize=fuzzer-no-link,address,undefined").flag("-fno-sanitize-recover=undefined");
    }
    build
        .file("src/parser.c")
        .includes([bpf.to_owned(), format!("{bpf}/include"), format!("{bpf}/front")])
        .warnings(true)
        .flag_if_supported("-Wno-sign-compare")
        .compile("parser");
}
