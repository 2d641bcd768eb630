// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Containers as files in the hands of users: what each may make, end and change, and what none can do to others.

use std::process::Command;

use fief_testkit::{Cgroup, Feature, require, wait_until};
use nix::errno::Errno;

use crate::agent::GROUP;
use crate::mounted::{Mount, NOBODY, SOON, told};
use crate::place::Place;
use crate::started::policy;

const QUOTA: usize = 4;

/// Users without a name on this machine.
const ONE: u32 = 61001;
const TWO: u32 = 61002;

const POLICY: &str = r#"
version = 1
[container.shop]
cpu.share = "60%"
descendants.max = 6
[container."shop/gold"]
[container.other]
"#;

/// A mount; and a unit, whose home is `shop`.
struct Shop {
    place: Place,
    mount: Mount,
    unit: Cgroup,
}

impl Shop {
    fn new() -> Option<Self> {
        Self::with(&["--containers", "256", "--user-quota", &QUOTA.to_string()])
    }

    fn with(options: &[&str]) -> Option<Self> {
        if !require(Feature::Fuse) {
            return None;
        }
        let place = Place::new()?;
        let text = policy(POLICY);
        let applied = place.fief().arg("apply").args(options).arg(text.path()).ends();
        assert_eq!(applied.code, 0, "{applied:?}");
        let mount = Mount::start(&place);
        let unit = Cgroup::new("users").expect("a cgroup");
        let managed = place.fief().args(["manage", "--container", "shop"]).arg(unit.path()).ends();
        assert_eq!(managed.code, 0, "{managed:?}");
        Some(Self { place, mount, unit })
    }

    fn applies(&self, text: &str) {
        let text = policy(text);
        let applied = self.place.fief().arg("apply").arg(text.path()).ends();
        assert_eq!(applied.code, 0, "{applied:?}");
    }

    /// A command in the unit.
    fn inside(&self, words: &[&str]) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", "echo $$ > \"$0/cgroup.procs\" && exec \"$@\""]).arg(self.unit.path()).args(words);
        command
    }

    /// A member's shell in the unit.
    fn served(&self, user: u32) -> Command {
        let user = user.to_string();
        let mut shell = self.inside(&["setpriv", "--reuid", &user, "--regid", "65534", "--groups", GROUP]);
        shell.arg("sh");
        shell
    }

    fn does(&self, shell: Command, words: &str) -> String {
        let done = self.mount.shell_of(shell, words);
        assert!(done.status.success(), "{words}: {done:?}");
        String::from_utf8(done.stdout).expect("text")
    }

    /// Containers below this one.
    fn below(&self, path: &str) -> Vec<String> {
        let is_below = |own: &String| own.strip_prefix(path).is_some_and(|rest| rest.starts_with('/'));
        self.place.containers().into_iter().filter(is_below).collect()
    }
}

/// A command of a member of the group.
fn by(user: u32, words: &[&str]) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--reuid", &user.to_string(), "--regid", "65534", "--groups", GROUP]).args(words);
    command
}

/// A member's shell outside of every unit.
fn member(user: u32) -> Command {
    by(user, &["sh"])
}

