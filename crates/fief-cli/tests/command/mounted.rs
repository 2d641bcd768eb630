// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Containers as files, by the commands that everybody has: cat, echo, find, grep, mkdir, rmdir, umount.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use fief_testkit::{Cgroup, Feature, require, wait_until};
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Group, Pid};
use tempfile::TempDir;

use crate::agent::GROUP;
use crate::place::Place;

/// A condition that does not come about in this time does not.
pub const SOON: Duration = Duration::from_secs(20);

/// The user whom the machine gives nothing.
pub const NOBODY: u32 = 65534;

/// Serves until its test ends.
pub struct Mount {
    child: Child,
    said: BufReader<std::process::ChildStdout>,
    folder: TempDir,
}

impl Mount {
    pub fn start(place: &Place) -> Self {
        let folder = tempfile::Builder::new().prefix("fief mount").tempdir().expect("a folder");
        let (child, said) = serve(place, folder.path());
        let mount = Self { child, said, folder };
        assert!(mount.is_there());
        mount
    }

    /// What a shell does in it.
    pub fn shell(&self, words: &str) -> Output {
        self.shell_of(Command::new("sh"), words)
    }

    /// By a command that ends in a shell.
    pub fn shell_of(&self, mut command: Command, words: &str) -> Output {
        command.arg("-c").arg(words).current_dir("/").env("DIR", self.folder.path()).env("LC_ALL", "C");
        command.output().expect("a shell starts")
    }

    pub fn does(&self, words: &str) -> String {
        let done = self.shell(words);
        assert!(done.status.success(), "{words}: {done:?}");
        String::from_utf8(done.stdout).expect("text")
    }

    pub fn fails(&self, words: &str, errno: Errno) {
        self.refuses(Command::new("sh"), words, errno);
    }

    /// What a command that ends in a shell is refused with.
    pub fn refuses(&self, command: Command, words: &str, errno: Errno) {
        let done = self.shell_of(command, words);
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        assert!(!done.status.success() && said.contains(&told(errno)), "{words}: {done:?}");
    }

    /// Whether the kernel has a mount there.
    fn is_there(&self) -> bool {
        let table = fs::read_to_string("/proc/self/mountinfo").expect("a table");
        // the table has blanks as \040
        let name = self.folder.path().to_string_lossy().replace(' ', "\\040");
        table.lines().any(|line| line.split(' ').nth(4) == Some(&name))
    }

    fn ends(&mut self) {
        wait_until(SOON, || self.child.try_wait().expect("a child").is_some()).expect("it ends");
        assert!(self.child.try_wait().expect("a child").expect("ended").success());
        let mut said = String::new();
        std::io::Read::read_to_string(&mut self.said, &mut said).expect("text");
        assert!(said.ends_with("is no longer mounted\n"), "{said}");
        assert!(!self.is_there());
    }
}

/// What commands say of it: nix has words of its own.
pub fn told(errno: Errno) -> String {
    let told = std::io::Error::from(errno).to_string();
    told.split(" (").next().expect("a text").to_owned()
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        while self.is_there() && Command::new("umount").arg("-l").arg(self.folder.path()).output().is_ok() {}
    }
}

fn serve(place: &Place, folder: &Path) -> (Child, BufReader<std::process::ChildStdout>) {
    let mut fief = place.fief().args(["mount", "--group", GROUP]).arg(folder);
    let mut child = fief.command().stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("fief starts");
    let mut said = BufReader::new(child.stdout.take().expect("a pipe"));
    let mut line = String::new();
    while !line.starts_with("Ctrl-C") {
        line.clear();
        assert!(said.read_line(&mut line).expect("text") > 0, "it does not serve");
    }
    (child, said)
}

fn mounted() -> Option<(Place, Mount)> {
    if !require(Feature::Fuse) {
        return None;
    }
    let place = Place::new()?;
    place.apply();
    let mount = Mount::start(&place);
    Some((place, mount))
}

