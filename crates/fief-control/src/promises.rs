// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Promises: shares that applications gave their own containers, held against what a policy leaves for them.
//!
//! Such a share was granted out of what the container above had at that time. A policy may leave less: it comes into force all the same,
//! since no application is to keep the operator from that, and the operator is told. It is looked at after the policy has come into force: from
//! then on applications are granted no more than it leaves, so nobody's share is missed.

use fief_bpf::abi;
use fief_bpf::table::Row;
use fief_policy::as_percent;

use crate::tree::Tree;

/// All of the machine.
const WHOLE_PPM: u32 = 1_000_000;

/// What cannot be kept with the policy of the tree's slot, a sentence for each container of the policy's, and for the root.
pub(crate) fn broken(tree: &Tree) -> Vec<String> {
    tree.rows().iter().filter_map(|row| of_container(tree, row)).collect()
}

fn of_container(tree: &Tree, row: &Row) -> Option<String> {
    let is_root = row.container.id == abi::FIEF_ROOT;
    // an application's container is never given less than was granted below it
    let is_ours = is_root || row.record.flags & abi::FIEF_CONTAINER_POLICY != 0;
    let held = row.record.reserved_ppm;
    let abi::fief_attributes { share_ppm, reserved_ppm, named, .. } = row.attributes(tree.slot);
    let has = if is_root { WHOLE_PPM } else { share_ppm };
    // one that the policy has dropped is about to be let go of, and there is no share to raise
    let is_dropped = !is_root && named == 0;
    if !is_ours || is_dropped || held == 0 || reserved_ppm <= has {
        return None;
    }
    let percent = |ppm: u32| as_percent(ppm.into());
    let beside = match reserved_ppm.saturating_sub(held) {
        0 => String::new(),
        own => format!(", beside {} that the policy promises there", percent(own)),
    };
    let (place, raise) = match is_root {
        true => ("the machine".to_owned(), "lower the shares at the top".to_owned()),
        false => (tree.path(row), "raise its cpu.share".to_owned()),
    };
    Some(format!(
        "{place}: applications were promised {} below it{beside}, and it has {}: not all of that can be kept; {raise}, or have them give \
         some back",
        percent(held),
        percent(has)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `held`: by applications below it; the shares are of the slot in force.
    fn row(id: u32, flags: u32, held: u32, [share_ppm, own]: [u32; 2]) -> Row {
        let staged = abi::fief_attributes { named: 1, share_ppm, reserved_ppm: own, ..Default::default() };
        let record = abi::fief_container {
            generation: 1,
            state: abi::FIEF_ALIVE,
            flags,
            reserved_ppm: held,
            attributes: [abi::fief_attributes::default(), staged],
            ..Default::default()
        };
        Row { container: abi::fief_ref { id, generation: 1 }, record }
    }

    fn told(row: Row) -> Vec<String> {
        broken(&Tree::of(vec![row], 1))
    }

    #[test]
    fn what_applications_hold_beyond_the_new_share_is_told() {
        let shop = |held, shares| told(row(8, abi::FIEF_CONTAINER_POLICY, held, shares));
        let tail = "not all of that can be kept; raise its cpu.share, or have them give some back";
        let alone = format!("#8: applications were promised 50% below it, and it has 20%: {tail}");
        assert_eq!(shop(500_000, [200_000, 0]), [alone]);
        let beside = format!(
            "#8: applications were promised 50% below it, beside 15% that the policy promises there, and it has 60%: \
             {tail}"
        );
        assert_eq!(shop(500_000, [600_000, 150_000]), [beside]);
        assert_eq!(shop(1, [0, 0]).len(), 1, "it has no share any more");
        assert_eq!(shop(500_000, [500_000, 0]), [""; 0], "it just fits");
        assert_eq!(shop(0, [0, 0]), [""; 0]);
    }

    #[test]
    fn a_container_that_the_policy_drops_has_no_share_to_raise() {
        let mut dropped = row(8, abi::FIEF_CONTAINER_POLICY, 500_000, [0, 0]);
        dropped.record.attributes[1].named = 0;
        assert_eq!(told(dropped), [""; 0]);
    }

    #[test]
    fn the_machine_is_held_against_what_is_promised_at_the_top() {
        let root = |held, own| told(row(abi::FIEF_ROOT, abi::FIEF_CONTAINER_ROOT, held, [0, own]));
        assert_eq!(root(100_000, 900_000), [""; 0]);
        let said = root(100_000, 950_000);
        let begin = "the machine: applications were promised 10% below it, beside 95% that the policy promises there, \
                     and it has 100%: ";
        assert!(said.len() == 1 && said[0].starts_with(begin), "{said:?}");
    }

    #[test]
    fn a_container_of_an_applications_own_is_left_to_the_kernel_side() {
        assert_eq!(told(row(9, 0, 500_000, [0, 0])), [""; 0]);
    }
}