#[test]
fn a_user_makes_sets_and_ends_containers_in_its_home() {
    let Some(shop) = Shop::new() else { return };
    let mount = &shop.mount;
    shop.does(shop.served(ONE), "mkdir \"$DIR/shop/mine\" && mkdir \"$DIR/shop/mine/night\"");
    for (path, expected) in [
        ("shop/mine", "61001 750"),
        ("shop/mine/cmd", "61001 200"),
        ("shop/mine/status", "0 440"),
        ("shop", "0 1770"),
        ("shop/cmd", "0 220"),
        ("user", "0 1770"),
        ("idle", "0 750"),
        ("idle/cmd", "0 200"),
    ] {
        assert_eq!(mount.does(&format!("stat -c '%u %a' \"$DIR/{path}\"")), format!("{expected}\n"), "{path}");
    }
    shop.does(shop.served(ONE), "printf 'cpu.weight 200\\ncpu.share 30%%\\n' > \"$DIR/shop/mine/cmd\"");
    let attributes = &shop.place.shown("shop/mine")["attributes"];
    assert_eq!(["cpu_weight", "cpu_share_ppm"].map(|name| attributes[name].as_u64()), [Some(200), Some(300_000)]);
    // not more than those above can give
    mount.refuses(shop.served(ONE), "/bin/echo cpu.share 70% > \"$DIR/shop/mine/cmd\"", Errno::EBUSY);
    mount.refuses(shop.served(ONE), "/bin/echo cpu.share 40% > \"$DIR/shop/mine/night/cmd\"", Errno::EBUSY);
    mount.refuses(shop.served(ONE), "/bin/echo cpu.weight 0 > \"$DIR/shop/mine/cmd\"", Errno::EINVAL);

    mount.refuses(shop.served(ONE), "rmdir \"$DIR/shop/mine\"", Errno::ENOTEMPTY);
    shop.does(shop.served(ONE), "rmdir \"$DIR/shop/mine/night\" \"$DIR/shop/mine\"");
    assert_eq!(shop.below("shop"), ["shop/gold"]);
    // nothing of it is left: neither its share nor its part of the quota
    for _ in 0..2 * QUOTA {
        shop.does(shop.served(ONE), "mkdir \"$DIR/shop/again\" && echo cpu.share 60% > \"$DIR/shop/again/cmd\"");
        shop.does(shop.served(ONE), "rmdir \"$DIR/shop/again\"");
    }
    // an operator may end it too, and its share goes with it
    shop.does(shop.served(ONE), "mkdir \"$DIR/shop/again\" && echo cpu.share 60% > \"$DIR/shop/again/cmd\"");
    mount.does("rmdir \"$DIR/shop/again\"");
    mount
        .does("mkdir \"$DIR/shop/batch\" && echo cpu.share 60% > \"$DIR/shop/batch/cmd\" && rmdir \"$DIR/shop/batch\"");
    shop.does(shop.served(ONE), "mkdir \"$DIR/shop/again\" && echo cpu.share 60% > \"$DIR/shop/again/cmd\"");
}

#[test]
fn outside_of_every_unit_a_user_has_a_place_of_its_own() {
    let Some(shop) = Shop::new() else { return };
    let mount = &shop.mount;
    shop.does(member(ONE), "mkdir -p \"$DIR/user/61001/mine/night\" && mkdir -p \"$DIR/user/61001/mine\"");
    assert_eq!(mount.does("stat -c '%u %a' \"$DIR/user/61001\""), "61001 750\n");
    for words in [
        "mkdir \"$DIR/user/61002\"",
        "mkdir \"$DIR/user/x\"",
        "mkdir \"$DIR/shop/x\"",
        "mkdir \"$DIR/other/x\"",
        "mkdir \"$DIR/x\"",
        "rmdir \"$DIR/user/61001\"",
        "/bin/echo cpu.weight 7 > \"$DIR/user/61001/cmd\"",
    ] {
        mount.refuses(member(ONE), words, Errno::EACCES);
    }
    mount.refuses(member(TWO), "mkdir \"$DIR/user/61001/x\"", Errno::EACCES);
    // from within a unit it has its home alone
    mount.refuses(shop.served(ONE), "mkdir \"$DIR/user/61001/x\"", Errno::EACCES);
    mount.refuses(shop.served(ONE), "rmdir \"$DIR/user/61001/mine/night\"", Errno::EACCES);
    mount.refuses(shop.served(TWO), "mkdir \"$DIR/user/61002\"", Errno::EACCES);
    // what it made in a unit it may end from outside, but make nothing there
    shop.does(shop.served(ONE), "mkdir \"$DIR/shop/mine\"");
    mount.refuses(member(ONE), "mkdir \"$DIR/shop/mine/x\"", Errno::EACCES);
    shop.does(member(ONE), "echo cpu.weight 7 > \"$DIR/shop/mine/cmd\" && rmdir \"$DIR/shop/mine\"");
    // in a user namespace it is who it is, root there or not
    let root = |_| by(ONE, &["unshare", "--user", "--map-root-user", "sh"]);
    shop.does(root(()), "mkdir \"$DIR/user/61001/root\"");
    assert_eq!(mount.does("stat -c %u \"$DIR/user/61001/root\""), "61001\n");
    mount.refuses(root(()), "mkdir \"$DIR/user/0\"", Errno::EACCES);
    mount.refuses(root(()), "mkdir \"$DIR/other/x\"", Errno::EACCES);
    shop.does(root(()), "mkdir \"$DIR/user/61001/four\"");
    mount.refuses(root(()), "mkdir \"$DIR/user/61001/five\"", Errno::EDQUOT);
    // nor does a PID namespace hide who asks
    let numbered = by(ONE, &["unshare", "--user", "--map-root-user", "--pid", "--fork", "sh"]);
    mount.refuses(numbered, "mkdir \"$DIR/user/61001/five\"", Errno::EDQUOT);
    let nobody = by(ONE, &["unshare", "--user", "sh"]);
    mount.refuses(nobody, "mkdir \"$DIR/user/61001/five\"", Errno::EDQUOT);
}