#[test]
fn containers_are_folders_and_files() {
    let Some((place, mut mount)) = mounted() else { return };
    let _managed = place.manage("shop");
    let found = mount.does("find \"$DIR/shop\" | sed \"s|$DIR/||\" | sort");
    let files = |folder: &str| ["cmd", "status", "usage"].map(|file| format!("{folder}/{file}"));
    let mut expected = vec!["shop".to_owned(), "shop/gold".to_owned()];
    expected.extend(files("shop").into_iter().chain(files("shop/gold")));
    expected.sort();
    assert_eq!(found.lines().collect::<Vec<_>>(), expected);
    assert_eq!(mount.does("grep '^cpu_priority' \"$DIR/shop/gold/status\""), "cpu_priority 200\n");
    // both read the same counters
    let before = mount.does("awk '$1 == \"thread_ns\" { print $2 }' \"$DIR/root/usage\"").trim().parse::<u64>();
    let before = before.expect("a number");
    // what a CPU that stood still seemed to have used is taken back once that is known
    wait_until(SOON, || place.shown("root")["usage"]["thread_ns"].as_u64() >= Some(before))
        .expect("both read the same");
    // twice from its begin, a descriptor reads two moments
    let twice = mount.does("exec 3< \"$DIR/root/usage\"; head -c 20 <&3; cat \"$DIR/shop/usage\" | wc -l");
    assert!(twice.starts_with("thread_ns ") && twice.trim_end().ends_with("15"), "{twice}");

    mount.does("mkdir \"$DIR/shop/batch\" && mkdir \"$DIR/shop/batch/night\" \"$DIR/other\"");
    for path in ["shop/batch", "shop/batch/night", "other"] {
        assert!(place.containers().contains(&path.to_owned()), "{path}");
    }
    mount.does("printf 'cpu.weight 200\\ncpu.share 30%%\\n' > \"$DIR/shop/batch/cmd\"");
    mount.does("echo cpu.limit 50% > \"$DIR/shop/batch/cmd\"");
    let attributes = &place.shown("shop/batch")["attributes"];
    let read = ["cpu_weight", "cpu_share_ppm", "cpu_limit_ppm"].map(|name| attributes[name].as_u64());
    assert_eq!(read, [Some(200), Some(300_000), Some(500_000)], "{attributes}");
    mount.does("echo cpu.limit max > \"$DIR/shop/batch/cmd\"");
    assert!(place.shown("shop/batch")["attributes"]["cpu_limit_ppm"].is_null());
    mount.fails("/bin/echo cpu.share 70% > \"$DIR/shop/batch/cmd\"", Errno::EBUSY);
    mount.fails("/bin/echo cpu.wieght 7 > \"$DIR/shop/batch/cmd\"", Errno::EINVAL);

    let night = "sleep 1000 & echo bind $! > \"$DIR/shop/batch/night/cmd\" && echo $!";
    let sleeps: i32 = mount.does(&format!("({night}) 2>&- | head -n 1")).trim().parse().expect("a process");
    wait_until(SOON, || place.threads("shop/batch/night") == 1).expect("it is bound");
    mount.fails("rmdir \"$DIR/shop/batch/night\"", Errno::EBUSY);
    kill(Pid::from_raw(sleeps), Signal::SIGKILL).expect("it sleeps");
    mount.fails("rmdir \"$DIR/shop/batch\"", Errno::ENOTEMPTY);
    let unit = Cgroup::new("mounted").expect("a cgroup");
    let managed = place.fief().args(["manage", "--container", "other"]).arg(unit.path()).ends();
    assert_eq!(managed.code, 0, "{managed:?}");
    mount.fails("rmdir \"$DIR/other\"", Errno::EBUSY);
    wait_until(SOON, || mount.shell("rmdir \"$DIR/shop/batch/night\"").status.success()).expect("nobody is in it");
    mount.does("rmdir \"$DIR/shop/batch\" && ! ls \"$DIR/shop/batch\" 2>&-");
    assert!(!place.containers().iter().any(|path| path.starts_with("shop/batch")));

    // what is a policy's or always there is no file's to change
    for words in [
        "rmdir \"$DIR/shop/gold\"",
        "/bin/echo cpu.weight 7 > \"$DIR/shop/cmd\"",
        "mkdir \"$DIR/idle/mine\"",
        "mkdir \"$DIR/root/mine\"",
        "touch \"$DIR/shop/file\"",
        "mv \"$DIR/other\" \"$DIR/another\"",
        "chmod 777 \"$DIR/shop/cmd\"",
    ] {
        mount.fails(words, Errno::EPERM);
    }
    mount.fails("mkdir \"$DIR/shop/usage\"", Errno::EEXIST);
    mount.fails("mkdir \"$DIR/usage\"", Errno::EINVAL);
    mount.fails("mkdir \"$DIR/#9\"", Errno::EINVAL);
    mount.fails(&format!("mkdir \"$DIR/{}\"", "x".repeat(32)), Errno::ENAMETOOLONG);
    mount.does("umount \"$DIR\"");
    mount.ends();
    assert!(place.containers().contains(&"other".to_owned()), "what was made stays");
}

