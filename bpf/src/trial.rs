// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One run of a program at an interface upon a frame that never was on a wire (BPF_PROG_TEST_RUN), and its duration.
//!
//! Each run has a frame of its own: the kernel's own repetition would pass the program the frame that it has changed before,
//! and its tables would be in the cache.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use crate::error::{Context, Result};
use crate::ingress::INGRESS_PROGRAM;
use crate::pin::Pins;

/// Word of `mark` in `struct __sk_buff`.
const MARK: usize = 2;
/// Word of `priority` in `struct __sk_buff`.
const PRIORITY: usize = 8;
/// Word of `ifindex` in `struct __sk_buff`; the kernel takes the words after it as zero.
const IFINDEX: usize = 10;

/// Bytes of a frame that says nothing: a link header and more.
const LEAST_FRAME: usize = 64;
/// Where its link header names a protocol. A copy of it can be made into a packet of that, or of another family's.
const PROTOCOL: std::ops::Range<usize> = 12..14;
const IPV4: [u8; 2] = [0x08, 0x00];

/// The installed program at the interfaces, to try frames on.
#[derive(Debug)]
pub struct Trial {
    program: OwnedFd,
    interface: u32,
}

/// What one run came to.
#[derive(Clone, Copy, Debug)]
pub struct Tried {
    /// The program's verdict, as in `linux/pkt_cls.h`.
    pub verdict: i32,
    pub took: Duration,
    /// Bytes of the frame as the program left it.
    pub length: usize,
}

impl Trial {
    /// Frames will seem to arrive at this interface of the caller's network namespace.
    pub fn open(pins: &Pins, interface: u32) -> Result<Self> {
        let program = pins.open_program(INGRESS_PROGRAM)?;
        Ok(Self { program, interface })
    }

    /// Runs it once. `left` takes the frame as the program leaves it; it must be large enough for an answer.
    pub fn run(&self, frame: &[u8], left: &mut [u8]) -> Result<Tried> {
        let mut context = [0u32; IFINDEX + 1];
        context[IFINDEX] = self.interface;
        let mut opts = libbpf_sys::bpf_test_run_opts {
            sz: size_of::<libbpf_sys::bpf_test_run_opts>() as _,
            data_in: frame.as_ptr().cast(),
            data_size_in: frame.len() as u32,
            data_out: left.as_mut_ptr().cast(),
            data_size_out: left.len() as u32,
            ctx_in: context.as_ptr().cast(),
            ctx_size_in: size_of_val(&context) as u32,
            repeat: 1,
            ..Default::default()
        };
        // SAFETY: the kernel reads frame and context and writes at most as many bytes as said; all outlive the call.
        let err = unsafe { libbpf_sys::bpf_prog_test_run_opts(self.program.as_fd().as_raw_fd(), &raw mut opts) };
        if err < 0 {
            return Err(std::io::Error::from_raw_os_error(-err))
                .context(|| format!("cannot try a frame of {} bytes on {INGRESS_PROGRAM}", frame.len()));
        }
        Ok(Tried {
            verdict: opts.retval.cast_signed(),
            took: Duration::from_nanos(opts.duration.into()),
            length: opts.data_size_out as usize,
        })
    }
}

/// Runs a program once at an interface of the caller's network namespace, and tells it a number and a mark. Its verdict.
pub(crate) fn tell(program: BorrowedFd<'_>, interface: u32, number: u32, mark: u32) -> std::io::Result<u32> {
    let mut context = [0u32; IFINDEX + 1];
    (context[MARK], context[PRIORITY], context[IFINDEX]) = (mark, number, interface);
    let mut frame = [0u8; LEAST_FRAME];
    frame[PROTOCOL].copy_from_slice(&IPV4);
    let mut opts = libbpf_sys::bpf_test_run_opts {
        sz: size_of::<libbpf_sys::bpf_test_run_opts>() as _,
        data_in: frame.as_ptr().cast(),
        data_size_in: frame.len() as u32,
        ctx_in: context.as_ptr().cast(),
        ctx_size_in: size_of_val(&context) as u32,
        repeat: 1,
        ..Default::default()
    };
    // SAFETY: the kernel reads frame and context as long as said; both outlive the call.
    let err = unsafe { libbpf_sys::bpf_prog_test_run_opts(program.as_raw_fd(), &raw mut opts) };
    if err < 0 { Err(std::io::Error::from_raw_os_error(-err)) } else { Ok(opts.retval) }
}
