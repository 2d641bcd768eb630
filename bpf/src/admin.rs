// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The control plane's operations on the container table: programs that only root can run.

use std::os::fd::{AsRawFd, OwnedFd};
use std::time::SystemTime;

use crate::abi;
use crate::error::{Context, Error, ErrorKind, Result};
use crate::pin::Pins;
use crate::record::Record;

/// The admin programs of an installation.
#[derive(Debug)]
pub struct Admin {
    init: OwnedFd,
    create: OwnedFd,
    /// `None`: what is in force is of a version without it.
    rename: Option<OwnedFd>,
    release: OwnedFd,
    attributes: OwnedFd,
    /// `None`: likewise.
    set: Option<OwnedFd>,
    flip: OwnedFd,
    usage: OwnedFd,
    unit: OwnedFd,
    task: OwnedFd,
}

/// A thread that asks for something, and waits for the answer; and the user as which it asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Asker {
    pub thread: i32,
    pub uid: u32,
}

/// What a user asks for itself, with the rights and the quota of the thread that asks (`bpf/core/asked.bpf.h`).
#[derive(Debug, Clone, Copy)]
pub enum Ask<'a> {
    /// The container of the user outside of every unit.
    Place,
    /// A child of this name.
    Create(abi::fief_ref, &'a str),
    End(abi::fief_ref),
    /// An attribute ([`abi::fief_attribute`]), and its value.
    Set(abi::fief_ref, u32, u64),
    /// To a container: a thread, if it is one of the process of this identity ([`process::identity`](crate::process::identity)).
    Bind(abi::fief_ref, i32, u64),
}

impl Ask<'_> {
    fn arguments(self, asker: Asker) -> abi::fief_admin {
        let (ask, mut args) = match self {
            Self::Place => (abi::FIEF_ASK_PLACE, abi::fief_admin::default()),
            Self::Create(container, name) => {
                let mut args = abi::fief_admin { container, ..Default::default() };
                write_name(&mut args, name);
                (abi::FIEF_ASK_CREATE, args)
            }
            Self::End(container) => (abi::FIEF_ASK_END, abi::fief_admin { container, ..Default::default() }),
            Self::Set(container, slot, value) => {
                (abi::FIEF_ASK_SET, abi::fief_admin { container, slot, value, ..Default::default() })
            }
            Self::Bind(container, pid, value) => {
                let flags = abi::FIEF_TASK_EXPLICIT;
                (abi::FIEF_ASK_BIND, abi::fief_admin { container, pid, flags, value, ..Default::default() })
            }
        };
        args.asker = abi::fief_asker { thread: asker.thread, uid: asker.uid, ask, pad: 0 };
        args
    }

    fn what(self) -> String {
        match self {
            Self::Place => "cannot make the container of a user".into(),
            Self::Create(_, name) => format!("cannot make the container {name}"),
            Self::End(container) => format!("cannot end container {}", container.id),
            Self::Set(container, ..) => format!("cannot set an attribute of container {}", container.id),
            Self::Bind(_, thread, _) => format!("cannot bind thread {thread}"),
        }
    }
}

/// The program that does what users ask for.
#[derive(Debug)]
pub struct Asked(OwnedFd);

impl Asked {
    /// Errors: [`ErrorKind::Drift`] what is in force is of a version without it.
    pub fn open(pins: &Pins) -> Result<Self> {
        pins.open_program("admin_asked").map(Self).map_err(|error| match error.kind() {
            ErrorKind::NotFound => {
                Error::new(ErrorKind::Drift, "what is in force is of a version that does nothing for users")
                    .remedy("have this version's programs take over: fief apply")
            }
            _ => error,
        })
    }

    /// Does it, or nothing. The container that it is about; of [`Ask::Place`] and [`Ask::Create`], the new one.
    ///
    /// Errors: [`ErrorKind::Permission`] it is not the asker's to do; those of [`Admin`].
    pub fn run(&self, asker: Asker, ask: Ask<'_>) -> Result<abi::fief_ref> {
        let mut args = ask.arguments(asker);
        run(&self.0, &mut args).context(|| ask.what())?;
        Ok(args.container)
    }
}

impl Admin {
    /// Opens the pinned programs. Errors: [`ErrorKind::NotFound`] if nothing is installed.
    pub fn open(pins: &Pins) -> Result<Self> {
        let open = |name: &str| pins.open_program(name);
        Ok(Self {
            init: open("admin_init")?,
            create: open("admin_create")?,
            rename: open("admin_rename").ok(),
            release: open("admin_release")?,
            attributes: open("admin_attributes")?,
            set: open("admin_set").ok(),
            flip: open("admin_flip")?,
            usage: open("admin_usage")?,
            unit: open("admin_unit")?,
            task: open("admin_task")?,
        })
    }

