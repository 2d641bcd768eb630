// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How much an experiment does. A quick run has fewer rounds and loads, and never a shorter phenomenon.

/// Whether each step is only tried, as the tests do to see that an experiment runs to its end: its figures mean nothing
/// then, and the JSON says so.
pub fn is_least() -> bool {
    std::env::var_os("FIEF_LAB_LEAST").is_some()
}
