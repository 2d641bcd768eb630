// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The features of this kernel, found by trying: every mechanism is loaded or done once, nothing is read from a list.

use std::path::Path;

use fief_bpf::charging;
use fief_bpf::files;
use fief_bpf::ingress::{self, Part, Stand};
use fief_bpf::lane;
use fief_bpf::open::{self, Config};
use fief_bpf::pin::Pins;
use fief_bpf::schedule;
use fief_bpf::{Error, ErrorKind, Result, abi};

use crate::front::LOOPBACK;
use crate::namespace::Namespace;
use crate::{Fief, cgroup};

/// One mechanism.
#[derive(Debug, Clone)]
pub struct Feature {
    /// What it is.
    pub name: &'static str,
    /// Which of the eight verbs rests on it.
    pub verb: &'static str,
    /// Whether trying it worked.
    pub available: bool,
    /// Whether Fief can do nothing without it.
    pub required: bool,
    /// What was tried, or why it failed.
    pub detail: String,
    /// What to do if it is missing.
    pub remedy: Option<String>,
}

/// What this machine can do.
#[derive(Debug, Clone)]
pub struct Probe {
    /// Release of the kernel.
    pub kernel: String,
    /// Everything that was tried.
    pub features: Vec<Feature>,
    /// Memory of one container in the table.
    pub bytes_per_container: usize,
    /// Size of the table.
    pub containers: u32,
    /// Memory of the whole table.
    pub table_bytes: u64,
}

fn feature(
    name: &'static str,
    verb: &'static str,
    required: bool,
    tried: std::result::Result<String, String>,
    remedy: &str,
) -> Feature {
    let available = tried.is_ok();
    Feature {
        name,
        verb,
        available,
        required,
        detail: tried.unwrap_or_else(|e| e),
        remedy: (!available).then(|| remedy.to_owned()),
    }
}

fn there(path: &str, otherwise: &str) -> std::result::Result<String, String> {
    if Path::new(path).exists() { Ok(path.to_owned()) } else { Err(otherwise.to_owned()) }
}

/// What is there before anything is loaded.
fn basics() -> Vec<Feature> {
    vec![
        feature(
            "root",
            "all",
            true,
            if nix::unistd::geteuid().is_root() { Ok("effective user 0".into()) } else { Err("not root".into()) },
            "run as root; applications themselves need no privilege",
        ),
        feature(
            "kernel BTF",
            "all",
            true,
            there("/sys/kernel/btf/vmlinux", "/sys/kernel/btf/vmlinux is missing"),
            "use a kernel built with CONFIG_DEBUG_INFO_BTF (Debian's are)",
        ),
        feature(
            "cgroup2",
            "bind",
            true,
            cgroup::mount_point().map(|p| p.display().to_string()).map_err(|e| e.to_string()),
            "mount it: mount -t cgroup2 cgroup2 /sys/fs/cgroup",
        ),
        feature(
            "softirqs that nothing but interrupts preempts",
            "charge",
            true,
            softirqs(nix::sys::utsname::uname().map(|u| u.version().to_owned()).unwrap_or_default()),
            "use a kernel without CONFIG_PREEMPT_RT: Debian's linux-image-amd64, not linux-image-rt-amd64",
        ),
    ]
}

/// A function that the programs of the front door call. The kernel says in its types what it has; without it nothing loads, and the
/// verifier does not say why.
fn has_function(types: &[u8], name: &str) -> std::result::Result<String, String> {
    match types.split(|byte| *byte == 0).any(|word| word == name.as_bytes()) {
        true => Ok("the kernel has it".to_owned()),
        false => Err(format!("the kernel has no {name}")),
    }
}

/// Where softirqs are threads' work that threads preempt, their time would be charged to whoever preempts them. The kernel says
/// so in its version alone: there is nothing to try.
fn softirqs(version: std::ffi::OsString) -> std::result::Result<String, String> {
    let version = version.to_string_lossy();
    if version.split_whitespace().any(|word| word == "PREEMPT_RT") {
        return Err("this is a real-time kernel (PREEMPT_RT), where threads preempt softirqs".to_owned());
    }
    Ok(format!("not PREEMPT_RT: {version}"))
}

