// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a test needs from the machine, and when it may be skipped for the lack of it.
//!
//! A skip is only allowed where nothing says that the machine has the feature. The sayers are independent of the probe:
//! `FIEF_REQUIRE` (`all`, or names with commas), and hints of the system itself. Where one of them says yes and the
//! probe says no, the test fails: a broken probe must not turn a test suite green.

use crate::cgroup2_mount;
use std::path::{Path, PathBuf};
use std::process::Command;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Feature {
    Root,
    /// Network namespaces, veth, iproute2 and ethtool.
    NetNs,
    ThreadedNapi,
    Cgroup2,
    /// BPF programs of the cgroup/setsockopt kind load.
    Bpf,
    Nginx,
    Haproxy,
    Curl,
    Wrk,
    Python,
    Ab,
    Go,
    OpenSsl,
    Apache,
    Lighttpd,
    Node,
    Gunicorn,
    /// PHP's own FastCGI server.
    PhpFpm,
    /// Starts CGI programs for servers that speak FastCGI.
    Fcgiwrap,
    PostgreSql,
    /// systemd can be PID 1 of namespaces.
    Systemd,
    /// Reads units, also where no systemd runs.
    SystemdAnalyze,
    /// Tells which system calls are made.
    Strace,
    /// Makes and unpacks Debian packages.
    Dpkg,
    /// Finds what Debian would refuse in a package.
    Lintian,
    /// A browser without a screen.
    Chromium,
    /// Judges metrics as Prometheus does.
    Promtool,
    /// Scrapes metrics.
    Prometheus,
    /// File systems that processes serve.
    Fuse,
    /// QEMU and what a guest of tests/vm is made of.
    Vm,
}

impl Feature {
    fn name(self) -> &'static str {
        match self {
            Feature::Root => "root",
            Feature::NetNs => "netns",
            Feature::ThreadedNapi => "threaded-napi",
            Feature::Cgroup2 => "cgroup2",
            Feature::Bpf => "bpf",
            Feature::Nginx => "nginx",
            Feature::Haproxy => "haproxy",
            Feature::Curl => "curl",
            Feature::Wrk => "wrk",
            Feature::Python => "python3",
            Feature::Ab => "ab",
            Feature::Go => "go",
            Feature::OpenSsl => "openssl",
            Feature::Apache => "apache2",
            Feature::Lighttpd => "lighttpd",
            Feature::Node => "node",
            Feature::Gunicorn => "gunicorn",
            Feature::PhpFpm => "php-fpm",
            Feature::Fcgiwrap => "fcgiwrap",
            Feature::PostgreSql => "postgresql",
            Feature::Systemd => "systemd",
            Feature::SystemdAnalyze => "systemd-analyze",
            Feature::Strace => "strace",
            Feature::Dpkg => "dpkg-deb",
            Feature::Lintian => "lintian",
            Feature::Chromium => "chromium-headless-shell",
            Feature::Promtool => "promtool",
            Feature::Prometheus => "prometheus",
            Feature::Fuse => "fuse",
            Feature::Vm => "vm",
        }
    }

    /// Tries it.
    pub fn is_there(self) -> bool {
        match self {
            Feature::Root => nix::unistd::geteuid().is_root(),
            Feature::NetNs => {
                Feature::Root.is_there() && works("ip", "-V") && works("ethtool", "--version") && can_unshare()
            }
            Feature::ThreadedNapi => Feature::NetNs.is_there() && has_threaded(),
            Feature::Cgroup2 => Feature::Root.is_there() && crate::Cgroup::new("probe").is_ok(),
            Feature::Bpf => bpf_loads(),
            Feature::Nginx => works("nginx", "-v"),
            Feature::Haproxy => works("haproxy", "-v"),
            Feature::Curl => works("curl", "--version"),
            // wrk has no option that ends well.
            Feature::Wrk => Command::new("wrk").arg("-v").output().is_ok(),
            Feature::Python => works("python3", "--version"),
            Feature::Ab => works("ab", "-V"),
            Feature::Go => works("go", "version"),
            Feature::OpenSsl => works("openssl", "version"),
            Feature::Apache => works("apache2", "-v"),
            Feature::Lighttpd => works("lighttpd", "-v"),
            Feature::Node => works("node", "--version"),
            Feature::Gunicorn => works("gunicorn", "--version"),
            Feature::PhpFpm => php_fpm().is_some(),
            Feature::Fcgiwrap => works("fcgiwrap", "-h"),
            Feature::PostgreSql => postgresql().is_some() && works("setpriv", "--version"),
            Feature::Systemd => works("/lib/systemd/systemd", "--version") && works("unshare", "--version"),
            Feature::SystemdAnalyze => works("systemd-analyze", "--version"),
            Feature::Strace => can_trace() && works("setpriv", "--version"),
            Feature::Dpkg => works("dpkg-deb", "--version") && works("dpkg-shlibdeps", "--version"),
            Feature::Lintian => works("lintian", "--version"),
            Feature::Chromium => works("chromium-headless-shell", "--version"),
            Feature::Promtool => works("promtool", "--version"),
            Feature::Prometheus => works("prometheus", "--version"),
            Feature::Fuse => std::fs::OpenOptions::new().read(true).write(true).open("/dev/fuse").is_ok(),
            Feature::Vm => {
                works("qemu-system-x86_64", "--version") && works("busybox", "true") && works("cpio", "--version")
            }
        }
    }

    /// Whether the machine should have it, judged by hints of the system without the probe.
    fn is_expected(self) -> bool {
        match self {
            Feature::NetNs => is_root_with(12) && Path::new("/proc/self/ns/net").exists(),
            Feature::Bpf => is_root_with(39) && Path::new("/sys/kernel/btf/vmlinux").exists(),
            Feature::Cgroup2 => is_root_with(21) && cgroup2_mount().is_ok(),
            _ => false,
        }
    }
}

