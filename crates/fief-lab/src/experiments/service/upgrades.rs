// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A change of Fief's programs as the upgrade of a package brings it about: the policy is applied by a `fief` whose programs are not
//! those in force, and that exchanges all of them, and the links that they are attached by, for its own. Maps stay, as what is in
//! force lives in them.
//!
//! There is one build at hand, so the installation is told that its programs are another one's, which is all that `fief apply` goes by.

use crate::command::scope;
use crate::error::{Context, Error, Result};
use fief_bpf::pin::Pins;
use fief_bpf::upgrade::{pretend_another_build, program_id};
use std::collections::BTreeMap;
use std::fs;

/// The programs in force before a change, with the kernel's number of each.
#[derive(Debug)]
pub struct Programs {
    pins: Pins,
    numbers: BTreeMap<String, u32>,
}

impl Programs {
    /// From now on they are another build's.
    pub fn become_old() -> Result<Self> {
        let pins = Pins::new(&scope());
        let numbers = numbers(&pins)?;
        pretend_another_build(&pins).context("make the programs in force another build's")?;
        Ok(Self { pins, numbers })
    }

    /// An error unless another one is in the place of each.
    pub fn are_replaced(&self) -> Result<()> {
        let now = numbers(&self.pins)?;
        let stays = self.numbers.iter().find(|(name, number)| now.get(*name).is_none_or(|other| other == *number));
        match stays {
            Some((name, _)) => Err(Error::failed(format!("fief apply left the old program {name} in force"))),
            None => Ok(()),
        }
    }
}

fn numbers(pins: &Pins) -> Result<BTreeMap<String, u32>> {
    let fail = "list the programs in force";
    let folder = pins.program("");
    let mut numbers = BTreeMap::new();
    for entry in fs::read_dir(&folder).context(format!("{fail} in {}", folder.display()))? {
        let name = entry.context(fail)?.file_name().to_string_lossy().into_owned();
        let number = program_id(pins, &name).context(fail)?;
        numbers.insert(name, number);
    }
    Ok(numbers)
}
