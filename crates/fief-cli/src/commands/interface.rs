// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `fief interface`: writes what programs in C and Python call Fief by, and what orders are built with. Hidden: it is for packages.
//!
//! The records of both are those of the kernel side (bpf/abi), of which the parts that applications see are taken. What calls them is
//! written by hand, in bindings/.

use std::path::Path;

use fief_interface::{in_c, in_python, orders_in_c};

use crate::cli;
use crate::failure::{Failure, Result};

const HEADER: &str = include_str!("../../../../bindings/fief.h");
const ORDERS: &str = include_str!("../../../../bindings/fief_policy.h");
const PYTHON: &str = include_str!("../../../../bindings/fief.py");
const PKG_CONFIG: &str = include_str!("../../../../bindings/fief.pc");

pub fn run(args: &cli::Interface) -> Result<()> {
    let folder = &args.folder;
    std::fs::create_dir_all(folder)
        .and_then(|()| write_all(folder, &args.prefix))
        .map_err(|error| Failure::new(format!("cannot write the interface into {}: {error}", folder.display())))
}

fn write_all(folder: &Path, prefix: &str) -> std::io::Result<()> {
    let config = PKG_CONFIG.replace("@PREFIX@", prefix).replace("@VERSION@", env!("CARGO_PKG_VERSION"));
    std::fs::write(folder.join("fief.pc"), config)?;
    std::fs::write(folder.join("fief.h"), HEADER.replace("@RECORDS@", in_c().trim_end()))?;
    std::fs::write(folder.join("fief_policy.h"), ORDERS.replace("@RECORDS@", orders_in_c().trim_end()))?;
    std::fs::write(folder.join("fief.py"), PYTHON.replace("# @RECORDS@", in_python().trim_end()))
}
