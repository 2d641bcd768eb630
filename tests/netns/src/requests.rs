// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How many requests a test makes that shows that none is lost.

/// In all: as many as `FIEF_TEST_REQUESTS` says, else this usual number.
pub fn requests(usual: usize) -> usize {
    std::env::var("FIEF_TEST_REQUESTS").map_or(usual, |number| number.parse().expect("a number of requests"))
}