    pub(crate) fn init(&self, containers: u32) -> Result<()> {
        let container = abi::fief_ref { generation: first_generation(SystemTime::now()), ..Default::default() };
        let mut args = abi::fief_admin { container, value: containers.into(), ..Default::default() };
        run(&self.init, &mut args).context(|| "cannot set up the container table".into())
    }

    /// Makes a container below `parent` that the caller holds by one handle until [`Admin::release`].
    ///
    /// Errors: [`ErrorKind::Full`] table or quota full, [`ErrorKind::NotFound`] the parent has ended.
    pub fn create(&self, parent: abi::fief_ref, name: &str, flags: u32) -> Result<abi::fief_ref> {
        let mut args = abi::fief_admin { container: parent, flags, ..Default::default() };
        write_name(&mut args, name);
        run(&self.create, &mut args).context(|| format!("cannot make the container {name}")).map_err(|error| {
            match error.kind() {
                ErrorKind::Full => error.remedy(
                    "the table has no room: end containers that are not used, or take Fief \
                     down and apply with a larger table (--containers)",
                ),
                _ => error,
            }
        })?;
        Ok(args.container)
    }

    /// Gives a policy's container another name and place. Its threads, holders and children stay with it.
    ///
    /// Errors: [`ErrorKind::Unsupported`] what is below it would stand too deep.
    pub fn rename(&self, container: abi::fief_ref, parent: abi::fief_ref, name: &str) -> Result<()> {
        let mut args = abi::fief_admin { container, parent, ..Default::default() };
        write_name(&mut args, name);
        let what = || Error::new(ErrorKind::Drift, "what is in force is of a version that renames no containers");
        run(self.rename.as_ref().ok_or_else(what)?, &mut args)
            .context(|| format!("cannot rename a container to {name}"))
    }

    /// Whoever made a container ([`abi::FIEF_CONTAINER_POLICY`] or [`abi::FIEF_CONTAINER_UNIT`]) lets go of it. While
    /// somebody else holds it, it lives on, below `heir`.
    pub fn release(&self, container: abi::fief_ref, maker: u32, heir: Option<abi::fief_ref>) -> Result<()> {
        let nobody = abi::fief_ref { id: abi::FIEF_NO_ID, generation: 0 };
        let parent = heir.unwrap_or(nobody);
        let mut args = abi::fief_admin { container, parent, flags: maker, ..Default::default() };
        run(&self.release, &mut args).context(|| format!("cannot let go of container {}", container.id))
    }

    /// Ends what a user made by a folder, if its parent has ended; whether it did. The kernel side looks, since what was read of the table
    /// may be of two moments.
    pub fn release_left(&self, container: abi::fief_ref) -> Result<bool> {
        let parent = abi::fief_ref { id: abi::FIEF_NO_ID, generation: 0 };
        let flags = abi::FIEF_CONTAINER_FOLDER;
        let mut args = abi::fief_admin { container, parent, flags, value: 1, ..Default::default() };
        match run(&self.release, &mut args) {
            // its parent lives; its user was faster
            Err(error) if matches!(error.raw_os_error(), Some(libc::EBUSY | libc::ESTALE)) => Ok(false),
            released => released.map(|()| true).context(|| format!("cannot let go of container {}", container.id)),
        }
    }

    /// Sets the attributes of a policy's container in the policy slot that is being built.
    pub fn stage_attributes(
        &self,
        container: abi::fief_ref,
        slot: u32,
        attributes: abi::fief_attributes,
    ) -> Result<()> {
        let mut args = abi::fief_admin { container, slot, attributes, ..Default::default() };
        run(&self.attributes, &mut args).context(|| format!("cannot set the attributes of container {}", container.id))
    }

    /// Sets an attribute ([`abi::fief_attribute`]) of a container that no policy names, at once.
    ///
    /// Errors: [`ErrorKind::Permission`] it is a policy's, or one that is always there; out of its range; the shares do not fit.
    pub fn set_attribute(&self, container: abi::fief_ref, attribute: u32, value: u64) -> Result<()> {
        let mut args = abi::fief_admin { container, slot: attribute, value, ..Default::default() };
        let what = || Error::new(ErrorKind::Drift, "what is in force is of a version that sets no attributes by hand");
        run(self.set.as_ref().ok_or_else(what)?, &mut args)
            .context(|| format!("cannot set an attribute of container {}", container.id))
    }

