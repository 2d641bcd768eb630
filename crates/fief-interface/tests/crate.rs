// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Crate `fief` has the records as the headers say, and what is published of it builds by itself.

use std::path::Path;
use std::process::Command;

fn root() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

#[test]
fn the_crate_has_the_records_that_the_headers_have() {
    let written = std::fs::read_to_string(root().join(fief_interface::RUST)).expect("the crate has them");
    let remedy = "is not what bpf/abi says: cargo run -p fief-interface";
    assert!(written == fief_interface::in_rust(), "{} {remedy}", fief_interface::RUST);
}

/// cargo unpacks what it would publish, and builds that apart from this repository. Neither clang nor libclang is found meanwhile.
#[test]
fn what_is_published_of_the_crate_builds_without_this_repository_and_without_clang() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["package", "--package", "fief", "--all-features", "--offline", "--allow-dirty", "--target-dir"]);
    cargo.arg(folder.path()).current_dir(root());
    cargo.env("LIBCLANG_PATH", "/nonexistent").env("LLVM_CONFIG_PATH", "/nonexistent").env("CLANG", "/nonexistent");
    let done = cargo.output().expect("cargo starts");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));

    let unpacked = folder.path().join("package").join(concat!("fief-", env!("CARGO_PKG_VERSION")));
    let lock = std::fs::read_to_string(unpacked.join("Cargo.lock")).expect("it is locked");
    assert!(!lock.contains("bindgen"), "{lock}");
    let manifest = std::fs::read_to_string(unpacked.join("Cargo.toml")).expect("it has a manifest");
    assert!(!manifest.contains("path = \"..") && !unpacked.join("build.rs").exists(), "{manifest}");
}
