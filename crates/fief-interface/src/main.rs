// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Writes the records into crate `fief`: `cargo run -p fief-interface`.

use std::path::Path;

fn main() -> std::io::Result<()> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(fief_interface::RUST);
    std::fs::write(&file, fief_interface::in_rust())
}
