// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Compiles the orders that the guest's scheduler is given, as their authors would.

use std::path::PathBuf;
use std::{env, fs};

use libbpf_cargo::SkeletonBuilder;

const ORDERS: [&str; 5] = [
    "../../examples/order/favourite.bpf.c",
    "orders/beyond.bpf.c",
    "orders/by_time.bpf.c",
    "orders/endless.bpf.c",
    "orders/silent.bpf.c",
];
const HEADER: &str = "../../bindings/fief_policy.h";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let out = PathBuf::from(env::var("OUT_DIR")?);
    let header = fs::read_to_string(HEADER)?.replace("@RECORDS@", fief_interface::orders_in_c().trim_end());
    fs::write(out.join("fief_policy.h"), header)?;
    println!("cargo::rerun-if-changed={HEADER}");
    println!("cargo::rerun-if-env-changed=CLANG");
    for source in ORDERS {
        let name = source.rsplit('/').next().expect("a file").replace(".c", ".o");
        SkeletonBuilder::new()
            .source(source)
            .obj(out.join(name))
            .clang(env::var("CLANG").unwrap_or_else(|_| "clang-19".into()))
            .clang_args(["-I../../bpf/include".into(), format!("-I{}", out.display()), "-Wall".into()])
            .build()?;
        println!("cargo::rerun-if-changed={source}");
    }
    Ok(())
}
