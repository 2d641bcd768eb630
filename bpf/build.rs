// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Compiles the BPF objects, and generates their skeletons and the shared records.

use std::path::{Path, PathBuf};
use std::{env, fs};

use bindgen::callbacks::{DeriveTrait, ImplementsTrait, ParseCallbacks};
use libbpf_cargo::SkeletonBuilder;

/// One object per hook family: folder and name.
const OBJECTS: [&str; 5] = ["core", "front", "lrp", "files", "sched"];
/// No part of an installation, which need not be upgraded for them; each with the folder of the parts that it uses.
const MEASURED: [(&str, &str); 2] = [("pick", "front"), ("yardstick", "sched")];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let out = PathBuf::from(env::var("OUT_DIR")?);
    records(&out)?;
    let arch = match env::var("CARGO_CFG_TARGET_ARCH")?.as_str() {
        "x86_64" => "x86",
        "aarch64" => "arm64",
        other => return Err(format!("no BPF register layout known for {other}").into()),
    };
    let mut build = 0xcbf2_9ce4_8422_2325u64;
    for (object, parts) in OBJECTS.map(|object| (object, object)).into_iter().chain(MEASURED) {
        let source = format!("{object}/{object}.bpf.c");
        SkeletonBuilder::new()
            .source(&source)
            .clang(env::var("CLANG").unwrap_or_else(|_| "clang-19".into()))
            .clang_args([
                "-I.".to_owned(),
                "-Iinclude".to_owned(),
                format!("-I{parts}"),
                "-mcpu=v3".to_owned(),
                "-Wall".to_owned(),
                "-Wno-missing-declarations".to_owned(),
                format!("-D__TARGET_ARCH_{arch}"),
            ])
            .build_and_generate(out.join(format!("{object}.skel.rs")))?;
        if !OBJECTS.contains(&object) {
            continue;
        }
        for byte in fs::read(out.join(format!("{object}.skel.rs")))? {
            build = (build ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3); // FNV-1a
        }
    }
    println!("cargo::rustc-env=FIEF_BPF_BUILD={:08x}", build as u32 ^ (build >> 32) as u32);
    for folder in
        ["abi", "flow", "core", "front", "lrp", "files", "sched", "pick", "yardstick", "include", "include/maps"]
    {
        println!("cargo::rerun-if-changed={folder}");
        for file in fs::read_dir(folder).into_iter().flatten().flatten() {
            println!("cargo::rerun-if-changed={}", file.path().display());
        }
    }
    println!("cargo::rerun-if-changed=abi.h");
    println!("cargo::rerun-if-env-changed=CLANG");
    Ok(())
}

/// Rust of `abi.h`, without what crate `fief` has of it already, so that both have the same types.
fn records(out: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let theirs = Path::new("..").join(fief_interface::RUST);
    println!("cargo::rerun-if-changed={}", theirs.display());
    if fs::read_to_string(&theirs)? != fief_interface::in_rust() {
        let file = fief_interface::RUST;
        let remedy = "write it anew: cargo run -p fief-interface";
        // cargo goes by newer times alone, also for what rerun-if-changed names
        let before = "if files were put back with older times, touch bpf/abi/*.h first";
        return Err(format!("{file} is not what bpf/abi says; {remedy} ({before})").into());
    }
    let widths = [
        ("__u8", "unsigned char"),
        ("__u16", "unsigned short"),
        ("__u32", "unsigned int"),
        ("__s32", "int"),
        ("__u64", "unsigned long long"),
        ("__s64", "long long"),
    ];
    let builder = bindgen::Builder::default()
        .clang_args(widths.map(|(name, c)| format!("-D{name}={c}")))
        .header("abi.h")
        .allowlist_item("(fief|FIEF)_.*")
        .parse_callbacks(Box::new(OfFief))
        .default_enum_style(bindgen::EnumVariation::Consts)
        .derive_default(true)
        .derive_eq(true)
        .derive_hash(true)
        .prepend_enum_name(false)
        .use_core();
    fief_interface::names()
        .fold(builder, bindgen::Builder::blocklist_item)
        .generate()?
        .write_to_file(out.join("abi.rs"))?;
    Ok(())
}

/// The records of crate `fief`.
#[derive(Debug)]
struct OfFief;

impl ParseCallbacks for OfFief {
    fn blocklisted_type_implements_trait(&self, _name: &str, _derived: DeriveTrait) -> Option<ImplementsTrait> {
        Some(ImplementsTrait::Yes)
    }
}
