// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Somebody else's BPF program on a cgroup or at an interface: counts what it sees and lets it pass, to whoever stands behind it or
//! past them. One loses what it counts.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType};
use libbpf_sys::{bpf_attach_type, bpf_insn, bpf_prog_type};

/// Attached while it lives.
#[derive(Debug)]
pub struct Foreign {
    calls: MapHandle,
    _link: OwnedFd,
}

const PSEUDO_MAP_VALUE: u8 = 2;

/// Ends the chain: the packet goes on to the network layer (TCX_PASS, TC_ACT_OK).
const OK: i32 = 0;
/// Goes on to the next program (TCX_NEXT, TC_ACT_UNSPEC).
const NEXT: i32 = -1;
/// Goes nowhere (TCX_DROP, TC_ACT_SHOT).
const SHOT: i32 = 2;
/// Where the mark stands in struct __sk_buff.
const MARK_AT: i16 = 8;

fn insn(code: u8, dst: u8, src: u8, off: i16, imm: i32) -> bpf_insn {
    let mut insn = bpf_insn { code, off, imm, ..Default::default() };
    insn.set_dst_reg(dst);
    insn.set_src_reg(src);
    insn
}

/// Attaches one to an interface.
type Attach = fn(u32) -> Foreign;

impl Foreign {
    /// Ways to attach one behind the others that ends the chain at what it lets pass, as programs of container networks do.
    pub const ENDING: [(&str, Attach); 2] = [("tcx", Self::attach_ingress_ok), ("tc", Self::attach_ingress_ok_by_tc)];

    /// Attaches a program of the kind cgroup/setsockopt or cgroup/getsockopt.
    pub fn attach(cgroup: BorrowedFd<'_>, kind: bpf_attach_type) -> Self {
        Self::attach_to(cgroup.as_raw_fd(), libbpf_sys::BPF_PROG_TYPE_CGROUP_SOCKOPT, kind, 1)
    }

    /// Attaches a program behind those that look at what an interface of this network namespace receives.
    pub fn attach_ingress(interface: u32) -> Self {
        Self::attach_behind(interface, NEXT)
    }

    /// The same with the verdict that ends the chain.
    fn attach_ingress_ok(interface: u32) -> Self {
        Self::attach_behind(interface, OK)
    }

    fn attach_behind(interface: u32, verdict: i32) -> Self {
        let interface = i32::try_from(interface).expect("numbers of interfaces are small");
        Self::attach_to(interface, libbpf_sys::BPF_PROG_TYPE_SCHED_CLS, libbpf_sys::BPF_TCX_INGRESS, verdict)
    }

    /// Attaches a program before all those that look at what an interface of this network namespace receives, with the verdict
    /// that ends their chain: the packet goes on to the network layer.
    pub fn attach_ingress_before(interface: u32) -> Self {
        Self::link_before(interface, load(libbpf_sys::BPF_PROG_TYPE_SCHED_CLS, libbpf_sys::BPF_TCX_INGRESS, OK))
    }

    /// Attaches a program there too that loses the packets with this mark, and counts those alone.
    pub fn attach_losing(interface: u32, mark: u32) -> Self {
        let calls = counter();
        let code = [
            // r0 = mark of the packet; unless it is this one, r0 = next, and that is all
            insn(0x61, 0, 1, MARK_AT, 0),
            insn(0x16, 0, 0, 2, mark.cast_signed()),
            insn(0xb7, 0, 0, 0, NEXT),
            insn(0x95, 0, 0, 0, 0),
        ];
        let loses = [insn(0xb7, 0, 0, 0, SHOT), insn(0x95, 0, 0, 0, 0)];
        let code: Vec<_> = code.into_iter().chain(count(&calls)).chain(loses).collect();
        let program = load_code(libbpf_sys::BPF_PROG_TYPE_SCHED_CLS, libbpf_sys::BPF_TCX_INGRESS, &code);
        Self::link_before(interface, (calls, program))
    }

    fn link_before(interface: u32, (calls, program): (MapHandle, OwnedFd)) -> Self {
        let interface = i32::try_from(interface).expect("numbers of interfaces are small");
        let options = libbpf_sys::bpf_link_create_opts {
            sz: size_of::<libbpf_sys::bpf_link_create_opts>() as libbpf_sys::size_t,
            flags: libbpf_sys::BPF_F_BEFORE,
            ..Default::default()
        };
        // SAFETY: the program is open, the interface is a number, and the options live through the call.
        let link = unsafe {
            libbpf_sys::bpf_link_create(program.as_raw_fd(), interface, libbpf_sys::BPF_TCX_INGRESS, &raw const options)
        };
        Self { calls, _link: own(link) }
    }

    /// Attaches a program that redirects what an interface of this network namespace receives to another interface of it: out
    /// of it, or to where its peer in another namespace receives, as container networks do.
    pub fn attach_redirect(interface: u32, to: u32, peer: bool) -> Self {
        const REDIRECT: i32 = 23;
        const REDIRECT_PEER: i32 = 155;
        let [interface, to] = [interface, to].map(|n| i32::try_from(n).expect("numbers of interfaces are small"));
        let kind = libbpf_sys::BPF_TCX_INGRESS;
        let loaded = load_with(
            libbpf_sys::BPF_PROG_TYPE_SCHED_CLS,
            kind,
            &[
                // r0 = redirect(r1 = to, r2 = 0)
                insn(0xb7, 1, 0, 0, to),
                insn(0xb7, 2, 0, 0, 0),
                insn(0x85, 0, 0, 0, if peer { REDIRECT_PEER } else { REDIRECT }),
            ],
        );
        Self::link(interface, kind, loaded)
    }