    /// Puts the policy that was built in `slot` into force.
    pub fn flip(&self, slot: u32) -> Result<()> {
        let mut args = abi::fief_admin { slot, value: crate::build().into(), ..Default::default() };
        run(&self.flip, &mut args).context(|| "cannot put the policy into force".into())
    }

    /// Usage up to now, with the open stint of running threads.
    pub fn usage(&self, container: abi::fief_ref) -> Result<abi::fief_usage> {
        let mut args = abi::fief_admin { container, ..Default::default() };
        run(&self.usage, &mut args).context(|| format!("cannot read the usage of container {}", container.id))?;
        Ok(args.usage)
    }

    /// Makes `home` the home of the threads in a cgroup, by its id, and holds it until there is another.
    pub fn place_unit(&self, cgroup: u64, home: abi::fief_ref, flags: u32) -> Result<()> {
        let mut args = abi::fief_admin { container: home, value: cgroup, flags, ..Default::default() };
        run(&self.unit, &mut args).context(|| format!("cannot register the cgroup {cgroup}"))
    }

    /// Gives the thread `tid` its home, another one if it has one already. `flags` are `FIEF_TASK_*`. What a thread with a record
    /// is told it does at its next boundary. With `FIEF_TASK_MANAGED` it has to be in a cgroup that has this home.
    pub fn place_task(&self, tid: i32, container: abi::fief_ref, flags: u32) -> Result<()> {
        self.place(abi::fief_admin { container, pid: tid, flags, ..Default::default() })
    }

    /// Binds the thread `tid` if it is one of this process, which is told by its identity ([`process::identity`]).
    ///
    /// [`process::identity`]: crate::process::identity
    pub fn bind_task(&self, tid: i32, process: u64, container: abi::fief_ref) -> Result<()> {
        let flags = abi::FIEF_TASK_EXPLICIT;
        self.place(abi::fief_admin { container, pid: tid, flags, value: process, ..Default::default() })
    }

    fn place(&self, mut args: abi::fief_admin) -> Result<()> {
        run(&self.task, &mut args).context(|| format!("cannot place thread {}", args.pid))
    }
}

fn write_name(args: &mut abi::fief_admin, name: &str) {
    for (to, from) in args.name.iter_mut().zip(name.bytes().take(abi::FIEF_NAME_LEN as usize - 1)) {
        *to = from as _;
    }
}

/// Runs a program with `args` as its context; what it writes there comes back.
pub(crate) fn run(program: &OwnedFd, args: &mut abi::fief_admin) -> std::io::Result<()> {
    let bytes = args.bytes_mut();
    let mut opts = libbpf_sys::bpf_test_run_opts {
        sz: size_of::<libbpf_sys::bpf_test_run_opts>() as _,
        ctx_in: bytes.as_mut_ptr().cast(), // the kernel writes the context back to where it came from
        ctx_size_in: bytes.len() as u32,
        ..Default::default()
    };
    // SAFETY: the descriptor is open; the context's pointer and size are those of `args`, which is ours
    // alone and outlives the call.
    let err = unsafe { libbpf_sys::bpf_prog_test_run_opts(program.as_raw_fd(), &mut opts) };
    if err < 0 {
        return Err(std::io::Error::from_raw_os_error(-err));
    }
    match opts.retval as i32 {
        0 => Ok(()),
        refused => Err(std::io::Error::from_raw_os_error(-refused)),
    }
}

/// Behind which number the generations of an installation begin: the lower, the later it is made, by one in a sixteenth of a second. In
/// the same slot a container of a later installation has a lower one, and within an installation a later one has a higher one. They are
/// compared by their difference, since the numbers go round, in eight years.
///
/// Limits: that does not hold where a slot is used again more than 16 times a second on average, where the clock was set back in between,
/// nor over more than half of those years.
fn first_generation(now: SystemTime) -> u32 {
    let since = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    ((since.as_nanos() * 16 / 1_000_000_000) as u32).wrapping_neg()
}

/// Whether an error says that the kernel's table or a quota is full.
pub fn is_full(error: &Error) -> bool {
    error.kind() == ErrorKind::Full
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_later_installation_has_lower_generations() {
        let at = |seconds| first_generation(SystemTime::UNIX_EPOCH + Duration::from_millis(seconds * 1000 + 500));
        for (before, after) in [(0, 1), (1_795_629_600, 1_795_629_601), (1_795_629_600, 1_827_165_600)] {
            let fell = at(before).wrapping_sub(at(after));
            assert_eq!(u64::from(fell), (after - before) * 16, "{before} {after}");
        }
    }
}
