// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What `fief down` cannot give back it remembers, for the next one.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::place::Place;
use crate::started::{Ended, SHOP, policy};

/// One that the front door wants to be 1.
const SYSCTL: &str = "/proc/sys/net/ipv4/conf/lo/forwarding";

/// `fief down` where no sysctl can be set.
fn down_without_sysctls(place: &Place) -> Ended {
    let script = "mount --bind /proc/sys /proc/sys && mount -o remount,bind,ro /proc/sys && exec \"$0\" down";
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script, env!("CARGO_BIN_EXE_fief")]);
    place.namespace.enter(command.env("FIEF_SCOPE", &place.scope));
    command.output().expect("unshare starts").into()
}

#[test]
fn a_sysctl_that_down_cannot_give_back_is_given_back_by_the_next_one() {
    let Some(place) = Place::new() else { return };
    let value = || place.namespace.run(|| fs::read_to_string(SYSCTL)).expect("a namespace").expect("it is there");
    let (before, folder) = (value(), Path::new("/run/fief").join(&place.scope));
    let queued = policy(&SHOP.replace("classes = \"listeners\"", "queue = true"));
    let applied = place.fief().args(["apply", "--containers", "256"]).arg(queued.path()).ends();
    assert_eq!(applied.code, 0, "{applied:?}");
    let ours = value();
    assert_ne!(ours, before);
    // the first one takes all else down
    for _ in 0..2 {
        let down = down_without_sysctls(&place);
        assert_eq!(down.code, 1, "{down:?}");
        assert!(down.stderr.contains("cannot set the sysctl net.ipv4.conf.lo.forwarding"), "{down:?}");
        assert!(down.stderr.contains("`fief down` gives it back"), "{down:?}");
        assert_eq!(place.fief().arg("status").ends().code, 3);
        assert_eq!(value(), ours);
        let left = fs::read_dir(&folder).expect("a folder").map(|entry| entry.expect("read").file_name());
        assert_eq!(left.collect::<Vec<_>>(), ["sysctls"]);
    }
    let down = place.fief().arg("down").ends();
    assert_eq!(down.code, 0, "{down:?}");
    assert_eq!(value(), before);
    assert!(!folder.exists());
}
