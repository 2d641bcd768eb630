// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Generates Rust from `abi.h`, the records that the kernel side and user space share.

use std::error::Error;
use std::path::PathBuf;

const HEADER: &str = "../../bpf/abi.h";
const PARTS: &str = "../../bpf/abi";

fn main() -> Result<(), Box<dyn Error>> {
    let widths = [
        ("__u8", "unsigned char"),
        ("__u16", "unsigned short"),
        ("__u32", "unsigned int"),
        ("__s32", "int"),
        ("__u64", "unsigned long long"),
        ("__s64", "long long"),
    ];
    bindgen::Builder::default()
        .clang_args(widths.map(|(name, c)| format!("-D{name}={c}")))
        .header(HEADER)
        .allowlist_item("(fief|FIEF)_.*")
        .default_enum_style(bindgen::EnumVariation::Consts)
        .derive_default(true)
        .derive_eq(true)
        .derive_hash(true)
        .prepend_enum_name(false)
        .use_core()
        .generate()?
        .write_to_file(PathBuf::from(std::env::var("OUT_DIR")?).join("abi.rs"))?;
    println!("cargo::rerun-if-changed={HEADER}");
    println!("cargo::rerun-if-changed={PARTS}");
    Ok(())
}