#[test]
fn a_user_does_nothing_to_what_is_anothers() {
    let Some(shop) = Shop::new() else { return };
    let mount = &shop.mount;
    shop.does(shop.served(ONE), "mkdir \"$DIR/shop/one\"");
    mount.does("mkdir \"$DIR/shop/root\" \"$DIR/other/root\"");
    let sleeps = shop.does(shop.served(ONE), "(sleep 1000 & echo $!) 2>&- | head -n 1");
    let sleeps = sleeps.trim();
    for words in [
        "mkdir \"$DIR/shop/one/x\"",
        "mkdir \"$DIR/shop/root/x\"",
        "mkdir \"$DIR/shop/gold/x\"",
        "mkdir \"$DIR/other/x\"",
        "/bin/echo cpu.weight 7 > \"$DIR/shop/one/cmd\"",
        "/bin/echo cpu.weight 7 > \"$DIR/shop/root/cmd\"",
        "/bin/echo cpu.weight 7 > \"$DIR/shop/cmd\"",
        "/bin/echo bind $$ > \"$DIR/shop/one/cmd\"",
        "/bin/echo bind $$ > \"$DIR/shop/root/cmd\"",
        "/bin/echo bind $$ > \"$DIR/shop/gold/cmd\"",
        "/bin/echo bind $$ > \"$DIR/other/cmd\"",
        "rmdir \"$DIR/shop/one/x\" || mkdir \"$DIR/shop/one/x\"",
    ] {
        mount.refuses(shop.served(TWO), words, Errno::EACCES);
    }
    // of a sticky folder the kernel takes no other's
    for words in [
        "rmdir \"$DIR/shop/one\"",
        "rmdir \"$DIR/shop/root\"",
        "rmdir \"$DIR/other/root\"",
        "mv \"$DIR/shop/one\" \"$DIR/shop/two\"",
    ] {
        mount.refuses(shop.served(TWO), words, Errno::EPERM);
    }
    // nor another's process
    shop.does(shop.served(TWO), "mkdir \"$DIR/shop/two\"");
    let root = std::process::id().to_string();
    for whose in [sleeps, &root] {
        let words = format!("/bin/echo bind {whose} > \"$DIR/shop/two/cmd\"");
        mount.refuses(shop.served(TWO), &words, Errno::EPERM);
    }
    mount.refuses(shop.served(TWO), &format!("/bin/echo bind {root} > \"$DIR/shop/cmd\""), Errno::EPERM);

    // somebody that may not read may not write, with whatever it was passed
    let words =
        "cd \"$DIR/shop\" && exec setpriv --reuid 61001 --regid 65534 --clear-groups sh -c 'mkdir x; rmdir one; ls'";
    let passed = shop.inside(&["sh"]);
    mount.refuses(passed, words, Errno::EACCES);
    let words = "exec setpriv --reuid 61001 --regid 65534 --clear-groups sh -c '/bin/echo cpu.weight 7 >&3' 3> \"$DIR/shop/one/cmd\"";
    mount.refuses(shop.inside(&["sh"]), words, Errno::EACCES);
    // a set-user-ID program is of two users, and whose wish it is cannot be told
    let of_two = ["setpriv", "--ruid", "61002", "--euid", "61001", "--regid", "65534", "--groups", GROUP, "sh", "-p"];
    mount.refuses(shop.inside(&of_two), "/bin/mkdir \"$DIR/shop/x\"", Errno::EACCES);
    mount.refuses(shop.inside(&of_two), "/bin/rmdir \"$DIR/shop/one\"", Errno::EACCES);
    // root without its rights is a user
    let weak = ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin", "sh"];
    for words in ["rmdir \"$DIR/shop/one\"", "rmdir \"$DIR/shop/root\"", "mkdir \"$DIR/other/x\"", "mkdir \"$DIR/x\""] {
        mount.refuses(shop.inside(&weak), words, Errno::EACCES);
    }
    shop.does(shop.inside(&weak), "mkdir \"$DIR/shop/weak\" && rmdir \"$DIR/shop/weak\"");

    let mut below = shop.below("shop");
    below.sort();
    assert_eq!(below, ["shop/gold", "shop/one", "shop/root", "shop/two"]);
    assert_eq!(shop.below("other"), ["other/root"]);
    assert_eq!(shop.place.shown("shop/one")["attributes"]["cpu_weight"], 100);
    mount.does(&format!("kill {sleeps}"));
}