#[test]
fn a_mount_ends_by_whatever_is_to_end_it() {
    let Some((place, mut mount)) = mounted() else { return };
    let again = |mount: &mut Mount| (mount.child, mount.said) = serve(&place, mount.folder.path());
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        kill(Pid::from_raw(mount.child.id().cast_signed()), signal).expect("it runs");
        mount.ends();
        again(&mut mount);
    }
    let second = place.fief().arg("mount").arg(mount.folder.path()).ends();
    assert!(second.code == 1 && second.stderr.contains("already; end that by `fief umount "), "{second:?}");
    mount.does("mount -t tmpfs over \"$DIR\"");
    let covered = place.fief().arg("umount").arg(mount.folder.path()).ends();
    assert!(covered.code == 1 && covered.stderr.contains("mounted over it"), "{covered:?}");
    mount.does("umount \"$DIR\"");
    assert_eq!(place.fief().arg("umount").arg(mount.folder.path()).ends().code, 0);
    mount.ends();
    let none = place.fief().arg("umount").arg(mount.folder.path()).ends();
    assert!(none.code == 1 && none.stderr.starts_with("fief: no containers are mounted at "), "{none:?}");

    // also where somebody is in it
    again(&mut mount);
    let within = Command::new("sleep").arg("1000").current_dir(mount.folder.path().join("shop")).spawn();
    let mut within = within.expect("sleep starts");
    assert_eq!(place.fief().arg("umount").arg(mount.folder.path()).ends().code, 0);
    mount.ends();
    within.kill().and_then(|()| within.wait()).expect("it sleeps");

    // what was there before is there again
    let below = ["-t", "tmpfs", "-o", "mode=755", "below"];
    assert!(Command::new("mount").args(below).arg(mount.folder.path()).status().expect("mount starts").success());
    mount.does("touch \"$DIR/before\"");
    again(&mut mount);
    mount.does("umount \"$DIR\"");
    wait_until(SOON, || mount.child.try_wait().expect("a child").is_some()).expect("it ends");
    mount.does("ls \"$DIR/before\" && umount \"$DIR\"");

    // from another mount namespace, whose mounts are its own
    again(&mut mount);
    let mut elsewhere = Command::new("unshare");
    elsewhere.args(["--mount", env!("CARGO_BIN_EXE_fief"), "down", "--json"]).env("FIEF_SCOPE", &place.scope);
    place.namespace.enter(&mut elsewhere);
    assert!(elsewhere.output().expect("unshare starts").status.success());
    mount.ends();
}

#[test]
fn a_killed_server_leaves_a_mount_that_the_next_one_replaces_and_down_removes() {
    let Some((place, mut mount)) = mounted() else { return };
    mount.does("mkdir \"$DIR/kept\"");
    let kill_it = |mount: &mut Mount| {
        mount.child.kill().and_then(|()| mount.child.wait()).expect("it runs");
        mount.fails("ls \"$DIR\"", Errno::ENOTCONN);
    };
    kill_it(&mut mount);
    (mount.child, mount.said) = serve(&place, mount.folder.path());
    mount.does("ls \"$DIR/kept\" && rmdir \"$DIR/kept\"");
    kill_it(&mut mount);
    let down = place.fief().args(["down", "--json"]).ends().objects().remove(0);
    assert_eq!(down["mounts"][0].as_str(), mount.folder.path().to_str(), "{down}");
    assert!(!mount.is_there());
    place.apply();
    (mount.child, mount.said) = serve(&place, mount.folder.path());
    let down = place.fief().arg("down").ends();
    assert!(down.stdout.contains("unmounted: "), "{down:?}");
    mount.ends();
}

#[test]
fn others_than_root_change_nothing_of_an_operators_and_read_with_the_group_alone() {
    let Some((place, mount)) = mounted() else { return };
    mount.does("mkdir \"$DIR/mine\"");
    let group = Group::from_name(GROUP).expect("groups can be read").expect("Debian has it").gid.as_raw();
    let user = |gid: u32| {
        let mut shell = Command::new("sh");
        shell.uid(NOBODY).gid(gid);
        shell
    };
    let refused = |shell: Command, words: &str, errno: Errno| mount.refuses(shell, words, errno);
    let changes = [
        "mkdir \"$DIR/shop/x\"",
        "mkdir \"$DIR/x\"",
        "rmdir \"$DIR/mine\"",
        "/bin/echo cpu.weight 7 > \"$DIR/mine/cmd\"",
        "/bin/echo bind $$ > \"$DIR/shop/gold/cmd\"",
    ];
    for words in changes.into_iter().chain(["ls \"$DIR\"", "cat \"$DIR/shop/usage\""]) {
        refused(user(NOBODY), words, Errno::EACCES);
    }
    let read = mount.shell_of(user(group), "cat \"$DIR/shop/status\" && find \"$DIR\" -name usage | wc -l");
    assert!(read.status.success() && read.stdout.starts_with(b"container shop\n"), "{read:?}");
    for words in changes {
        refused(user(group), words, Errno::EACCES);
    }

    // root that is no operator: without its capability, and of a user namespace, which the modes alone would let through
    let by = |words: &[&str]| {
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).arg("sh");
        command
    };
    let weak = ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin"];
    for own in [&weak[..], &["unshare", "--user", "--map-root-user"]] {
        for words in changes {
            refused(by(own), words, Errno::EACCES);
        }
    }
    // a descriptor that root opened is not root's right
    let passed = "exec setpriv --reuid 65534 --clear-groups sh -c '/bin/echo cpu.weight 7 >&3' 3> \"$DIR/mine/cmd\"";
    refused(Command::new("sh"), passed, Errno::EACCES);
    // nor are numbers of processes of another namespace those of this one
    let numbered = by(&["unshare", "--pid", "--fork"]);
    refused(numbered, "/bin/echo bind 1 > \"$DIR/mine/cmd\"", Errno::EPERM);

    let mine = place.shown("mine");
    assert_eq!((&mine["attributes"]["cpu_weight"], &mine["threads"]), (&100.into(), &0.into()), "{mine}");
    assert!(!place.containers().iter().any(|path| path.ends_with('x')));
}
