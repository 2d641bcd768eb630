// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads `forward` of a listener: its connections pass through this machine to others. What needs a server here, or a
//! handshake of ours, does not go with it.

use crate::diagnostic::{Findings, Kind};
use crate::model::Listener;
use crate::reader::View;

/// Each key that does not go with `forward`, and what to do instead.
const NOT_BESIDE: [(&str, &str); 11] = [
    ("request", PROXY),
    ("admit", PROXY),
    ("admit-from", PROXY),
    ("later-requests", PROXY),
    ("penalty", PROXY),
    ("unread", PROXY),
    ("proxy", PROXY),
    ("copies", "remove `copies`: the servers are other machines"),
    ("classes", "remove `classes`: there is no listening socket here"),
    ("restart", "remove `restart`: who listens is another machine's to say"),
    ("lrp", "remove `lrp`: there is no receiving socket here"),
];

const PROXY: &str =
    "run a proxy on this machine, and write the rules for the address that it listens on, without `forward`";

pub(crate) fn read(listener: &View<'_, '_>, findings: &mut Findings) -> bool {
    let forward = listener.flag("forward", findings).unwrap_or(false);
    if !forward {
        return false;
    }
    for (key, remedy) in NOT_BESIDE {
        let Some(value) = listener.get(key) else { continue };
        let message = format!("{} has both `forward` and `{key}`", listener.title);
        let expected = "limits of connection requests alone beside forward = true";
        findings.add(Kind::Contradiction, value.span(), message, expected, remedy);
    }
    true
}

/// A listener that forwards and limits nothing does nothing.
pub(crate) fn check(view: &View<'_, '_>, listener: &Listener, findings: &mut Findings) {
    let Some(value) = view.get("forward").filter(|_| listener.forward && !listener.is_policed()) else { return };
    let message = format!("{} has `forward`, but limits no connection requests", view.title);
    let expected = "`isolate`, `unproven`, `proven`, or `syn` in a client rule";
    findings.add(Kind::Contradiction, value.span(), message, expected, "add one of them, or remove the listener");
}