#[test]
fn a_user_does_not_have_root_write_what_it_opened() {
    let Some(shop) = Shop::new() else { return };
    shop.mount.does("mkdir \"$DIR/shop/batch\"");
    // programs of root that everybody may run, as su and mount are
    let programs = tempfile::tempdir().expect("a folder");
    let at = programs.path().display();
    shop.mount.does(&format!("cp /bin/echo /usr/bin/id {at} && chmod 4755 {at}/echo {at}/id && chmod 755 {at}"));
    assert_eq!(shop.does(member(ONE), &format!("{at}/id -u")), "0\n", "set-user-ID has no effect there");
    for path in ["shop/batch", "shop", "shop/gold"] {
        let words = format!("{at}/echo cpu.weight 7 > \"$DIR/{path}/cmd\"");
        shop.mount.refuses(shop.served(ONE), &words, Errno::EACCES);
        let words = format!("{at}/echo bind $$ > \"$DIR/{path}/cmd\"");
        shop.mount.refuses(member(ONE), &words, Errno::EACCES);
    }
    // nor the other way round
    let words =
        "exec setpriv --reuid 61001 --regid 65534 --groups games sh -c '/bin/echo bind $$ >&3' 3> \"$DIR/shop/cmd\"";
    shop.mount.refuses(shop.inside(&["sh"]), &words.replace("games", GROUP), Errno::EACCES);
    assert_eq!(shop.place.shown("shop/batch")["attributes"]["cpu_weight"], 100);
}

#[test]
fn a_user_has_no_more_containers_than_its_quota_however_many_ask() {
    let Some(shop) = Shop::new() else { return };
    let mount = &shop.mount;
    let words = |name: &str| {
        format!(
            "for i in 1 2 3 4 5 6 7 8 9; do mkdir \"$DIR/shop/{name}$i\" 2>&1; rmdir \"$DIR/shop/{name}$i\" 2>&-; \
                 mkdir \"$DIR/shop/{name}$i\" 2>&1; done; true"
        )
    };
    let words = ["a", "b", "c", "d"].map(words);
    std::thread::scope(|scope| {
        for words in &words {
            scope.spawn(|| shop.does(shop.served(ONE), words));
        }
    });
    // of what was made too much most is still there; a listing that is read meanwhile is of many moments
    assert_eq!(shop.below("shop").len(), 1 + QUOTA);
    mount.refuses(shop.served(ONE), "mkdir \"$DIR/shop/x\"", Errno::EDQUOT);
    // wherever they are
    mount.refuses(member(ONE), "mkdir -p \"$DIR/user/61001/x\"", Errno::EDQUOT);
    // and all users together what the home may have: 6, of which gold is one
    shop.does(shop.served(TWO), "mkdir \"$DIR/shop/two\"");
    mount.refuses(shop.served(TWO), "mkdir \"$DIR/shop/three\"", Errno::EDQUOT);
    mount.refuses(shop.served(TWO), "mkdir \"$DIR/shop/two/three\"", Errno::EDQUOT);
    shop.does(shop.served(ONE), "for own in \"$DIR/shop\"/[abcd][0-9]; do rmdir \"$own\" || exit; done");
    shop.does(shop.served(TWO), "mkdir \"$DIR/shop/two/three\"");
}

