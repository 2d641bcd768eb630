// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Socket options of everybody's: programs of others see their calls, and who is not of a unit does not notice any of Fief.

use std::fs::{self, File};
use std::os::fd::{AsFd, AsRawFd};

use fief::{Container, ErrorKind};
use fief_bpf::abi;
use fief_testkit::{Cgroup, wait_until};
use fief_tests_netns::{Foreign, Installation, SOON, Setup, in_unit, role};

fn set(fd: impl AsFd, level: i32, option: i32, value: &[u8]) -> Result<(), i32> {
    // SAFETY: value and length describe memory that is borrowed for the call.
    let err =
        unsafe { libc::setsockopt(fd.as_fd().as_raw_fd(), level, option, value.as_ptr().cast(), value.len() as u32) };
    if err == 0 { Ok(()) } else { Err(nix::errno::Errno::last_raw()) }
}

fn get(fd: impl AsFd, level: i32, option: i32, room: &mut [u8]) -> Result<usize, i32> {
    let mut length = room.len() as u32;
    // SAFETY: the kernel writes at most `length` bytes into `room`.
    let err =
        unsafe { libc::getsockopt(fd.as_fd().as_raw_fd(), level, option, room.as_mut_ptr().cast(), &raw mut length) };
    if err == 0 { Ok(length as usize) } else { Err(nix::errno::Errno::last_raw()) }
}

/// What every program may do with its sockets, whoever hooks them.
fn ordinary_options() {
    let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let on = 1i32.to_ne_bytes();
    assert_eq!(set(&socket, libc::SOL_SOCKET, libc::SO_KEEPALIVE, &on), Ok(()));
    let mut long = vec![0; 9000];
    long[..4].copy_from_slice(&on);
    assert_eq!(set(&socket, libc::SOL_SOCKET, libc::SO_BROADCAST, &long), Ok(()));
    let mut room = vec![0; 9000];
    assert_eq!(get(&socket, libc::SOL_SOCKET, libc::SO_KEEPALIVE, &mut room), Ok(4));
    assert_eq!(room[..4], on);
    assert_eq!(get(&socket, libc::SOL_SOCKET, libc::SO_BROADCAST, &mut room[..4]), Ok(4));
    assert_eq!(room[..4], on);
    assert_eq!(set(&socket, libc::SOL_SOCKET, 9999, &on), Err(libc::ENOPROTOOPT));
}

#[test]
fn others_programs_above_and_below_see_their_calls() {
    let name = "others_programs_above_and_below_see_their_calls";
    match role() {
        Some(_) => {
            ordinary_options();
            let container = Container::create().unwrap();
            container.set_weight(9).unwrap();
            assert_eq!(container.attributes().unwrap().weight, 9);
            let _bound = container.bind().unwrap();
            assert_eq!(container.set_weight(0).unwrap_err().kind(), ErrorKind::Invalid);
        }
        None => {
            let installation = Installation::with(&Setup::default());
            let outer = Cgroup::new("outer").unwrap();
            let (middle, inner) = (outer.path().join("middle"), outer.path().join("middle/inner"));
            fs::create_dir_all(&inner).unwrap();
            installation.manage(&middle, Some("unit"), false);
            let foreign: Vec<_> = [outer.path(), &middle, &inner]
                .into_iter()
                .flat_map(|path| {
                    let cgroup = File::open(path).unwrap();
                    let kinds = [libbpf_sys::BPF_CGROUP_SETSOCKOPT, libbpf_sys::BPF_CGROUP_GETSOCKOPT];
                    kinds.map(|kind| Foreign::attach(cgroup.as_fd(), kind))
                })
                .collect();
            let process = installation.start(Some(&inner), name, "inner");
            assert!(process.finish(SOON).unwrap().status.success());
            for program in &foreign {
                assert!(program.calls() >= 2, "{foreign:?}: {}", program.calls());
            }
            wait_until(SOON, || fs::remove_dir(&inner).is_ok()).unwrap();
            wait_until(SOON, || fs::remove_dir(&middle).is_ok()).unwrap();
        }
    }
}

#[test]
fn strangers_do_not_notice() {
    let installation = Installation::with(&Setup::default());
    ordinary_options();
    assert_eq!(Container::create().unwrap_err().kind(), ErrorKind::NotManaged);
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    assert_eq!(set(&socket, abi::FIEF_SOL as i32, abi::FIEF_BINDING as i32, &[]), Err(libc::ENOPROTOOPT));
    let snapshot = installation.fief().snapshot().unwrap();
    let unit = snapshot.containers.iter().find(|container| container.path == "unit").unwrap();
    assert_eq!(unit.usage, fief::Usage::default());
}

#[test]
fn the_units_own_programs_do_not_notice_either() {
    in_unit("the_units_own_programs_do_not_notice_either", ordinary_options);
}
