// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An installation of Fief for one test: a scope, a policy, cgroups of its own; everything gone at the end.
//!
//! A test's body runs in a process of its own inside the managed cgroup: the test starts itself again there. What it
//! asserts fails the process, and that fails the test.

mod away;
mod calls;
mod charged;
mod child;
mod dial;
mod foreign;
pub mod front;
mod held;
mod installation;
pub mod machine;
mod never_closed;
mod numbered;
mod own_page;
mod passing;
mod python;
pub mod queued;
mod race;
mod requests;
pub mod rig;
mod ring;
mod second_link;
mod serving;
mod spare;
mod standing;
mod stepping;
mod table;
mod user;

pub use away::Away;
pub use calls::{fresh_socket, get_option, multipath_socket, set_option, unacknowledged};
pub use charged::{is_about, ms, own_clock, used};
pub use child::{Child, Door, clone_into, fork};
pub use dial::{connect_from, connect_once_served, connect_with_bytes};
pub use foreign::Foreign;
pub use held::{cpu_group, has_its_tenth};
pub use installation::{Installation, PLAIN_POLICY, Setup, fief_binary, two_classes};
pub use never_closed::NeverClosed;
pub use numbered::{netns_number, numbered_again};
pub use own_page::{OwnPage, now_ns};
pub use passing::{receive, send};
pub use python::python_server;
pub use race::{Rival, with_rival};
pub use requests::requests;
pub use ring::Ring;
pub use second_link::{second_link, second_up};
pub use serving::serve_in_turn;
pub use spare::{OneInstallation, REMEMBERED, one_installation};
pub use standing::while_it_stands;
pub use stepping::{kill_before, kill_when, steps, watch_steps};
pub use table::{SOON, all_end, cpu_ns_of, in_use, left, record, spin, steady_snapshot, unnamed, unnamed_at_once};
pub use user::{NOBODY, become_user, drop_capabilities};

/// Goes before a policy: however busy the machine is, nothing of it is overloaded.
pub const NEVER_OVERLOADED: &str = "\n[overload]\nbusy = { drops = 900000 }\noverloaded = { drops = 1000000 }\n";

/// Which part of a test this process plays; `None`: the test itself, outside.
pub fn role() -> Option<String> {
    std::env::var("FIEF_TEST_INSIDE").ok()
}

/// Whether this process is the one that runs a test's body.
pub fn inside() -> bool {
    role().is_some()
}

/// Runs the test `name` again inside a managed cgroup; there, runs `body`.
pub fn in_unit(name: &str, body: impl FnOnce()) {
    in_unit_with(name, body, |_| ());
}

/// As [`in_unit`]; afterwards `check` looks at what the body left, from outside.
pub fn in_unit_with(name: &str, body: impl FnOnce(), check: impl FnOnce(&Installation)) {
    in_unit_of(name, &Setup::default(), body, check);
}

/// As [`in_unit_with`], in an installation of one's own making.
pub fn in_unit_of(name: &str, setup: &Setup<'_>, body: impl FnOnce(), check: impl FnOnce(&Installation)) {
    if inside() {
        body();
        return;
    }
    let installation = Installation::with(setup);
    installation.play(name, "body");
    check(&installation);
}