/// Whether the test can run. Panics where the machine should have the feature and the probe denies it.
pub fn require(feature: Feature) -> bool {
    require_if(feature.name(), feature.is_there(), feature.is_expected())
}

/// The same for a feature that only the caller can probe; `FIEF_REQUIRE` may name it as well.
pub fn require_if(name: &str, is_there: bool, is_expected: bool) -> bool {
    let wanted = std::env::var("FIEF_REQUIRE").unwrap_or_default();
    let is_named = wanted.split(',').any(|one| one == "all" || one == name);
    may_run(name, is_there, is_expected || is_named)
}

fn may_run(name: &str, is_there: bool, is_expected: bool) -> bool {
    assert!(is_there || !is_expected, "this machine should have {name}, and the probe says that it has not");
    if !is_there {
        eprintln!("skipped: this machine has no {name}");
    }
    is_there
}

fn works(program: &str, argument: &str) -> bool {
    Command::new(program).arg(argument).output().is_ok_and(|output| output.status.success())
}

/// A machine may forbid it, to root too.
fn can_trace() -> bool {
    let traced = Command::new("strace").args(["--output", "/dev/null", "true"]).output();
    traced.is_ok_and(|output| output.status.success())
}

/// php-fpm, the newest one's: Debian's has its version in its name.
pub fn php_fpm() -> Option<PathBuf> {
    let found = std::fs::read_dir("/usr/sbin").ok()?.flatten().map(|entry| entry.path());
    let is_one = |path: &PathBuf| path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"php-fpm"));
    found.filter(is_one).max()
}

/// The folder of PostgreSQL's server programs, the newest one's: Debian keeps each version in one that no PATH names.
pub fn postgresql() -> Option<PathBuf> {
    let of = |version: &str| PathBuf::from(format!("/usr/lib/postgresql/{version}/bin"));
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let numbers = versions.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let ours = numbers.filter(|number| has_server(&of(&number.to_string()))).max();
    let path = std::env::var_os("PATH").unwrap_or_default();
    ours.map(|number| of(&number.to_string()))
        .or_else(|| std::env::split_paths(&path).find(|folder| has_server(folder)))
}

fn has_server(folder: &Path) -> bool {
    ["initdb", "postgres"].iter().all(|program| folder.join(program).exists())
}