/// All threads of a process but the first.
const THREADS: &str = "
import os, sys, threading
made = []
def make(turn):
    for n in range(9):
        try:
            made.append(os.mkdir(f'{sys.argv[1]}/{turn}-{n}'))
        except OSError as error:
            assert error.strerror == 'Disk quota exceeded', error
threads = [threading.Thread(target=make, args=[turn]) for turn in range(8)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(len(made))
";

#[test]
fn threads_of_a_process_have_one_quota_together() {
    let Some(shop) = Shop::new().filter(|_| require(Feature::Python)) else { return };
    let script = format!("exec python3 -c \"{THREADS}\" \"$DIR/$IN\"");
    for (user, shell, place) in [(ONE, shop.served(ONE), "shop"), (TWO, member(TWO), "user/61002")] {
        let script = script.replace("$IN", place);
        let made = shop.does(shell, &format!("[ {user} = {ONE} ] || mkdir \"$DIR/{place}\" && {script}"));
        assert_eq!(made, format!("{QUOTA}\n"), "{place}");
        assert_eq!(shop.below(place).len(), QUOTA + usize::from(user == ONE));
    }
}

#[test]
fn users_that_fill_the_table_leave_room_for_a_policy() {
    let Some(shop) = Shop::with(&["--containers", "64", "--user-quota", "1000"]) else { return };
    let fill = "mkdir -p \"$DIR/user/61001\"; i=0; while mkdir \"$DIR/user/61001/$i\" 2>&1; do i=$((i + 1)); done";
    let said = shop.does(member(ONE), fill);
    assert!(said.contains(&told(Errno::ENFILE)), "{said}");
    assert!(shop.below("user").len() >= 40, "{}", shop.below("user").len());
    shop.mount.refuses(shop.served(TWO), "mkdir \"$DIR/shop/x\"", Errno::ENFILE);
    shop.applies(&format!("{POLICY}[container.a]\n[container.b]\n[container.\"b/c\"]\n"));
    shop.mount.does("mkdir \"$DIR/shop/batch\"");
}

#[test]
fn a_name_of_a_users_container_is_a_name_of_a_folder() {
    let Some(shop) = Shop::new() else { return };
    for (name, errno) in [
        ("usage", Errno::EEXIST),
        ("gold", Errno::EEXIST),
        ("#9", Errno::EINVAL),
        ("$(printf '\\377')", Errno::EINVAL),
        ("$(printf 'a\\nb')", Errno::EINVAL),
        ("$(printf '\\033[2J')", Errno::EINVAL),
        ("$(printf 'a\\177')", Errno::EINVAL),
        ("0123456789012345678901234567890é", Errno::ENAMETOOLONG),
    ] {
        shop.mount.refuses(shop.served(ONE), &format!("mkdir \"$DIR/shop/{name}\""), errno);
    }
    shop.does(shop.served(ONE), "mkdir \"$DIR/shop/éb%s\\$x\"");
    assert_eq!(shop.below("shop"), ["shop/gold", "shop/éb%s$x"]);
    shop.mount.refuses(shop.served(TWO), "mkdir \"$DIR/shop/éb%s\\$x\"", Errno::EEXIST);
    // a policy that names it has one of its own, and this one keeps to its user
    shop.applies(&format!("{POLICY}[container.\"shop/éb%s$x\"]\n"));
    let done = shop.mount.shell_of(shop.served(ONE), "/bin/echo cpu.weight 7 > \"$DIR/shop/éb%s\\$x/cmd\"");
    assert!(!done.status.success(), "{done:?}");
}

#[test]
fn a_user_binds_its_own_processes_to_its_own_containers_and_home_again() {
    let Some(shop) = Shop::new() else { return };
    let mount = &shop.mount;
    let threads = |path: &str| shop.place.threads(path);
    shop.does(shop.served(ONE), "mkdir \"$DIR/shop/mine\"");
    let start = "(sleep 1000 & echo $!) 2>&- | head -n 1";
    let sleeps = shop.does(shop.served(ONE), start).trim().to_owned();
    shop.does(shop.served(ONE), &format!("echo bind {sleeps} > \"$DIR/shop/mine/cmd\""));
    wait_until(SOON, || threads("shop/mine") == 1).expect("it is bound");
    mount.refuses(shop.served(ONE), "rmdir \"$DIR/shop/mine\"", Errno::EBUSY);
    // from outside it is the same user's, and this one's home is above
    shop.does(member(ONE), "mkdir -p \"$DIR/user/61001/mine\"");
    mount.refuses(member(ONE), &format!("/bin/echo bind {sleeps} > \"$DIR/root/cmd\""), Errno::EPERM);
    // but not the other way round
    let outside = shop.does(member(ONE), start).trim().to_owned();
    mount.refuses(shop.served(ONE), &format!("/bin/echo bind {outside} > \"$DIR/shop/mine/cmd\""), Errno::EPERM);
    mount.refuses(shop.served(ONE), &format!("/bin/echo bind {outside} > \"$DIR/shop/cmd\""), Errno::EPERM);
    shop.does(shop.served(ONE), &format!("echo bind {sleeps} > \"$DIR/shop/cmd\""));
    wait_until(SOON, || threads("shop/mine") == 0).expect("it is at home");
    shop.does(shop.served(ONE), "rmdir \"$DIR/shop/mine\"");

    shop.does(member(ONE), &format!("echo bind {outside} > \"$DIR/user/61001/mine/cmd\""));
    wait_until(SOON, || threads("user/61001/mine") == 1).expect("it is bound");
    // somebody's who holds it: it stays until nobody does
    mount.refuses(member(ONE), "rmdir \"$DIR/user/61001/mine\"", Errno::EBUSY);
    shop.does(member(ONE), &format!("echo bind {outside} > \"$DIR/root/cmd\""));
    wait_until(SOON, || threads("user/61001/mine") == 0).expect("it is at home");
    shop.does(member(ONE), "rmdir \"$DIR/user/61001/mine\"");
    mount.refuses(member(NOBODY), "/bin/echo bind 4194305 > \"$DIR/root/cmd\"", Errno::ESRCH);
    // numbers of processes of another namespace are not those of this one
    let numbered = by(ONE, &["unshare", "--user", "--map-current-user", "--pid", "--fork", "sh"]);
    mount.refuses(numbered, "/bin/echo bind 1 > \"$DIR/root/cmd\"", Errno::EPERM);
    mount.does(&format!("kill {sleeps} {outside}"));
}

#[test]
fn what_a_user_made_ends_with_what_it_is_in() {
    let Some(shop) = Shop::new() else { return };
    let unit = Cgroup::new("users-other").expect("a cgroup");
    let managed = shop.place.fief().args(["manage", "--container", "other"]).arg(unit.path()).ends();
    assert_eq!(managed.code, 0, "{managed:?}");
    let mut shell = Command::new("sh");
    shell.args(["-c", "echo $$ > \"$0/cgroup.procs\" && exec \"$@\""]).arg(unit.path());
    shell.args(["setpriv", "--reuid", "61001", "--regid", "65534", "--groups", GROUP, "sh"]);
    shop.does(shell, "mkdir -p \"$DIR/other/a/b\" \"$DIR/other/c\"");
    // an apply that keeps its home keeps it
    shop.applies(POLICY);
    assert_eq!(shop.below("other").len(), 3);
    wait_until(SOON, || std::fs::remove_dir(unit.path()).is_ok()).expect("nobody is in it");
    shop.applies(&POLICY.replace("[container.other]\n", ""));
    let left = shop.place.containers();
    assert!(!left.iter().any(|path| path.starts_with("other") || path.ends_with("/a")), "{left:?}");
    // nothing of it counts any more
    shop.does(shop.served(ONE), "mkdir \"$DIR/shop/1\" \"$DIR/shop/2\" \"$DIR/shop/3\" \"$DIR/shop/4\"");
}