/// Errors: [`ErrorKind::Unsupported`] for the first of the basics that is missing, with its remedy.
pub(crate) fn require_basics() -> Result<()> {
    match basics().into_iter().find(|feature| !feature.available) {
        Some(missing) => {
            Err(Error::new(ErrorKind::Unsupported, missing.detail).remedy(missing.remedy.unwrap_or_default()))
        }
        None => Ok(()),
    }
}

impl Fief {
    /// Tries everything. Leaves nothing behind.
    pub fn probe(&self) -> Probe {
        let config = Config::default();
        let release = nix::sys::utsname::uname().map(|u| u.release().to_string_lossy().into_owned());
        let mut features = basics();
        features.push(feature(
            "bpf_sk_assign_tcp_reqsk (a connection is made of its cookie)",
            "admit",
            true,
            std::fs::read("/sys/kernel/btf/vmlinux")
                .map_err(|e| e.to_string())
                .and_then(|types| has_function(&types, "bpf_sk_assign_tcp_reqsk")),
            "use a kernel of 6.9 or later with CONFIG_SYN_COOKIES",
        ));
        if nix::unistd::geteuid().is_root() {
            // nobody else can try, and what failed for want of rights tells nothing of the kernel
            features.extend(self.try_objects(&config));
        }
        let per_container = size_of::<abi::fief_container>();
        Probe {
            kernel: release.unwrap_or_default(),
            features,
            bytes_per_container: per_container,
            containers: config.containers,
            table_bytes: per_container as u64 * u64::from(config.containers),
        }
    }

    /// Loads the objects in a scope of their own, attaches them to a cgroup of their own, and takes them away.
    fn try_objects(&self, config: &Config) -> Vec<Feature> {
        let scope = format!("{}-probe-{}", self.pins().scope(), std::process::id());
        let trial = Fief { pins: Pins::new(&scope) };
        let loaded = open::install(trial.pins(), config).and_then(|()| charging::attach(trial.pins()));
        let loaded = loaded.map(|()| "loaded, attached and pinned".to_owned());
        let missing = loaded.as_ref().err().map(ToString::to_string);
        let mut features = vec![feature(
            "core object (descriptors, bind, charge) and front object (steer)",
            "charge",
            true,
            loaded.map_err(|e| e.to_string()),
            "use a kernel of 6.12 or later with CONFIG_BPF_SYSCALL, CONFIG_CGROUP_BPF, CONFIG_BPF_EVENTS",
        )];
        if missing.is_none() {
            let unit = trial.try_unit();
            features.push(feature(
                "cgroup hooks (socket options, release, address, socket events, packets)",
                "bind",
                true,
                unit.map(|()| "attached to a cgroup".into()).map_err(|e| e.to_string()),
                "use a kernel with CONFIG_CGROUP_BPF",
            ));
            features.extend(trial.try_front());
            features.push(trial.try_lanes());
            features.push(trial.try_files());
            features.push(trial.try_scheduler());
            features.push(trial.try_groups());
        }
        // what the trial left is named after this process, so the next probe or apply sweeps it if this fails
        let _ = trial.pins().remove();
        if let (Ok(own), Ok(top)) = (cgroup::own(&scope), cgroup::mount_point()) {
            let _ = cgroup::remove(&own, &top);
        }
        features
    }

