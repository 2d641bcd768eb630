// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whether Fief reads what servers read: mutated heads and ClientHellos, sent through Fief and without to real servers.

use crate::error::Result;

/// How often they disagreed, for the worst server.
#[derive(Clone, Debug)]
pub struct Difference {
    /// For each server.
    pub cases: usize,
    pub servers: Vec<String>,
    /// Requests that the server served as the refused resource and Fief let pass.
    pub let_round: u64,
    /// Valid and allowed requests that the server served and Fief refused.
    pub refused_wrongly: u64,
}

/// None where this build has no such test.
pub fn measure(_cases: usize) -> Result<Option<Difference>> {
    Ok(None)
}
