// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the kernel side knows of a listener's number is forgotten before another listener gets it: its level of overload, since when
//! nobody listens there, what was refused, which prefixes are isolated.
//!
//! A number that is given anew is in no policy in force, so nothing asks for it meanwhile.

use fief_bpf::{Result, abi, batch, record};

use crate::Fief;

impl Fief {
    /// `numbers`: of listeners that the policy in force does not have.
    pub(crate) fn forget_numbers(&self, numbers: &[u16]) -> Result<()> {
        if numbers.is_empty() {
            return Ok(());
        }
        let (loads, notices, refusals) = (self.map("loads")?, self.map("last_notices")?, self.map("refusals")?);
        for &number in numbers {
            record::update(&loads, number.into(), &abi::fief_load::default())?;
            record::update(&notices, number.into(), &abi::fief_notice::default())?;
            record::clear_of_all_cpus(&refusals, number.into())?;
        }
        let meters = self.map("meters")?;
        let is_theirs = |meter: &abi::fief_meter| meter.length != 0 && numbers.contains(&meter.listener);
        for (at, _) in batch::entries_if::<u32, _>(&meters, is_theirs)? {
            record::update(&meters, at, &abi::fief_meter::default())?;
        }
        Ok(())
    }
}