    /// What police and admit need: the program at an interface (the loopback, where no listener of the trial is guarded),
    /// with the kernel functions that it calls, and notices.
    fn try_front(&self) -> [Feature; 2] {
        let attached = || -> Result<String> {
            let netns = Namespace::of_caller()?;
            let at = |part| Stand { netns: netns.inode, interface: LOOPBACK, part };
            ingress::attach(self.pins(), &[Part::Guards, Part::Confirms].map(at))?;
            ingress::detach_others(self.pins(), &[])?;
            Ok("attached to the loopback and detached".to_owned())
        };
        let log = self.follow(|| false, |_| Ok::<_, Error>(())).map(|()| "opened and read".to_owned());
        [
            feature(
                "tcx (programs at an interface, first in their chain)",
                "police",
                false,
                attached().map_err(|e| e.to_string()),
                "use a kernel of 6.6 or later with CONFIG_NET_XGRESS; until then no listener can be guarded",
            ),
            feature(
                "log of notices (a table that readers map)",
                "police",
                false,
                log.map_err(|e| e.to_string()),
                "use a kernel of 5.5 or later; until then `fief explain --follow` tells nothing",
            ),
        ]
    }

    /// What `lrp` needs.
    fn try_lanes(&self) -> Feature {
        let tried = lane::install(self.pins()).map_err(|e| e.to_string()).and_then(|()| {
            let threaded = Path::new("/sys/class/net/lo/threaded").exists();
            threaded.then(|| "loaded".into()).ok_or_else(|| "no interface can be polled by a thread of its own".into())
        });
        feature(
            "lanes (programs that sort what comes in, threaded NAPI)",
            "receive",
            false,
            tried,
            "use a kernel of 6.12 or later with CONFIG_NET_XGRESS and CONFIG_VETH; until then policies cannot say `lrp`",
        )
    }

    /// What `label-files` needs.
    fn try_files(&self) -> Feature {
        feature(
            "page cache and writeback tracepoints (labels of files)",
            "charge",
            false,
            files::install(self.pins()).map(|()| "loaded and attached".into()).map_err(|e| e.to_string()),
            "use a kernel of 6.12 or later with CONFIG_BPF_EVENTS; until then policies cannot say `label-files`",
        )
    }

    /// What shares, weights and limits of the CPU need. It is not attached: that would take the CPUs from the machine's scheduler.
    fn try_scheduler(&self) -> Feature {
        let tried = schedule::try_load(self.pins()).map_err(|e| e.to_string());
        let other = schedule::attached().filter(|name| name != "fief");
        feature(
            "sched_ext (the scheduler of containers)",
            "schedule",
            false,
            tried.and_then(|()| match other {
                Some(name) => Err(format!("the scheduler {name} has the CPUs")),
                None => Ok("loaded".to_owned()),
            }),
            "use a kernel with CONFIG_SCHED_CLASS_EXT and no other scheduler of that kind; until then cpu.share, cpu.limit and \
             cpu.weight hold for whole processes only",
        )
    }

    /// What they need where there is no scheduler.
    fn try_groups(&self) -> Feature {
        feature(
            "cgroups with the controller cpu (shares and limits of whole processes)",
            "schedule",
            false,
            self.try_group().map(|name| format!("set in {name}")).map_err(|e| e.to_string()),
            "without them and without sched_ext cpu.share, cpu.limit and cpu.weight are kept and not enforced",
        )
    }

    fn try_unit(&self) -> Result<()> {
        let own = cgroup::own(self.pins().scope())?;
        cgroup::create(&own)?;
        self.manage_cgroup(&own, abi::fief_ref { id: abi::FIEF_ROOT, generation: 0 }, 0)
    }
}

#[cfg(test)]
mod tests {
    use super::{has_function, softirqs};

    #[test]
    fn a_function_is_known_by_its_whole_name() {
        let types = b"\x9f\xeb\0bpf_sk_assign_tcp_reqsk\0bpf_sk_release_more\0";
        assert!(has_function(types, "bpf_sk_assign_tcp_reqsk").is_ok());
        assert!(has_function(types, "bpf_sk_release").is_err());
    }

    #[test]
    fn a_real_time_kernel_is_known_by_its_version() {
        assert!(softirqs("#1 SMP PREEMPT_DYNAMIC Debian 6.12.43-1 (2025-08-27)".into()).is_ok());
        assert!(softirqs("#1 SMP PREEMPT_RT Debian 6.12.43-1 (2025-08-27)".into()).is_err());
    }
}