    /// Attaches a program at an interface's ingress as `tc` does, behind all of tcx.
    pub fn attach_ingress_by_tc(interface: u32) -> Self {
        Self::attach_by_tc(interface, NEXT)
    }

    /// The same with the verdict that ends the chain.
    fn attach_ingress_ok_by_tc(interface: u32) -> Self {
        Self::attach_by_tc(interface, OK)
    }

    fn attach_by_tc(interface: u32, verdict: i32) -> Self {
        let (calls, program) = load(libbpf_sys::BPF_PROG_TYPE_SCHED_CLS, libbpf_sys::BPF_TCX_INGRESS, verdict);
        let interface = i32::try_from(interface).expect("numbers of interfaces are small");
        let mut hook = libbpf_rs::TcHookBuilder::new(program.as_fd())
            .ifindex(interface)
            .handle(1)
            .priority(1)
            .hook(libbpf_rs::TC_INGRESS);
        hook.create().and_then(|mut hook| hook.attach()).expect("a kernel with clsact");
        Self { calls, _link: program }
    }

    /// Attaches a program of the kind cgroup/setsockopt in the old way, in which it bears no other beside it.
    pub fn attach_alone(cgroup: BorrowedFd<'_>) -> Alone {
        let kind = libbpf_sys::BPF_CGROUP_SETSOCKOPT;
        let (_, program) = load(libbpf_sys::BPF_PROG_TYPE_CGROUP_SOCKOPT, kind, 1);
        let cgroup = cgroup.try_clone_to_owned().expect("a descriptor");
        // SAFETY: both descriptors are open.
        let attached = unsafe { libbpf_sys::bpf_prog_attach(program.as_raw_fd(), cgroup.as_raw_fd(), kind, 0) };
        assert_eq!(attached, 0, "{}", std::io::Error::last_os_error());
        Alone { cgroup, program }
    }

    fn attach_to(target: i32, program: bpf_prog_type, kind: bpf_attach_type, verdict: i32) -> Self {
        Self::link(target, kind, load(program, kind, verdict))
    }

    fn link(target: i32, kind: bpf_attach_type, (calls, program): (MapHandle, OwnedFd)) -> Self {
        // SAFETY: the program is open, the target is what the kind wants, and no options are passed.
        let link = unsafe { libbpf_sys::bpf_link_create(program.as_raw_fd(), target, kind, std::ptr::null()) };
        Self { calls, _link: own(link) }
    }

    /// How many calls it saw.
    pub fn calls(&self) -> u64 {
        let value = self.calls.lookup(&0u32.to_ne_bytes(), MapFlags::ANY).expect("a map").expect("an array");
        u64::from_ne_bytes(value.try_into().expect("eight bytes"))
    }
}

/// A program that is alone on its cgroup while this lives.
#[derive(Debug)]
pub struct Alone {
    cgroup: OwnedFd,
    program: OwnedFd,
}

impl Drop for Alone {
    fn drop(&mut self) {
        let kind = libbpf_sys::BPF_CGROUP_SETSOCKOPT;
        // SAFETY: both descriptors are open.
        unsafe { libbpf_sys::bpf_prog_detach2(self.program.as_raw_fd(), self.cgroup.as_raw_fd(), kind) };
    }
}

/// A program that counts its calls, and the counter.
fn load(program: bpf_prog_type, kind: bpf_attach_type, verdict: i32) -> (MapHandle, OwnedFd) {
    // r0 = the verdict
    load_with(program, kind, &[insn(0xb7, 0, 0, 0, verdict)])
}

/// The same, whose verdict these instructions leave in r0.
fn load_with(program: bpf_prog_type, kind: bpf_attach_type, verdict: &[bpf_insn]) -> (MapHandle, OwnedFd) {
    let calls = counter();
    let verdict = verdict.iter().copied();
    let code: Vec<_> = count(&calls).into_iter().chain(verdict).chain([insn(0x95, 0, 0, 0, 0)]).collect();
    let program = load_code(program, kind, &code);
    (calls, program)
}

fn counter() -> MapHandle {
    let options =
        libbpf_sys::bpf_map_create_opts { sz: size_of::<libbpf_sys::bpf_map_create_opts>() as _, ..Default::default() };
    MapHandle::create(MapType::Array, Some("ff_calls"), 4, 8, 1, &options).expect("a map")
}

fn count(calls: &MapHandle) -> [bpf_insn; 4] {
    [
        // r1 = the counter; r2 = 1; lock *r1 += r2
        insn(0x18, 1, PSEUDO_MAP_VALUE, 0, calls.as_fd().as_raw_fd()),
        insn(0, 0, 0, 0, 0),
        insn(0xb7, 2, 0, 0, 1),
        insn(0xdb, 1, 2, 0, 0),
    ]
}

fn load_code(program: bpf_prog_type, kind: bpf_attach_type, code: &[bpf_insn]) -> OwnedFd {
    let mut options = libbpf_sys::bpf_prog_load_opts {
        sz: size_of::<libbpf_sys::bpf_prog_load_opts>() as _,
        expected_attach_type: kind,
        ..Default::default()
    };
    // SAFETY: the code and its length are those of the array, the strings end with NUL.
    let program = unsafe {
        libbpf_sys::bpf_prog_load(
            program,
            c"ff_foreign".as_ptr(),
            c"GPL".as_ptr(),
            code.as_ptr(),
            code.len() as _,
            &raw mut options,
        )
    };
    own(program)
}

fn own(fd: i32) -> OwnedFd {
    assert!(fd >= 0, "{}", std::io::Error::from_raw_os_error(-fd));
    // SAFETY: the kernel returned a new descriptor that nobody else owns.
    unsafe { OwnedFd::from_raw_fd(fd) }
}
