// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the lab measures of the queue by itself finds the class that is next, with the code that a queue runs.

use fief_testkit::{Feature, require};

#[test]
fn the_class_that_is_next_is_found_where_it_is_measured() {
    if require(Feature::Root) && require(Feature::Bpf) {
        fief_bpf::pick::measure(10).expect("the right answers");
        fief_bpf::pick::measure_contended(160, |_| ()).expect("the right answers");
    }
}