fn can_unshare() -> bool {
    std::thread::spawn(|| nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).is_ok()).join().unwrap_or(false)
}

fn has_threaded() -> bool {
    // The attribute is there since the kernel can do it, on every interface, so the loopback tells.
    crate::NetNs::new("probe").is_ok_and(|namespace| namespace.read_device("lo/threaded").is_ok())
}

/// Root that has this capability in its effective set.
fn is_root_with(capability: u32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok())
        .unwrap_or_default();
    nix::unistd::geteuid().is_root() && mask & (1 << capability) != 0
}

/// Loads `return 1` as a cgroup/setsockopt program, again where a signal ended the kernel's verifier (EAGAIN).
fn bpf_loads() -> bool {
    let mut loaded = load_nothing();
    for _ in 0..100 {
        if loaded != Err(nix::Error::EAGAIN) {
            break;
        }
        loaded = load_nothing();
    }
    loaded.inspect_err(|error| eprintln!("a BPF program does not load: {error}")).is_ok()
}

fn load_nothing() -> nix::Result<()> {
    const BPF_PROG_LOAD: i64 = 5;
    const CGROUP_SOCKOPT: u32 = 25;
    const CGROUP_SETSOCKOPT: u32 = 22;
    /// The head of the kernel's bpf_attr for this command.
    #[repr(C)]
    #[derive(Default)]
    struct Attribute {
        program_type: u32,
        count: u32,
        instructions: u64,
        license: u64,
        unused: [u32; 11],
        expected_attach_type: u32,
        more: [u32; 16],
    }
    let instructions: [u64; 2] = [0x0000_0001_0000_00b7, 0x95];
    let license = c"Dual BSD/GPL";
    let attribute = Attribute {
        program_type: CGROUP_SOCKOPT,
        count: 2,
        instructions: instructions.as_ptr() as u64,
        license: license.as_ptr() as u64,
        expected_attach_type: CGROUP_SETSOCKOPT,
        ..Attribute::default()
    };
    // SAFETY: the record is as long as said, what it points to lives until the call returns, and the descriptor that
    // comes back is nobody else's.
    unsafe {
        let descriptor = libc::syscall(libc::SYS_bpf, BPF_PROG_LOAD, &raw const attribute, size_of::<Attribute>());
        if descriptor < 0 {
            return Err(nix::Error::last());
        }
        libc::close(i32::try_from(descriptor).unwrap_or(-1));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::signal::{SigHandler, Signal};
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    #[test]
    fn a_missing_feature_skips_where_nobody_expects_it() {
        assert!(!may_run("a feature of the future", false, false));
        assert!(may_run("a feature of the past", true, false));
    }

    #[test]
    #[should_panic(expected = "this machine should have it")]
    fn a_missing_feature_fails_where_it_is_expected() {
        may_run("it", false, true);
    }

    /// Signals that come all the time, whose handler does nothing.
    #[test]
    fn bpf_is_found_among_signals() {
        extern "C" fn nothing(_: libc::c_int) {}
        if !require(Feature::Bpf) {
            return;
        }
        // SAFETY: the handler touches nothing.
        unsafe { nix::sys::signal::signal(Signal::SIGUSR2, SigHandler::Handler(nothing)) }.unwrap();
        let (prober, ended) = (nix::sys::pthread::pthread_self(), AtomicBool::new(false));
        std::thread::scope(|threads| {
            threads.spawn(|| {
                while !ended.load(Ordering::Relaxed) {
                    nix::sys::pthread::pthread_kill(prober, Signal::SIGUSR2).unwrap();
                    std::thread::sleep(Duration::from_micros(100));
                }
            });
            let found = (0..200).filter(|_| Feature::Bpf.is_there()).count();
            ended.store(true, Ordering::Relaxed);
            assert_eq!(found, 200);
        });
    }

    #[test]
    fn bpf_is_found_where_root_has_it() {
        require(Feature::Bpf);
        require(Feature::NetNs);
        require(Feature::Cgroup2);
    }
}
